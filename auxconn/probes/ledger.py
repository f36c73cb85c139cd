"""What is remembered of each block: when it came, when it was last wanted, how often.

The connector knows which blocks it retains and nothing of their past; why a look-up missed
("was it ever here?") and how old a released block was cannot be read anywhere. This ledger
remembers it, in memory as bounded as the connector's own: an entry for each retained block,
and one for each of the last `memory` blocks that were lost (released by the connector, or
evicted from the GPU without having been retained). When more are lost than that, the ones
lost first are forgotten, and a look-up that ends at one of them says "never seen".

An admission can touch thousands of blocks, so nothing here loops over blocks in Python: a
dictionary gives each key (the block's last hash) a slot, and its numbers are one entry, so
that they share a cache line, of one numpy table.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from itertools import compress, repeat
from typing import Any

import numpy as np

Slots = np.ndarray[Any, np.dtype[np.intp]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]

MEMORY = 65_536
"""Lost blocks that are remembered, unless the connector's capacity is larger."""

CHUNK = 1024
"""Lost blocks that are forgotten at a time, so that no single step pays much for it."""

_RETAINED, _RELEASED, _EVICTED = 1, 2, 3
"""States of an entry; those from `_RELEASED` on are of lost blocks, 0 is of none."""

_ENTRY = np.dtype(
    [
        ("first", "f8"),
        ("last", "f8"),
        ("loss", "i8"),
        ("uses", "u4"),
        ("state", "u1"),
    ],
    align=True,
)
"""When it was retained and last looked up (s), the number of its last loss, its uses."""

_UNKNOWN = (math.nan, math.nan, 0, 0, 0)


class Ledger:
    """The past of the blocks that are retained, and of those lost lately.

    Parameters
    ----------
    memory
        Lost blocks remembered; up to `CHUNK` more for a while.
    """

    def __init__(self, memory: int = MEMORY) -> None:
        self.memory = memory
        self.forgotten = 0
        """Lost blocks that had to be forgotten."""
        self._known: dict[bytes, int] = {}
        self._spare: list[int] = []
        self._lost: deque[bytes] = deque()
        self._losses = 0
        # One more than there are slots: a key that has none is found at -1, the last.
        self._lay_out(np.full(1, np.array(_UNKNOWN, _ENTRY)))

    def __len__(self) -> int:
        """Blocks with an entry."""
        return len(self._known)

    # -- looking --------------------------------------------------------------------------

    def find(self, keys: Sequence[bytes]) -> Slots:
        """Slot of each key, -1 where there is none."""
        return np.fromiter(
            map(self._known.get, keys, repeat(-1)), np.intp, count=len(keys)
        )

    def are_retained(self, slots: Slots) -> Mask:
        """Which of `slots` are those of retained blocks."""
        retained: Mask = self._state[slots] == _RETAINED
        return retained

    def retained(self) -> list[bytes]:
        """All retained blocks; walks the whole ledger."""
        keys = list(self._known)
        return list(compress(keys, self.are_retained(self.find(keys)).tolist()))

    def is_retained(self, key: bytes) -> bool:
        """True when the block is retained."""
        return bool(self._state[self._known.get(key, -1)] == _RETAINED)

    def is_lost(self, key: bytes) -> bool:
        """True when the block was here, and its loss is remembered."""
        return bool(self._state[self._known.get(key, -1)] >= _RELEASED)

    def released_run(self, keys: Sequence[bytes]) -> tuple[list[bytes], Slots]:
        """Of the leading lost ones among `keys`, those that had been retained."""
        slots = self.find(keys)
        state = self._state[slots]
        here = np.flatnonzero(state < _RELEASED)
        end = int(here[0]) if len(here) else len(keys)
        had = state[:end] == _RELEASED
        return list(compress(keys, had.tolist())), slots[:end][had]

    def numbers(self, slots: Slots, now: float) -> tuple[bytes, bytes, bytes]:
        """Age and idle time (s, float32) and uses (uint32) at `now` (s), packed."""
        entries = self._table[slots]
        return (
            (now - entries["first"]).astype("<f4").tobytes(),
            (now - entries["last"]).astype("<f4").tobytes(),
            entries["uses"].astype("<u4").tobytes(),
        )

    # -- what happens to blocks -----------------------------------------------------------

    def retain(self, keys: Sequence[bytes], now: float) -> None:
        """Begin the entries of blocks that are retained from `now` (s) on.

        `now` is NaN when nobody knows since when.
        """
        count, before = len(keys), len(self._known)
        offered = self._take(count)
        slots = np.fromiter(
            map(self._known.setdefault, keys, offered), np.intp, count=count
        )
        if len(self._known) - before < count:
            # Some had an entry, from when they were lost.
            self._spare.extend(set(offered).difference(slots.tolist()))
        self._table[slots] = (now, math.nan, 0, 0, _RETAINED)

    def touch(self, keys: Sequence[bytes], now: float) -> None:
        """Note a look-up at `now` (s) that hit `keys`, each named once."""
        slots = self.find(keys)
        slots = slots[self._state[slots] == _RETAINED]
        self._last[slots] = now
        self._uses[slots] += np.uint32(1)

    def release(self, keys: Sequence[bytes]) -> Slots:
        """Note that the connector let go of `keys`; their slots."""
        slots = self._ensure(keys)
        self._state[slots] = _RELEASED
        self._lose(keys, slots)
        return slots

    def evict(self, keys: Sequence[bytes]) -> tuple[Slots, Mask]:
        """Note that the GPU lost `keys`; their slots, and which of them are retained.

        Those that are not retained are lost: the others have their rows still.
        """
        slots = self.find(keys)
        retained = self.are_retained(slots)
        if not retained.all():
            lost = list(dict.fromkeys(compress(keys, (~retained).tolist())))
            own = self._ensure(lost)
            # A block that had been released keeps what is known of that time.
            fresh = own[self._state[own] != _RELEASED]
            self._table[fresh] = (math.nan, math.nan, 0, 0, _EVICTED)
            self._lose(lost, own)
            slots = self.find(keys)
        return slots, retained

    def keep_only(self, slots: Slots) -> None:
        """Of the retained blocks only those of `slots` still are; the others are lost."""
        others = self._state == _RETAINED
        others[slots] = False
        if others.any():
            keys = list(self._known)
            found = self.find(keys)
            gone = others[found]
            self._state[found[gone]] = _RELEASED
            self._lose(list(compress(keys, gone.tolist())), found[gone])

    # -- entries --------------------------------------------------------------------------

    def _ensure(self, keys: Sequence[bytes]) -> Slots:
        slots = self.find(keys)
        if len(slots) and slots.min() < 0:
            missing = list(dict.fromkeys(compress(keys, (slots < 0).tolist())))
            taken = self._take(len(missing))
            self._known.update(zip(missing, taken, strict=True))
            self._table[taken] = _UNKNOWN
            slots = self.find(keys)
        return slots

    def _take(self, count: int) -> list[int]:
        spare = self._spare
        if len(spare) < count:
            room = len(self._table) - 1
            wider = max(1024, 2 * room, room + count)
            table = np.full(wider + 1, np.array(_UNKNOWN, _ENTRY))
            table[:room] = self._table[:room]
            self._lay_out(table)
            spare.extend(range(room, wider))
        taken = spare[len(spare) - count :]
        del spare[len(spare) - count :]
        return taken

    def _lay_out(self, table: np.ndarray[Any, Any]) -> None:
        self._table = table
        self._last, self._loss = table["last"], table["loss"]
        self._uses, self._state = table["uses"], table["state"]

    def _lose(self, keys: Sequence[bytes], slots: Slots) -> None:
        # A block can be lost, come back and be lost again: its last loss counts.
        first = self._losses + 1
        self._losses += len(keys)
        self._loss[slots] = np.arange(first, first + len(keys))
        self._lost.extend(keys)
        while len(self._lost) > self.memory + CHUNK:
            self._forget(CHUNK)

    def _forget(self, count: int) -> None:
        oldest = self._losses - len(self._lost) + 1
        keys = [self._lost.popleft() for _ in range(count)]
        slots = self.find(keys)
        gone = (self._loss[slots] == np.arange(oldest, oldest + count)) & (
            self._state[slots] >= _RELEASED
        )
        freed = list(map(self._known.pop, compress(keys, gone.tolist())))
        self._state[freed] = 0
        self._spare.extend(freed)
        self.forgotten += len(freed)
