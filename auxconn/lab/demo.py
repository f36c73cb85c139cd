"""The lab that `auxconn demo` opens: settings in which every figure moves soon.

Reinforcement-learning rollouts over a data set that is larger than the pool and smaller
than pool and KV tier together: samples of a prompt hit the GPU's prefix cache, prompts of
the epoch before are gone from there and come back from the KV tier, and the capacity is
below what the tier holds, so some blocks are released and their offers refused.
"""

from __future__ import annotations

from auxconn.lab.config import LabConfig
from auxconn.lab.workload_specs import WorkloadSpec

CONFIG = LabConfig(
    num_blocks=1024,
    block_size=16,
    kv_tier_blocks=4096,
    capacity=1600,
    settle_store=False,
)
"""Engine of the demo. Nobody compares its frames with those of another run, so the store's
writer is left alone as in vLLM."""

WORKLOAD = WorkloadSpec("grpo", {"prompts": 48, "samples": 4, "output_tokens": 48})
"""What it is asked."""

STEPS_PER_S = 50.0
"""Its speed: one that eyes can follow and a small machine can keep."""
