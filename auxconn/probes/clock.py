"""Numbering steps so that the worker's rows name the scheduler's.

A worker step belongs to the scheduler step whose metadata it began with. The metadata are
vLLM's own dataclass and carry no number, and the probes may not add one: they are pickled
on their way to another process. So there are two rules.

When scheduler and worker were attached together they share a `StepClock`: the scheduler's
probe notes which metadata *object* it numbered, and the worker's looks it up. That holds
where the object itself reaches the worker, as in the lab and in vLLM's in-process engine.

Otherwise the worker's probe counts the metadata it has begun. vLLM's model runner begins
every metadata that the scheduler builds, empty steps included, and in order, so the two
counts agree when both were attached before the first step, as the plugin does.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

AHEAD = 64
"""Metadata remembered that no worker has begun; a scheduler is one or two steps ahead."""


class StepClock:
    """Numbers of the steps whose metadata have not reached the worker yet."""

    def __init__(self) -> None:
        self._steps: OrderedDict[int, tuple[Any, int]] = OrderedDict()

    def note(self, metadata: Any, step: int) -> None:
        """Remember that `metadata` is that of `step`."""
        # The object is kept with the number: an id is only good while its object lives.
        self._steps[id(metadata)] = (metadata, step)
        if len(self._steps) > AHEAD:
            self._steps.popitem(last=False)

    def take(self, metadata: Any, otherwise: int) -> int:
        """Give the step of `metadata` and forget it; `otherwise` when it is not known."""
        found = self._steps.pop(id(metadata), None)
        return otherwise if found is None else found[1]
