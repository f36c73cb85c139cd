"""How many steps can be worked up at once.

Finding blocks in the ledger and packing their numbers costs about as much for five hundred
blocks as for five, so the notes that wait are worked up together: first all that was
retained in them, then all that was looked up, then all that was lost. That gives what going
step by step gives as long as no block is lost and then, in a later step, retained, looked
up or lost anew: a step in which that happens begins a batch. A step of which something is
told that is only true at its end is the last of a batch: with a look-up that ended at a
lost block, or after a reset of the prefix cache. One with loads is alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from auxconn.probes.ledger import Times
from auxconn.probes.lookups import Admission
from auxconn.probes.notes import Note
from auxconn.probes.packed import last_hashes
from auxconn.probes.pool import Log
from auxconn.records import RunEnd

KEYS = 16_384
"""Blocks of a batch at which it ends, so that nobody holds the interpreter for long."""


class Entry:
    """One note of a batch, with the blocks that it names."""

    __slots__ = (
        "admissions", "left", "log", "note", "reasons", "released", "retained", "touched",
        "wiped",
    )  # fmt: skip

    def __init__(
        self, note: Note, block_size: int, step: int, clean: Callable[[Log], Log]
    ) -> None:
        self.note = note
        self.admissions = [
            Admission(*looked, block_size=block_size, step=step)
            for looked in note.looked
        ]
        self.retained = last_hashes(note.metadata.retained_block_hashes, step)
        self.released = last_hashes(note.metadata.released_block_hashes, step)
        self.touched: list[bytes] = []
        for one in self.admissions:
            self.touched += one.keys[: one.run]
        self.log = clean(note.pool)
        self.left: list[bytes] = []
        self.wiped = False
        for left, cached in self.log:
            self.left += left
            self.wiped |= cached is None
        self.reasons: list[RunEnd] = []
        """Why the run of hits of each admission ended."""


class Batch:
    """Notes in order that can be worked up at once.

    Parameters
    ----------
    is_lost
        Whether the ledger has a block as lost, before the batch.
    """

    def __init__(self, is_lost: Callable[[bytes], bool], block_size: int) -> None:
        self.entries: list[Entry] = []
        self.closed = False
        """True when nothing can be added any more."""
        self._is_lost = is_lost
        self._block_size = block_size
        self._left: set[bytes] = set()
        self._released: set[bytes] = set()
        self._keys = 0

    def add(self, entry: Entry) -> bool:
        """Take a note; False when the batch has to be worked up before it."""
        left, released = self._left, self._released
        if self.entries and (
            entry.note.snapshot is not None
            or entry.note.loads
            or not left.isdisjoint(entry.retained)
            or not left.isdisjoint(entry.touched)
            or not released.isdisjoint(entry.retained)
            or not released.isdisjoint(entry.touched)
            or not released.isdisjoint(entry.left)
        ):
            return False
        self.entries.append(entry)
        left.update(entry.left)
        released.update(entry.released)
        for keys in (entry.retained, entry.touched, entry.left, entry.released):
            self._keys += len(keys)
        for one in entry.admissions:
            reason = one.reason(self._block_size, self._was_lost)
            entry.reasons.append(reason)
            self.closed |= reason == "evicted"
        self.closed |= bool(entry.note.loads) or entry.wiped or self._keys >= KEYS
        return True

    def of(self, what: str) -> tuple[list[bytes], Times]:
        """All blocks of one kind, in order, and the time of each (one for all if of one)."""
        lists = [getattr(entry, what) for entry in self.entries]
        if len(lists) == 1:
            return lists[0], self.entries[0].note.now
        keys: list[bytes] = []
        for one in lists:
            keys += one
        times = np.repeat(
            [entry.note.now for entry in self.entries], [len(one) for one in lists]
        )
        return keys, times

    def _was_lost(self, key: bytes) -> bool:
        return key in self._left or key in self._released or self._is_lost(key)


def batches(
    entries: Iterable[Entry], is_lost: Callable[[bytes], bool], block_size: int
) -> Iterable[Batch]:
    """Cut notes into batches; each must be worked up before the next is asked for."""
    batch = Batch(is_lost, block_size)
    for entry in entries:
        if not batch.add(entry):
            yield batch
            batch = Batch(is_lost, block_size)
            batch.add(entry)
        if batch.closed:
            yield batch
            batch = Batch(is_lost, block_size)
    if batch.entries:
        yield batch
