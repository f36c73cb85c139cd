"""The thread that makes rows of what was noted, many times a second.

One thread for all probes of an attachment. It wakes by the clock and not because something
was noted: to wake a thread costs the engine's thread more than to note a step, and the more
steps it finds the less each of them costs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

SECONDS = 0.05
"""How long what was noted waits at most, when the thread gets its turn."""


class Ticker:
    """Calls some functions every `SECONDS`, from a daemon thread.

    Parameters
    ----------
    calls
        Called in order; they must not raise.
    """

    def __init__(self, calls: Sequence[Callable[[], object]]) -> None:
        self._calls = tuple(calls)
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="auxconn-scribe", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """End the thread; waits for the calls it is at."""
        self._stopping.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(SECONDS):
            for call in self._calls:
                call()
