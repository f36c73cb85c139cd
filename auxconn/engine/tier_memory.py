"""The host tier's memory, and the copies between it and the pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

Copies = list[tuple[int, int]]
"""Pairs of a block of the pool and a slot of the tier."""


class TierMemory:
    """Slots of host memory, one tensor for each layer.

    Parameters
    ----------
    slots
        How many there are.
    load_blocks
        Blocks that `load` copies at most.
    """

    def __init__(self, slots: int, load_blocks: int) -> None:
        self.queue: dict[str, Copies] = {}
        """Loads under way, by request; the first ones go first."""
        self._slots = slots
        self._load_blocks = load_blocks
        self._layers: list[tuple[torch.Tensor, torch.Tensor]] = []

    def take(self, kv_caches: dict[str, torch.Tensor], num_blocks: int) -> None:
        """Make room for the blocks of these layers.

        Raises
        ------
        ValueError
            When a layer's memory is in no blocks that we know.
        """
        self._layers = []
        for name, cache in kv_caches.items():
            pool = _by_block(name, cache, num_blocks)
            host = pool.new_empty((self._slots, *pool.shape[1:]), device="cpu")
            self._layers.append((pool, host))

    def save(self, copies: Copies) -> None:
        """Copy blocks of the pool into their slots."""
        if not copies:
            return
        blocks = [block for block, _ in copies]
        slots = [slot for _, slot in copies]
        for pool, host in self._layers:
            host[slots] = pool[blocks].to(host.device)

    def load(self) -> set[str]:
        """Copy back as many blocks as go in one step; returns the loads that are complete."""
        due: Copies = []
        complete = set()
        for name, copies in self.queue.items():
            room = self._load_blocks - len(due)
            if not room:
                break
            due += copies[:room]
            del copies[:room]
            if not copies:
                complete.add(name)
        for name in complete:
            del self.queue[name]
        if due:
            blocks = [block for block, _ in due]
            slots = [slot for _, slot in due]
            for pool, host in self._layers:
                pool[blocks] = host[slots].to(pool.device)
        return complete


def _by_block(name: str, cache: torch.Tensor, num_blocks: int) -> torch.Tensor:
    """A view of a layer's memory whose first index is the block.

    A kernel's block may be a part of the pool's: then so many of them make one.
    """
    for dim in (0, 1):
        size = cache.shape[dim]
        if size and size % num_blocks == 0:
            return cache.movedim(dim, 0).unflatten(0, (num_blocks, size // num_blocks))
    raise ValueError(
        f"the KV cache of {name} has shape {tuple(cache.shape)}, and none of its first two "
        f"sizes is that of the pool, {num_blocks} blocks: leave the host tier out "
        "(--kv-tier 0)"
    )
