"""A block pool of a few lines, with what the connector reads of vLLM's."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

HASH_SIZE = 8


class FakeMap:
    """From the key of a block to its copies, like vLLM's `BlockHashToBlockMap`."""

    def __init__(self) -> None:
        self._cache: dict[bytes, dict[int, str]] = {}

    def pop(self, key: bytes, block_id: int) -> str | None:
        copies = self._cache.pop(key, None)
        if copies is None:
            return None
        copy = copies.pop(block_id, None)
        if copies:
            self._cache[key] = copies
        return copy


class FakePool:
    """Blocks come and go as a test says."""

    def __init__(self, group: int = 0, hash_block_size: int = 4) -> None:
        self.group = group
        self.hash_block_size = hash_block_size
        self.cached_block_hash_to_block = FakeMap()

    def key(self, block_hash: bytes) -> bytes:
        return block_hash + self.group.to_bytes(4, "big")

    def get_cached_block(
        self, block_hash: bytes, groups: list[int]
    ) -> list[str] | None:
        assert groups == [self.group]
        copies = self.cached_block_hash_to_block._cache.get(self.key(block_hash))
        return [next(iter(copies.values()))] if copies else None

    def put(self, block_hash: bytes, block_id: int = 0) -> None:
        """Cache one copy of a block."""
        cache = self.cached_block_hash_to_block._cache
        cache.setdefault(self.key(block_hash), {})[block_id] = "block"

    def evict(self, block_hash: bytes, block_id: int = 0) -> None:
        """Take one copy away, if it is there."""
        self.cached_block_hash_to_block.pop(self.key(block_hash), block_id)

    def reset(self) -> None:
        self.cached_block_hash_to_block = FakeMap()


def prompt_hashes(tokens: Sequence[int]) -> list[bytes]:
    """Hash of each prefix of a prompt of one token per hash block."""
    hashes, running = [], b""
    for token in tokens:
        running = hashlib.blake2b(
            running + bytes((token,)), digest_size=HASH_SIZE
        ).digest()
        hashes.append(running)
    return hashes


def manager(pool: Any, block_size: int = 4, num_blocks: int = 100) -> Any:
    """A KV cache manager with one group."""
    return SimpleNamespace(
        coordinator=SimpleNamespace(
            single_type_managers=[
                SimpleNamespace(block_pool=pool, block_size=block_size)
            ]
        ),
        block_pool=pool,
        kv_cache_config=SimpleNamespace(num_blocks=num_blocks),
    )
