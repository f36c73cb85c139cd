"""The processes of a session, and their end.

A session that is ended by force must not leave shared memory behind: Python keeps that in
the hands of a `resource_tracker`, a process that ends, and gives the memory back, when all
who used it have ended. So it is the last to go, and by itself if it does.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

TRACKER = b"multiprocessing.resource_tracker"
"""What is in the command line of such a process."""

TRACKER_SECONDS = 1.0
"""How long trackers have to give back what they track."""


def members(session: int) -> list[int]:
    """Processes of a session that run, without this one."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            # The name is in brackets, and may have brackets and blanks in it.
            stat = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if len(stat) > 3 and int(stat[3]) == session and stat[0] not in "ZX":
            found.append(int(entry.name))
    return found


def kill(session: int, seconds: float) -> int:
    """End all other processes of a session by force; returns how many there were to end.

    Parameters
    ----------
    seconds
        How long this may take.
    """
    killed: set[int] = set()
    alone = 0.0
    end = time.monotonic() + seconds
    while (left := members(session)) and time.monotonic() < end:
        wanted = [pid for pid in left if not _is_tracker(pid)]
        if wanted:
            alone = 0.0
        elif not alone:
            alone = time.monotonic()
        elif time.monotonic() - alone > TRACKER_SECONDS:
            wanted = left
        for pid in wanted:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        killed.update(wanted)
        time.sleep(0.02)
    return len(killed)


def _is_tracker(pid: int) -> bool:
    try:
        return TRACKER in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
