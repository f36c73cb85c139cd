"""Reading a store for the page: each row once, for all browsers, of one engine or of many.

A reader folds what has come into the buckets of the windows that somebody looks at, and
notes the newest of what the figures need. What many engines send is read in one go and
taken apart by numpy: a reader for each would take the store's lock, which the collector
wants all the time, and give the interpreter away some thousand times for one drawing.
"""

from __future__ import annotations

import collections
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from .derive import BLOCK_EVENTS, PLANS
from .rollup import Rollup, Values
from .snapshot import COARSE, EVENTS, Event, Link, Snapshot, Window
from .subjects import Subject

if TYPE_CHECKING:
    from auxconn.frames import Delta, FrameStore
    from auxconn.wire import Fact

KEEP_SECONDS = 60.0
"""A window nobody has looked at for so long is forgotten; it is built anew on demand."""

UNWATCHED_SECONDS = 10.0
"""Without a look for so long, nobody was watching."""

SKEW_SECONDS = 3.0
"""Rows that are older than this when they arrive are of a clock that differs from ours."""

MOST_KNOWN = 256
"""Engines whose rows are read together; the rows of further ones are left out."""


class About(NamedTuple):
    """What is to be said of an engine beside its rows."""

    link: Link
    facts: Mapping[str, Fact]
    commands: frozenset[str]


class Standing:
    """How far one engine has come, as its rows say."""

    def __init__(self, subject: Subject, name: str) -> None:
        self.subject, self.name = subject, name
        self.newest = float("nan")
        """Clock of the newest row."""
        self.lag = 0.0
        """Seconds by which the engine's clock is behind ours, when it clearly is."""
        self.steps = 0
        """Rows of `steps` and `rows` read: it stands still when the engine does."""
        self.latest: dict[str, dict[str, Any]] = {}
        self.totals: collections.Counter[str] = collections.Counter()
        self.events: collections.deque[Event] = collections.deque(maxlen=EVENTS)

    def end(self, link: Link, now: float) -> float:
        """Right end of a window that follows.

        While an engine runs, time goes on though nothing may happen. When it is paused or
        lost, time stands still with it, so that what it last did stays on the screen.
        """
        if not np.isfinite(self.newest):
            return now
        if link.state in ("live", "idle", "replay"):
            return max(self.newest, now - self.lag)
        return self.newest

    def came(self, newest: float, now: float) -> None:
        """Note the clock of the newest of some rows."""
        if newest != newest:
            return
        if not newest <= self.newest:
            self.newest = newest
        behind = now - newest
        self.lag = behind if abs(behind) > SKEW_SECONDS else 0.0

    def behind(self, snapshot: Snapshot) -> int:
        """Steps that were read since a snapshot."""
        return int(self.totals["steps"] - snapshot.totals.get("steps", 0))


class Reader:
    """Reads one rank's rows out of a store.

    Not thread-safe: its owner locks.

    Parameters
    ----------
    clock
        Wall clock of what is read.
    """

    def __init__(
        self,
        store: FrameStore,
        engine: str | None,
        rank: int | None = None,
        name: str = "",
        *,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._clock = clock or time.time
        self._store = store
        self._whose = Subject(engine, rank)
        self._ones = [Standing(self._whose, name or engine or "")]
        self._rollups: dict[tuple[str, float, int | None], Rollup] = {}
        self._used: dict[tuple[float, int | None], float] = {}
        self._seen: dict[str, int] = {}
        self._lost: collections.Counter[str] = collections.Counter()
        self._looked = -math.inf
        """When somebody looked last, monotonic seconds."""
        self._watched = False
        """Whether somebody has looked all the time since then."""

    @property
    def standing(self) -> Standing:
        """How far the engine has come."""
        return self._ones[0]

    def advance(self) -> None:
        """Take in what has come since the last call."""
        now = time.monotonic()
        self._watched = now - self._looked < UNWATCHED_SECONDS
        self._looked = now
        for table in PLANS:
            self._follow(table)
        self._follow_events()

    def snapshot(self, window: Window, about: About, epoch: int = 0) -> Snapshot:
        """What `window` shows now; reads nothing new, so call `advance` before."""
        return self._snapshots(window, [about], epoch)[0]

    def _snapshots(
        self, window: Window, abouts: Sequence[About | None], epoch: int
    ) -> list[Snapshot]:
        """One for each engine that something is said of."""
        now = self._clock()
        told = [
            (at, one, about, one.end(about.link, now))
            for at, (one, about) in enumerate(zip(self._ones, abouts, strict=True))
            if about is not None
        ]
        width, first, last = window.grid(max((end for *_, end in told), default=now))
        until = None if window.pinned is None else last
        self._used[width, until] = time.monotonic()
        self._forget()
        tables = {
            table: self._rollup(table, width, last - first + 1, until).each(first, last)
            for table in PLANS
        }
        found = []
        for at, one, about, end in told:
            start, stop = window.pinned or (end - window.seconds, end)
            found.append(
                Snapshot(
                    engine=one.subject.engine or "",
                    link=about.link,
                    facts=about.facts,
                    commands=about.commands,
                    window=window,
                    start=start,
                    end=stop,
                    tables={table: each[at] for table, each in tables.items()},
                    latest={table: dict(row) for table, row in one.latest.items()},
                    totals=dict(one.totals),
                    events=tuple(one.events),
                    versions=dict(self._seen),
                    lost=dict(self._lost),
                    epoch=epoch,
                    rank=one.subject.rank,
                    name=one.name,
                )
            )
        return found

    def _follow(self, table: str) -> None:
        """Fold a table's new rows, and note what the figures need of them."""
        seen = self._seen.get(table, 0)
        if self._store.version(table) == seen:
            return
        names = ("t", *PLANS[table].read, *PLANS[table].also)
        delta, who = self._read(table, seen, names)
        self._seen[table] = delta.version
        columns = _derived(table, delta)
        for (name, _, _), rollup in self._rollups.items():
            if name == table:
                self._fold(rollup, delta, columns, who)
        # What was overwritten while nobody had the page open is no loss to anybody.
        self._lost[table] += delta.lost if seen and self._watched else 0
        if delta.cleared:
            for one in self._ones:
                one.latest.pop(table, None)
                if table == "blocks":
                    one.totals = collections.Counter({"steps": one.totals["steps"]})
        if delta.rows:
            self._note(table, names, columns, who)

    def _note(
        self,
        table: str,
        names: tuple[str, ...],
        columns: Mapping[str, Values],
        who: Values | None,
    ) -> None:
        """Note how many rows each engine has sent, and the newest of them."""
        rows = len(columns["t"])
        order: Any = slice(None)
        starts = np.zeros(1, np.int64)
        present = [0]
        if who is not None:
            order = np.argsort(who, kind="stable")
            mine = who[order]
            starts = np.flatnonzero(np.concatenate(([True], np.diff(mine) > 0)))
            present = mine[starts].tolist()
        ends = np.append(starts[1:], rows) - 1
        ones = [self._ones[at] for at in present]
        now = self._clock()
        newest = np.fmax.reduceat(columns["t"][order], starts).tolist()
        for one, t, count in zip(
            ones, newest, (ends - starts + 1).tolist(), strict=True
        ):
            one.came(t, now)
            if table in ("steps", "rows"):
                one.steps += count
            if table == "steps":
                one.totals["steps"] += count
        if table == "blocks":
            for kind in BLOCK_EVENTS:
                counts = np.add.reduceat(columns[kind][order], starts).tolist()
                for one, count in zip(ones, counts, strict=True):
                    one.totals[kind] += count
        elif table in ("steps", "store"):
            newest_rows = ends if who is None else order[ends]
            last = [columns[name][newest_rows].tolist() for name in names]
            for one, row in zip(ones, zip(*last, strict=True), strict=True):
                one.latest[table] = dict(zip(names, row, strict=True))

    def _follow_events(self) -> None:
        seen = self._seen.get("events", 0)
        if self._store.version("events") == seen:
            return
        delta, who = self._read("events", seen, ("t", "step", "kind", "text"))
        self._seen["events"] = delta.version
        if delta.cleared:
            for one in self._ones:
                one.events.clear()
        found = delta.columns
        whose = [0] * delta.rows if who is None else who.tolist()
        rows = zip(
            whose, found["t"], found["step"], found["kind"], found["text"], strict=True
        )
        for at, t, step, kind, text in rows:
            self._ones[at].events.append(
                Event(float(t), int(step), str(kind), str(text))
            )

    def _rollup(
        self, table: str, width: float, count: int, until: int | None
    ) -> Rollup:
        key = (table, width, until)
        rollup = self._rollups.get(key)
        if rollup is None:
            plan = PLANS[table]
            # A few bars more than are shown, for rows that come late.
            rollup = Rollup(
                width,
                count + 2 * COARSE,
                plan.sums,
                plan.levels,
                until=until,
                many=max(len(self._ones), 1),
            )
            self._rollups[key] = rollup
            # As far as all else has been read: what comes then is folded into all.
            delta, who = self._read(
                table, 0, ("t", *plan.read), self._seen.get(table, 0)
            )
            self._fold(rollup, delta, _derived(table, delta), who)
        rollup.grow(len(self._ones))
        return rollup

    def _fold(
        self,
        rollup: Rollup,
        delta: Delta,
        columns: Mapping[str, Values],
        who: Values | None,
    ) -> None:
        if delta.cleared:
            rollup.clear()
        if delta.rows:
            rollup.grow(len(self._ones))
            rollup.fold(columns["t"], columns, who)

    def _read(
        self,
        table: str,
        version: int,
        names: tuple[str, ...],
        until: int | None = None,
    ) -> tuple[Delta, Values | None]:
        """Rows after `version`, and whose each is; None when all are of one."""
        engine, rank = self._whose
        delta = self._store.since(
            table, version, columns=names, engine=engine, rank=rank, until=until
        )
        return delta, None

    def _forget(self) -> None:
        """Drop the rollups of windows that nobody looks at any more."""
        limit = time.monotonic() - KEEP_SECONDS
        for key in [key for key, used in self._used.items() if used < limit]:
            del self._used[key]
            for table in PLANS:
                self._rollups.pop((table, *key), None)


class CrowdReader(Reader):
    """Reads everybody's rows out of a store.

    Not thread-safe: its owner locks.

    Parameters
    ----------
    clock
        Wall clock of what is read.
    """

    def __init__(
        self, store: FrameStore, *, clock: Callable[[], float] | None = None
    ) -> None:
        super().__init__(store, None, clock=clock)
        self._ones = []
        self._index: dict[Subject, int] = {}

    def of(self, subject: Subject) -> Standing | None:
        """How far an engine has come, if it is known."""
        at = self._index.get(subject)
        return None if at is None else self._ones[at]

    def know(self, subject: Subject, name: str = "") -> Standing | None:
        """Read the rows of an engine too; None when there are too many."""
        at = self._index.get(subject)
        if at is None:
            if len(self._ones) >= MOST_KNOWN:
                return None
            at = self._index[subject] = len(self._ones)
            self._ones.append(Standing(subject, name))
        self._ones[at].name = name or self._ones[at].name
        return self._ones[at]

    def snapshots(
        self, window: Window, abouts: Mapping[Subject, About], epoch: int = 0
    ) -> list[Snapshot]:
        """One for each engine that something is said of and that is known, by its order."""
        found = self._snapshots(
            window, [abouts.get(one.subject) for one in self._ones], epoch
        )
        by_subject = {snapshot.subject: snapshot for snapshot in found}
        return [by_subject[one] for one in abouts if one in by_subject]

    def _read(
        self,
        table: str,
        version: int,
        names: tuple[str, ...],
        until: int | None = None,
    ) -> tuple[Delta, Values | None]:
        delta = self._store.since(
            table, version, columns=("engine", "rank", *names), until=until
        )
        who = self._who(delta)
        if (who >= 0).all():
            return delta, who
        keep = who >= 0
        columns = {name: values[keep] for name, values in delta.columns.items()}
        return msgspec.structs.replace(delta, columns=columns), who[keep]

    def _who(self, delta: Delta) -> Values:
        """Whose each row is; -1 for those of nobody who is known."""
        engines, ranks = delta.columns["engine"], delta.columns["rank"]
        numbers = {name: at for at, name in enumerate(dict.fromkeys(engines))}
        keys = np.fromiter(map(numbers.__getitem__, engines), np.int64, len(engines))
        keys = keys << 32 | ranks
        names = list(numbers)
        # Rows come in batches of one engine each.
        starts = np.flatnonzero(np.diff(keys, prepend=-1))
        known: dict[int, int] = {}
        for key in dict.fromkeys(keys[starts].tolist()):
            subject = Subject(names[key >> 32], key & 0xFFFFFFFF)
            self.know(subject)
            known[key] = self._index.get(subject, -1)
        whose = np.array([known[key] for key in keys[starts].tolist()], np.int64)
        return np.repeat(whose, np.diff(np.append(starts, len(keys))))


def _derived(table: str, delta: Delta) -> dict[str, Values]:
    """The columns of new rows, with those that are computed from them."""
    columns = dict(delta.columns)
    if delta.rows:
        columns.update(PLANS[table].derive(columns))
    return columns
