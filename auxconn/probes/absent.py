"""Which retained blocks are not on the GPU, from the log of the pool.

The connector may only release a block whose KV has left the GPU, so the difference between
what is retained and what could be released is this set. It is exact after every step: the
log says in order what left and what was cached, and a block is where its last entry says.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from auxconn.probes.pool import Log


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

    def clean(self, log: Log) -> Log:
        """The same log with the keys of the group that counts alone, as blocks' keys."""
        suffix = self._suffix
        if self._many_groups:
            return [
                ([key[:-4] for key in left if key.endswith(suffix)], cached)
                for left, cached in log
            ]
        return [([key[:-4] for key in left], cached) for left, cached in log]

    def follow(
        self,
        log: Log,
        away: set[bytes],
        released: Collection[bytes],
        retained: Callable[[], Iterable[bytes]],
    ) -> None:
        """Bring the set up to date with one step.

        Parameters
        ----------
        log
            The step's, cleaned.
        away
            Those of the blocks that left that are retained.
        released
            Blocks that the connector has let go of.
        retained
            All retained blocks after the step; only asked for when the cache was emptied.
        """
        absent = self.keys
        wiped = False
        came: set[bytes] = set()
        for left, cached in log:
            if left:
                absent |= away.intersection(left)
                if came:
                    came.difference_update(left)
            if cached is None:
                wiped = True
                absent.clear()
                came.clear()
            elif cached:
                if absent:
                    absent.difference_update(cached)
                if wiped:
                    came.update(cached)
        if wiped:
            absent = self.keys = set(retained()) - came
        if released and absent:
            absent.difference_update(released)

    def replace(self, keys: Iterable[bytes]) -> None:
        """Begin anew: these are the absent ones."""
        self.keys = set(keys)
