"""The retained blocks, kept so that work grows with what changes, not with what is held.

The decisions are those of `auxconn.scanned`, block for block and in the same order; this is
how they are reached without walking prompts and without scanning what is held.

*Flags.* Blocks are known as chains (`auxconn.chains`) with a byte for each: is it held, is
its KV on the GPU. The end of a hit is the first zero byte. That a block left the GPU is
learnt from `auxconn.residency`; that it came back is found when it matters, as a block
believed gone is looked up before it ends a hit, is passed over by a finish or is released.

*Stamps.* A look-up makes the held blocks of its hit the youngest, in the order of the
prompt, and a finish adds its new blocks in that order. So the order of release is that of
(number of the look-up or finish, depth), and touching thousands of blocks is one fill.

*Loose blocks.* What is held and off the GPU is in a heap in that order, an entry for each
run of blocks that left together. Stamps only grow, so an entry may be too low but never too
high: the least entry that agrees with the stamps of its blocks has the oldest of all. A
loose block that a load protects is parked until the load ends.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Any

import numpy as np

from auxconn.chains import DEPTH_BITS, MASK, NOWHERE, Chain, ChainTable
from auxconn.residency import GpuWatch

HELD, GPU, QUEUED, FIRST, PARKED = 1, 2, 4, 8, 16
"""Flags of a block: its rows are held; its KV is on the GPU; it is loose and waits to be
released; it is the first of a run that does; it is loose, but a load protects it."""

FRESH = re.compile(b"%c+" % GPU)
"""A run of blocks that are on the GPU and not held."""

NEW = re.compile(b"%c+" % (HELD | GPU))
"""A run of blocks that are on the GPU and held."""

LEFT = re.compile(b"%c+|%c+" % (GPU, HELD | GPU))
"""A run of blocks believed on the GPU, all held or none."""

LOOSE = re.compile(b"%c%c*" % (HELD | QUEUED | FIRST, HELD | QUEUED))
"""A run of loose blocks: what an entry of the heap stands for."""

PROBE = 64
"""Blocks beyond the known ones that a look-up asks the pool about at first, at a time."""

HOLD = bytes.maketrans(bytes((0, 1)), bytes((0, HELD | GPU)))
"""From whether a block is on the GPU to the flag it gets when it is to be held then."""


class TracedBlocks:
    """Blocks whose rows the worker must keep, oldest first, and who loads what.

    Parameters
    ----------
    pool
        vLLM's block pool, one that `GpuWatch.fits`.
    group_id
        KV cache group whose blocks are meant.
    step
        Hash blocks per KV block.
    """

    def __init__(self, pool: Any, group_id: int, step: int) -> None:
        self._suffix = group_id.to_bytes(4, "big")
        self._step = step
        self._table = ChainTable(self._suffix, step)
        self._watch = GpuWatch(pool, self._table.index)
        self._held = 0
        self._stamp = 0
        self._loose: list[int] = []
        """Heap of runs: stamp, depth of the first block, number of the chain, in one number."""
        self.loads_of: dict[str, list[bytes]] = {}
        """Keys of the blocks that each loading request loads; for reading."""
        self._loads: dict[bytes, int] = {}
        """How many requests load each block."""
        self._retained: list[bytes] = []
        self._released: list[bytes] = []

    def __len__(self) -> int:
        return self._held

    # -- decisions ------------------------------------------------------------------------

    def hit(self, hashes: Sequence[bytes]) -> int:
        """Count the leading blocks that have rows; the held ones become the youngest."""
        self._settle()
        total = len(hashes) // self._step
        links, known = self._table.path(hashes, total)
        self._stamp += 1
        for chain, used in links:
            end = self._first_gap(chain, used)
            # The stamp of a block that isn't held says nothing: it gets one when it is.
            chain.stamp(0, end, self._stamp)
            if end < used:
                return chain.base + end
        keys = self._on_gpu_after(hashes, known, total)
        if keys:
            # Blocks of requests that still run; the next look-up will find them known.
            flags = bytes((GPU,)) * len(keys)
            self._table.add(links, hashes, keys, flags, self._stamp)
        return known + len(keys)

    def _on_gpu_after(
        self, hashes: Sequence[bytes], known: int, total: int
    ) -> list[bytes]:
        """Keys of the unknown blocks in a row that are on the GPU."""
        found: list[bytes] = []
        contains, count = self._watch.cache.__contains__, 1
        while known < total:
            # One, as most prompts end here, then more and more at a time.
            end = min(known + count, total)
            keys = self._table.keys(hashes, known, end)
            gap = bytes(map(contains, keys)).find(0)
            if gap >= 0:
                return found + keys[:gap]
            found += keys
            known = end
            count = min(max(2 * count, PROBE), 16 * PROBE)
        return found

    def _first_gap(self, chain: Chain, end: int) -> int:
        """Place of the first block before `end` that is neither held nor on the GPU."""
        flags, cache = chain.flags, self._watch.cache
        at = flags.find(0, 0, end)
        while at >= 0:
            if self._table.key(chain, at) not in cache:
                return at
            flags[at] = GPU
            at = flags.find(0, at + 1, end)
        return end

    def retain(self, hashes: Sequence[bytes], count: int) -> None:
        """Hold those of the first `count` blocks that are on the GPU."""
        total = min(len(hashes) // self._step, count)
        if total <= 0:
            return
        self._settle()
        table = self._table
        links, known = table.path(hashes, total)
        self._stamp += 1
        for chain, used in links:
            self._hold(chain, used)
        if known == total:
            return
        keys = table.keys(hashes, known, total)
        on_gpu = bytes(map(self._watch.cache.__contains__, keys))
        # What follows the last block on the GPU need not be known.
        flags = on_gpu[: on_gpu.rfind(1) + 1].translate(HOLD)
        if flags:
            keys = self._pooled(keys[: len(flags)])
            chain, first = table.add(links, hashes, keys, flags, self._stamp)
            for run in NEW.finditer(flags):
                start, end = run.span()
                self._held += end - start
                self._retained.append(table.hashes(chain, first + start, first + end))

    def _hold(self, chain: Chain, used: int) -> None:
        """Hold those of a chain's first `used` blocks that are on the GPU."""
        flags, table, cache = chain.flags, self._table, self._watch.cache
        at = flags.find(0, 0, used)
        while at >= 0:
            if table.key(chain, at) in cache:
                flags[at] = GPU
            at = flags.find(0, at + 1, used)
        for run in FRESH.finditer(flags, 0, used):
            start, end = run.span()
            flags[start:end] = bytes((HELD | GPU,)) * (end - start)
            chain.stamp(start, end, self._stamp)
            self._held += end - start
            self._retained.append(table.hashes(chain, start, end))

    def _pooled(self, keys: list[bytes]) -> list[bytes]:
        """The pool's own objects for these keys if it has them, so that none is kept twice."""
        cache = self._watch.cache
        try:
            own = [cache[key].block_hash for key in keys]
        except (KeyError, AttributeError):
            return keys  # some are not there, or are there in copies
        return own if own == keys else keys

    def release(self, capacity: int) -> None:
        """Release the oldest blocks beyond `capacity` that nothing protects.

        A block is protected while its KV is on the GPU or on its way there.
        """
        excess = self._held - capacity
        if excess <= 0:
            return
        self._settle()
        loose, table = self._loose, self._table
        thinned = set()
        while excess and loose:
            entry = loose[0]
            chain, first = table.at(_position(entry))
            run: Any = LOOSE.match(chain.flags, first)
            end = run.end()
            heappop(loose)
            if not chain.has_stamp(first, end, entry >> 2 * DEPTH_BITS):
                # Touched since: each part waits at its own place.
                self._queue(chain, first, end)
                continue
            stop = min(first + excess, end)
            if stop < end:
                self._queue(chain, stop, end)
            released = self._let_go(chain, first, stop)
            self._held -= released
            excess -= released
            if released:
                thinned.add(chain)
        table.trim(thinned)

    def _let_go(self, chain: Chain, first: int, end: int) -> int:
        """Release what may be released of a run of loose blocks; returns how many."""
        table, cache, loads = self._table, self._watch.cache, self._loads
        keys = table.known_keys(chain, first, end)
        protected = loads and not loads.keys().isdisjoint(keys)
        if not protected and not any(map(cache.__contains__, keys)):
            chain.flags[first:end] = bytes(end - first)
            self._released.append(table.hashes(chain, first, end))
            return end - first
        released = 0
        for at, key in enumerate(keys, first):
            if key in cache:
                chain.flags[at] = HELD | GPU
            elif key in loads:
                chain.flags[at] = HELD | PARKED
            else:
                chain.flags[at] = 0
                self._released.append(table.hashes(chain, at, at + 1))
                released += 1
        return released

    def _queue(self, chain: Chain, first: int, end: int) -> None:
        """Have the loose blocks from `first` to before `end` wait for their release."""
        chain.flags[first:end] = bytes((HELD | QUEUED,)) * (end - first)
        for start, stamp in chain.parts(first, end):
            chain.flags[start] |= FIRST
            entry = stamp << DEPTH_BITS | chain.base + start
            heappush(self._loose, entry << DEPTH_BITS | chain.number)

    def load(self, request_id: str, hashes: Sequence[bytes], count: int) -> None:
        """Protect the first `count` blocks until the request's load has ended."""
        self.loaded(request_id)
        count = min(count, len(hashes) // self._step)
        keys = self.loads_of[request_id] = self._table.keys(hashes, 0, count)
        loads = self._loads
        for key in keys:
            loads[key] = loads.get(key, 0) + 1

    def loaded(self, request_id: str) -> None:
        """End the protection of the blocks this request loads, if it does."""
        keys = self.loads_of.pop(request_id, None)
        if keys is None:
            return
        loads, index = self._loads, self._table.index
        for key in keys:
            loads[key] -= 1
            if loads[key]:
                continue
            del loads[key]
            position = index.get(key)
            if position is None:
                continue
            chain, at = self._table.at(position)
            if chain.flags[at] & PARKED:
                self._queue(chain, at, at + 1)

    def clear(self) -> None:
        """Release every block; loads under way stay."""
        self._released.append(self._sorted().tobytes())
        self._table.clear()
        self._loose.clear()
        self._held = 0

    def take(self) -> tuple[bytes, bytes, int]:
        """Hashes of the hash blocks retained and released since the last call, in order.

        Returns
        -------
        retained, released, size
            One hash after the other, and the bytes of each.
        """
        # Once a step, so that what leaves is never noted for longer.
        self._settle()
        retained, released = b"".join(self._retained), b"".join(self._released)
        self._retained.clear()
        self._released.clear()
        return retained, released, self._table.size

    # -- state ----------------------------------------------------------------------------

    def held(self) -> list[bytes]:
        """Keys of the held blocks, oldest first."""
        size = self._table.size
        flat = self._sorted()[:, (self._step - 1) * size :].tobytes()
        return (
            [flat[at : at + size] for at in range(0, len(flat), size)] if flat else []
        )

    def loading(self) -> dict[str, frozenset[bytes]]:
        """Keys of the blocks that each loading request protects."""
        end = -len(self._suffix)
        return {
            request_id: frozenset(key[:end] for key in keys)
            for request_id, keys in self.loads_of.items()
        }

    def _sorted(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Hashes of the held blocks, a row of bytes for each, oldest first."""
        width = self._step * self._table.size
        hashes = [np.zeros((0, width), np.uint8)]
        stamps = [np.zeros(0, np.int64)]
        depths = [np.zeros(0, np.int64)]
        for chain in self._table:
            # Of copies: a view of a byte string would forbid it to grow.
            at = np.flatnonzero(np.frombuffer(bytes(chain.flags), np.uint8) & HELD)
            if len(at):
                rows = np.frombuffer(bytes(chain.hashes), np.uint8).reshape(-1, width)
                hashes.append(rows[at])
                stamps.append(np.array(chain.stamps, np.int64)[at])
                depths.append(at + chain.base)
        order = np.lexsort((np.concatenate(depths), np.concatenate(stamps)))
        return np.concatenate(hashes)[order]

    # -- what left the GPU ----------------------------------------------------------------

    def _settle(self) -> None:
        """Take note of the known blocks that left the GPU since the last time."""
        left = self._watch.settle()
        if left is None:
            left = list(self._table.index)
        elif not left:
            return
        table, cache = self._table, self._watch.cache
        index = table.index
        gone = []
        for key in left:
            # Forgotten by now, or there in another copy, or back already?
            position = index.get(key, NOWHERE)
            if position != NOWHERE and key not in cache:
                gone.append(position)
        gone.sort()
        thinned = set()
        for start, count in _rows(gone):
            chain, first = table.at(start)
            for run in LEFT.finditer(bytes(chain.flags[first : first + count])):
                at, end = run.span()
                if run[0][0] == GPU:
                    chain.flags[first + at : first + end] = bytes(end - at)
                    thinned.add(chain)
                else:
                    self._queue(chain, first + at, first + end)
        table.trim(thinned)


def _rows(positions: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Positions of consecutive blocks of a chain: the first, and how many."""
    start = count = 0
    for position in positions:
        if count and position == start + count:
            count += 1
            continue
        if count:
            yield start, count
        start, count = position, 1
    if count:
        yield start, count


def _position(entry: int) -> int:
    """Position of the first block of a run, as the table has it."""
    return (entry & MASK) << DEPTH_BITS | (entry >> DEPTH_BITS & MASK)
