"""The retained blocks, kept the plain way: one ordered dictionary and a scan.

This is the definition of which blocks have rows, in which order they are released and what
protects them. It asks the pool about every block it meets, so it is right with any pool
that answers `get_cached_block`, and its cost grows with the blocks held and with the length
of the prompts. `auxconn.traced` does the same with far less work where it can watch the
pool; tests hold the two to each other and both to vLLM.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any


class ScannedBlocks:
    """Blocks whose rows the worker must keep, oldest first, and who loads what.

    Parameters
    ----------
    pool
        vLLM's block pool; only `get_cached_block` is used.
    group_id
        KV cache group whose blocks are meant.
    step
        Hash blocks per KV block.
    """

    def __init__(self, pool: Any, group_id: int, step: int) -> None:
        self._pool = pool
        self._groups = [group_id]
        self._step = step
        self._held: OrderedDict[bytes, Sequence[bytes]] = OrderedDict()
        self.loads_of: dict[str, frozenset[bytes]] = {}
        """Keys of the blocks that each loading request loads; for reading."""
        self._retained: list[bytes] = []
        self._released: list[bytes] = []

    def __len__(self) -> int:
        return len(self._held)

    def _on_gpu(self, key: bytes) -> bool:
        return bool(self._pool.get_cached_block(key, self._groups))

    def _blocks(self, hashes: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
        step = self._step
        for end in range(step, len(hashes) + 1, step):
            yield hashes[end - step : end]

    def hit(self, hashes: Sequence[bytes]) -> int:
        """Count the leading blocks that have rows; the held ones become the youngest."""
        count = 0
        for block in self._blocks(hashes):
            if block[-1] in self._held:
                self._held.move_to_end(block[-1])
            elif not self._on_gpu(block[-1]):
                break
            count += 1
        return count

    def retain(self, hashes: Sequence[bytes], count: int) -> None:
        """Hold those of the first `count` blocks that are on the GPU."""
        for block in islice(self._blocks(hashes), max(count, 0)):
            if block[-1] not in self._held and self._on_gpu(block[-1]):
                self._held[block[-1]] = block
                self._retained.extend(block)

    def release(self, capacity: int) -> None:
        """Release the oldest blocks beyond `capacity` that nothing protects.

        A block is protected while its KV is on the GPU or on its way there.
        """
        excess = len(self._held) - capacity
        if excess <= 0:
            return
        loading = set().union(*self.loads_of.values())
        loose = (
            key for key in self._held if key not in loading and not self._on_gpu(key)
        )
        for key in list(islice(loose, excess)):
            self._released.extend(self._held.pop(key))

    def load(self, request_id: str, hashes: Sequence[bytes], count: int) -> None:
        """Protect the first `count` blocks until the request's load has ended."""
        self.loads_of[request_id] = frozenset(
            block[-1] for block in islice(self._blocks(hashes), count)
        )

    def loaded(self, request_id: str) -> None:
        """End the protection of the blocks this request loads, if it does."""
        self.loads_of.pop(request_id, None)

    def clear(self) -> None:
        """Release every block; loads under way stay."""
        self._released.extend(chain.from_iterable(self._held.values()))
        self._held.clear()

    def take(self) -> tuple[bytes, bytes, int]:
        """Hashes of the hash blocks retained and released since the last call, in order.

        Returns
        -------
        retained, released, size
            One hash after the other, and the bytes of each.
        """
        retained, released = self._retained, self._released
        self._retained, self._released = [], []
        size = len((retained or released or (b"",))[0])
        return b"".join(retained), b"".join(released), size

    def held(self) -> list[bytes]:
        """Keys of the held blocks, oldest first."""
        return list(self._held)

    def loading(self) -> dict[str, frozenset[bytes]]:
        """Keys of the blocks that each loading request protects."""
        return dict(self.loads_of)
