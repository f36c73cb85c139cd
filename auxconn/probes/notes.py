"""What the scheduler's thread leaves behind at each step, to be worked up elsewhere.

Making rows of a step takes longer than noticing it: blocks have to be found in the ledger,
hashes packed, ages worked out. None of it needs the engine, so the scheduler's thread only
notes what only it can see at that moment, by reference wherever nothing changes any more,
and the scribe makes the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from auxconn.probes.lookups import Looked
from auxconn.probes.pool import Log

Load = tuple[str, list[bytes] | None]
"""A request and the blocks whose load begins; None when its load has ended."""


class Snapshot:
    """What a connector holds at one moment, to begin with it."""

    __slots__ = ("absent", "held", "loading")

    def __init__(
        self, held: list[bytes], absent: list[bytes], loading: list[Load]
    ) -> None:
        self.held = held
        """Keys of the retained blocks, oldest first."""
        self.absent = absent
        """Those of them that are not on the GPU."""
        self.loading = loading


class Note(msgspec.Struct):
    """One step, between the scheduler's thread and the scribe."""

    # A struct because it is made in the scheduler's thread: `__init__` is not Python's.
    t: float
    now: float
    """Monotonic seconds, for ages."""
    step: int
    metadata: Any
    output: Any
    """The scheduler's output: what is read of it doesn't change any more."""
    running: int
    waiting: int
    free: int
    """Blocks that no request refers to."""
    empty: int
    """Those of them that hold nothing cached."""
    retained: int
    capacity: int
    build_ns: int
    """Nanoseconds in `build_connector_meta`."""
    ns: Sequence[int]
    """In the other calls since the note before, as in `auxconn.probes.calls`."""
    own_ns: int
    """Of the probe itself in this place, at the note before."""
    taken: tuple[int, int] | None
    """Nanoseconds in `take_output` and how often it was called, if that was timed."""
    emptied: int
    """Blocks that the pool's hottest hook has seen, in all."""
    looked: list[Looked]
    loads: list[Load]
    """In order, ends of loads and their beginnings."""
    pool: Log
    snapshot: Snapshot | None = None
    """Given when what was noted before is not to be relied on."""


class Ended(NamedTuple):
    """A request that has ended, between the scheduler's thread and the scribe."""

    request: Any
    t: float
    step: int
