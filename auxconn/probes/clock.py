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

from collections import deque
from typing import Any

AHEAD = 64
"""Metadata remembered that no worker has begun; a scheduler is one or two steps ahead."""


class StepClock:
    """Numbers of the newest steps, by their metadata."""

    def __init__(self) -> None:
        # The objects are kept with the numbers: equal metadata need not be the same.
        self._newest: tuple[Any, int] = (None, 0)
        self._steps: deque[tuple[Any, int]] = deque(maxlen=AHEAD)

    def note(self, metadata: Any, step: int) -> None:
        """Remember that `metadata` is that of `step`."""
        self._newest = newest = (metadata, step)
        self._steps.append(newest)

    def step_of(self, metadata: Any, otherwise: int) -> int:
        """Step of `metadata`; `otherwise` when it is not known."""
        newest, step = self._newest
        if newest is metadata:
            return step
        for noted, step in reversed(self._steps):
            if noted is metadata:
                return step
        return otherwise
