"""Levels between their readings: nothing is said because nothing changed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .rollup import Values
from .snapshot import Event, Snapshot

AWAY = ("stop", "stale", "start")
"""Events on whose other side an engine's levels are not known."""


def held(
    values: Values, snapshot: Snapshot, start: Values, until: float | None = None
) -> Values:
    """Carry a level on until its next reading.

    Not across an engine's absence, and not beyond now: there it is not known.

    Parameters
    ----------
    values
        Readings of a column, or a row of them for each of several; NaN where there is none.
    start
        Wall clock at which the bucket of each begins.
    until
        When now is; the snapshot's end by default.
    """
    away = [
        int(np.searchsorted(start, t, side="right")) for t in absences(snapshot.events)
    ]
    found = carried(values, away)
    if snapshot.window.pinned is None and len(start) > 1:
        now = snapshot.end if until is None else until
        found[..., start > now + (start[1] - start[0]) / 2] = np.nan
    return found


def carried(values: Values, away: Sequence[int] = ()) -> Values:
    """Each reading carried on to the next one in its row.

    Parameters
    ----------
    away
        Places over which none is carried.
    """
    filled = np.maximum.accumulate(
        np.where(np.isnan(values), -1, np.arange(values.shape[-1])), axis=-1
    )
    for first in away:
        after = filled[..., first:]
        after[after < first] = -1
    read = np.take_along_axis(values, np.maximum(filled, 0), axis=-1)
    found: Values = np.where(filled >= 0, read, np.nan)
    return found


def absences(events: tuple[Event, ...]) -> list[float]:
    """Moments at which an engine went or came."""
    return [event.t for event in events if event.kind in AWAY]
