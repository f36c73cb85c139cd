"""Reading a scheduler connector, vLLM's or ours, without disturbing it.

vLLM's connector has no public state, its look-up moves what it touches, and a newer upstream
already renames its insides. So everything the probes need to know of a connector that is
not in its calls or its metadata is read here, in one class, and when upstream changes this
is the file that changes. Nothing here calls a method that decides anything, save
`set_capacity`, which is a command.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from auxconn.checks import check_capacity
from auxconn.errors import AuxConnError


class UnknownConnectorError(AuxConnError, ValueError):
    """The object is of a shape the probes do not know; nothing was attached."""


class ConnectorView:
    """What can be read of the connector of `scheduler`.

    Parameters
    ----------
    scheduler
        vLLM's scheduler; its `aux_output_connector` is what is read.

    Attributes
    ----------
    kind
        `vllm` or `auxconn`.
    block_size, hash_block_size, step
        Tokens of a KV block of the full-attention group, tokens of a hash block, and how
        many of the latter a KV block has.
    group_id
        KV cache group whose blocks the connector keeps.
    pool
        vLLM's block pool of that group.
    num_blocks, num_groups
        KV blocks and KV cache groups of the pool.
    partial_hashes
        True when the pool also keys incomplete KV blocks, as it does for Mamba states.

    Raises
    ------
    UnknownConnectorError
        When the scheduler has no connector, or one that cannot be read.
    """

    def __init__(self, scheduler: Any) -> None:
        connector = getattr(scheduler, "aux_output_connector", None)
        if connector is None:
            raise UnknownConnectorError(
                f"{type(scheduler).__name__} has no auxiliary-output connector to attach "
                "to: start vLLM with --enable-return-routed-experts"
            )
        self.connector: Any = connector
        manager = scheduler.kv_cache_manager
        coordinator = manager.coordinator
        self.group_id: int = getattr(coordinator, "full_attention_group_id", None) or 0
        group = coordinator.single_type_managers[self.group_id]
        self.pool: Any = group.block_pool
        self.block_size: int = group.block_size
        self.hash_block_size: int = manager.block_pool.hash_block_size
        self.step: int = self.block_size // self.hash_block_size
        self.num_blocks: int = manager.kv_cache_config.num_blocks
        self.num_groups: int = len(manager.kv_cache_config.kv_cache_groups)
        self.partial_hashes: bool = bool(
            getattr(coordinator, "enable_partial_hash_hits", False)
        )
        self.kind: str
        self.retained: Callable[[], int]
        """KV blocks the connector retains, in constant time."""
        if hasattr(connector, "set_capacity"):
            self.kind = "auxconn"
            self._blocks: Any = connector._blocks
            self.retained = self._blocks.__len__
        elif hasattr(connector, "_kv_cached"):
            self.kind = "vllm"
            self.retained = connector._kv_cached.__len__
        else:
            raise UnknownConnectorError(
                f"{type(connector).__module__}.{type(connector).__name__} is neither "
                "vLLM 0.33's auxiliary-output connector nor auxconn's: this version of "
                "auxconn cannot read what it retains"
            )

    @property
    def capacity(self) -> int:
        """KV blocks the connector keeps before it releases."""
        return int(self.connector._capacity)

    @property
    def generation(self) -> int:
        """Prefix-cache resets so far."""
        return int(self.connector._generation)

    def held(self) -> list[bytes]:
        """Key of each retained KV block (its last hash), oldest first; walks them all."""
        if self.kind == "auxconn":
            return list(self._blocks.held())
        return [hashes[-1] for hashes in self.connector._kv_cached.values()]

    def loading(self) -> tuple[str, ...]:
        """Ids of the requests whose KV load is under way."""
        if self.kind == "auxconn":
            return tuple(self._blocks.loading())
        return tuple(self.connector._loading)

    def on_gpu(self, key: bytes) -> bool:
        """True when the pool has the block of `key` in its prefix cache."""
        return bool(self.pool.get_cached_block(key, [self.group_id]))

    def has_rows(self, key: bytes) -> bool:
        """True when the block of `key` is on the GPU or retained; may walk them all."""
        return self.on_gpu(key) or key in self.held()

    def set_capacity(self, blocks: Any) -> tuple[int, int]:
        """Set the capacity; what may be released leaves with the next metadata.

        Returns
        -------
        before, after
            Capacity in KV blocks.

        Raises
        ------
        CapacityError
            When `blocks` isn't a whole number from 1 to `MOST_CAPACITY`.
        """
        before = self.capacity
        if self.kind == "auxconn":
            self.connector.set_capacity(blocks)
            return before, self.capacity
        after = self.connector._capacity = check_capacity(blocks)
        if after < before:
            # vLLM releases when a request ends; a lowered capacity must not wait for that.
            self.connector._release_unheld()
        return before, after
