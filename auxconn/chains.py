"""Known blocks as chains: whole prefixes found by bisection, state at memory speed.

A block hash names its whole prefix, so blocks form a tree. A prompt of 131,072 tokens has
8,192 of them, and whoever walks them one by one in Python needs milliseconds. Here they are
stored as chains, a chain being a run of consecutive blocks that branches off its parent at
some depth. Whenever a block is known, all blocks before it are known too, so the deepest
known block of a prompt is found in about thirteen look-ups, and with it the few chains that
make up the whole prefix. What one wants to know of the blocks of a chain lies side by side
in byte strings, which are searched and filled at the speed of memory.

Blocks that have nothing to say any more (flags of zero) are dropped from the end of their
chain; in the middle they stay, as what follows them would otherwise be unknown.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from auxconn.errors import ContractError

DEPTH_BITS = 32
"""Bits of a depth, and of a chain's number, in a position."""

MASK = (1 << DEPTH_BITS) - 1

NOWHERE = -1
"""Position of a block that is not known."""


class Chain:
    """A run of blocks, each the continuation of the one before.

    Attributes
    ----------
    number
        Its place in the table.
    parent, base
        The chain that its first block continues, and the depth at which it does, in blocks
        from the start of the prompt; None and 0 when its first block is a prompt's first.
    hashes
        Hashes of all hash blocks, one after the other.
    flags, stamps
        A byte and a number of each block; what they mean is up to the user.
    branches
        How many chains branch off at each place of this one.
    """

    __slots__ = ("base", "branches", "flags", "hashes", "number", "parent", "stamps")

    def __init__(self, number: int, parent: Chain | None, base: int) -> None:
        self.number = number
        self.parent = parent
        self.base = base
        self.hashes = bytearray()
        self.flags = bytearray()
        self.stamps = array("q")
        self.branches: dict[int, int] | None = None

    def stamp(self, first: int, end: int, stamp: int) -> None:
        """Set the stamps of the blocks from `first` to before `end`."""
        self.stamps[first:end] = array("q", (stamp,)) * (end - first)

    def has_stamp(self, first: int, end: int, stamp: int) -> bool:
        """True when all blocks from `first` to before `end` have this stamp."""
        return self.stamps[first:end] == array("q", (stamp,)) * (end - first)

    def parts(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Where the stamp changes between `first` and before `end`, and to what."""
        stamp = self.stamps[first]
        yield first, stamp
        if self.has_stamp(first, end, stamp):
            return
        for at in range(first + 1, end):
            if self.stamps[at] != stamp:
                stamp = self.stamps[at]
                yield at, stamp


class ChainTable:
    """All known blocks.

    Parameters
    ----------
    suffix
        What the pool appends to a block's hash to make it the key of a group's block.
    step
        Hash blocks per KV block.

    Attributes
    ----------
    index
        Position of each known block by its key; see `at`.
    """

    def __init__(self, suffix: bytes, step: int) -> None:
        self.index: dict[bytes, int] = {}
        self.size = 0
        """Bytes of a hash; 0 before the first."""
        self._suffix = suffix
        self._step = step
        self._chains: list[Chain | None] = []
        self._vacant: list[int] = []

    def clear(self) -> None:
        """Forget every block."""
        self.index.clear()
        self._chains.clear()
        self._vacant.clear()

    def __iter__(self) -> Iterator[Chain]:
        return (chain for chain in self._chains if chain is not None)

    # -- finding --------------------------------------------------------------------------

    def keys(self, hashes: Sequence[bytes], first: int, end: int) -> list[bytes]:
        """Keys of the blocks from `first` to before `end` of a prompt's `hashes`."""
        step, suffix = self._step, self._suffix
        return [
            one + suffix for one in hashes[first * step + step - 1 : end * step : step]
        ]

    def path(
        self, hashes: Sequence[bytes], total: int
    ) -> tuple[list[tuple[Chain, int]], int]:
        """Find what is known of the first `total` blocks of a prompt.

        Returns
        -------
        links, known
            The chains of the known blocks from the first on, each with the number of its
            blocks that belong to the prompt, and the number of blocks in all of them.

        Raises
        ------
        ContractError
            When these are not hashes of prefixes.
        """
        known = self._known(hashes, total)
        links: list[tuple[Chain, int]] = []
        if not known:
            return links, 0
        step, size = self._step, self.size
        chain, at = self.at(self.index[hashes[known * step - 1] + self._suffix])
        if chain.base + at + 1 != known:
            raise ContractError(
                f"the hash of a prompt's blocks [0, {known}) is known as that of blocks "
                f"[0, {chain.base + at + 1}): block hashes must name their whole prefix"
            )
        end = known
        link: Chain | None = chain
        while link is not None:
            # A sample: all hashes of a prefix follow from its last one.
            if link.hashes[:size] != hashes[link.base * step]:
                raise ContractError(
                    f"two prompts have the same hash for blocks [0, {end}), but not for "
                    f"block {link.base}: block hashes must name their whole prefix"
                )
            links.append((link, end - link.base))
            end = link.base
            link = link.parent
        links.reverse()
        return links, known

    def _known(self, hashes: Sequence[bytes], total: int) -> int:
        """How many of the first `total` blocks are known, all of them being leading."""
        if not total:
            return 0
        index, step, suffix = self.index, self._step, self._suffix
        if hashes[total * step - 1] + suffix in index:
            return total
        low, high = 0, total
        while high - low > 1:
            middle = (low + high) >> 1
            if hashes[middle * step - 1] + suffix in index:
                low = middle
            else:
                high = middle
        return low

    def at(self, position: int) -> tuple[Chain, int]:
        """The chain of a position, and the block's place in it."""
        chain: Any = self._chains[position >> DEPTH_BITS]
        return chain, (position & MASK) - chain.base

    def key(self, chain: Chain, at: int) -> bytes:
        """Key of a block: the hash that ends it, and the group."""
        end = (at + 1) * self._step * self.size
        return bytes(chain.hashes[end - self.size : end]) + self._suffix

    def known_keys(self, chain: Chain, first: int, end: int) -> list[bytes]:
        """Keys of the blocks from `first` to before `end` of a chain."""
        size, suffix, width = self.size, self._suffix, self._step * self.size
        hashes = bytes(chain.hashes[first * width : end * width])
        return [
            hashes[at : at + size] + suffix
            for at in range(width - size, len(hashes), width)
        ]

    def hashes(self, chain: Chain, first: int, end: int) -> bytes:
        """All hashes of the blocks from `first` to before `end`, one after the other."""
        width = self._step * self.size
        return bytes(chain.hashes[first * width : end * width])

    # -- changing -------------------------------------------------------------------------

    def add(
        self,
        links: Sequence[tuple[Chain, int]],
        hashes: Sequence[bytes],
        keys: Iterable[bytes],
        flags: bytes,
        stamp: int,
    ) -> tuple[Chain, int]:
        """Make the blocks known that follow a path of known ones.

        Parameters
        ----------
        links
            The path, as from `path`.
        hashes, keys
            Hashes of the whole prompt; keys of the blocks to add.
        flags, stamp
            A flag of each block to add, and one stamp for all.

        Returns
        -------
        chain, first
            Where they are now: the chain, and the place of the first of them.
        """
        count, step = len(flags), self._step
        chain, used = links[-1] if links else (None, 0)
        base = 0 if chain is None else chain.base + used
        added = b"".join(hashes[base * step : (base + count) * step])
        if not self.size:
            self.size = len(hashes[0])
        if len(added) != count * step * self.size:
            raise ContractError(
                f"block hashes of {self.size} bytes are known, these {count * step} have "
                f"{len(added)} bytes together: all must be of one length"
            )
        if chain is None or used < len(chain.flags):
            chain = self._branch(chain, base)
        first = len(chain.flags)
        chain.hashes += added
        chain.flags += flags
        chain.stamps.extend(array("q", (stamp,)) * count)
        position = chain.number << DEPTH_BITS | base
        self.index.update(zip(keys, range(position, position + count), strict=True))
        return chain, first

    def _branch(self, parent: Chain | None, base: int) -> Chain:
        if parent is not None:
            if parent.branches is None:
                parent.branches = {}
            at = base - parent.base
            parent.branches[at] = parent.branches.get(at, 0) + 1
        if self._vacant:
            chain = Chain(self._vacant.pop(), parent, base)
            self._chains[chain.number] = chain
        else:
            chain = Chain(len(self._chains), parent, base)
            self._chains.append(chain)
        return chain

    def trim(self, chains: Iterable[Chain]) -> None:
        """Forget the blocks at the end of these chains whose flags are zero."""
        for start in chains:
            chain: Chain | None = start
            while chain is not None and chain.flags and not chain.flags[-1]:
                chain = self._shorten(chain)

    def _shorten(self, chain: Chain) -> Chain | None:
        """Drop what can be dropped; returns the parent when nothing was left."""
        kept = len(chain.flags.rstrip(b"\0"))
        if chain.branches:
            kept = max(kept, *chain.branches)
        for key in self.known_keys(chain, kept, len(chain.flags)):
            del self.index[key]
        del chain.hashes[kept * self._step * self.size :]
        del chain.flags[kept:]
        del chain.stamps[kept:]
        if kept:
            return None
        self._chains[chain.number] = None
        self._vacant.append(chain.number)
        parent = chain.parent
        if parent is not None and parent.branches is not None:
            at = chain.base - parent.base
            parent.branches[at] -= 1
            if not parent.branches[at]:
                del parent.branches[at]
        return parent
