"""A lab in a process that imported vLLM first, as notebooks do."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from auxconn.lab import Lab, LabConfig, workloads
from auxconn.lab.environment import CPU_ENVIRONMENT

HERE = """
import vllm.v1.core.sched.scheduler
from vllm.platforms import current_platform

assert current_platform.is_unspecified()
from auxconn.lab import Lab, LabConfig, workloads

with Lab(
    LabConfig(num_blocks=64, kv_tier_blocks=200, hash_block_size=8, num_layers=2),
    workloads.grpo(prompts=6, samples=2, prompt_tokens=100, requests=30),
) as lab:
    print(lab.run().requests, int(lab.frames.lookups().local_hit.sum()))
"""


@pytest.mark.timeout(180)  # it imports vLLM once more
def test_it_runs_the_same_although_vllm_was_imported_first() -> None:
    variables = {k: v for k, v in os.environ.items() if k not in CPU_ENVIRONMENT}
    # As on a machine whose vLLM was built for a GPU, and has none.
    variables["VLLM_TARGET_DEVICE"] = "cuda"
    done = subprocess.run(
        [sys.executable, "-c", HERE],
        capture_output=True,
        text=True,
        env=variables,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    with Lab(
        LabConfig(num_blocks=64, kv_tier_blocks=200, hash_block_size=8, num_layers=2),
        workloads.grpo(prompts=6, samples=2, prompt_tokens=100, requests=30),
    ) as lab:
        lab.run()
        hits = int(lab.frames.lookups().local_hit.sum())
    assert hits > 0
    assert done.stdout.split() == ["30", str(hits)]
