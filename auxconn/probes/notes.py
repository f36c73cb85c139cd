"""What the scheduler's thread leaves behind at each step, to be worked up elsewhere.

Making rows of a step takes longer than noticing it: blocks have to be found in the ledger,
hashes packed, ages worked out. None of it needs the engine, so the scheduler's thread only
notes what only it can see at that moment, by reference wherever nothing changes any more,
and the scribe makes the rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

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


class Note:
    """One step, between the scheduler's thread and the scribe."""

    __slots__ = (
        "capacity", "empty", "free", "loads", "looked", "metadata", "new", "now", "ns",
        "pool", "retained", "running", "scheduled", "snapshot", "step", "t", "tokens",
        "waiting",
    )  # fmt: skip

    def __init__(
        self,
        t: float,
        now: float,
        step: int,
        metadata: Any,
        scheduled: int,
        tokens: int,
        new: Any,
        running: int,
        waiting: int,
        free: int,
        empty: int,
        retained: int,
        capacity: int,
        ns: list[int],
        looked: list[Looked],
        loads: list[Load],
        pool: Log,
    ) -> None:
        self.t = t
        self.now = now
        """Monotonic seconds, for ages."""
        self.step = step
        self.metadata = metadata
        self.scheduled = scheduled
        """Requests scheduled, and tokens."""
        self.tokens = tokens
        self.new = new
        """The scheduler output's new requests."""
        self.running = running
        self.waiting = waiting
        self.free = free
        """Blocks that no request refers to, and those of them that hold nothing cached."""
        self.empty = empty
        self.retained = retained
        self.capacity = capacity
        self.ns = ns
        """As in `auxconn.probes.calls`."""
        self.looked = looked
        self.loads = loads
        """In order, ends of loads and their beginnings."""
        self.pool = pool
        self.snapshot: Snapshot | None = None
        """Given when what was noted before is not to be relied on."""


class Ended(NamedTuple):
    """A request that has ended, between the scheduler's thread and the scribe."""

    request: Any
    t: float
    step: int
