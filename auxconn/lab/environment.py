"""What vLLM has to find in the environment to run its Python on a machine without a GPU.

vLLM reads these while it is imported, so they are set before the first import of it in a
process, and only there: a process that has vLLM already is left as it is.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys

CPU_ENVIRONMENT: dict[str, str] = {
    "VLLM_TARGET_DEVICE": "cpu",
    # The auxiliary outputs exist in Model Runner V2 alone; the lab has no runner, but the
    # scheduler asks.
    "VLLM_USE_V2_MODEL_RUNNER": "1",
    "TRITON_INTERPRET": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    # Lab and dashboard share the machine; nothing here computes with torch.
    "OMP_NUM_THREADS": "1",
}

FORCED = frozenset({"VLLM_USE_V2_MODEL_RUNNER"})
"""Without this one vLLM refuses to return routed experts."""


def prepare(environment: dict[str, str] | None = None) -> dict[str, str]:
    """Set what the lab's vLLM needs; what the user has set wins, save `FORCED`.

    Returns what was set. Does nothing once vLLM is imported.
    """
    target = os.environ if environment is None else environment
    if environment is None and "vllm" in sys.modules:
        return {}
    changed = {
        name: value
        for name, value in CPU_ENVIRONMENT.items()
        if name in FORCED or name not in target
    }
    target.update(changed)
    return changed


def load() -> None:
    """Import vLLM as the lab needs it, in this process; returns at once the second time.

    A notebook may use its GPU for other things: that GPUs are hidden from vLLM matters
    while it is imported, so they are shown again afterwards, before torch looks for them.
    """
    hidden = "CUDA_VISIBLE_DEVICES" in prepare()
    try:
        for module in _MODULES:
            importlib.import_module(module)
    finally:
        if hidden:
            del os.environ["CUDA_VISIBLE_DEVICES"]
    # vLLM configures its loggers while it is imported.
    logging.getLogger("vllm").setLevel(logging.ERROR)


_MODULES = (
    "vllm.distributed.aux_output_connector.worker",
    "vllm.v1.core.sched.async_scheduler",
)
"""Whose import brings all that an engine of the lab uses."""
