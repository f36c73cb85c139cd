"""Ending all processes of an engine, whatever state they are in.

vLLM's server ends its engine and workers when it gets SIGTERM. One that hangs, or that was
killed, leaves them behind; they hold the machine's memory and nobody talks to them. All of
them are in the supervisor's session, and those whose parent has died become its children.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import time

from auxconn.sessions import kill, members

VLLM_SECONDS = 3
"""How long vLLM's server gives its engine to end, before it kills it."""

ORDERLY_SECONDS = 6.0
"""How long all of vLLM has for an orderly end."""

KILL_SECONDS = 2.5
"""How long killed processes are waited for."""

END_SECONDS = 10.0
"""How long the whole end may take, good-byes included."""

_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Make this process the parent of those below it whose own parent dies."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_all(server: subprocess.Popen[str]) -> int:
    """End vLLM's server and everything of this session; returns how many had to be killed.

    For a process that leads its session; others would end what is not theirs.
    """
    if server.poll() is None:
        server.terminate()
    _wait_until_gone(server, ORDERLY_SECONDS)
    killed = kill(os.getsid(0), KILL_SECONDS)
    _reap(server)
    return killed


def _wait_until_gone(server: subprocess.Popen[str], seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        # An orphan that has ended waits for this process to take note.
        _reap(server)
        if server.poll() is not None and not members(os.getsid(0)):
            return
        time.sleep(0.05)


def _reap(server: subprocess.Popen[str]) -> None:
    """Take note of children that have ended; the server's own end is told by its object."""
    server.poll()
    if server.returncode is None:
        return
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
