"""One engine of the lab: vLLM's scheduler and worker connector, stepped without a model.

A step does what `EngineCore` and a model runner do around a forward pass, and nothing of
the pass itself: the tokens that a request will generate are known from the start (its
workload planned them), and so are the rows of every token. With the asynchronous scheduler
one step stays in flight, so a step's outputs arrive one call later, as in vLLM.
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

if TYPE_CHECKING:
    from vllm.distributed.aux_output_connector.worker import PendingAuxOutput
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.engine import EngineCoreOutput
    from vllm.v1.outputs import KVConnectorOutput

    from auxconn.lab.requests import LabRequest

__all__ = ["Engine", "StepResult", "build_scheduler", "build_worker"]

RESET_STEPS = 1000
"""Steps a prefix-cache reset waits for loads to land and be scheduled."""


@dataclass
class StepResult:
    """What one call of `Engine.step` brought."""

    scheduled_tokens: int
    """Tokens scheduled by this call."""
    outputs: list[EngineCoreOutput] = field(default_factory=list)
    """vLLM's outputs, R3 rows in `routed_experts`; of the step before when one is in flight."""
    finished: list[str] = field(default_factory=list)
    """Ids of the requests that ended with these outputs."""


@dataclass
class Batch:
    """What a worker connector reads of a model runner's input batch."""

    req_ids: list[str]
    query_start_loc_np: np.ndarray
    num_computed_tokens_np: np.ndarray


@dataclass
class _Flight:
    """A step that has been handed to the worker and not been consumed yet."""

    scheduled: SchedulerOutput
    req_ids: list[str]
    sampled: list[list[int]]
    aux: PendingAuxOutput | None
    kv: KVConnectorOutput | None


@dataclass
class _Plan:
    """All tokens a request will ever have, and the rows they get."""

    tokens: list[int]
    rows: np.ndarray


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
        if config.settle_store:
            _settle(self.worker._store)
        self._capturer = self.worker._capturer
        self._kv_worker = build_kv_worker(self.scheduler)
        self._hasher = build_block_hasher(config)
        self._plans: dict[str, _Plan] = {}
        self._flights: deque[_Flight] = deque()
        self._max_flights: int = self.scheduler.vllm_config.max_concurrent_batches
        self._sampling: dict[tuple[int, int], Any] = {}
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
        self._plans[request.id] = _Plan(tokens, self.routes.index(np.array(tokens)))
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
        result = StepResult(0)
        if self.scheduler.has_requests():
            flight = self._start()
            self._flights.append(flight)
            result.scheduled_tokens = flight.scheduled.total_num_scheduled_tokens
            if len(self._flights) < self._max_flights and (
                result.scheduled_tokens or self.scheduler.has_requests()
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

    def _start(self) -> _Flight:
        scheduled = self.scheduler.schedule()
        self.worker.begin_step(scheduled.aux_output_connector_metadata)
        landed = None
        if self._kv_worker is not None:
            landed = self._kv_worker.run_step(
                scheduled.kv_connector_metadata, scheduled.finished_req_ids
            )
        counts = scheduled.num_scheduled_tokens
        if not counts:
            return _Flight(scheduled, [], [], None, landed)
        starts = {
            new.req_id: new.num_computed_tokens for new in scheduled.scheduled_new_reqs
        }
        cached = scheduled.scheduled_cached_reqs
        starts.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        req_ids = list(counts)
        bounds = np.zeros(len(req_ids) + 1, np.int32)
        np.cumsum(list(counts.values()), out=bounds[1:])
        rows, sampled = [], []
        requests = self.scheduler.requests
        for request_id, count in counts.items():
            plan, start = self._plans[request_id], starts[request_id]
            end = start + count
            rows.append(plan.rows[start:end])
            # A step samples once it has computed all the tokens there are.
            sampled.append(
                [plan.tokens[end] if end < len(plan.tokens) else 0]
                if end >= requests[request_id].num_tokens
                else []
            )
        self._capturer.stage(np.concatenate(rows))
        aux = self.worker.prepare_output(
            Batch(
                req_ids,
                bounds,
                np.fromiter((starts[name] for name in req_ids), np.int32, len(req_ids)),
            )
        )
        aux.enqueue_cpu_copy(
            np.fromiter(map(len, sampled), np.int32, len(sampled)),
            np.zeros(len(sampled), np.int32),
        )
        return _Flight(scheduled, req_ids, sampled, aux, landed)

    def _consume(self, flight: _Flight, result: StepResult) -> None:
        from vllm.v1.outputs import ModelRunnerOutput

        output = ModelRunnerOutput(
            req_ids=flight.req_ids,
            req_id_to_index={name: row for row, name in enumerate(flight.req_ids)},
            sampled_token_ids=flight.sampled,
            kv_connector_output=flight.kv,
            aux_output_connector_output=(
                None if flight.aux is None else flight.aux.process_output()
            ),
        )
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
            When requests still wait for their load after `RESET_STEPS` steps; nothing was
            dropped.
        """
        from vllm.v1.core.sched.interface import PauseState

        total = self.drain()
        scheduler = self.scheduler
        scheduler.set_pause_state(PauseState.PAUSED_NEW)
        try:
            for _ in range(RESET_STEPS):
                if not scheduler.kv_holding_waiting:
                    break
                self._merge(total, self.step())
            else:
                raise ValueError(
                    f"{len(scheduler.kv_holding_waiting)} requests still wait for a KV load "
                    f"after {RESET_STEPS} steps; the prefix cache was not reset"
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


def _settle(store: Any) -> None:
    """Have every `put` of the store wait until its writer is done.

    How far the writer is behind depends on the machine; what is read of the store after a
    step then does too. Set on the instance, so that vLLM's class stays as it is.
    """
    put, queue = store.put, store._queue

    def put_and_wait(*args: Any, **kwargs: Any) -> None:
        put(*args, **kwargs)
        queue.join()
        store._raise_if_failed()

    store.put = put_and_wait
