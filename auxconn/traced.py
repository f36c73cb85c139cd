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

*Loose blocks.* What is held and off the GPU is in a heap in that order. Stamps only grow,
so an entry may be too low but never too high: the least entry that agrees with the stamp of
its block is the oldest of all. A loose block that a load protects is parked until that ends.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from heapq import heappop, heappush, heapreplace
from typing import Any

import numpy as np

from auxconn.chains import DEPTH_BITS, MASK, NOWHERE, Chain, ChainTable
from auxconn.residency import HEARTBEAT, GpuWatch

HELD, GPU, QUEUED, PARKED = 1, 2, 4, 8
"""Flags of a block: its rows are held; its KV is on the GPU; it is loose and in the heap; it
is loose and not in the heap, as a load protects it."""

FRESH = re.compile(bytes((GPU,)) + b"+")
"""A run of blocks that are on the GPU and not held."""

NEW = re.compile(bytes((HELD | GPU,)) + b"+")
"""A run of blocks that are on the GPU and held."""

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
        # So that the watch is told of its own heartbeat.
        self._table.index[HEARTBEAT] = NOWHERE
        self._watch = GpuWatch(pool, self._table.index)
        self._held = 0
        self._stamp = 0
        self._loose: list[int] = []
        """Heap of stamp, depth and number of the chain, in one number each."""
        self._loading: dict[str, list[bytes]] = {}
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
        end, step, suffix = known, self._step, self._suffix
        cache = self._watch.cache
        while end < total and hashes[end * step + step - 1] + suffix in cache:
            end += 1
        if end > known:
            # Blocks of requests that still run; the next look-up will find them known.
            keys = self._table.keys(hashes, known, end)
            flags = bytes((GPU,)) * len(keys)
            self._table.add(links, hashes, keys, flags, self._stamp)
        return end

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
            del keys[len(flags) :]
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

    def release(self, capacity: int) -> None:
        """Release the oldest blocks beyond `capacity` that nothing protects.

        A block is protected while its KV is on the GPU or on its way there.
        """
        excess = self._held - capacity
        if excess <= 0:
            return
        self._settle()
        loose, table = self._loose, self._table
        cache, loads = self._watch.cache, self._loads
        thinned = set()
        while excess and loose:
            entry = loose[0]
            chain, at = table.at(_position(entry))
            if entry >> 2 * DEPTH_BITS != chain.stamps[at]:
                heapreplace(loose, _entry(chain, at))
                continue
            heappop(loose)
            key = table.key(chain, at)
            if key in cache:
                chain.flags[at] = HELD | GPU
            elif key in loads:
                chain.flags[at] = HELD | PARKED
            else:
                chain.flags[at] = 0
                self._released.append(table.hashes(chain, at, at + 1))
                self._held -= 1
                excess -= 1
                thinned.add(chain)
        table.trim(thinned)

    def load(self, request_id: str, hashes: Sequence[bytes], count: int) -> None:
        """Protect the first `count` blocks until the request's load has ended."""
        self.loaded(request_id)
        count = min(count, len(hashes) // self._step)
        keys = self._loading[request_id] = self._table.keys(hashes, 0, count)
        loads = self._loads
        for key in keys:
            loads[key] = loads.get(key, 0) + 1

    def loaded(self, request_id: str) -> None:
        """End the protection of the blocks this request loads, if it does."""
        keys = self._loading.pop(request_id, None)
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
                chain.flags[at] = HELD | QUEUED
                heappush(self._loose, _entry(chain, at))

    def clear(self) -> None:
        """Release every block; loads under way stay."""
        self._released.append(self._sorted().tobytes())
        self._table.clear()
        self._table.index[HEARTBEAT] = NOWHERE
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
            for request_id, keys in self._loading.items()
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
        table, cache, loose = self._table, self._watch.cache, self._loose
        thinned = set()
        for key in left:
            position = table.index.get(key, NOWHERE)
            if position == NOWHERE or key in cache:
                continue  # not known any more, or another copy is there, or it came back
            chain, at = table.at(position)
            flag = chain.flags[at]
            if flag == HELD | GPU:
                chain.flags[at] = HELD | QUEUED
                heappush(loose, _entry(chain, at))
            elif flag == GPU:
                chain.flags[at] = 0
                thinned.add(chain)
        table.trim(thinned)


def _entry(chain: Chain, at: int) -> int:
    """A block in the heap, ordered by stamp and depth."""
    return (
        (chain.stamps[at] << DEPTH_BITS | chain.base + at) << DEPTH_BITS
    ) | chain.number


def _position(entry: int) -> int:
    """Position of the block of an entry, as the table has it."""
    return (entry & MASK) << DEPTH_BITS | (entry >> DEPTH_BITS & MASK)
