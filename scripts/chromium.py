"""The Chromium of the browser tests and of the pictures: find it, or bring Debian's."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from pip_progress import Progress
from venvs import SetupError

NAMES = ("chromium", "chromium-browser", "google-chrome")
"""Names it goes by; AUXCONN_CHROMIUM names another one."""

ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
"""It runs as root in containers, and asks nothing of the network but our page."""


def find() -> str | None:
    """The Chromium the browser tests use, if there is one."""
    named = os.environ.get("AUXCONN_CHROMIUM")
    if named:
        return named if Path(named).exists() else None
    return next(filter(None, map(shutil.which, NAMES)), None)


def install() -> None:
    """Bring Debian's Chromium where there is none and we may.

    Raises `SetupError` that says what to install.
    """
    if find():
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
