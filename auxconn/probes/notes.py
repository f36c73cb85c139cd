"""What the scheduler's thread leaves behind at each step, to be worked up elsewhere.

Making rows of a step takes longer than noticing it: blocks have to be found in the ledger,
hashes packed, ages worked out. None of it needs the engine, so the scheduler's thread only
notes what only it can see at that moment, by reference wherever nothing changes any more,
and the scribe makes the rows.
"""

from __future__ import annotations

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
    scheduled: int
    """Requests scheduled."""
    tokens: int
    """Tokens scheduled."""
    new: Any
    """The scheduler output's new requests."""
    running: int
    waiting: int
    free: int
    """Blocks that no request refers to."""
    empty: int
    """Those of them that hold nothing cached."""
    retained: int
    capacity: int
    ns: list[int]
    """As in `auxconn.probes.calls`."""
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
