"""The loading set: which blocks are protected because a KV load needs them.

The connector protects a block from `request_loading` until the request is scheduled or
ends. Several requests often load the same blocks (the samples of one prompt), so distinct
blocks are counted by how many requests need each.
"""

from __future__ import annotations

from collections import Counter


class LoadLog:
    """Loads under way and the distinct blocks they need."""

    def __init__(self) -> None:
        self._loading: dict[str, list[bytes]] = {}
        self._needed: Counter[bytes] = Counter()

    @property
    def requests(self) -> int:
        """Requests whose load is under way."""
        return len(self._loading)

    @property
    def blocks(self) -> int:
        """Distinct blocks they protect."""
        return len(self._needed)

    def start(self, request_id: str, keys: list[bytes]) -> list[bytes] | None:
        """A load of `keys` begins; it takes the place of one the request may have.

        Returns
        -------
        Blocks of the load whose place it takes, None when there is none.
        """
        before = self.end(request_id)
        self._loading[request_id] = keys
        self._needed.update(keys)
        return before

    def end(self, request_id: str) -> list[bytes] | None:
        """The request is scheduled or has ended; the blocks it loaded, None if it didn't."""
        keys = self._loading.pop(request_id, None)
        if keys is None:
            return None
        needed = self._needed
        for key in keys:
            left = needed[key] - 1
            if left:
                needed[key] = left
            else:
                del needed[key]
        return keys

    def clear(self) -> None:
        """Forget all loads."""
        self._loading.clear()
        self._needed.clear()
