"""What happens when a probe itself is wrong: the engine must never know.

Every piece of probe code runs under a `try` whose handler comes here. The first failure of
each kind becomes an `error` event with the traceback's last line, later ones are counted,
and a probe that keeps failing is switched off for good, because a table that is wrong in
one row out of two is worse than one that has stopped, and says so.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable

from auxconn.records import Events
from auxconn.sink import Sink

FAILURES = 20
"""Failures of one kind after which the probe is switched off."""


class Guard:
    """Counts the failures of one probe and ends it when there are too many.

    Parameters
    ----------
    probe
        Its name in the events.
    sink
        Where the events go.
    step
        Says which step it is.
    switch_off
        Called once, in the thread of the last failure.
    """

    def __init__(
        self,
        probe: str,
        sink: Sink,
        step: Callable[[], int],
        switch_off: Callable[[], object],
    ) -> None:
        self.probe = probe
        self.failures: Counter[str] = Counter()
        """How often each part failed."""
        self.off = False
        self._sink = sink
        self._step = step
        self._switch_off = switch_off
        self._lock = threading.Lock()

    def failed(self, part: str) -> None:
        """Handle the exception being handled, raised in `part` of the probe. Never raises."""
        with self._lock:
            self.failures[part] += 1
            count = self.failures[part]
            ends = count >= FAILURES and not self.off
            self.off |= ends
        if count == 1:
            self._tell(f"{self.probe} failed in {part}: {_last_line()}")
        if ends:
            self._tell(
                f"{self.probe} failed {count} times in {part} and was switched off; its "
                "tables stop here, the engine is untouched"
            )
            # What cannot even be switched off is left as it is: it goes on being caught.
            with contextlib.suppress(Exception):
                self._switch_off()

    def _tell(self, text: str) -> None:
        # The sink may be what failed.
        with contextlib.suppress(Exception):
            self._sink.emit("events", Events(time.time(), self._step(), "error", text))


def _last_line() -> str:
    """The exception being handled and where it was raised, in one line."""
    kind, error, trace = sys.exc_info()
    if error is None or kind is None:
        return "no exception"
    frames = traceback.extract_tb(trace)
    # The innermost frame; its file's last part alone, as paths differ between machines.
    place = ""
    if frames:
        file = frames[-1].filename.replace("\\", "/").rsplit("/", 1)[-1]
        place = f" ({file}, line {frames[-1].lineno})"
    return f"{kind.__name__}: {error}{place}"[:400]
