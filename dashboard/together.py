"""Several engines as one: counters added up, levels added up as they stood at each moment.

Each engine keeps a reader of its own, because a level must be carried on from one of its own
readings to the next: added row by row, two engines that take turns would look like one that
halves and doubles.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from .derive import PLANS
from .held import absences, carried, held
from .rollup import Buckets, Values
from .snapshot import EVENTS, Event, Link, Snapshot, State

ALL = "*"
"""What is chosen where an engine is, to look at all of them together."""

_LIVELIEST: tuple[State, ...] = (
    "live", "idle", "paused", "replay", "still", "starting", "stale", "stopped", "gone", "none",
)  # fmt: skip
"""States of an engine; together they have the first of these that one has."""


def together(parts: Sequence[Snapshot], only: Collection[str] = ()) -> Snapshot:
    """The sum of snapshots of one window.

    Parameters
    ----------
    parts
        One of each engine, at least one.
    only
        Names of those to add up; all when there is none among them.
    """
    chosen = [part for part in parts if part.name in only] or list(parts)
    last = max(chosen, key=lambda part: part.end)
    # Levels of those that are gone are not known; what they counted has happened.
    known = [part for part in chosen if part.link.fresh] or chosen
    return dataclasses.replace(
        last,
        engine="",
        rank=None,
        name=ALL,
        link=joined_link([part.link for part in chosen]),
        facts=_common([part.facts for part in chosen]),
        commands=frozenset(),
        tables={table: _added(table, chosen, last) for table in PLANS},
        latest={table: _latest(table, known) for table in ("steps", "store")},
        totals=_counted(part.totals for part in chosen),
        events=_events(chosen),
        versions=_counted(part.versions for part in parts),
        # Each has counted all rows that were overwritten, whoever's they were.
        lost=max((part.lost for part in chosen), key=lambda lost: sum(lost.values())),
        parts=tuple(parts),
        summed=tuple(part.subject for part in chosen),
    )


def joined_link(links: Sequence[Link]) -> Link:
    """How it stands with several: as well as with the best of them, and how many differ."""
    best = min(links, key=lambda link: (_LIVELIEST.index(link.state), link.age))
    counts = collections.Counter(link.state for link in links)
    text = best.text
    if len(counts) > 1:
        text = ", ".join(
            f"{counts[state]} {state}" for state in _LIVELIEST if counts[state]
        )
    return dataclasses.replace(best, text=text)


def _added(table: str, parts: Sequence[Snapshot], last: Snapshot) -> Buckets:
    """The buckets of all, on the grid of the one that has come the furthest.

    Whole arrays of engines x columns x buckets: engine by engine it took ten times as long.
    """
    grid, plan = last.tables[table], PLANS[table]
    moved = [_moved(part.tables[table], grid) for part in parts]
    sums: dict[str, Values] = {}
    if plan.sums:
        added = _stacked([one.sums for one in moved], plan.sums, grid).sum(axis=0)
        sums.update(zip(plan.sums, added, strict=True))
    levels: list[dict[str, Values]] = [{}, {}, {}]
    if plan.levels:
        stood = _stood(table, parts, moved, last)
        for kind, found in zip(("low", "high", "last"), levels, strict=True):
            values = _stacked([getattr(one, kind) for one in moved], plan.levels, grid)
            values = np.where(np.isnan(values), stood, values)
            unknown = np.isnan(values)
            added = np.where(unknown, 0.0, values).sum(axis=0)
            added[unknown.all(axis=0)] = np.nan
            found.update(zip(plan.levels, added, strict=True))
    return Buckets(
        grid.width,
        grid.start,
        np.sum([one.rows for one in moved], axis=0),
        sums,
        *levels,
    )


def _stacked(
    of: Sequence[Mapping[str, Values]], names: tuple[str, ...], grid: Buckets
) -> Values:
    """Columns as an array of engines x columns x buckets."""
    found = np.concatenate([columns[name] for columns in of for name in names])
    return found.reshape(len(of), len(names), len(grid))


def _moved(buckets: Buckets, grid: Buckets) -> Buckets:
    """The buckets on another grid of the same width; empty where there are none."""
    shift = round((grid.start[0] - buckets.start[0]) / grid.width)
    if shift == 0 and len(buckets) == len(grid):
        return buckets
    source = np.arange(len(grid)) + shift
    there = (source >= 0) & (source < len(buckets))
    source = np.where(there, source, 0)

    def move(columns: Mapping[str, Values], empty: float) -> dict[str, Values]:
        return {
            name: np.where(there, values[source], empty)
            for name, values in columns.items()
        }

    return Buckets(
        grid.width,
        grid.start,
        np.where(there, buckets.rows[source], 0),
        move(buckets.sums, 0.0),
        move(buckets.low, np.nan),
        move(buckets.high, np.nan),
        move(buckets.last, np.nan),
    )


def _stood(
    table: str, parts: Sequence[Snapshot], moved: Sequence[Buckets], last: Snapshot
) -> Values:
    """Levels of each engine at every moment at which they can be known.

    Between readings, and before the first one of the window unless the engine came within
    it. An engine that has said nothing for the whole window stands where it stood.
    """
    names, grid = PLANS[table].levels, last.tables[table]
    values = _stacked([one.last for one in moved], names, grid)
    found = carried(values)
    for at, (part, buckets) in enumerate(zip(parts, moved, strict=True)):
        # One that lives on is as it was, although it says nothing; its clock may be behind.
        until = last.end if part.link.fresh else part.end
        came = [t for t in absences(part.events) if t >= grid.start[0]]
        if came:
            found[at] = held(values[at], part, grid.start, until)
        readings = np.flatnonzero(buckets.rows)
        if len(readings):
            first = int(readings[0])
            if not came or came[0] > grid.start[first] + grid.width:
                found[at, :, :first] = found[at, :, first : first + 1]
        elif part.link.fresh and not came:
            latest = part.latest.get(table, {})
            stood = [float(latest.get(name, np.nan)) for name in names]
            found[at] = np.array(stood)[:, None]
        if part.window.pinned is None:
            found[at, :, grid.start > until + grid.width / 2] = np.nan
    return found


def _latest(table: str, parts: Sequence[Snapshot]) -> dict[str, Any]:
    """Newest levels added up; of the rest what all agree on, and the first error."""
    rows = [(part, part.latest.get(table, {})) for part in parts]
    found: dict[str, Any] = {}
    for name in PLANS[table].levels:
        values = [float(row[name]) for _, row in rows if name in row]
        if values:
            found[name] = sum(values)
    for name in PLANS[table].also:
        said = [(part.name, row[name]) for part, row in rows if name in row]
        if name == "error":
            troubled = [f"{who}: {error}" for who, error in said if error]
            found[name] = troubled[0] if troubled else ""
        elif len({value for _, value in said}) == 1:
            found[name] = said[0][1]
    return found


def _common(facts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Facts that all have alike."""
    first, *others = facts
    return {
        name: value
        for name, value in first.items()
        if all(other.get(name) == value for other in others)
    }


def _counted(counts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    found: collections.Counter[str] = collections.Counter()
    for one in counts:
        found.update(one)
    return dict(found)


def _events(parts: Sequence[Snapshot]) -> tuple[Event, ...]:
    """Events of all in the order of time, each with whose it is."""
    found = [
        dataclasses.replace(event, source=part.name)
        for part in parts
        for event in part.events
    ]
    return tuple(sorted(found, key=lambda event: event.t)[-EVENTS:])
