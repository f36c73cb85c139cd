"""The scheduler's loop without a worker, and the requests that benchmarks run through it.

What a scheduler step costs must not be hidden by the worker, and must not be measured on
anything but vLLM's scheduler. So the loop is vLLM's, `schedule` and `update_from_output`,
and what the worker would bring is cut from one array of zeros: ranges of rows as the
metadata ask for them.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from time import perf_counter_ns, thread_time_ns
from typing import Any, NamedTuple

import numpy as np

from auxconn.lab.build import build_block_hasher, build_kv_worker, build_scheduler
from auxconn.lab.config import LabConfig

LAYERS, TOP_K = 94, 8
VOCABULARY = 30_000


class Wanted(NamedTuple):
    """A request to come: its prompt and how many tokens it generates."""

    prompt: list[int]
    output: int


def groups(
    prompt: int, output: tuple[int, int], samples: int, seed: int = 0
) -> Iterator[Wanted]:
    """Prompts of about `prompt` tokens, each asked `samples` times in a row, as in GRPO.

    Half of each prompt is one of eight system prompts; `output` is the range of lengths.
    """
    draw = random.Random(seed)
    systems = [_tokens(draw, prompt // 2) for _ in range(8)]
    while True:
        length = draw.randint(prompt * 3 // 8, prompt * 5 // 8)
        tokens = draw.choice(systems) + _tokens(draw, length)
        for _ in range(samples):
            yield Wanted(tokens, draw.randint(*output))


def _tokens(draw: random.Random, count: int) -> list[int]:
    return [draw.randrange(VOCABULARY) for _ in range(count)]


class Loop:
    """One scheduler that is kept busy.

    Parameters
    ----------
    config
        Its settings, `connector` among them.
    requests
        Where the next request comes from.
    running
        Requests in the scheduler at any time.

    Attributes
    ----------
    ns, cpu_ns
        Nanoseconds spent in `schedule` and `update_from_output` so far, by the clock and
        of the thread.
    """

    def __init__(
        self, config: LabConfig, requests: Iterator[Wanted], running: int
    ) -> None:
        # Before vLLM is imported: the lab has to set it up for a machine without a GPU.
        self.scheduler: Any = build_scheduler(config)
        from vllm.distributed.aux_output_connector.connector import AuxRequestOutput
        from vllm.envs import enable_envs_cache
        from vllm.sampling_params import SamplingParams
        from vllm.v1.outputs import ModelRunnerOutput
        from vllm.v1.request import Request

        # As vLLM's engine does once it is up; its connector is slower without.
        enable_envs_cache()
        self.ns = self.cpu_ns = 0
        self.finished = 0
        self._kv_worker: Any = build_kv_worker(self.scheduler)
        self._hasher = build_block_hasher(config)
        self._requests = requests
        self._running = running
        self._names = itertools.count()
        self._rows = np.zeros((config.max_request_tokens, LAYERS, TOP_K), np.uint8)
        self._make_output: Callable[..., Any] = ModelRunnerOutput
        self._make_rows: Callable[..., Any] = AuxRequestOutput
        self._make_request: Callable[..., Any] = Request
        self._make_params: Callable[..., Any] = SamplingParams

    def fill(self) -> None:
        """Hand in requests until enough are there."""
        while len(self.scheduler.requests) < self._running:
            wanted = next(self._requests)
            self.scheduler.add_request(
                self._make_request(
                    request_id=f"chatcmpl-{next(self._names):032x}",
                    prompt_token_ids=wanted.prompt,
                    sampling_params=self._make_params(
                        max_tokens=wanted.output, ignore_eos=True
                    ),
                    pooling_params=None,
                    block_hasher=self._hasher,
                )
            )

    def step(self) -> Any:
        """Take a step; returns what was scheduled."""
        self.fill()
        scheduler = self.scheduler
        started, cpu = perf_counter_ns(), thread_time_ns()
        scheduled = scheduler.schedule()
        self.cpu_ns += thread_time_ns() - cpu
        self.ns += perf_counter_ns() - started
        output = self._output(scheduled)
        started, cpu = perf_counter_ns(), thread_time_ns()
        brought = scheduler.update_from_output(scheduled, output)
        self.cpu_ns += thread_time_ns() - cpu
        self.ns += perf_counter_ns() - started
        for batch in brought.values():
            self.finished += sum(one.finish_reason is not None for one in batch.outputs)
        return scheduled

    def prefill(self) -> None:
        """Step until every request decodes; they must be long enough not to end by then."""
        while (
            any(
                not request.num_output_tokens
                for request in self.scheduler.requests.values()
            )
            or not self.scheduler.requests
        ):
            self.step()

    def _output(self, scheduled: Any) -> Any:
        requests, metadata = (
            self.scheduler.requests,
            scheduled.aux_output_connector_metadata,
        )
        names, sampled, rows = [], [], {}
        for name in scheduled.num_scheduled_tokens:
            # vLLM counts what was scheduled as computed by now.
            request = requests[name]
            end = request.num_computed_tokens
            start = metadata.requests[name]
            names.append(name)
            sampled.append([7] if end >= request.num_tokens else [])
            rows[name] = self._make_rows(start, self._rows[start : max(start, end)])
        landed = None
        if self._kv_worker is not None:
            landed = self._kv_worker.run_step(
                scheduled.kv_connector_metadata, scheduled.finished_req_ids
            )
        return self._make_output(
            req_ids=names,
            req_id_to_index={name: at for at, name in enumerate(names)},
            sampled_token_ids=sampled,
            kv_connector_output=landed,
            aux_output_connector_output=rows,
        )

    def close(self) -> None:
        """Let go of the pool."""
        self.scheduler.shutdown()
