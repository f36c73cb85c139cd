"""A KV tier in host memory that really holds keys and values.

The connectors that vLLM brings for this refuse a machine without a GPU, or load at once, so
that nothing is ever loading. This one copies each full block out of the pool after the step
that filled it, and copies it back for a request whose prefix is no longer in the pool: while
other requests run, a few blocks a step, as over a bus of that width. What the scheduler
connector is then asked (`cap_external_hit`, `request_loading`) is asked for true loads.

The scheduler's side knows which block hash is in which slot and says in a step's metadata
what to copy; the worker's side has the slots' memory and copies. Saves of a step are done
when the step ends, loads begin behind them, so a slot may be offered at the very next step.

This module is imported by name by vLLM's connector factory, and only there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    SupportsHMA,
)

from auxconn.engine.tier_index import TierIndex
from auxconn.engine.tier_memory import Copies, TierMemory

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request


@dataclass
class HostTierMetadata(KVConnectorMetadata):
    """What a step saves, and the loads that begin with it, by request."""

    saves: Copies = field(default_factory=list)
    loads: dict[str, Copies] = field(default_factory=dict)


class HostKVTier(KVConnectorBase_V1, SupportsHMA):
    """LRU tier of KV blocks in host memory.

    Extra settings (`kv_connector_extra_config`): `blocks`, its size in KV blocks;
    `load_blocks`, the blocks it loads in a step.

    Raises
    ------
    ValueError
        When the model's layers need several KV groups.
    """

    def __init__(
        self,
        vllm_config: VllmConfig,
        role: KVConnectorRole,
        kv_cache_config: KVCacheConfig,
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        groups = len(kv_cache_config.kv_cache_groups)
        if groups != 1:
            raise ValueError(
                f"this model has {groups} KV groups; the host tier copies the blocks of one: "
                "leave it out (--kv-tier 0)"
            )
        extra = self._kv_transfer_config.kv_connector_extra_config
        self.capacity = int(extra["blocks"])
        block_size = kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size
        self._index = TierIndex(self.capacity)
        self._block_size = int(block_size)
        self._requests: dict[str, Request] = {}
        self._saved: dict[str, int] = {}
        self._local: dict[str, int] = {}
        self._loads: dict[str, Copies] = {}
        self._loading: set[str] = set()
        self._memory = TierMemory(self.capacity, int(extra["load_blocks"]))

    # -- scheduler's side -----------------------------------------------------------------

    @property
    def requires_kv_delivery(self) -> bool:
        """A cache: a block that is not saved is a miss later, nothing worse."""
        return False

    def on_new_request(self, request: Request) -> None:
        """Remember the request: a step's output brings its id alone."""
        self._requests[request.request_id] = request

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int, bool]:
        """Offer the blocks after `num_computed_tokens` that the tier holds in a row."""
        first = num_computed_tokens // self._block_size
        # A token must be left to compute: vLLM needs its logits.
        last = (request.num_tokens - 1) // self._block_size
        hashes = request.block_hashes[first:last]
        found = self._index.run(hashes)
        # The scheduler may take the offer some steps later: until then it must hold.
        self._index.pin(request.request_id, hashes[:found])
        self._local[request.request_id] = first
        return found * self._block_size, found > 0

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        """Begin a load when the scheduler took the offer."""
        name = request.request_id
        if num_external_tokens <= 0:
            if name not in self._loading:
                self._index.unpin(name)
            return
        first = self._local[name]
        end = first + num_external_tokens // self._block_size
        ids = blocks.get_block_ids()[0][first:end]
        slots = self._index.pin(name, request.block_hashes[first:end])
        self._loads[name] = list(zip(ids, slots, strict=True))
        self._loading.add(name)

    def build_connector_meta(
        self, scheduler_output: SchedulerOutput
    ) -> HostTierMetadata:
        """Name what this step fills and the tier lacks, and the loads that begin."""
        assert self._kv_cache_manager is not None
        for new in scheduler_output.scheduled_new_reqs:
            # New or back from a preemption: its blocks are looked at from the first one.
            self._saved[new.req_id] = 0
        saves: Copies = []
        for name, count in scheduler_output.num_scheduled_tokens.items():
            request = self._requests.get(name)
            if request is None:
                continue
            full = (request.num_computed_tokens + count) // self._block_size
            ready = min(full, len(request.block_hashes))
            done = self._saved.get(name, 0)
            if ready <= done:
                continue
            ids = self._kv_cache_manager.get_block_ids(name)[0]
            for block in range(done, ready):
                slot = self._index.put(request.block_hashes[block])
                if slot is not None:
                    saves.append((ids[block], slot))
            self._saved[name] = ready
        metadata = HostTierMetadata(saves, self._loads)
        self._loads = {}
        return metadata

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """Let go of the slots of loads that have landed."""
        for name in connector_output.finished_recving or ():
            self._loading.discard(name)
            self._index.unpin(name)

    def request_finished(
        self, request: Request, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Forget it; the tier has its own copy, so the blocks are free at once."""
        return self._forget(request.request_id)

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """As `request_finished`."""
        return self._forget(request.request_id)

    def _forget(self, name: str) -> tuple[bool, None]:
        for known in (self._requests, self._saved, self._local):
            known.pop(name, None)
        if name not in self._loading:
            self._index.unpin(name)
        return False, None

    def reset_cache(self) -> bool:
        """Empty the tier; loads under way still land."""
        self._index.clear()
        self._saved = dict.fromkeys(self._saved, 0)
        return True

    # -- worker's side --------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Take the pool's memory, layer by layer, and make the tier's."""
        self._memory.take(kv_caches, int(self._kv_cache_config.num_blocks))

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Queue the loads that begin with this step."""
        self._memory.queue.update(self._metadata.loads)

    def wait_for_save(self) -> None:
        """Copy what this step has filled; done when this returns."""
        self._memory.save(self._metadata.saves)

    def get_finished(
        self, finished_req_ids: set[str]
    ) -> tuple[set[str] | None, set[str] | None]:
        """Load what a step has time for; the requests whose load is complete come second."""
        # A request that ended while it loads keeps its blocks until it is named here.
        return None, self._memory.load() or None

    @property
    def _metadata(self) -> HostTierMetadata:
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, HostTierMetadata)
        return metadata

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing to wait for: a request runs when its load is complete."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Nothing to do by layer: blocks are saved when the step ends."""
