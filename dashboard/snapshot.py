"""One moment of one engine, as the views get it.

The ring store changes under the reader's hands; a view that looked at it twice in one tick
could show a ratio of two different moments. So each tick takes a `Snapshot` first: copies,
never changed again, of what the window shows. Pausing the view is then nothing but keeping
the last one, while the reading goes on.

Pure numpy: no Panel, no Bokeh, so that all of it is tested without a browser.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from .rollup import ROWS, Buckets
from .subjects import Subject

if TYPE_CHECKING:
    from auxconn.wire import Fact

WINDOWS = (30, 60, 300, 900, 3600)
"""Seconds of history that the page can show."""

LONG_WINDOWS = (3600, 6 * 3600, 24 * 3600, 7 * 24 * 3600, 30 * 24 * 3600)
"""Seconds of history where Prometheus keeps it."""

FINE = 600
"""Buckets of a window: two points each (lowest, highest) stay well below what a browser
draws with ease, and no screen of plots side by side has more columns for one of them."""

COARSE = 5
"""Fine buckets in a bar: 120 bars are as many as can be told apart."""

RECENT_SECONDS = 5.0
"""Rates are means over the last so many seconds: steady enough to be read."""

EVENTS = 500
"""Events kept for the log and the marks."""

State = Literal[
    "none", "starting", "live", "idle", "paused", "stale", "gone", "stopped", "still",
    "replay",
]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Link:
    """How it stands with the engine behind the numbers."""

    state: State = "none"
    """`none`: nobody has connected; `stopped`: its process has ended; `still`: frames
    without an engine; `replay`: a recording; the rest are the collector's words, `live` told
    apart."""
    text: str = ""
    """More, in words: an exit code, a refusal."""
    age: float = 0.0
    """Seconds since it was last heard."""
    stage: str = ""
    fraction: float = 0.0
    """Of its start, while `starting`."""
    stage_text: str = ""
    read_only: bool = False
    """True when this page does not steer, whatever the engine obeys."""

    @property
    def fresh(self) -> bool:
        """True when the numbers are of now."""
        return self.state in ("live", "idle", "paused", "still", "replay")


@dataclasses.dataclass(frozen=True)
class Event:
    """One row of `events`."""

    t: float
    step: int
    kind: str
    text: str
    source: str = ""
    """Whose it is, where several are looked at."""


@dataclasses.dataclass(frozen=True)
class Window:
    """What stretch of time is looked at."""

    seconds: float = 60.0
    pinned: tuple[float, float] | None = None
    """Two wall clocks that a user has zoomed to; None follows the engine."""

    def grid(self, end: float) -> tuple[float, int, int]:
        """Width of a bucket, and the first and last bucket, whole bars of them."""
        if self.pinned is None:
            width = self.seconds / FINE
            bar = int(np.floor(end / width)) // COARSE
            return width, (bar - FINE // COARSE + 1) * COARSE, bar * COARSE + COARSE - 1
        start, stop = self.pinned
        # As much again on either side, so that panning shows data before the next tick.
        span = max(stop - start, 1e-3)
        width = span / FINE
        first = int(np.floor((start - span) / width)) // COARSE
        last = int(np.floor((stop + span) / width)) // COARSE
        return width, first * COARSE, last * COARSE + COARSE - 1


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """What the views draw. All arrays are copies and read-only by custom."""

    engine: str
    link: Link
    facts: Mapping[str, Fact]
    commands: frozenset[str]
    window: Window
    start: float
    end: float
    """The stretch of time shown, wall clock in seconds; the axis follows these."""
    tables: Mapping[str, Buckets]
    latest: Mapping[str, Mapping[str, Any]]
    """Newest row of `steps` and `store`; empty until there is one."""
    totals: Mapping[str, float]
    """Block events by kind, and steps, since the reading began."""
    events: tuple[Event, ...]
    """Newest last."""
    versions: Mapping[str, int]
    lost: Mapping[str, int]
    """Rows overwritten before they were read, by table."""
    epoch: int = 0
    """Another number after the rows were cleared."""
    rank: int | None = None
    name: str = ""
    """What the hub calls it: the engine, and its rank when it has several."""
    parts: tuple[Snapshot, ...] = ()
    """Of several engines looked at together, one each; empty for one engine."""
    summed: tuple[Subject, ...] = ()
    """Those of them whose sum this is."""
    _visible: dict[str, Buckets] = dataclasses.field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def subject(self) -> Subject:
        """Whose rows it is made of; it leaves open what several engines share."""
        return Subject(self.engine or None, self.rank)

    def visible(self, table: str) -> Buckets:
        """Buckets of the stretch shown: a zoomed window has some more on either side."""
        if self.window.pinned is None:
            return self.tables[table]
        found = self._visible.get(table)
        if found is None:
            found = self.tables[table].between(self.start, self.end, COARSE)
            self._visible[table] = found
        return found

    def total(self, table: str, name: str) -> float | None:
        """Sum of a counter over the stretch shown; None when no row fell into it."""
        return self.visible(table).total(name)

    def rate(self, table: str, name: str) -> float | None:
        """A counter per second of late: over the last seconds, or all of a zoomed stretch.

        0 is said only of a time in which the engine took steps.
        """
        seconds = self.recent
        found = self.tables[table].rate(name, self.end, seconds)
        if found is None and table in ("blocks", "lookups", "rows"):
            alive = self.tables["steps"].rate(ROWS, self.end, seconds)
            return None if alive is None else 0.0
        return found

    @property
    def recent(self) -> float:
        """Seconds that rates are taken over."""
        if self.window.pinned is not None:
            return self.end - self.start
        return max(RECENT_SECONDS, 4 * self.tables["steps"].width)

    def fact(self, name: str) -> Any:
        """A fact, or None."""
        return self.facts.get(name)

    def level(self, table: str, name: str) -> float | None:
        """Newest reading of a column; None when there is no row."""
        value = self.latest.get(table, {}).get(name)
        return None if value is None else float(value)

    def moved(self, names: tuple[str, ...]) -> tuple[Any, ...]:
        """A key that differs when anything in these tables, or the stretch, has moved."""
        return (
            self.name,
            self.summed,
            self.epoch,
            self.window,
            tuple(self.versions.get(name, 0) for name in names),
            # Bars move with time even when no row comes.
            self.tables[names[0]].start[0] if names and names[0] in self.tables else 0,
        )
