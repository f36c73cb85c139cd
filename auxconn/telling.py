"""Telling of losses, errors and turns of life in the table of events.

Counters are exact at once; events of a kind are told at most once a second for each source,
with the exact sum, or an overloaded engine would push everything else out of the table.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from auxconn.frames import FrameStore
from auxconn.records import EventKind, Events
from auxconn.source import Live, Untold

TELL_SECONDS = 1.0
"""Gaps and errors of a source are told at most so often."""

OWN_ENGINE = "collector"
"""Engine of the events that belong to no source."""


class Teller:
    """Writes the events of all sources. Not thread-safe: its owner locks.

    Parameters
    ----------
    store
        Takes the events.
    clock, wall
        Monotonic seconds, and seconds of the wall clock for the events.
    """

    def __init__(
        self, store: FrameStore, clock: Callable[[], float], wall: Callable[[], float]
    ) -> None:
        self._store = store
        self._clock = clock
        self._wall = wall
        self._stranger = Untold()

    def event(self, live: Live, kind: EventKind, text: str) -> None:
        """Write an event of a source."""
        self._write(kind, text, live.hello.engine, live.hello.rank, live.step)

    def tell(self, live: Live, at_once: bool = False) -> None:
        """Tell what is untold of a source, if it is time."""
        untold, now = live.untold, self._clock()
        due = at_once or now - untold.gap_told >= TELL_SECONDS
        if due and untold.has_gap:
            self.event(live, "gap", untold.gap_text())
            untold.forget_gap(now)
        if self._error_due(untold, at_once):
            self.event(live, "error", untold.error_text())
            untold.errors = 0

    def stranger(self, problem: str) -> None:
        """Note a problem with somebody who is no source."""
        self._stranger.errors += 1
        self._stranger.error = problem
        self.tell_of_strangers()

    def tell_of_strangers(self, at_once: bool = False) -> None:
        """Tell what is untold of those who are no source, if it is time."""
        if self._error_due(self._stranger, at_once):
            self._write("error", self._stranger.error_text(), OWN_ENGINE, 0, 0)
            self._stranger.errors = 0

    def _error_due(self, untold: Untold, at_once: bool) -> bool:
        now = self._clock()
        due = at_once or now - untold.error_told >= TELL_SECONDS
        if not (due and untold.errors):
            return False
        untold.error_told = now
        return True

    def _write(
        self, kind: EventKind, text: str, engine: str, rank: int, step: int
    ) -> None:
        event = Events(self._wall(), step, kind, text)
        # A store that can name no further engine may still know ours; if not, the counters
        # have it all the same.
        for name in (engine, OWN_ENGINE):
            with contextlib.suppress(ValueError):
                self._store.append("events", [event], name, rank)
                return
