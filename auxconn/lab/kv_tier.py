"""A KV tier in host memory, without the KV: what makes external hits and loads real.

The scheduler connector's `cap_external_hit` and `request_loading` are only ever called when
a KV connector offers tokens that are not on the GPU and loads them while other requests
run. vLLM's own offloading connectors refuse a machine without a GPU, so the lab brings a
real `KVConnectorBase_V1` that keeps block hashes instead of keys and values: whatever a
step computes is saved at the next one, the least recently used block goes when the tier is
full, and a load lands a fixed number of steps after it began.

As in vLLM the two sides are two objects that meet in the metadata of a step: the
scheduler's side decides what to load, the worker's side says when it has landed.

This module is imported by name by vLLM's connector factory, and only there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    SupportsHMA,
)
from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes
from vllm.v1.outputs import KVConnectorOutput

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request


@dataclass
class HostTierMetadata(KVConnectorMetadata):
    """Loads that begin with this step: request and its tokens."""

    loads: dict[str, int] = field(default_factory=dict)


class HostKVTier(KVConnectorBase_V1, SupportsHMA):
    """LRU tier of KV blocks, named by the hash that ends each block.

    Extra settings (`kv_connector_extra_config`): `blocks`, the size of the tier in KV
    blocks; `load_steps`, the steps a load takes; `offer`, see `LabConfig.kv_tier_offer`.
    """

    def __init__(
        self,
        vllm_config: VllmConfig,
        role: KVConnectorRole,
        kv_cache_config: KVCacheConfig,
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        extra = self._kv_transfer_config.kv_connector_extra_config
        self.capacity = int(extra["blocks"])
        self._load_steps = int(extra["load_steps"])
        self._all_but_last = extra["offer"] == "all_but_last"
        self._block_size, hash_size = resolve_kv_cache_block_sizes(
            kv_cache_config, vllm_config
        )
        self._hashes_per_block = self._block_size // hash_size
        # Scheduler's side.
        self._held: OrderedDict[bytes, None] = OrderedDict()
        self._requests: dict[str, Request] = {}
        self._saved: dict[str, int] = {}
        self._computed: dict[str, int] = {}
        self._loads: dict[str, int] = {}
        # Worker's side: request -> steps until its load has landed.
        self._flights: dict[str, int] = {}

    # -- scheduler's side -----------------------------------------------------------------

    @property
    def requires_kv_delivery(self) -> bool:
        """A cache: a block that is not saved is a miss later, nothing worse."""
        return False

    def held(self) -> list[bytes]:
        """Hashes of the blocks in the tier, least recently used first."""
        return list(self._held)

    def on_new_request(self, request: Request) -> None:
        """Remember the request: later calls bring its id alone."""
        self._requests[request.request_id] = request

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int, bool]:
        """Offer the blocks after `num_computed_tokens` that the tier holds in a row."""
        first = num_computed_tokens // self._block_size
        hashes = request.block_hashes
        step = self._hashes_per_block
        end = num_computed_tokens - num_computed_tokens % self._block_size
        for last in range((first + 1) * step - 1, len(hashes), step):
            key = hashes[last]
            if key not in self._held:
                break
            self._held.move_to_end(key)
            end += self._block_size
        if self._all_but_last and end == request.num_tokens:
            end -= 1
        offered = max(end - num_computed_tokens, 0)
        return offered, offered > 0

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        """Begin a load when the scheduler took the offer."""
        if num_external_tokens > 0:
            self._loads[request.request_id] = num_external_tokens

    def build_connector_meta(
        self, scheduler_output: SchedulerOutput
    ) -> HostTierMetadata:
        """Save what earlier steps computed and name the loads that begin."""
        # What the steps before this one computed is in the pool now, and saved.
        self._save_computed()
        for new in scheduler_output.scheduled_new_reqs:
            # New or back from a preemption: what it found elsewhere is saved here as well.
            self._saved[new.req_id] = 0
        for request_id, count in scheduler_output.num_scheduled_tokens.items():
            request = self._requests.get(request_id)
            if request is not None:
                self._computed[request_id] = request.num_computed_tokens + count
        for request_id in scheduler_output.finished_req_ids:
            self._forget(request_id)
        metadata = HostTierMetadata(self._loads)
        self._loads = {}
        return metadata

    def _save_computed(self) -> None:
        step = self._hashes_per_block
        for request_id, computed in self._computed.items():
            self._save(self._requests[request_id], computed, step)
        self._computed = {
            # Tokens in flight get their hash once they are sampled: look again then.
            request_id: computed
            for request_id, computed in self._computed.items()
            if self._saved[request_id] < computed // self._block_size
        }

    def _save(self, request: Request, computed: int, step: int) -> None:
        hashes = request.block_hashes
        done = self._saved.get(request.request_id, 0)
        ready = min(len(hashes) // step, computed // self._block_size)
        for block in range(done, ready):
            key = hashes[(block + 1) * step - 1]
            self._held[key] = None
            self._held.move_to_end(key)
        while len(self._held) > self.capacity:
            self._held.popitem(last=False)
        self._saved[request.request_id] = max(ready, done)

    def _forget(self, request_id: str) -> None:
        self._requests.pop(request_id, None)
        self._saved.pop(request_id, None)
        self._computed.pop(request_id, None)

    def request_finished(
        self, request: Request, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Save what is left; the request's blocks are free at once."""
        return self._finish(request)

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Save what is left, for a pool of several groups."""
        return self._finish(request)

    def _finish(self, request: Request) -> tuple[bool, None]:
        # Host memory keeps its own copy, so the blocks are free at once.
        computed = self._computed.pop(request.request_id, 0)
        if computed:
            self._save(request, computed, self._hashes_per_block)
        self._forget(request.request_id)
        return False, None

    def reset_cache(self) -> bool:
        """Empty the tier; loads under way still land."""
        self._held.clear()
        self._saved = dict.fromkeys(self._saved, 0)
        return True

    # -- worker's side --------------------------------------------------------------------

    def run_step(
        self, metadata: KVConnectorMetadata, finished: Iterable[str]
    ) -> KVConnectorOutput | None:
        """Drive the worker's side through one step, as a model runner would.

        Returns what the scheduler has to hear, None when nothing landed.
        """
        self.bind_connector_metadata(metadata)
        self.start_load_kv(None)
        _, landed = self.get_finished(set(finished))
        self.clear_connector_metadata()
        return KVConnectorOutput(finished_recving=landed) if landed else None

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Begin the loads of this step's metadata."""
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, HostTierMetadata)
        for request_id in metadata.loads:
            self._flights[request_id] = self._load_steps

    def get_finished(
        self, finished_req_ids: set[str]
    ) -> tuple[set[str] | None, set[str] | None]:
        """Count a step down; the requests whose load has landed come second."""
        # A request that ended while it loads keeps its blocks until the load has landed.
        landed = {name for name, left in self._flights.items() if left <= 1}
        self._flights = {
            name: left - 1 for name, left in self._flights.items() if left > 1
        }
        return None, landed or None

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing to wait for: no layer runs."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Nothing to save: the scheduler's side keeps the hashes."""

    def wait_for_save(self) -> None:
        """Nothing was saved here."""
