"""Names of the facts an engine announces about itself.

A fact is what holds until it is changed, unlike a record of what happened: the viewer's
header and the limits of its controls come from facts. An engine leaves out what it doesn't
know, and a viewer shows a dash for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeVar

Value = TypeVar("Value")

SOURCE = "source"
"""What kind of engine: `lab` or `vllm`."""

PID = "pid"
"""Process id of the engine on its own machine."""

VLLM_VERSION = "vllm_version"
"""Version of vLLM that runs."""

MODEL = "model"
"""Model the engine serves, in words. Text from outside: escape it."""

CONNECTOR = "connector"
"""Scheduler connector in place: `auxconn` or `vllm`."""

NUM_BLOCKS = "num_blocks"
"""KV blocks of the pool, vLLM's null block included."""

BLOCK_SIZE = "block_size"
"""Tokens of a KV block."""

HASH_BLOCK_SIZE = "hash_block_size"
"""Tokens of a block hash; below the block size in a hybrid pool."""

CAPACITY = "capacity"
"""KV blocks the connector retains, as now in force."""

KV_TIER_BLOCKS = "kv_tier_blocks"
"""KV blocks of the tier behind the pool; 0 without one."""

MAX_NUM_SEQS = "max_num_seqs"
"""Requests of one step at most."""

MAX_NUM_BATCHED_TOKENS = "max_num_batched_tokens"
"""Tokens of one step at most."""

MAX_REQUEST_TOKENS = "max_request_tokens"
"""Tokens of the longest request that fits in the empty pool, prompt and output."""

NUM_LAYERS = "num_layers"
"""MoE layers, each with a row of expert ids per token."""

NUM_EXPERTS = "num_experts"
"""Experts of a layer."""

TOP_K = "top_k"
"""Experts a token is routed to in each layer."""

ROW_BYTES = "row_bytes"
"""Bytes of one token's R3 rows, all layers."""

BYTES_PER_BLOCK = "bytes_per_block"
"""Bytes of the R3 rows of one KV block."""

ASYNC_SCHEDULING = "async_scheduling"
"""True when a step is scheduled before the one before has ended."""

WORKLOAD = "workload"
"""Workload the engine is given, in words."""

STEPS_PER_S = "steps_per_s"
"""Steps per second the lab is held to; None is as fast as it goes."""

PAUSED = "paused"
"""True while the engine takes no steps of its own."""

SEED = "seed"
"""Seed of what the lab invents."""

NUMBERS = frozenset(
    {
        PID, NUM_BLOCKS, BLOCK_SIZE, HASH_BLOCK_SIZE, CAPACITY, KV_TIER_BLOCKS, MAX_NUM_SEQS,
        MAX_NUM_BATCHED_TOKENS, MAX_REQUEST_TOKENS, NUM_LAYERS, NUM_EXPERTS, TOP_K, ROW_BYTES,
        BYTES_PER_BLOCK, STEPS_PER_S, SEED,
    }
)  # fmt: skip
"""Facts that are numbers, or None."""


def sound(facts: Mapping[str, Value]) -> dict[str, Value | None]:
    """Make those of `NUMBERS` that are no finite number None: missing, not a trap.

    An engine is outside text: whoever draws its facts must be able to count with them.
    """
    return {
        name: value if name not in NUMBERS or _is_number(value) else None
        for name, value in facts.items()
    }


def _is_number(value: object) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
    )
