"""One engine of the lab: vLLM's scheduler and worker connector, stepped without a model.

A step does what `EngineCore` does around a forward pass, and `auxconn.lab.runner` what a
model runner does. With the asynchronous scheduler one step stays in flight, so a step's
outputs arrive one call later, as in vLLM.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from auxconn.lab.build import (
    build_block_hasher,
    build_kv_worker,
    build_scheduler,
    build_worker,
    capacity,
    set_capacity,
)
from auxconn.lab.config import LabConfig
from auxconn.lab.routes import RouteTable
from auxconn.lab.runner import Batch, Flight, Plan, Runner

if TYPE_CHECKING:
    from vllm.v1.engine import EngineCoreOutput

    from auxconn.lab.requests import LabRequest

__all__ = ["Batch", "Engine", "StepResult", "build_scheduler", "build_worker"]

RESET_STEPS = 1000
"""Steps a prefix-cache reset waits for loads to be scheduled once they have landed."""

STALL_STEPS = 200
"""Steps in a row that schedule nothing, with all loads landed, before it is a deadlock."""


@dataclass
class StepResult:
    """What one call of `Engine.step` brought."""

    scheduled_tokens: int
    """Tokens scheduled by this call."""
    outputs: list[EngineCoreOutput] = field(default_factory=list)
    """vLLM's outputs, R3 rows in `routed_experts`; of the step before when one is in flight."""
    finished: list[str] = field(default_factory=list)
    """Ids of the requests that ended with these outputs."""


class Engine:
    """A scheduler, its KV tier, a worker connector and its store, built from settings.

    Parameters
    ----------
    config
        What to build.

    Attributes
    ----------
    scheduler, worker
        vLLM's own objects: what `auxconn.attach` takes.
    routes
        Where the rows come from, to check delivered ones against.
    """

    def __init__(self, config: LabConfig) -> None:
        self.config = config
        self.scheduler: Any = build_scheduler(config)
        self.routes = RouteTable(config)
        self.worker: Any = build_worker(
            config, routes=self.routes, vllm_config=self.scheduler.vllm_config
        )
        self._plans: dict[str, Plan] = {}
        self._runner = Runner(
            self.worker,
            build_kv_worker(self.scheduler),
            self._plans,
            settle=config.settle_store,
        )
        self._hasher = build_block_hasher(config)
        self._flights: deque[Flight] = deque()
        self._max_flights: int = self.scheduler.vllm_config.max_concurrent_batches
        self._sampling: dict[tuple[int, int], Any] = {}
        self._idle = 0
        self._closed = False

    # -- requests -------------------------------------------------------------------------

    def add(self, request: LabRequest) -> None:
        """Hand a request to the scheduler.

        Raises
        ------
        ValueError
            When it can never run in this pool, or its id is in use.
        """
        from vllm.v1.request import Request

        self.config.check_request(
            len(request.prompt), len(request.output), f"request {request.id!r}"
        )
        if request.id in self._plans:
            raise ValueError(
                f"request id {request.id!r} is already running; give each request an id of "
                "its own"
            )
        # vLLM wants Python's integers: it pickles them to hash a block.
        prompt: list[int] = np.asarray(request.prompt).tolist()
        tokens: list[int] = prompt + np.asarray(request.output).tolist()
        # Built first: a request that vLLM refuses leaves no plan behind.
        admitted = Request(
            request_id=request.id,
            prompt_token_ids=prompt,
            sampling_params=self._sampling_params(
                len(request.output), request.prompt_start
            ),
            pooling_params=None,
            block_hasher=self._hasher,
        )
        self._plans[request.id] = Plan(tokens, self.routes.index(np.array(tokens)))
        self.scheduler.add_request(admitted)

    def _sampling_params(self, max_tokens: int, prompt_start: int) -> Any:
        key = (max_tokens, prompt_start)
        params = self._sampling.get(key)
        if params is None:
            from vllm.sampling_params import SamplingParams

            if len(self._sampling) > 4096:
                self._sampling.clear()
            params = self._sampling[key] = SamplingParams(
                max_tokens=max_tokens,
                ignore_eos=True,
                routed_experts_prompt_start=prompt_start,
            )
        return params

    def abort(self, request_id: str) -> bool:
        """Abort a request; False when there is no such request."""
        from vllm.v1.request import RequestStatus

        if request_id not in self._plans:
            return False
        self.scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)
        del self._plans[request_id]
        return True

    @property
    def stuck(self) -> bool:
        """True when requests wait and none of them can ever be scheduled.

        Requests hold their blocks once their KV load has landed. In a small pool a few of
        them can hold all there are, each short of one more, with none running that could
        be preempted: vLLM has no way out of that.
        """
        return self.has_work and self._idle > self.config.kv_load_steps + STALL_STEPS

    def give_up(self) -> str:
        """Abort the youngest of the requests that are stuck; returns its id."""
        scheduler, self._idle = self.scheduler, 0
        youngest = [*scheduler.waiting, *scheduler.kv_holding_waiting][-1].request_id
        self.abort(youngest)
        return str(youngest)

    @property
    def num_requests(self) -> int:
        """Requests handed in and not ended."""
        return len(self._plans)

    @property
    def has_work(self) -> bool:
        """True when a step could still bring something."""
        return bool(self._flights) or self.scheduler.has_requests()

    # -- the step -------------------------------------------------------------------------

    def step(self) -> StepResult:
        """Schedule a step, run it, and consume the oldest step that may be consumed."""
        result, scheduler = StepResult(0), self.scheduler
        if scheduler.has_requests():
            flight = self._runner.start(scheduler.schedule(), scheduler.requests)
            self._flights.append(flight)
            result.scheduled_tokens = flight.scheduled.total_num_scheduled_tokens
            self._idle = 0 if result.scheduled_tokens else self._idle + 1
            if len(self._flights) < self._max_flights and (
                result.scheduled_tokens or scheduler.has_requests()
            ):
                return result
        if self._flights:
            self._consume(self._flights.popleft(), result)
        return result

    def drain(self) -> StepResult:
        """Consume the steps in flight without scheduling another."""
        result = StepResult(0)
        while self._flights:
            self._consume(self._flights.popleft(), result)
        return result

    def _consume(self, flight: Flight, result: StepResult) -> None:
        output = self._runner.finish(flight)
        for outputs in self.scheduler.update_from_output(
            flight.scheduled, output
        ).values():
            result.outputs.extend(outputs.outputs)
            for one in outputs.outputs:
                if one.finish_reason is not None:
                    result.finished.append(one.request_id)
                    self._plans.pop(one.request_id, None)

    # -- commands -------------------------------------------------------------------------

    @property
    def capacity(self) -> int:
        """KV blocks the connector retains, as now in force."""
        return capacity(self.scheduler)

    def set_capacity(self, blocks: int) -> int:
        """Set how many KV blocks the connector retains; returns what it was.

        Raises `auxconn.errors.CapacityError` when it isn't a whole number of at least 1.
        """
        return set_capacity(self.scheduler, blocks)

    def reset_prefix_cache(self, *, kv_tier: bool = False) -> StepResult:
        """Drop the prefix cache, and the KV tier too if asked; running requests start anew.

        vLLM cannot reset while a request waits for a KV load, so admissions pause and steps
        are taken until the loads have landed and their requests run. What these steps
        brought is returned.

        Raises
        ------
        ValueError
            When requests still wait `RESET_STEPS` steps after their loads have landed;
            nothing was dropped.
        """
        from vllm.v1.core.sched.interface import PauseState

        total = self.drain()
        scheduler = self.scheduler
        scheduler.set_pause_state(PauseState.PAUSED_NEW)
        try:
            most = self.config.kv_load_steps + RESET_STEPS
            for _ in range(most):
                if not scheduler.kv_holding_waiting:
                    break
                self._merge(total, self.step())
            else:
                raise ValueError(
                    f"{len(scheduler.kv_holding_waiting)} requests still wait for a KV load "
                    f"after {most} steps; the prefix cache was not reset"
                )
            self._merge(total, self.drain())
        finally:
            scheduler.set_pause_state(PauseState.UNPAUSED)
        scheduler.reset_prefix_cache(
            reset_running_requests=True, reset_connector=kv_tier
        )
        return total

    @staticmethod
    def _merge(total: StepResult, one: StepResult) -> None:
        total.scheduled_tokens += one.scheduled_tokens
        total.outputs += one.outputs
        total.finished += one.finished

    def close(self) -> None:
        """End the store's writer thread and let go of the pool; safe to call twice."""
        if self._closed:
            return
        self._closed = True
        self._flights.clear()
        self._plans.clear()
        try:
            self.worker.close()
        finally:
            self.scheduler.shutdown()
