"""What can be said of an engine by looking at it once."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from auxconn import facts as names
from auxconn.wire import Fact

if TYPE_CHECKING:
    from auxconn.probes.scheduler import SchedulerProbe
    from auxconn.probes.worker import WorkerProbe


def engine_facts(
    scheduler: Any,
    scheduler_probe: SchedulerProbe | None,
    worker_probe: WorkerProbe | None,
) -> dict[str, Fact]:
    """Facts of the engine whose scheduler or worker is probed; names in `auxconn.facts`.

    What cannot be seen from where the probes are is left out.
    """
    found: dict[str, Fact] = {names.SOURCE: "vllm", names.PID: os.getpid()}
    try:
        from vllm import __version__

        found[names.VLLM_VERSION] = str(__version__)
    except ImportError:
        pass
    if scheduler_probe is not None:
        _add_scheduler(found, scheduler, scheduler_probe)
    if worker_probe is not None and worker_probe.shape_per_token:
        layers, top_k = (*worker_probe.shape_per_token, 1)[:2]
        found[names.NUM_LAYERS] = int(layers)
        found[names.TOP_K] = int(top_k)
        found[names.ROW_BYTES] = worker_probe.row_bytes
        if scheduler_probe is not None:
            found[names.BYTES_PER_BLOCK] = (
                worker_probe.row_bytes * scheduler_probe.view.block_size
            )
    return found


def _add_scheduler(
    found: dict[str, Fact], scheduler: Any, probe: SchedulerProbe
) -> None:
    view = probe.view
    found[names.CONNECTOR] = view.kind
    found[names.NUM_BLOCKS] = view.num_blocks
    found[names.BLOCK_SIZE] = view.block_size
    found[names.HASH_BLOCK_SIZE] = view.hash_block_size
    found[names.CAPACITY] = view.capacity
    settings = getattr(scheduler, "scheduler_config", None)
    for name in (
        names.MAX_NUM_SEQS,
        names.MAX_NUM_BATCHED_TOKENS,
        names.ASYNC_SCHEDULING,
    ):
        value = getattr(settings, name, None)
        if isinstance(value, bool | int):
            found[name] = value
    settings = getattr(scheduler, "vllm_config", None)
    settings = getattr(settings, "model_config", None)
    # As in vLLM's own metrics: the name it is served under, the first if it has several.
    served = getattr(settings, "served_model_name", None)
    model = served[0] if isinstance(served, list) and served else served
    if not isinstance(model, str):
        model = getattr(settings, "model", None)
    if isinstance(model, str):
        found[names.MODEL] = model
    tier = getattr(scheduler, "connector", None)
    # One of ours says how large it is.
    blocks = 0 if tier is None else getattr(tier, "capacity", None)
    if isinstance(blocks, int):
        found[names.KV_TIER_BLOCKS] = blocks
