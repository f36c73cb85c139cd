"""The Prometheus of the tests: find it, or bring Debian's without installing it.

Debian's package starts a server on all addresses once it is installed. So it is only
downloaded and unpacked, which needs no root and leaves the machine as it was.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from pip_progress import Progress
from venvs import SetupError

NAMES = ("prometheus", "promtool")
"""The server, and what checks its files."""

UNPACKED = Path("share") / "prometheus"
"""Where it is unpacked in a venv."""

ADVICE = (
    "The tests of the exporter need Prometheus and its promtool. Install them (on Debian and "
    "Ubuntu: apt-get install prometheus; elsewhere from prometheus.io), or name the folder "
    "that has both in AUXCONN_PROMETHEUS."
)


def find(venv: Path) -> tuple[str, str] | None:
    """Paths of prometheus and promtool: named, installed, or unpacked in `venv`."""
    named = os.environ.get("AUXCONN_PROMETHEUS")
    unpacked = venv / UNPACKED / "usr" / "bin"
    for folder in [named] if named else [None, str(unpacked)]:
        server, tool = (shutil.which(name, path=folder) for name in NAMES)
        if server and tool:
            return server, tool
    return None


def install(venv: Path) -> None:
    """Bring Debian's Prometheus into `venv` where there is none.

    Raises `SetupError` that says what to install.
    """
    if find(venv):
        return
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        raise SetupError(ADVICE)
    progress = Progress("Prometheus for the tests of the exporter (apt-get download)")
    folder = venv / UNPACKED
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if os.geteuid() == 0:
        _run(["apt-get", "update", "-qq"], folder)
    _run(["apt-get", "download", "-qq", "prometheus"], folder)
    for package in folder.glob("prometheus_*.deb"):
        _run(["dpkg-deb", "--extract", package.name, "."], folder)
        package.unlink()
    progress.end()
    if not find(venv):
        raise SetupError(ADVICE + "\nWhat apt-get downloaded has no such programs.")


def _run(command: list[str], folder: Path) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    if done.returncode:
        lines = (done.stdout + done.stderr).splitlines()[-8:]
        raise SetupError(f"{ADVICE}\n{command[0]} said:\n    " + "\n    ".join(lines))
