"""What a model runner does around a forward pass, for a step that has none.

The tokens that a request will generate are known from the start (its workload planned
them), and so are the rows of every token: a step looks them up, lets the worker connector
take its rows as if they came from the GPU, and "samples" what was planned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from vllm.distributed.aux_output_connector.worker import PendingAuxOutput
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
    from vllm.v1.request import Request

    from auxconn.lab.kv_tier import HostKVTier


@dataclass
class Batch:
    """What a worker connector reads of a model runner's input batch."""

    req_ids: list[str]
    query_start_loc_np: np.ndarray
    num_computed_tokens_np: np.ndarray


@dataclass
class Flight:
    """A step that has been handed to the worker and not been consumed yet."""

    scheduled: SchedulerOutput
    req_ids: list[str]
    sampled: list[list[int]]
    aux: PendingAuxOutput | None
    kv: KVConnectorOutput | None


@dataclass
class Plan:
    """All tokens a request will ever have, and the rows they get."""

    tokens: list[int]
    rows: np.ndarray


class Runner:
    """Runs scheduled steps on the worker's side.

    Parameters
    ----------
    worker
        The worker connector; its capturer is the lab's.
    kv_worker
        The KV tier's side of the worker; None without a tier.
    plans
        Tokens and rows of the requests there are, by id; the engine's, kept by it.
    settle
        See `LabConfig.settle_store`.
    """

    def __init__(
        self,
        worker: Any,
        kv_worker: HostKVTier | None,
        plans: Mapping[str, Plan],
        *,
        settle: bool,
    ) -> None:
        self._worker = worker
        self._capturer = worker._capturer
        self._kv_worker = kv_worker
        self._plans = plans
        if settle:
            _settle(worker._store)

    def start(
        self, scheduled: SchedulerOutput, requests: Mapping[str, Request]
    ) -> Flight:
        """Run a scheduled step; `requests` are the scheduler's."""
        self._worker.begin_step(scheduled.aux_output_connector_metadata)
        landed = None
        if self._kv_worker is not None:
            landed = self._kv_worker.run_step(
                scheduled.kv_connector_metadata, scheduled.finished_req_ids
            )
        counts = scheduled.num_scheduled_tokens
        if not counts:
            return Flight(scheduled, [], [], None, landed)
        starts = {
            new.req_id: new.num_computed_tokens for new in scheduled.scheduled_new_reqs
        }
        cached = scheduled.scheduled_cached_reqs
        starts.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        req_ids = list(counts)
        bounds = np.zeros(len(req_ids) + 1, np.int32)
        np.cumsum(list(counts.values()), out=bounds[1:])
        rows, sampled = [], []
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
        aux = self._worker.prepare_output(
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
        return Flight(scheduled, req_ids, sampled, aux, landed)

    @staticmethod
    def finish(flight: Flight) -> ModelRunnerOutput:
        """What a model runner would return of the step."""
        from vllm.v1.outputs import ModelRunnerOutput

        return ModelRunnerOutput(
            req_ids=flight.req_ids,
            req_id_to_index={name: row for row, name in enumerate(flight.req_ids)},
            sampled_token_ids=flight.sampled,
            kv_connector_output=flight.kv,
            aux_output_connector_output=(
                None if flight.aux is None else flight.aux.process_output()
            ),
        )


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
