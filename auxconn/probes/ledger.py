"""What is remembered of each block: when it came, when it was last wanted, how often.

The connector knows which blocks it retains and nothing of their past; why a look-up missed
("was it ever here?") and how old a released block was cannot be read anywhere. This ledger
remembers it, in memory as bounded as the connector's own: an entry for each retained block,
and one for each of the last `memory` blocks that were lost (released by the connector, or
evicted from the GPU without having been retained). When more are lost than that, the ones
lost first are forgotten, and a look-up that ends at one of them says "never seen".

An admission can touch thousands of blocks, so nothing here loops over blocks in Python: a
dictionary gives each key (the block's last hash) a slot, and its numbers are in numpy
arrays by slot.
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
Times = float | np.ndarray[Any, np.dtype[np.float64]]
"""Seconds: one time for all keys, or one for each."""

MEMORY = 65_536
"""Lost blocks that are remembered, unless the connector's capacity is larger."""

CHUNK = 1024
"""Lost blocks that are forgotten at a time, so that no single step pays much for it."""

_RETAINED, _RELEASED, _EVICTED = 1, 2, 3
"""States of an entry; those from `_RELEASED` on are of lost blocks, 0 is of none."""

_ONE = np.uint32(1)
# Of the array's own type: numpy adds anything else five times as slowly.


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
        self._room = 0
        # One more than there are slots: a key that has none is found at -1, the last.
        self._first = np.full(1, math.nan)
        self._last = np.full(1, math.nan)
        self._uses = np.zeros(1, np.uint32)
        self._loss = np.zeros(1, np.int64)
        self._state = np.zeros(1, np.uint8)

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

    def numbers(self, slots: Slots, now: Times) -> tuple[bytes, bytes, bytes]:
        """Age and idle time (s, float32) and uses (uint32) at `now` (s), packed."""
        return (
            (now - self._first[slots]).astype("<f4").tobytes(),
            (now - self._last[slots]).astype("<f4").tobytes(),
            self._uses[slots].astype("<u4", copy=False).tobytes(),
        )

    # -- what happens to blocks -----------------------------------------------------------

    def retain(self, keys: Sequence[bytes], now: Times) -> None:
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
        self._first[slots] = now
        self._last[slots] = math.nan
        self._uses[slots] = 0
        self._state[slots] = _RETAINED

    def touch(self, keys: Sequence[bytes], now: Times) -> None:
        """Note look-ups at `now` (s), in order, that hit `keys`; a key counts each time."""
        slots = self.find(keys)
        # Not those that were retained only later: they come in one batch.
        counts = (self._state[slots] == _RETAINED) & ~(self._first[slots] > now)
        if b"\0" in counts.tobytes():
            slots = slots[counts]
            if isinstance(now, np.ndarray):
                now = now[counts]
        self._last[slots] = now
        np.add.at(self._uses, slots, _ONE)

    def lose(
        self, left: Sequence[bytes], released: Sequence[bytes], now: Times
    ) -> tuple[Mask, tuple[bytes, bytes, bytes]]:
        """Note that the GPU lost `left` and that the connector let go of `released`.

        Blocks the GPU lost that are not retained are lost altogether; the others still
        have their rows.

        Parameters
        ----------
        now
            Seconds, one for all or one for each of `left` and then of `released`.

        Returns
        -------
        retained
            Which of `left` are retained.
        numbers
            Of `left` and then `released`, as `numbers` gives them, before the loss; not a
            number for what the GPU lost and was not retained.
        """
        count = len(left)
        slots = self.find([*left, *released])
        retained = self._state[slots[:count]] == _RETAINED
        lost: list[bytes] = []
        known = slots
        if count and b"\0" in retained.tobytes():
            known = slots.copy()
            known[:count][~retained] = -1
            lost = list(dict.fromkeys(compress(left, (~retained).tolist())))
        numbers = self.numbers(known, now)
        if lost:
            own = self._ensure(lost)
            # A block that had been released keeps what is known of that time.
            self._state[own[self._state[own] != _RELEASED]] = _EVICTED
            self._lose(lost, own)
        if released:
            slots = slots[count:]
            if slots.min() < 0:
                slots = self._ensure(released)
            self._state[slots] = _RELEASED
            self._lose(released, slots)
        return retained, numbers

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
            self._first[taken] = math.nan
            self._last[taken] = math.nan
            self._uses[taken] = 0
            slots = self.find(keys)
        return slots

    def _take(self, count: int) -> list[int]:
        spare = self._spare
        if len(spare) < count:
            self._grow(max(1024, 2 * self._room, self._room + count))
        taken = spare[len(spare) - count :]
        del spare[len(spare) - count :]
        return taken

    def _grow(self, room: int) -> None:
        before = self._room

        def longer(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            grown = np.full(room + 1, array[-1])
            grown[:before] = array[:-1]
            return grown

        self._first, self._last = longer(self._first), longer(self._last)
        self._uses, self._loss = longer(self._uses), longer(self._loss)
        self._state = longer(self._state)
        self._spare.extend(range(before, room))
        self._room = room

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
