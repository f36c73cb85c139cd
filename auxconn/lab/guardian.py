"""The end of a child process, however it comes: by signal, by command, by its parent's death.

A lab that outlives the viewer that started it eats a core for nobody. The child's input is
a pipe from its parent: it ends when the parent does, even when that was killed. Somebody
else may hold the pipe's other end, a process forked from the parent for instance, so the
parent's id is looked at as well.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

LOOK_SECONDS = 0.5
"""How often the parent's id is looked at."""

FAREWELL_SECONDS = 1.0
"""How long saying good-bye may take while the process starts."""

GRACE_SECONDS = 5.0
"""How long an orderly end may take before the process ends without one."""


class Guardian:
    """Knows when this process should end.

    Parameters
    ----------
    farewell
        Called with the reason, for a second at most, before the process ends at once.
    grace
        Seconds that an orderly end may take before the process ends without one.

    Attributes
    ----------
    stopping
        Set when it should; `reason` says why.
    reason
        In words; empty before.
    """

    def __init__(
        self, farewell: Callable[[str], None], grace: float = GRACE_SECONDS
    ) -> None:
        self.stopping = threading.Event()
        self.reason = ""
        self.interruptible = True
        """True while nothing needs an orderly end: the process may end at once."""
        self._farewell = farewell
        self._grace = grace
        self._parent = os.getppid()

    def watch(self) -> None:
        """Take SIGTERM and SIGINT, and watch the parent from a thread.

        Call it in the main thread, with the job already read from the input.
        """
        signal.signal(signal.SIGTERM, self._signalled)
        signal.signal(signal.SIGINT, self._signalled)
        threading.Thread(
            target=self._watch_parent, name="auxconn-lab-guardian", daemon=True
        ).start()

    def stop(self, reason: str) -> None:
        """Ask for the end; the first reason stays."""
        if self.stopping.is_set():
            return
        self.reason = reason
        self.stopping.set()
        if self.interruptible:
            # In a thread: the signal may have come while the main one held a lock.
            last = threading.Thread(target=self._farewell, args=(reason,), daemon=True)
            last.start()
            last.join(FAREWELL_SECONDS)
            os._exit(0)
        # An engine step that hangs must not keep an orphan alive.
        timer = threading.Timer(self._grace, os._exit, (1,))
        timer.daemon = True
        timer.start()

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        self.stop(f"signal {signal.Signals(number).name}")

    def _watch_parent(self) -> None:
        pipe = sys.stdin.fileno()
        watched = [pipe]
        while not self.stopping.is_set():
            ready, _, _ = select.select(watched, [], [], LOOK_SECONDS)
            closed = bool(ready) and not os.read(pipe, 4096)
            if closed or os.getppid() != self._parent:
                self.stop("the parent process has ended")
