"""One moment of one engine, as the views get it.

The ring store changes under the reader's hands; a view that looked at it twice in one tick
could show a ratio of two different moments. So each tick takes a `Snapshot` first: copies,
never changed again, of what the window shows. Pausing the view is then nothing but keeping
the last one, while the reading goes on.

Pure numpy: no Panel, no Bokeh, so that all of it is tested without a browser.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from .derive import BLOCK_EVENTS, PLANS
from .rollup import ROWS, Buckets, Rollup, Values
from .subjects import Subject

if TYPE_CHECKING:
    from auxconn.frames import Delta, FrameStore
    from auxconn.wire import Fact

    from .shared import SharedRows

WINDOWS = (30, 60, 300, 900, 3600)
"""Seconds of history that the page can show."""

LONG_WINDOWS = (3600, 6 * 3600, 24 * 3600, 7 * 24 * 3600, 30 * 24 * 3600)
"""Seconds of history where Prometheus keeps it."""

FINE = 600
"""Buckets of a window: two points each (lowest, highest) stay well below what a browser
draws with ease, and no screen of plots side by side has more columns for one of them."""

COARSE = 5
"""Fine buckets in a bar: 120 bars are as many as can be told apart."""

KEEP_SECONDS = 60.0
"""A window nobody has looked at for so long is forgotten; it is built anew on demand."""

RECENT_SECONDS = 5.0
"""Rates are means over the last so many seconds: steady enough to be read."""

UNWATCHED_SECONDS = 10.0
"""Without a look for so long, nobody was watching."""

SKEW_SECONDS = 3.0
"""Rows that are older than this when they arrive are of a clock that differs from ours."""

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


class Reader:
    """Reads one rank's rows out of a store, each once, for all browsers.

    Not thread-safe: the hub locks.

    Parameters
    ----------
    clock
        Wall clock of what is read.
    """

    def __init__(
        self,
        store: FrameStore | SharedRows,
        engine: str | None,
        rank: int | None = None,
        name: str = "",
        *,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._clock = clock or time.time
        self._store = store
        self._engine, self._rank = engine, rank
        self._name = name or engine or ""
        self._rollups: dict[tuple[str, float, int | None], Rollup] = {}
        self._used: dict[tuple[float, int | None], float] = {}
        self._latest: dict[str, dict[str, Any]] = {}
        self._seen: dict[str, int] = {}
        self._totals: collections.Counter[str] = collections.Counter()
        self._events: collections.deque[Event] = collections.deque(maxlen=EVENTS)
        self._lost: collections.Counter[str] = collections.Counter()
        self._looked = -math.inf
        """When somebody looked last, monotonic seconds."""
        self._watched = False
        """Whether somebody has looked all the time since then."""
        self.newest = float("nan")
        """Clock of the newest row."""
        self.lag = 0.0
        """Seconds by which the engine's clock is behind ours, when it clearly is."""
        self.steps = 0
        """Rows of `steps` and `rows` read: it stands still when the engine does."""

    def behind(self, snapshot: Snapshot) -> int:
        """Steps that were read since a snapshot."""
        return int(self._totals["steps"] - snapshot.totals.get("steps", 0))

    def advance(self) -> None:
        """Take in what has come since the last call."""
        now = time.monotonic()
        self._watched = now - self._looked < UNWATCHED_SECONDS
        self._looked = now
        for table in PLANS:
            self._follow(table)
        self._follow_events()

    def snapshot(
        self,
        window: Window,
        link: Link,
        facts: Mapping[str, Fact],
        commands: frozenset[str],
        epoch: int = 0,
    ) -> Snapshot:
        """What `window` shows now; reads nothing new, so call `advance` before."""
        end = self.end(link)
        width, first, last = window.grid(end)
        until = None if window.pinned is None else last
        self._used[width, until] = time.monotonic()
        self._forget()
        tables = {
            table: self._rollup(table, width, last - first + 1, until).buckets(
                first, last
            )
            for table in PLANS
        }
        start, stop = window.pinned or (end - window.seconds, end)
        return Snapshot(
            engine=self._engine or "",
            link=link,
            facts=facts,
            commands=commands,
            window=window,
            start=start,
            end=stop,
            tables=tables,
            latest={table: dict(row) for table, row in self._latest.items()},
            totals=dict(self._totals),
            events=tuple(self._events),
            versions=dict(self._seen),
            lost=dict(self._lost),
            epoch=epoch,
            rank=self._rank,
            name=self._name,
        )

    def end(self, link: Link) -> float:
        """Right end of a window that follows.

        While an engine runs, time goes on though nothing may happen. When it is paused or
        lost, time stands still with it, so that what it last did stays on the screen.
        """
        now = self._clock()
        if not np.isfinite(self.newest):
            return now
        if link.state in ("live", "idle", "replay"):
            return max(self.newest, now - self.lag)
        return self.newest

    def _follow(self, table: str) -> None:
        """Fold a table's new rows, note the newest of them, and count block events."""
        seen = self._seen.get(table, 0)
        if self._store.version(table) == seen:
            return
        names = ("t", *PLANS[table].read, *PLANS[table].also)
        delta = self._since(table, seen, names)
        self._seen[table] = delta.version
        columns = _derived(table, delta)
        for (name, _, _), rollup in self._rollups.items():
            if name == table:
                _fold(rollup, delta, columns)
        # What was overwritten while nobody had the page open is no loss to anybody.
        self._lost[table] += delta.lost if seen and self._watched else 0
        if delta.cleared:
            self._clear(table)
        t = delta.columns["t"]
        if not len(t):
            return
        if table in ("steps", "rows"):
            self.steps += len(t)
        if table == "steps":
            self._totals["steps"] += len(t)
        if table == "blocks":
            self._totals.update({kind: columns[kind].sum() for kind in BLOCK_EVENTS})
        elif table in ("steps", "store"):
            self._latest[table] = {name: delta.columns[name][-1] for name in names}
        newest = float(np.nanmax(t))
        if not newest <= self.newest:
            self.newest = newest
        behind = self._clock() - newest
        self.lag = behind if abs(behind) > SKEW_SECONDS else 0.0

    def _follow_events(self) -> None:
        seen = self._seen.get("events", 0)
        if self._store.version("events") == seen:
            return
        delta = self._since("events", seen, ("t", "step", "kind", "text"))
        self._seen["events"] = delta.version
        if delta.cleared:
            self._events.clear()
        found = delta.columns
        rows = zip(found["t"], found["step"], found["kind"], found["text"], strict=True)
        for t, step, kind, text in rows:
            self._events.append(Event(float(t), int(step), str(kind), str(text)))

    def _rollup(
        self, table: str, width: float, count: int, until: int | None
    ) -> Rollup:
        key = (table, width, until)
        rollup = self._rollups.get(key)
        if rollup is None:
            plan = PLANS[table]
            # A few bars more than are shown, for rows that come late.
            rollup = Rollup(
                width, count + 2 * COARSE, plan.sums, plan.levels, until=until
            )
            self._rollups[key] = rollup
            # As far as all else has been read: what comes then is folded into all.
            delta = self._since(
                table, 0, ("t", *plan.read), until=self._seen.get(table, 0)
            )
            _fold(rollup, delta, _derived(table, delta))
        return rollup

    def _since(
        self,
        table: str,
        version: int,
        names: tuple[str, ...],
        until: int | None = None,
    ) -> Delta:
        """The rows of this engine and rank after `version`."""
        return self._store.since(
            table,
            version,
            columns=names,
            engine=self._engine,
            rank=self._rank,
            until=until,
        )

    def _clear(self, table: str) -> None:
        """What was read of a table was cleared: it is of the past."""
        self._latest.pop(table, None)
        if table == "blocks":
            self._totals = collections.Counter({"steps": self._totals["steps"]})

    def _forget(self) -> None:
        """Drop the rollups of windows that nobody looks at any more."""
        limit = time.monotonic() - KEEP_SECONDS
        for key in [key for key, used in self._used.items() if used < limit]:
            del self._used[key]
            for table in PLANS:
                self._rollups.pop((table, *key), None)


def _derived(table: str, delta: Delta) -> dict[str, Values]:
    """The columns of new rows, with those that are computed from them."""
    columns = dict(delta.columns)
    if delta.rows:
        columns.update(PLANS[table].derive(columns))
    return columns


def _fold(rollup: Rollup, delta: Delta, columns: dict[str, Values]) -> None:
    if delta.cleared:
        rollup.clear()
    if delta.rows:
        rollup.fold(columns["t"], columns)
