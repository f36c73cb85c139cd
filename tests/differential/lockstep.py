"""Two real schedulers, one with vLLM's connector and one with ours, step by step.

Both get the same requests, aborts, resets and capacities and the same invented outputs of
a model. After every step everything that a connector can influence is compared: what was
scheduled and where, every field of the metadata, the rows handed out, and the connectors'
own state. The first difference ends the run.
"""

from __future__ import annotations

import dataclasses
import os
from collections import Counter, deque
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import numpy as np
from vllm.distributed.aux_output_connector.connector import (
    AuxRequestOutput,
    PackedBlockHashes,
)
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from auxconn.connector import AuxOutputSchedulerConnector
from auxconn.lab.build import build_block_hasher, build_kv_worker
from auxconn.lab.engine import build_scheduler
from tests.differential.reference import CountingConnector
from tests.differential.workload import Workload

Make = Callable[[Any, Any], Any]
"""Builds the connector under test from a KV cache manager and a KV connector."""

STEPS = 300
INT_HASHES = "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES"


class Parted(AssertionError):  # noqa: N818
    """The two engines differ."""


@dataclasses.dataclass
class Flight:
    """A step that was scheduled and whose outputs are still to come."""

    scheduled: list[Any]
    output: dict[str, list[int]]
    aux: dict[str, AuxRequestOutput]
    landed: list[Any]


class Side:
    """One of the two engines."""

    def __init__(self, workload: Workload, make: Make) -> None:
        self.scheduler: Any = build_scheduler(workload.config, log_stats=False)
        self.kv_worker = build_kv_worker(self.scheduler)
        self.make = make
        self.replace(workload.config.capacity)

    def replace(self, capacity: int | None) -> None:
        """Put a new connector in, whatever the pool holds by now."""
        self.connector = self.make(
            self.scheduler.kv_cache_manager, self.scheduler.connector
        )
        self.scheduler.aux_output_connector = self.connector
        if capacity is not None:
            self.set_capacity(capacity)

    def set_capacity(self, blocks: int) -> None:
        """As ours does it; vLLM has no way, so what it would have to do is done to it."""
        connector = self.connector
        if isinstance(connector, CountingConnector):
            lowered = blocks < connector._capacity
            connector._capacity = blocks
            if lowered:
                connector._release_unheld()
        else:
            connector.set_capacity(blocks)

    def state(self) -> dict[str, Any]:
        connector = self.connector
        if isinstance(connector, CountingConnector):
            held, loading = list(connector._kv_cached), connector._loading
            capacity = connector._capacity
            generation = connector._generation
        else:
            held, loading = connector.held(), connector.loading()
            capacity, generation = connector.capacity, connector.generation
        return {
            "held": held,
            "loading": {name: set(blocks) for name, blocks in loading.items()},
            "capacity": capacity,
            "generation": generation,
        }


def schedule_of(scheduled: Any, scheduler: Any) -> dict[str, Any]:
    """What a step decided, in terms that can be compared."""
    cached = scheduled.scheduled_cached_reqs
    return {
        "tokens": scheduled.num_scheduled_tokens,
        "order": list(scheduled.num_scheduled_tokens),
        "new": [
            (new.req_id, new.block_ids, new.num_computed_tokens)
            for new in scheduled.scheduled_new_reqs
        ],
        "cached": (
            cached.req_ids,
            cached.new_block_ids,
            cached.num_computed_tokens,
            cached.resumed_req_ids,
        ),
        "finished": scheduled.finished_req_ids,
        "preempted": scheduled.preempted_req_ids,
        "loads": getattr(scheduled.kv_connector_metadata, "loads", None),
        "statuses": {
            name: (request.status, request.num_computed_tokens, request.num_tokens)
            for name, request in scheduler.requests.items()
        },
    }


def metadata_of(metadata: Any) -> dict[str, Any]:
    """Every field of the metadata, the order within dictionaries too."""
    found = {
        field.name: getattr(metadata, field.name)
        for field in dataclasses.fields(metadata)
    }
    found["order"] = [list(metadata.requests), list(metadata.block_hashes)]
    return found


class Lockstep:
    """One seed's workload on both engines.

    Parameters
    ----------
    make
        The connector under test; ours when None.
    met
        Where the cases that were met are counted.
    compare_state
        Compare the connectors' own state too. A mutant has to be caught without it.
    """

    def __init__(
        self,
        seed: int,
        met: Counter | None = None,
        make: Make = AuxOutputSchedulerConnector,
        *,
        compare_state: bool = True,
    ) -> None:
        self.met = Counter() if met is None else met
        self.workload = Workload(seed)
        self.compare_state = compare_state
        self.hasher = build_block_hasher(self.workload.config)
        self.sides = [
            Side(self.workload, lambda kv, tier: CountingConnector(kv, tier, self.met)),
            Side(self.workload, make),
        ]
        self.tokens: dict[str, list[int]] = {}
        self.flights: deque[Flight] = deque()
        overlapped = self.workload.config.async_scheduling
        for side in self.sides:
            assert isinstance(side.scheduler, AsyncScheduler) is overlapped
        self.depth = 2 if overlapped else 1
        self.where = ""

    # -- comparing ------------------------------------------------------------------------

    def same(self, what: str, values: list[Any]) -> Any:
        theirs, ours = values
        if theirs != ours:
            if isinstance(theirs, dict) and isinstance(ours, dict):
                for name in {**theirs, **ours}:
                    self.same(
                        f"{what}, {name}",
                        [theirs.get(name, "nothing"), ours.get(name, "nothing")],
                    )
            raise Parted(
                f"{self.where}: {what} differs\n"
                f"  vLLM: {told(theirs)}\n  ours: {told(ours)}"
            )
        return theirs

    # -- driving --------------------------------------------------------------------------

    def run(self, steps: int = STEPS) -> None:
        """Take `steps` steps; raises `Parted` at the first difference."""
        with environment(INT_HASHES, str(int(self.workload.int_hashes))):
            for number in range(steps):
                self.where = f"seed {self.workload.seed}, step {number}"
                self.act()
                self.step()

    def act(self) -> None:
        """What the workload does to both engines before a step."""
        requests = self.sides[0].scheduler.requests
        actions = self.workload.next(len(self.sides[0].scheduler.waiting))
        if actions.capacity is not None:
            before = self.sides[0].state()["capacity"]
            self.met["capacity lowered"] += actions.capacity < before
            self.met["capacity raised"] += actions.capacity > before
            for side in self.sides:
                side.set_capacity(actions.capacity)
        if actions.reset:
            self.reset(in_flight=actions.reset_in_flight, failing=actions.failing_reset)
        if actions.swap:
            self.met["connectors replaced while running"] += bool(requests)
            capacity = self.workload.config.capacity
            for side in self.sides:
                side.replace(capacity)
        if actions.evict is not None:
            self.met["blocks evicted by a failed load"] += 1
            for side in self.sides:
                side.scheduler.kv_cache_manager.evict_blocks(set(actions.evict))
        if actions.abort is not None and requests:
            loading = [
                name
                for name, request in requests.items()
                if request.status is RequestStatus.WAITING_FOR_REMOTE_KVS
            ]
            names = loading if loading and actions.abort_loading else list(requests)
            name = names[int(actions.abort * len(names))]
            if not requests[name].is_finished():
                self.met["aborts"] += 1
                self.met["aborts while loading"] += name in loading
                for side in self.sides:
                    side.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
        for request in actions.arrivals:
            self.add(request)

    def add(self, planned: Any) -> None:
        # vLLM wants Python's integers.
        prompt = np.asarray(planned.prompt).tolist()
        self.tokens[planned.id] = prompt + np.asarray(planned.output).tolist()
        self.met["prompt starts inside the prompt"] += (
            0 < planned.prompt_start < len(planned.prompt)
        )
        self.met["prompt starts past the prompt"] += planned.prompt_start > len(
            planned.prompt
        )
        for side in self.sides:
            side.scheduler.add_request(
                Request(
                    request_id=planned.id,
                    prompt_token_ids=list(prompt),
                    sampling_params=SamplingParams(
                        max_tokens=planned.max_tokens,
                        ignore_eos=True,
                        routed_experts_prompt_start=planned.prompt_start,
                    ),
                    pooling_params=None,
                    block_hasher=self.hasher,
                )
            )

    def reset(self, *, in_flight: bool, failing: bool) -> None:
        """Reset the prefix cache; vLLM can't while a request waits for a load."""
        waiting = [side.scheduler.kv_holding_waiting for side in self.sides]
        if not in_flight or self.sides[0].scheduler.defer_block_free:
            # With a KV connector, blocks of a step in flight are not free before its end.
            while self.flights:
                self.consume(self.flights.popleft())
        if any(waiting) or any(
            request.is_finished()
            for request in self.sides[0].scheduler.requests.values()
        ):
            # Of an aborted request the blocks stay until its load has landed.
            self.met["resets put off because of a load"] += 1
            return
        if self.flights and self.depth == 1:
            raise AssertionError("a step in flight without async scheduling")
        self.met["resets"] += 1
        self.met["resets with requests running"] += bool(
            self.sides[0].scheduler.running
        )
        self.met["resets with a step in flight"] += bool(self.flights)
        self.met["resets of the pool alone"] += failing
        for side in self.sides:
            if failing:
                side.scheduler.connector.reset_cache = lambda: False
            done = side.scheduler.reset_prefix_cache(
                reset_running_requests=True, reset_connector=failing
            )
            if failing:
                del side.scheduler.connector.reset_cache
            assert done is not failing

    def step(self) -> None:
        """Schedule on both, compare, and consume the oldest step once enough fly."""
        scheduled = [side.scheduler.schedule() for side in self.sides]
        self.same(
            "schedule",
            [
                schedule_of(one, side.scheduler)
                for one, side in zip(scheduled, self.sides, strict=True)
            ],
        )
        metadata = self.same(
            "metadata",
            [metadata_of(one.aux_output_connector_metadata) for one in scheduled],
        )
        if self.compare_state:
            self.same("state", [side.state() for side in self.sides])
        self.count(scheduled[0], metadata)
        self.flights.append(self.fly(scheduled, metadata))
        if len(self.flights) >= self.depth:
            self.consume(self.flights.popleft())

    def count(self, scheduled: Any, metadata: dict[str, Any]) -> None:
        met = self.met
        met["steps"] += 1
        met["preemptions"] += len(scheduled.preempted_req_ids or ())
        requests = self.sides[0].scheduler.requests
        for name, tokens in scheduled.num_scheduled_tokens.items():
            request = requests[name]
            met["chunks of a prompt"] += tokens > 1 and (
                request.num_computed_tokens < request.num_prompt_tokens
            )
        met["hashes of a request that was not scheduled"] += len(
            metadata["block_hashes"].keys()
            - metadata["requests"].keys()
            - set(metadata["finished_requests"])
        )
        met["terminal events"] += len(metadata["finished_requests"])

    def fly(self, scheduled: list[Any], metadata: dict[str, Any]) -> Flight:
        """Invent what a model would have brought for this step."""
        one = scheduled[0]
        requests = self.sides[0].scheduler.requests
        starts = {new.req_id: new.num_computed_tokens for new in one.scheduled_new_reqs}
        cached = one.scheduled_cached_reqs
        starts.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        sampled: dict[str, list[int]] = {}
        aux: dict[str, AuxRequestOutput] = {}
        for name, count in one.num_scheduled_tokens.items():
            end = starts[name] + count
            tokens = self.tokens[name]
            samples = end >= requests[name].num_tokens
            sampled[name] = [tokens[min(end, len(tokens) - 1)]] if samples else []
            start = metadata["requests"][name]
            # A row's content is its position, so a shifted range shows.
            rows = np.arange(start, max(start, end) + 8)[:, None, None]
            aux[name] = AuxRequestOutput(start, rows)
        landed = [
            side.kv_worker.run_step(step.kv_connector_metadata, step.finished_req_ids)
            if side.kv_worker is not None
            else None
            for step, side in zip(scheduled, self.sides, strict=True)
        ]
        return Flight(scheduled, sampled, aux, landed)

    def consume(self, flight: Flight) -> None:
        names = list(flight.output)
        delivered = []
        for side, scheduled, landed in zip(
            self.sides, flight.scheduled, flight.landed, strict=True
        ):
            output = ModelRunnerOutput(
                req_ids=names,
                req_id_to_index={name: row for row, name in enumerate(names)},
                sampled_token_ids=list(flight.output.values()),
                kv_connector_output=landed,
                aux_output_connector_output=flight.aux,
            )
            outputs = side.scheduler.update_from_output(scheduled, output)
            delivered.append(
                [
                    (
                        one.request_id,
                        one.new_token_ids,
                        one.finish_reason,
                        None
                        if one.routed_experts is None
                        else one.routed_experts.tolist(),
                    )
                    for batch in outputs.values()
                    for one in batch.outputs
                ]
            )
        self.same("outputs", delivered)
        self.met["requests finished"] += sum(one[2] is not None for one in delivered[0])
        self.met["rows delivered"] += sum(len(one[3] or ()) for one in delivered[0])


def told(value: Any) -> str:
    """A value in a message: hashes by their first bytes."""
    if isinstance(value, PackedBlockHashes):
        value = [key[:4].hex() for key in value]
    text = str(value)
    return text if len(text) < 600 else f"{text[:600]} ... ({len(text)} characters)"


@contextmanager
def environment(name: str, value: str) -> Any:
    """Set a variable that vLLM reads at each use."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
