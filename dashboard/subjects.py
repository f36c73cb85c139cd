"""What can be looked at: one rank of one engine.

A cluster runs the same engine several times, each rank with a scheduler and a store of its
own, and all of them send under one name. Their rows may not be read as one: the last reading
of "retained" would be of whichever rank came last, and steps per second of all together. So
the unit of reading is a rank. An engine that has one is called by its name alone.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from .derive import PLANS

if TYPE_CHECKING:
    from auxconn.frames import FrameStore


class Subject(NamedTuple):
    """One rank of one engine; None leaves it open."""

    engine: str | None
    rank: int | None = None


def named(ranks: Iterable[Subject]) -> dict[str, Subject]:
    """The subjects by the names people choose them by, ranks of one engine side by side."""
    found: dict[str | None, set[int]] = {}
    for engine, rank in ranks:
        found.setdefault(engine, set()).add(rank or 0)
    return {
        f"{engine}" if len(ranks) == 1 else f"{engine} · rank {rank}": Subject(
            engine, rank
        )
        for engine, ranks in found.items()
        for rank in sorted(ranks)
    }


class InFrames:
    """The subjects whose rows a store has, for frames that come without an engine."""

    def __init__(self, store: FrameStore) -> None:
        self._store = store
        self._seen = dict.fromkeys(PLANS, 0)
        self._found: Mapping[str, dict[Subject, None]] = {name: {} for name in PLANS}
        self._lock = threading.Lock()

    def subjects(self) -> list[Subject]:
        """All there are, in the order in which they came."""
        with self._lock:
            for table, seen in self._seen.items():
                if self._store.version(table) != seen:
                    self._read(table)
            together: dict[Subject, None] = {}
            for found in self._found.values():
                together.update(found)
            return list(together)

    def _read(self, table: str) -> None:
        delta = self._store.since(table, self._seen[table], columns=("engine", "rank"))
        self._seen[table] = delta.version
        if delta.cleared:
            self._found[table].clear()
        engines, ranks = (delta.columns[name].tolist() for name in ("engine", "rank"))
        for engine, rank in dict.fromkeys(zip(engines, ranks, strict=True)):
            self._found[table][Subject(engine, rank)] = None
