"""Find a Python that the pins hold for, and make a virtual environment with it.

Most set-ups that fail do so here, in ways that have nothing to do with auxconn: a Python too
new or too old, one without its venv module, a version manager's shim with nothing behind it,
a folder that was copied with its `.venv`, a full disk. Each is told in a sentence, before
minutes of downloads.
"""

from __future__ import annotations

import contextlib
import fcntl
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from pip_progress import Progress

PYTHONS = ((3, 11), (3, 12), (3, 13))
"""Versions for which the pins hold. 3.11 is what CI runs."""

NEEDED_BYTES = 6_000_000_000
"""What a fresh set-up takes: 5 GB of packages, and room for pip to unpack them in."""


class SetupError(Exception):
    """The environment cannot be made; the message says why and what to do."""


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
    venv.parent.mkdir(parents=True, exist_ok=True)
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
