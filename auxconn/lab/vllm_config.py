"""vLLM's configuration of an engine that has no model.

A `VllmConfig` needs a model: the lab gives vLLM a folder with a `config.json` and the name
of a model class that is never loaded. The pool is described as vLLM would after it had
looked at a model's layers.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from auxconn.lab import environment
from auxconn.lab.config import LabConfig
from auxconn.lab.model import model_settings, register_model

if TYPE_CHECKING:
    from vllm.config import KVTransferConfig, VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

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
