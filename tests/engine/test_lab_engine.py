"""The lab's engine on vLLM's real objects: rows are right, loads are real, ends are clean."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice

import numpy as np
import pytest

from auxconn.lab import workloads
from auxconn.lab.config import LabConfig
from auxconn.lab.engine import Engine, StepResult
from auxconn.lab.feeder import Feeder
from auxconn.lab.requests import LabRequest
from auxconn.lab.routes import RouteTable

SMALL = LabConfig(num_blocks=160, num_layers=6, num_experts=32, top_k=4)
WORKLOAD = workloads.grpo(
    prompts=12, samples=3, prompt_tokens=200, output_tokens=24, concurrency=12
)


@contextmanager
def engine_of(config: LabConfig) -> Iterator[Engine]:
    engine = Engine(config)
    try:
        yield engine
    finally:
        engine.close()


def to_its_end(engine: Engine) -> None:
    while engine.has_work:
        engine.step()


class Rows:
    """Rows delivered for each request, checked against those invented for its tokens."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.tokens: dict[str, list[int]] = {}
        self.starts: dict[str, int] = {}
        self.rows: dict[str, list[np.ndarray]] = defaultdict(list)
        self.checked = 0

    def add(self, request: LabRequest) -> None:
        self.tokens[request.id] = [*map(int, request.prompt), *map(int, request.output)]
        self.starts[request.id] = request.prompt_start
        self.engine.add(request)

    def take(self, result: StepResult) -> None:
        for output in result.outputs:
            if output.routed_experts is not None:
                self.rows[output.request_id].append(output.routed_experts)
        for name in result.finished:
            delivered = np.concatenate(self.rows.pop(name))
            start = self.starts[name]
            # The last token is never run, so it has no row.
            invented = self.engine.routes.rows(self.tokens[name][start:-1], start)
            assert delivered.dtype == invented.dtype
            np.testing.assert_array_equal(delivered, invented)
            self.checked += 1


def run(
    engine: Engine,
    requests: int,
    each_step: Callable[[int, Rows], None] = lambda step, rows: None,
) -> Rows:
    rows = Rows(engine)
    feeder = Feeder(islice(WORKLOAD, requests), concurrency=WORKLOAD.concurrency)
    for step in range(20_000):
        if feeder.done and not engine.has_work:
            return rows
        for request in feeder.due():
            rows.add(request)
        result = engine.step()
        rows.take(result)
        for name in result.finished:
            feeder.ended(name)
        each_step(step, rows)
    raise AssertionError("the workload did not end")


@pytest.mark.parametrize("connector", ["auxconn", "vllm"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"async_scheduling": True},
        {"kv_tier_blocks": 500},
        {"kv_tier_blocks": 500, "async_scheduling": True},
        {"num_experts": 300},
        {"num_blocks": 400, "block_size": 16, "hash_block_size": 8},
        {
            "num_blocks": 800,
            "block_size": 32,
            "hash_block_size": 8,
            "kv_tier_blocks": 300,
        },
        {"num_blocks": 400, "hybrid": True, "async_scheduling": True},
        {"settle_store": False},
    ],
    ids=lambda changes: ",".join(f"{k}={v}" for k, v in changes.items()) or "default",
)
def test_every_delivered_row_is_the_one_invented_for_its_token(
    changes: dict[str, object], connector: str
) -> None:
    config = SMALL.replace(connector=connector, **changes)
    with engine_of(config) as engine:
        rows = run(engine, 60)
        assert rows.checked == 60
        assert type(engine.scheduler).__name__ == (
            "AsyncScheduler" if config.async_scheduling else "Scheduler"
        )
        stats = engine.scheduler.kv_cache_manager.prefix_cache_stats
        assert stats is not None


def test_external_hits_are_loaded_and_some_refused() -> None:
    from vllm.v1.request import RequestStatus

    config = SMALL.replace(kv_tier_blocks=400, num_blocks=120, capacity=150)
    with engine_of(config) as engine:
        connector = engine.scheduler.aux_output_connector
        offered: list[tuple[int, int]] = []
        cap = connector.cap_external_hit

        def watch(request: object, local: int, external: int) -> int:
            taken = cap(request, local, external)
            offered.append((external, taken))
            return int(taken)

        connector.cap_external_hit = watch
        most = {"loading": 0, "waiting": 0}

        def look(step: int, rows: Rows) -> None:
            most["loading"] = max(most["loading"], len(connector.loading()))
            most["waiting"] = max(
                most["waiting"],
                sum(
                    request.status == RequestStatus.WAITING_FOR_REMOTE_KVS
                    for request in engine.scheduler.requests.values()
                ),
            )

        rows = run(engine, 120, look)
        assert rows.checked == 120
        assert most["loading"] > 0
        assert most["waiting"] > 0
        assert sum(taken for _, taken in offered) > 0
        assert sum(external - taken for external, taken in offered) > 0


def test_an_offer_without_the_last_token_is_refused_as_unaligned() -> None:
    config = SMALL.replace(kv_tier_blocks=400, kv_tier_offer="all_but_last")
    prompt = list(range(100, 164))  # four blocks of 16, whole
    with engine_of(config) as engine:
        for number, kind in enumerate(("first", "second")):
            engine.add(LabRequest(kind, prompt, [7, 8]))
            while engine.has_work:
                engine.step()
            if number == 0:
                # Off the GPU, still in the tier.
                engine.reset_prefix_cache()
        tier = engine.scheduler.connector
        request = type("R", (), {"block_hashes": tier.held(), "num_tokens": 64})()
        assert tier.get_num_new_matched_tokens(request, 0) == (63, True)


@pytest.mark.parametrize("start", [0, 30, 200, 999])
def test_rows_before_the_prompt_start_are_not_delivered(start: int) -> None:
    with engine_of(SMALL) as engine:
        tokens = list(range(10, 210))
        engine.add(LabRequest("a", tokens, [1, 2, 3], prompt_start=min(start, 199)))
        delivered = []
        while engine.has_work:
            delivered += [one.routed_experts for one in engine.step().outputs]
        assert sum(map(len, delivered)) == 202 - min(start, 199)


def test_shared_prefixes_come_from_the_store() -> None:
    with engine_of(SMALL) as engine:
        prompt = list(range(10, 138))
        rows = Rows(engine)
        cached: list[int] = []
        for name in ("first", "second"):
            rows.add(LabRequest(name, prompt, [5, 6, 7]))
            while engine.has_work:
                result = engine.step()
                rows.take(result)
                cached += [
                    one.prefill_stats.num_cached_tokens
                    for one in result.outputs
                    if one.prefill_stats is not None
                ]
        assert rows.checked == 2
        assert cached == [0, 112]  # all blocks of 16 but the one with the last token


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_aborted_requests_leave_nothing_behind(async_scheduling: bool) -> None:
    config = SMALL.replace(kv_tier_blocks=400, async_scheduling=async_scheduling)
    with engine_of(config) as engine:
        rng = np.random.default_rng(0)
        aborted = 0

        feeder = Feeder(islice(WORKLOAD, 80), concurrency=12)
        rows = Rows(engine)
        while not (feeder.done and not engine.has_work):
            for request in feeder.due():
                rows.add(request)
            result = engine.step()
            rows.take(result)
            for name in result.finished:
                feeder.ended(name)
            running = sorted(engine.scheduler.requests)
            if running and rng.random() < 0.2:
                name = running[rng.integers(len(running))]
                if engine.abort(name):
                    feeder.ended(name)
                    rows.rows.pop(name, None)
                    aborted += 1
        assert aborted > 5
        assert rows.checked + aborted == 80
        assert not engine.abort("nobody")
        assert engine.num_requests == 0
        # The worker hears of an end with the next step's metadata.
        engine.add(LabRequest("last", [1, 2, 3], [4]))
        to_its_end(engine)
        engine.worker.begin_step(
            engine.scheduler.schedule().aux_output_connector_metadata
        )
        assert not engine.worker._requests


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_reset_with_requests_running_and_loading(async_scheduling: bool) -> None:
    config = SMALL.replace(
        num_blocks=100,
        kv_tier_blocks=400,
        async_scheduling=async_scheduling,
        kv_load_steps=6,
    )
    with engine_of(config) as engine:
        connector = engine.scheduler.aux_output_connector
        feeder = Feeder(islice(WORKLOAD, 200), concurrency=12)
        rows = Rows(engine)
        resets = while_loading = 0
        step = 0

        def take(result: StepResult) -> None:
            rows.take(result)
            for name in result.finished:
                feeder.ended(name)

        while not (feeder.done and not engine.has_work):
            for request in feeder.due():
                rows.add(request)
            take(engine.step())
            step += 1
            if step == 150 or (step > 60 and connector.loading()):
                while_loading += bool(connector.loading())
                step = 0
                take(engine.reset_prefix_cache(kv_tier=resets % 2 == 1))
                resets += 1
                assert connector.generation == resets
                assert not connector.held()
        assert rows.checked == 200
        assert resets > 3
        assert while_loading > 0


def test_a_request_that_never_fits_and_a_second_of_one_id_are_refused() -> None:
    with engine_of(SMALL.replace(num_blocks=5)) as engine:
        with pytest.raises(ValueError, match=r"request 'a'.*holds 64 tokens"):
            engine.add(LabRequest("a", range(60), [1] * 5))
        engine.add(LabRequest("a", range(59), [1] * 5))
        with pytest.raises(ValueError, match="'a' is already running"):
            engine.add(LabRequest("a", [1], [1]))
        while engine.has_work:
            engine.step()


@pytest.mark.parametrize("changes", [{}, {"hash_block_size": 4}])
def test_the_longest_request_that_is_taken_runs(changes: dict[str, object]) -> None:
    config = SMALL.replace(num_blocks=40, max_num_batched_tokens=64, **changes)
    with engine_of(config) as engine:
        length = config.max_request_tokens
        rows = Rows(engine)
        rows.add(LabRequest("a", np.arange(10, 10 + length - 40), [7] * 40))
        for _ in range(500):
            if not engine.has_work:
                break
            rows.take(engine.step())
        assert rows.checked == 1


def test_nothing_of_vllm_is_patched_and_no_thread_is_left() -> None:
    from vllm.distributed.aux_output_connector import store, worker

    before = {name: getattr(worker, name) for name in vars(worker)}
    put = store.BackgroundBlockObjectStore.put
    threads = set(threading.enumerate())
    engines = [Engine(SMALL), Engine(SMALL.replace(connector="vllm"))]
    assert {name: getattr(worker, name) for name in vars(worker)} == before
    assert store.BackgroundBlockObjectStore.put is put
    assert len(set(threading.enumerate()) - threads) == 2
    for engine in engines:
        engine.close()
        engine.close()
    assert set(threading.enumerate()) == threads


def test_a_failed_writer_is_an_error_of_the_step_and_closing_ends_the_thread() -> None:
    threads = set(threading.enumerate())
    engine = Engine(SMALL)

    def broken(*args: object, **kwargs: object) -> None:
        raise OSError("no space left")

    engine.worker._store._store.put = broken
    engine.add(LabRequest("a", range(100), [1, 2]))
    with pytest.raises(Exception, match="publication failed"):
        to_its_end(engine)
    with pytest.raises(Exception, match="publication failed"):
        engine.close()
    assert set(threading.enumerate()) == threads


def test_the_route_table_has_distinct_experts_and_depends_on_the_seed() -> None:
    for config in (
        SMALL,
        SMALL.replace(num_experts=7, top_k=7),
        SMALL.replace(num_experts=1, top_k=1),
        SMALL.replace(num_experts=1000, num_layers=512, top_k=8),
    ):
        table = RouteTable(config)
        rows = table.rows(range(300))
        assert rows.shape == (300, *config.row_shape)
        assert rows.dtype == config.row_dtype
        assert rows.max() < config.num_experts
        flat = np.sort(rows.reshape(-1, config.top_k), axis=1)
        assert (np.diff(flat.astype(int), axis=1) > 0).all()
    assert (
        RouteTable(SMALL).rows([1, 2]) != RouteTable(SMALL.replace(seed=1)).rows([1, 2])
    ).any()
    table = RouteTable(SMALL)
    np.testing.assert_array_equal(table.rows([5, 6, 7])[1:], table.rows([6, 7], 1))
