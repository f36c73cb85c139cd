"""Packing block hashes as the records carry them.

A hash is shown by its low 64 bits, as in vLLM's KV events. Hashes are big-endian bytes, the
records little-endian arrays, so the last eight bytes are taken and turned round, for
thousands of hashes in one numpy operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

_NAN = np.array(np.nan, "<f4").tobytes()


class Packed(NamedTuple):
    """The packed columns of some blocks' events."""

    hash: bytes
    age: bytes
    idle: bytes
    uses: bytes

    def part(self, begin: int, end: int) -> tuple[bytes, bytes, bytes, bytes]:
        """The columns of blocks `begin` to `end`."""
        at, to = 4 * begin, 4 * end
        return (
            self.hash[8 * begin : 8 * end],
            self.age[at:to],
            self.idle[at:to],
            self.uses[at:to],
        )


def low64(keys: Sequence[bytes]) -> bytes:
    """Low 64 bits of each hash as a packed little-endian uint64 array.

    All of `keys` have the same length of at least 8 bytes.
    """
    if not keys:
        return b""
    size = len(keys[0])
    octets = np.frombuffer(b"".join(keys), np.uint8).reshape(len(keys), size)
    return octets[:, : size - 9 if size > 8 else None : -1].tobytes()


def last_hashes(packed: Any, step: int) -> list[bytes]:
    """Key of each KV block in a `PackedBlockHashes`: the last of every `step` hashes."""
    if packed is None:
        return []
    hashes: list[bytes] = np.frombuffer(packed.data, f"V{packed.item_size}")[
        step - 1 :: step
    ].tolist()
    return hashes


def zeros(count: int) -> bytes:
    """`count` zeros of 32 bits, of any kind."""
    return bytes(4 * count)


def nans(count: int) -> bytes:
    """`count` float32 that are not a number."""
    return _NAN * count
