"""What vLLM has to find in the environment to run its Python on a machine without a GPU.

vLLM looks for its platform once in a process, so this is set before it does. Where it has
looked already, because somebody imported vLLM first, and has found none, it is given the
platform of the CPU; where it runs on a GPU the lab is refused.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from typing import Any

from auxconn.errors import PlatformError

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

    Returns what was set. In a process whose vLLM has its platform, that is `FORCED` alone,
    which is read later.
    """
    target = os.environ if environment is None else environment
    late = environment is None and _platform() is not None
    changed = {
        name: value
        for name, value in CPU_ENVIRONMENT.items()
        if name in FORCED or not (late or name in target)
    }
    target.update(changed)
    return changed


def load() -> None:
    """Import vLLM as the lab needs it, in this process; returns at once the second time.

    A notebook may use its GPU for other things: that GPUs are hidden from vLLM matters
    while it is imported, so they are shown again afterwards, before torch looks for them.

    Raises
    ------
    PlatformError
        When vLLM runs on a GPU in this process.
    """
    if _platform() is not None:
        _be_cpu()
    hidden = "CUDA_VISIBLE_DEVICES" in prepare()
    try:
        for module in _MODULES:
            importlib.import_module(module)
    finally:
        if hidden:
            del os.environ["CUDA_VISIBLE_DEVICES"]
    _be_cpu()
    # vLLM configures its loggers while it is imported.
    logging.getLogger("vllm").setLevel(logging.ERROR)


def _platform() -> Any:
    """The platform vLLM has found in this process; None while it has not looked."""
    return getattr(sys.modules.get("vllm.platforms"), "_current_platform", None)


def _be_cpu() -> None:
    """See that vLLM's platform is the CPU's, or say why it cannot be."""
    found = _platform()
    if found.is_cpu():
        return
    if not found.is_unspecified():
        raise PlatformError(type(found).__name__)
    from vllm.platforms.cpu import CpuPlatform

    # vLLM's modules hold this object under names of their own. It stood for no platform,
    # on which nothing of vLLM runs, so nobody loses by what it becomes.
    found.__class__ = CpuPlatform


_MODULES = (
    "vllm.distributed.aux_output_connector.worker",
    "vllm.v1.core.sched.async_scheduler",
)
"""Whose import brings all that an engine of the lab uses."""
