"""Which retained blocks are not on the GPU, from the log of the pool.

The connector may only release a block whose KV has left the GPU, so the difference between
what is retained and what could be released is this set. It is exact after every step: the
log says in order what left and what was cached, and a block is where its last entry says.
"""

from __future__ import annotations

from collections.abc import Iterable

from auxconn.probes.pool import Log


class Movements:
    """What one step's log says; `left` has a block as often as it left, in order."""

    __slots__ = ("away", "came", "left", "wiped")

    def __init__(self) -> None:
        self.left: list[bytes] = []
        self.away: set[bytes] = set()
        """Blocks that left and have not come back."""
        self.came: set[bytes] = set()
        """After a wipe: what was cached since."""
        self.wiped = False
        """True when the whole cache was emptied."""


class AbsentBlocks:
    """Keys of the retained blocks whose KV is not on the GPU.

    Parameters
    ----------
    group_id
        KV cache group whose blocks count.
    many_groups
        True when the log may have hashes of other groups.
    """

    def __init__(self, group_id: int, many_groups: bool) -> None:
        self.keys: set[bytes] = set()
        self._suffix = group_id.to_bytes(4, "big")
        self._many_groups = many_groups

    def __len__(self) -> int:
        return len(self.keys)

    def read(self, log: Log) -> Movements:
        """Follow the log of a step; blocks that came back are absent no more."""
        found = Movements()
        suffix, many_groups = self._suffix, self._many_groups
        left, away, came, absent = found.left, found.away, found.came, self.keys
        for entry in log:
            if isinstance(entry, bytes):
                if many_groups and not entry.endswith(suffix):
                    continue
                key = entry[:-4]
                left.append(key)
                away.add(key)
                if found.wiped:
                    came.discard(key)
            elif entry is None:
                found.wiped = True
                absent.clear()
                away.clear()
                came.clear()
            else:
                if away:
                    away.difference_update(entry)
                if absent:
                    absent.difference_update(entry)
                if found.wiped:
                    came.update(entry)
        return found

    def add(self, keys: Iterable[bytes]) -> None:
        """Retained blocks that are away."""
        self.keys.update(keys)

    def remove(self, keys: Iterable[bytes]) -> None:
        """Blocks that are retained no more."""
        if self.keys:
            self.keys.difference_update(keys)

    def replace(self, keys: Iterable[bytes]) -> None:
        """Begin anew: these are the absent ones."""
        self.keys = set(keys)
