"""What the scheduler's thread leaves behind at each step, to be worked up elsewhere.

Making rows of a step takes longer than noticing it: blocks have to be found in the ledger,
hashes packed, ages worked out. None of it needs the engine, so the scheduler's thread only
notes what only it can see at that moment, by reference wherever nothing changes any more,
and the scribe makes the rows.
"""

from __future__ import annotations

from typing import Any

from auxconn.probes.lookups import Admission
from auxconn.probes.pool import Log
from auxconn.records import Steps

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

    __slots__ = ("admissions", "loads", "metadata", "now", "pool", "row", "snapshot")

    def __init__(
        self,
        row: Steps,
        metadata: Any,
        now: float,
        admissions: list[Admission],
        loads: list[Load],
        pool: Log,
        snapshot: Snapshot | None,
    ) -> None:
        self.row = row
        """The row of `steps`; what follows from the rest of the note is still to fill in."""
        self.metadata = metadata
        self.now = now
        """Monotonic seconds, for ages."""
        self.admissions = admissions
        self.loads = loads
        """In order, ends of loads and their beginnings."""
        self.pool = pool
        self.snapshot = snapshot
        """Given when what was noted before is not to be relied on."""
