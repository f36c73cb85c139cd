"""Real vLLM objects for an engine that has no model.

A `Scheduler` needs a `VllmConfig`, and that needs a model; a worker connector needs routers
to capture from and a tensor-parallel group. The lab gives vLLM a folder with a
`config.json` and the name of a model class that is never loaded, and constructs the worker
connector with its three ties to the GPU replaced. Everything else is vLLM's own, unpatched.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from auxconn.lab import environment
from auxconn.lab.config import LabConfig
from auxconn.lab.model import model_settings, register_model

if TYPE_CHECKING:
    from vllm.config import KVTransferConfig, VllmConfig
    from vllm.distributed.aux_output_connector.worker import AuxOutputWorkerConnector
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import KVCacheConfig

    from auxconn.lab.kv_tier import HostKVTier
    from auxconn.lab.routes import RouteTable

HASH_ALGORITHM = "sha256"
"""vLLM's default for block hashes; its first hash doesn't vary between processes."""


def build_vllm_config(
    config: LabConfig,
    *,
    kv_transfer: KVTransferConfig | None = None,
    async_scheduling: bool | None = None,
) -> VllmConfig:
    """Build the `VllmConfig` of an engine with these settings.

    Parameters
    ----------
    kv_transfer
        KV connector in place of the one that `config.kv_tier_blocks` asks for.
    async_scheduling
        In place of `config.async_scheduling`.
    """
    environment.load()
    from vllm.config import (
        AuxOutputConfig,
        CacheConfig,
        DeviceConfig,
        KVTransferConfig,
        ModelConfig,
        SchedulerConfig,
        VllmConfig,
    )

    register_model()
    overlapped = (
        config.async_scheduling if async_scheduling is None else async_scheduling
    )
    if kv_transfer is None and config.kv_tier_blocks:
        kv_transfer = KVTransferConfig(
            kv_connector="HostKVTier",
            kv_connector_module_path="auxconn.lab.kv_tier",
            kv_role="kv_both",
            kv_connector_extra_config={
                "blocks": config.kv_tier_blocks,
                "load_steps": config.kv_load_steps,
                "offer": config.kv_tier_offer,
            },
        )
    length = config.max_request_tokens
    with tempfile.TemporaryDirectory(prefix="auxconn-lab-") as folder:
        (Path(folder) / "config.json").write_text(json.dumps(model_settings(config)))
        model = ModelConfig(
            model=folder,
            tokenizer=folder,
            skip_tokenizer_init=True,
            max_model_len=length,
            dtype="float32",
            enforce_eager=True,
            seed=config.seed % 2**31,
        )
    built = VllmConfig(
        model_config=model,
        scheduler_config=SchedulerConfig(
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_model_len=length,
            enable_chunked_prefill=True,
            is_encoder_decoder=False,
            async_scheduling=overlapped,
            disable_hybrid_kv_cache_manager=False,
        ),
        cache_config=CacheConfig(
            block_size=config.block_size,
            enable_prefix_caching=True,
            prefix_caching_hash_algo=HASH_ALGORITHM,
        ),
        device_config=DeviceConfig("cpu"),
        kv_transfer_config=kv_transfer,
        aux_output_config=AuxOutputConfig(enable_return_routed_experts=True),
    )
    # vLLM's CPU platform switches it off, since its model runner can't; there is none here.
    built.scheduler_config.async_scheduling = overlapped
    # A profiling run of the worker would have found this out.
    built.cache_config.num_gpu_blocks = config.num_blocks
    return built


def build_kv_cache_config(config: LabConfig) -> KVCacheConfig:
    """Describe the pool: one group, or two when it is hybrid.

    The heads of the sliding-window group make its smaller blocks as large in bytes, since
    the groups of a pool share their pages.
    """
    environment.load()
    import torch
    from vllm.v1.kv_cache_interface import (
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
        SlidingWindowSpec,
    )

    half = (config.num_layers + 1) // 2 if config.is_hybrid else config.num_layers
    groups = [
        KVCacheGroupSpec(
            [f"layers.{layer}.attn" for layer in range(half)],
            FullAttentionSpec(
                block_size=config.block_size,
                num_kv_heads=1,
                head_size=32,
                dtype=torch.float32,
            ),
        )
    ]
    if config.is_hybrid:
        groups.append(
            KVCacheGroupSpec(
                [f"layers.{layer}.attn" for layer in range(half, config.num_layers)],
                SlidingWindowSpec(
                    block_size=config.hash_size,
                    num_kv_heads=config.block_size // config.hash_size,
                    head_size=32,
                    dtype=torch.float32,
                    sliding_window=config.window,
                ),
            )
        )
    return KVCacheConfig(
        num_blocks=config.num_blocks, kv_cache_tensors=[], kv_cache_groups=groups
    )


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
