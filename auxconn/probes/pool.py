"""Watching the GPU's prefix cache: what leaves it, what enters it, what is free.

How many retained blocks still have their KV on the GPU decides what the connector may
release, and to count them by looking each one up would cost more than the connector does.
So the pool is watched instead. A log notes, in order, each hash whose last copy leaves the
cache (a hash can have several copies, as vLLM does not merge equal blocks) and the hashes
that are cached; whoever reads the log knows which retained blocks are away. Per block that
is an append; the reading is done elsewhere, many blocks at a time.

Free blocks come in two kinds, those that still hold cached content and those that hold
nothing. Their sum is vLLM's; the second kind is counted here from the ways such a block can
come and go: it is freed without a hash, handed out, or loses its hash while it is free.
"""

from __future__ import annotations

from typing import Any

from auxconn.probes.access import ConnectorView
from auxconn.probes.guard import Guard
from auxconn.probes.hooks import Hooks

Log = list[tuple[list[bytes], list[bytes] | None]]
"""What happened in the prefix cache, in order: what left, and then what was cached.

A hash that has left, that is its last copy, has its group's number behind it, as in the
pool. None in place of what was cached: the cache was emptied.
"""


class PoolProbe:
    """Follows one `BlockPool` through hooks on it, its map and its free queue.

    Parameters
    ----------
    view
        Whose pool it is, and which blocks count.
    guard
        Where failures go.
    """

    def __init__(self, view: ConnectorView, guard: Guard) -> None:
        self.pool: Any = view.pool
        self.queue: Any = view.pool.free_block_queue
        """vLLM's free blocks, those that no request refers to."""
        self.unhashed_free = 0
        """Free blocks that hold nothing cached."""
        self._view = view
        self._guard = guard
        self._hooks = Hooks()
        self.log: Log = []
        self.left: list[bytes] = []
        self._note: Any = self.left.append
        self.emptied = 0
        self._popped = -1
        self._map: Any = None
        self._active = True

    def install(self) -> None:
        """Put the hooks in; raises `UnknownConnectorError` when they don't fit."""
        pool, wrap = self.pool, self._hooks.wrap
        self._watch_map()
        wrap(pool, "get_new_blocks", self._get_new_blocks, ("num_blocks",))
        wrap(
            pool,
            "cache_full_blocks",
            self._cache_full_blocks,
            (
                "request",
                "blocks",
                "num_cached_blocks",
                "num_full_blocks",
                "block_size",
                "kv_cache_group_id",
            ),
        )
        wrap(pool.free_block_queue, "prepend_n", self._prepend_n, ("blocks",))
        wrap(pool, "reset_prefix_cache", self._reset_prefix_cache, ())
        wrap(pool, "evict_blocks", self._recounting, ("block_ids",))
        for name, make in (
            ("unpin_blocks", self._recounting),
            ("move_block_hashes", self._move_block_hashes),
        ):
            if hasattr(pool, name):
                wrap(pool, name, make, ())
        self.recount()

    def remove(self) -> None:
        """Take the hooks away; those that must stay do nothing from now on."""
        self._active = False
        self._note = _ignore
        self._hooks.restore()
        self.log, self.left = [], []

    def take(self) -> Log:
        """Take the log of what happened since the last call."""
        if self.left:
            self._close([])
        log, self.log = self.log, []
        return log

    def _close(self, came: list[bytes] | None) -> None:
        """Note what came after all that has left so far."""
        if self._active:
            self.log.append((self.left, came))
            self.left = []
            self._note = self.left.append

    def recount(self) -> None:
        """Count the free blocks that hold nothing, one by one."""
        free = self.pool.free_block_queue.get_all_free_blocks()
        self.unhashed_free = sum(block.block_hash is None for block in free)

    # -- hooks ----------------------------------------------------------------------------

    def _watch_map(self) -> None:
        self._map = self.pool.cached_block_hash_to_block
        make = self._pop_partial if self._view.partial_hashes else self._pop
        self._hooks.wrap(self._map, "pop", make, ("key", "block_id"))

    def _pop(self, original: Any) -> Any:
        cache, failed = self._map._cache, self._guard.failed

        # Called for each block that is handed out with content: the hottest hook of all.
        def pop(key: bytes, block_id: int) -> Any:
            block = original(key, block_id)
            try:
                if block is not None:
                    if block_id != self._popped:
                        # A block can have several keys; they are popped in a row.
                        self._popped = block_id
                        self.emptied += 1
                    if key not in cache:
                        self._note(key)
            except Exception:  # noqa: BLE001 - the engine must not see it
                failed("pop")
            return block

        return pop

    def _pop_partial(self, original: Any) -> Any:
        cache, failed, size = (
            self._map._cache,
            self._guard.failed,
            self._view.block_size,
        )

        def pop(key: bytes, block_id: int) -> Any:
            block = original(key, block_id)
            try:
                if block is not None:
                    if block_id != self._popped:
                        self._popped = block_id
                        self.emptied += 1
                    # The key of an incomplete block is not that of a KV block.
                    whole = block.block_hash == key and (
                        (block.block_hash_num_tokens or 0) % size == 0
                    )
                    if whole and key not in cache:
                        self._note(key)
            except Exception:  # noqa: BLE001 - the engine must not see it
                failed("pop")
            return block

        return pop

    def _get_new_blocks(self, original: Any) -> Any:
        failed = self._guard.failed

        def get_new_blocks(num_blocks: int) -> Any:
            before = self.emptied
            self._popped = -1
            blocks = original(num_blocks)
            try:
                self.unhashed_free -= len(blocks) - (self.emptied - before)
            except Exception:  # noqa: BLE001 - the engine must not see it
                failed("get_new_blocks")
            return blocks

        return get_new_blocks

    def _cache_full_blocks(self, original: Any) -> Any:
        failed = self._guard.failed

        def cache_full_blocks(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            try:
                self.on_cached(*args, **kwargs)
            except Exception:  # noqa: BLE001 - the engine must not see it
                failed("cache_full_blocks")
            return result

        return cache_full_blocks

    def on_cached(
        self,
        request: Any,
        blocks: Any,
        num_cached_blocks: int,
        num_full_blocks: int,
        block_size: int,
        kv_cache_group_id: int,
        block_mask: Any = None,
    ) -> None:
        """Note which blocks were cached."""
        view = self._view
        if kv_cache_group_id == view.group_id:
            step = view.step
            keys = request.block_hashes[
                num_cached_blocks * step + step - 1 : num_full_blocks * step : step
            ]
            if keys:
                self._close(keys)

    def _move_block_hashes(self, original: Any) -> Any:
        def move_block_hashes(*args: Any, **kwargs: Any) -> Any:
            before = len(self.left)
            try:
                return original(*args, **kwargs)
            finally:
                # The hashes have another block now; nothing has left.
                del self.left[before:]

        return move_block_hashes

    def _recounting(self, original: Any) -> Any:
        failed = self._guard.failed

        # Rare (a failed load, a block that stays readable): worth a look at each block.
        def rare(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            try:
                if self._active:
                    self.recount()
            except Exception:  # noqa: BLE001 - the engine must not see it
                failed("recount")
            return result

        return rare

    def _reset_prefix_cache(self, original: Any) -> Any:
        failed = self._guard.failed

        def reset_prefix_cache(*args: Any, **kwargs: Any) -> Any:
            done = original(*args, **kwargs)
            try:
                if done and self._active:
                    self.on_wiped()
            except Exception:  # noqa: BLE001 - the engine must not see it
                failed("reset_prefix_cache")
            return done

        return reset_prefix_cache

    def on_wiped(self) -> None:
        """Follow the pool to the new map that a reset has given it."""
        self._hooks.drop(self._map)
        self._watch_map()
        self.recount()
        self._close(None)

    def _prepend_n(self, original: Any) -> Any:
        failed = self._guard.failed

        # vLLM frees blocks without a hash to the front, to be reused first.
        def prepend_n(blocks: Any) -> Any:
            result = original(blocks)
            try:
                self.unhashed_free += len(blocks)
            except Exception:  # noqa: BLE001 - the engine must not see it
                failed("prepend_n")
            return result

        return prepend_n


def _ignore(*_args: Any, **_kwargs: Any) -> None:
    """Take the place of a callback that is switched off."""
