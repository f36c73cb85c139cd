"""Real vLLM objects for an engine that has no model.

A worker connector needs routers to capture from and a tensor-parallel group: the lab
constructs it with its three ties to the GPU replaced. Everything else is vLLM's own,
unpatched, and built from the configuration that `auxconn.lab.vllm_config` makes.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from auxconn.lab.config import LabConfig
from auxconn.lab.vllm_config import (
    HASH_ALGORITHM,
    build_kv_cache_config,
    build_vllm_config,
)

if TYPE_CHECKING:
    from vllm.config import KVTransferConfig, VllmConfig
    from vllm.distributed.aux_output_connector.worker import AuxOutputWorkerConnector
    from vllm.v1.core.sched.scheduler import Scheduler

    from auxconn.lab.kv_tier import HostKVTier
    from auxconn.lab.routes import RouteTable


def build_scheduler(
    config: LabConfig,
    *,
    kv_connector: KVTransferConfig | None = None,
    async_scheduling: bool | None = None,
    log_stats: bool = True,
) -> Scheduler:
    """Build vLLM's `Scheduler` or `AsyncScheduler` with the connector of `config`.

    Parameters
    ----------
    kv_connector
        KV connector in place of the host tier that `config.kv_tier_blocks` asks for.
    async_scheduling
        In place of `config.async_scheduling`.
    log_stats
        Let the scheduler keep vLLM's own statistics, as engines do.
    """
    vllm_config = build_vllm_config(
        config, kv_transfer=kv_connector, async_scheduling=async_scheduling
    )
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core.kv_cache_utils import (
        init_none_hash,
        resolve_kv_cache_block_sizes,
    )
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.structured_output import StructuredOutputManager

    kv_cache_config = build_kv_cache_config(config)
    block_size, hash_block_size = resolve_kv_cache_block_sizes(
        kv_cache_config, vllm_config
    )
    init_none_hash(get_hash_fn_by_name(HASH_ALGORITHM))
    kind = (
        AsyncScheduler if vllm_config.scheduler_config.async_scheduling else Scheduler
    )
    scheduler = kind(
        vllm_config=vllm_config,
        kv_cache_config=kv_cache_config,
        structured_output_manager=StructuredOutputManager(vllm_config),
        block_size=block_size,
        hash_block_size=hash_block_size,
        log_stats=log_stats,
    )
    if config.connector == "auxconn":
        from auxconn.connector import AuxOutputSchedulerConnector

        scheduler.aux_output_connector = AuxOutputSchedulerConnector(
            scheduler.kv_cache_manager, scheduler.connector
        )
    if config.capacity is not None:
        set_capacity(scheduler, config.capacity)
    return scheduler


def set_capacity(scheduler: Scheduler, blocks: int) -> int:
    """Set how many KV blocks the scheduler's connector retains, vLLM's or ours.

    Returns the capacity before. Raises `auxconn.errors.CapacityError`, a ValueError, when
    `blocks` isn't a whole number of at least 1.
    """
    from auxconn.probes.access import ConnectorView

    before, _ = ConnectorView(scheduler).set_capacity(blocks)
    return before


def capacity(scheduler: Scheduler) -> int:
    """KV blocks the scheduler's connector retains, as now in force."""
    from auxconn.probes.access import ConnectorView

    return ConnectorView(scheduler).capacity


def build_block_hasher(config: LabConfig) -> Callable[..., Any]:
    """Build the `block_hasher` that every `Request` of the engine takes."""
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher

    return get_request_block_hasher(
        config.hash_size, get_hash_fn_by_name(HASH_ALGORITHM)
    )


def build_kv_worker(scheduler: Scheduler) -> HostKVTier | None:
    """Build the worker's side of the scheduler's KV tier; None when it has none."""
    if scheduler.connector is None:
        return None
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

    kind: Any = type(scheduler.connector)
    worker: HostKVTier = kind(
        scheduler.vllm_config, KVConnectorRole.WORKER, scheduler.kv_cache_config
    )
    return worker


def build_worker(
    config: LabConfig,
    *,
    routes: RouteTable | None = None,
    vllm_config: VllmConfig | None = None,
) -> AuxOutputWorkerConnector:
    """Build vLLM's `AuxOutputWorkerConnector` with its store; its rows are invented.

    Its constructor makes a capturer on the GPU, binds it to the model's routers and asks
    for the tensor-parallel group. It runs here in a copy of its module's names in which
    these three are the lab's, so the module itself is never patched. Close what is
    returned: it owns the store's writer thread.

    Parameters
    ----------
    routes
        Where rows come from; `connector._capturer` is its capturer. Built from `config`
        when None.
    vllm_config
        The engine's; built from `config` when None.
    """
    if vllm_config is None:
        vllm_config = build_vllm_config(config)
    from vllm.distributed.aux_output_connector.worker import AuxOutputWorkerConnector

    from auxconn.lab.routes import RouteTable

    table = RouteTable(config) if routes is None else routes
    replaced = {
        "RoutedExpertsCapturer": lambda **_: table.capturer(),
        "bind_routed_experts_capturer": lambda model, capturer: None,
        "get_tp_group": lambda: SimpleNamespace(is_first_rank=True),
    }
    original: Any = AuxOutputWorkerConnector.__init__
    construct = FunctionType(
        original.__code__, {**original.__globals__, **replaced}, original.__name__
    )
    construct.__kwdefaults__ = original.__kwdefaults__
    worker = AuxOutputWorkerConnector.__new__(AuxOutputWorkerConnector)
    construct(
        worker,
        vllm_config=vllm_config,
        model=None,
        kv_cache_config=build_kv_cache_config(config),
    )
    return worker
