"""How `vllm serve` is called for a toy on a CPU: arguments and environment."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from auxconn.engine.config import EngineConfig
from auxconn.engine.ending import VLLM_SECONDS
from auxconn.engine.model import SERVED_NAME
from auxconn.lab.environment import CPU_ENVIRONMENT, FORCED

HOST = "127.0.0.1"
"""Where the API listens: it is nobody's but this machine's."""


def engine_arguments(config: EngineConfig) -> dict[str, object]:
    """Arguments of the engine, as `LLM(...)` takes them; the tier's among them."""
    found: dict[str, object] = {
        "block_size": config.block_size,
        "num_gpu_blocks_override": config.num_blocks,
        "kv_cache_memory_bytes": 64 << 20,
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "max_model_len": config.max_request_tokens,
        # As its weights are: vLLM would take half of it, and ties were more frequent.
        "dtype": "float32",
        "enforce_eager": True,
        "enable_return_routed_experts": True,
        "seed": 0,
    }
    if config.kv_tier_blocks:
        found["kv_transfer_config"] = {
            "kv_connector": "HostKVTier",
            "kv_connector_module_path": "auxconn.engine.host_tier",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {
                "blocks": config.kv_tier_blocks,
                "load_blocks": config.kv_load_blocks,
            },
        }
    return found


def command(config: EngineConfig, model: Path, port: int) -> list[str]:
    """The command that serves the model; its parent must be the caller."""
    words = [
        *(sys.executable, "-u", "-m", "auxconn.engine.vllm_main", str(os.getpid())),
        *("serve", str(model), "--served-model-name", SERVED_NAME),
        *("--host", HOST, "--port", str(port), "--disable-uvicorn-access-log"),
        # By default vLLM kills its engine at once, which then says no good-bye.
        *("--shutdown-timeout", str(VLLM_SECONDS)),
    ]
    for name, value in engine_arguments(config).items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(option)
        else:
            words += [
                option,
                json.dumps(value) if isinstance(value, dict) else str(value),
            ]
    return words


def variables(
    config: EngineConfig, address: str, engine: str, base: dict[str, str]
) -> dict[str, str]:
    """Environment of all of vLLM's processes.

    Parameters
    ----------
    address, engine
        Collector, and the engine's name there; an empty address watches nothing.
    base
        Environment of the caller: what it sets wins where that can work.
    """
    found = {
        **CPU_ENVIRONMENT,
        "VLLM_LOGGING_LEVEL": "INFO",
        **base,
        **{name: CPU_ENVIRONMENT[name] for name in FORCED},
        # A request is called in the frames what the load called it, and no more.
        "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION": "1",
        # vLLM walks sets of request ids here and there.
        "PYTHONHASHSEED": "0",
        "AUXCONN_CONNECTOR": config.connector,
        "AUXCONN_ENGINE": engine,
    }
    found.pop("AUXCONN_COLLECTOR", None)
    if address:
        found["AUXCONN_COLLECTOR"] = address
    return found
