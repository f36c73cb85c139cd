"""Run pip so that a person can follow it, and say why it failed in plain words.

A set-up of several minutes that prints nothing looks dead, and one that prints pip's
hundreds of lines hides the one that matters. So pip's whole output goes to a log file, a
short line tells how far it is, and when it fails the log is searched for the few causes
that explain nearly all failures.
"""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from pathlib import Path

COLLECTING = re.compile(r"^(?:Collecting|Requirement already satisfied:) ([\w.\-]+)")
INSTALLING = "Installing collected packages:"
NOISE = re.compile(
    r"^WARNING: (Location '.*' is ignored|Running pip as the 'root' user|Retrying)"
    r"|^\[notice\]|^\s*$"
)

CAUSES = (
    (
        re.compile(r"No space left on device|Errno 28"),
        "The disk is full. The environment takes about 5 GB; free some, then run the same "
        "command again: it goes on where it stopped.",
    ),
    (
        re.compile(
            r"Temporary failure in name resolution|Name or service not known"
            r"|NewConnectionError|Network is unreachable|Max retries exceeded"
            r"|ConnectTimeout|ReadTimeout|Connection refused|Connection reset"
        ),
        "The package index cannot be reached. Check the network, or pip's settings "
        "(`pip config list`, PIP_INDEX_URL, proxies), then run the same command again: it "
        "goes on where it stopped.",
    ),
    (
        re.compile(r"CERTIFICATE_VERIFY_FAILED|SSLError"),
        "The package index shows a certificate that Python does not trust. Point PIP_CERT "
        "to your organisation's certificates.",
    ),
    (
        re.compile(r"Permission denied|Errno 13"),
        "A file could not be written. Is the folder yours, and was it once set up as "
        "another user?",
    ),
    (
        re.compile(r"No matching distribution found for (?P<what>\S+)"),
        "No package index that pip knows has {what} for this Python and machine.",
    ),
)
"""What pip's output shows, and what to tell; the first that is found counts."""


NOT_OFFERED = re.compile(r"No matching distribution found|ResolutionImpossible")
"""What pip says when it is offered no such package; the second where it has constraints."""


class PipError(Exception):
    """pip failed; the message says why and what to do."""

    def __init__(self, message: str, output: str) -> None:
        super().__init__(message)
        self.output = output

    @property
    def not_offered(self) -> bool:
        """True when pip was offered no such package, and nothing else was wrong."""
        return bool(NOT_OFFERED.search(self.output))


def explain(output: str) -> str:
    """The cause of a failure, read off pip's output; its last lines when none is known."""
    for pattern, text in CAUSES:
        found = pattern.search(output)
        if found:
            return text.format(**found.groupdict())
    lines = [line for line in output.splitlines() if not NOISE.match(line)]
    return "pip failed. Its last lines:\n" + "\n".join(
        f"    {line}" for line in lines[-12:]
    )


class Progress:
    """One line that is rewritten on a terminal, and now and then a line elsewhere."""

    def __init__(self, title: str, quiet_seconds: float = 15.0) -> None:
        self.title = title
        self._tty = sys.stdout.isatty()
        self._quiet = quiet_seconds
        self._begun = self._said = time.monotonic()
        self._text = ""
        print(f"  {title} ...", flush=True)

    def show(self, text: str) -> None:
        """Say how far it is, if that is new."""
        if text == self._text:
            return
        self._text = text
        now = time.monotonic()
        if self._tty:
            print(f"\r    {text:<70.70}", end="", flush=True)
        elif now - self._said >= self._quiet:
            self._said = now
            print(f"    {text}", flush=True)

    def end(self) -> None:
        """Say how long it took."""
        if self._tty:
            print("\r" + " " * 76 + "\r", end="")
        took = time.monotonic() - self._begun
        print(f"    done in {took:.0f} s", flush=True)


def run_pip(
    python: Path, arguments: list[str], log: Path, title: str, total: int
) -> None:
    """Run `pip install` with `arguments` and show how far it is.

    Parameters
    ----------
    python
        Interpreter whose pip is run.
    log
        File the whole output is appended to.
    total
        Packages that are expected, for "57 of 237".

    Raises
    ------
    PipError
        When pip fails.
    """
    command = [
        str(python), "-m", "pip", "install", "--progress-bar", "off", "--no-input",
        "--disable-pip-version-check", "--root-user-action", "ignore", *arguments,
    ]  # fmt: skip
    progress = Progress(title)
    output: list[str] = []
    installing = threading.Event()
    # Old Pythons have to read this file too, if only to be told that they are old.
    with log.open("a", encoding="utf-8") as file, _start(command) as process:
        file.write(f"$ {' '.join(command)}\n")
        watch = threading.Thread(
            target=_watch_folder,
            args=(process, installing, progress, _site_packages(python), total),
            daemon=True,
        )
        watch.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                output.append(line)
                file.write(line)
                _show(line, output, progress, total)
                if line.startswith(INSTALLING):
                    installing.set()
            code = process.wait()
        except BaseException:
            # Ctrl-C reaches pip too; leaving waits for it, so that it does not write on.
            process.terminate()
            raise
        finally:
            installing.set()
    watch.join()
    if code:
        text = "".join(output)
        raise PipError(explain(text), text)
    progress.end()


def _start(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
        errors="replace",
    )


def _show(line: str, output: list[str], progress: Progress, total: int) -> None:
    match = COLLECTING.match(line)
    if match:
        found = sum(1 for earlier in output if COLLECTING.match(earlier))
        progress.show(f"found {min(found, total)} of {total}: {match.group(1)}")


def _watch_folder(
    process: subprocess.Popen[str],
    installing: threading.Event,
    progress: Progress,
    site: Path,
    total: int,
) -> None:
    """Count what is unpacked: pip says nothing while it installs."""
    installing.wait()
    while total > 1 and process.poll() is None:
        there = sum(1 for _ in site.glob("*.dist-info"))
        progress.show(f"unpacked {there} of about {total + 2}")
        time.sleep(1.0)


def _site_packages(python: Path) -> Path:
    library = python.parent.parent / "lib"
    return next(iter(library.glob("python3.*/site-packages")), library)
