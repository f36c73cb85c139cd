"""The lab in process: frames, determinism, changes while it runs, a clean end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pandas as pd
import pytest

from auxconn import FrameStore
from auxconn.lab import Lab, LabConfig, LabRequest, workloads
from auxconn.records import TABLES

CONFIG = LabConfig(
    num_blocks=120,
    kv_tier_blocks=400,
    capacity=150,
    num_layers=6,
    num_experts=32,
    top_k=4,
)
WORKLOAD = workloads.grpo(
    prompts=12, samples=3, prompt_tokens=200, output_tokens=24, concurrency=12
)

TIMES = {
    "steps": [name for name in TABLES["steps"].__struct_fields__ if name[:3] == "ns_"],
    "requests": ["arrival", "first_scheduled"],
    "blocks": ["age", "idle"],
    "rows": ["ms_copy", "ms_commit"],
}
"""Columns that say when or how long, by table."""


@pytest.fixture
def no_thread_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    left = [one for one in threading.enumerate() if one not in before]
    assert not left


def frames_of(lab: Lab) -> dict[str, pd.DataFrame]:
    return {
        table: getattr(lab.frames, table)().drop(columns=["t", *TIMES.get(table, [])])
        for table in TABLES
    }


@pytest.mark.parametrize("connector", ["auxconn", "vllm"])
@pytest.mark.parametrize("async_scheduling", [False, True])
def test_the_same_seed_and_settings_give_the_same_frames(
    connector: str, async_scheduling: bool
) -> None:
    config = CONFIG.replace(connector=connector, async_scheduling=async_scheduling)
    runs = []
    for _ in range(2):
        with Lab(config, WORKLOAD) as lab:
            lab.run(requests=80)
            lab.set_capacity(60)
            lab.reconfigure(block_size=8)
            lab.run(steps=60)
            lab.reset_prefix_cache()
            lab.run(requests=20)
            runs.append(frames_of(lab))
    for table in TABLES:
        pd.testing.assert_frame_equal(runs[0][table], runs[1][table])
    frames = runs[0]
    for table in TABLES:
        assert len(frames[table]), table
    lookups, steps, blocks = frames["lookups"], frames["steps"], frames["blocks"]
    assert lookups["local_hit"].sum() > 0
    assert lookups["external_accepted"].sum() > 0
    assert lookups["external_refused"].sum() > 0
    assert steps["loading_requests"].max() > 0
    assert {"retained", "released", "load_started", "load_ended"} <= set(
        blocks["event"]
    )
    assert frames["rows"]["store_rows"].sum() > 0
    assert frames["rows"]["tail_rows"].sum() > 0
    assert frames["rows"]["step_rows"].sum() > 0


def test_another_seed_gives_other_frames() -> None:
    seen = []
    for seed in (0, 1):
        workload = workloads.grpo(prompts=12, samples=3, prompt_tokens=200, seed=seed)
        with Lab(CONFIG, workload) as lab:
            lab.run(steps=40)
            seen.append(lab.frames.lookups()["query_tokens"].tolist())
    assert seen[0] != seen[1]


def test_steps_count_on_over_a_new_engine_and_the_change_is_marked() -> None:
    with Lab(CONFIG, WORKLOAD) as lab:
        lab.run(steps=50)
        running = lab._feeder.num_active
        assert running > 0
        old = lab.engine
        assert lab.reconfigure(block_size=32, hash_block_size=16).block_size == 32
        assert lab.engine is not old
        assert not old.worker._store  # closed, its writer thread ended
        lab.run(steps=30)
        steps = lab.frames.steps()
        assert steps["step"].tolist() == list(range(1, 81))
        lookups = lab.frames.lookups()
        assert set(lookups.loc[lookups["step"] <= 50, "block_size"]) == {16}
        assert set(lookups.loc[lookups["step"] > 50, "block_size"]) == {32}
        events = lab.frames.events()
        (mark,) = events.loc[events["kind"] == "reconfigured", ["step", "text"]].values
        assert mark[0] == 50
        assert mark[1] == (
            "block_size 16 -> 32, hash_block_size 16 -> 16; new engine, "
            f"{running} requests start again"
        )
        assert lab.facts["block_size"] == 32
        assert lab.facts["hash_block_size"] == 16


def test_no_request_is_lost_or_run_twice_by_a_new_engine() -> None:
    workload = workloads.multi_turn(sessions=5, turns=3, requests=45, user_tokens=40)
    with Lab(CONFIG.replace(num_blocks=300), workload) as lab:
        for block_size in (8, 4, 16):
            lab.run(requests=10)
            lab.reconfigure(block_size=block_size)
        lab.run()
        assert lab.done
        requests = lab.frames.requests()
        assert sorted(requests["request"]) == sorted(one.id for one in workload)


def test_capacity_falls_to_what_is_on_the_gpu_and_is_kept_by_a_new_engine() -> None:
    with Lab(CONFIG.replace(capacity=240), WORKLOAD) as lab:
        lab.run(requests=120)
        retained = lab.frames.steps()["retained"].iloc[-1]
        assert retained > 150
        assert lab.set_capacity(20) == 240
        assert lab.facts["capacity"] == 20
        lab.step()
        last = lab.frames.steps().iloc[-1]
        assert last["capacity"] == 20
        assert last["hashes_released"] > 0
        lab.run(steps=20)
        last = lab.frames.steps().iloc[-1]
        # What has left the GPU since the last request ended goes when the next one does.
        assert 0 <= last["retained"] - last["retained_on_gpu"] < 20
        lab.reconfigure(num_blocks=130)
        assert lab.engine.capacity == 20
        # Back to vLLM's default, without a new engine.
        engine = lab.engine
        lab.reconfigure(capacity=None)
        assert lab.engine is engine
        assert lab.engine.capacity == 260


def test_refused_changes_leave_the_engine_as_it_is() -> None:
    with Lab(CONFIG, WORKLOAD) as lab:
        lab.run(steps=5)
        engine = lab.engine
        for changes, words in (
            ({"block_size": 24, "hash_block_size": 16}, "not a multiple"),
            ({"num_blocks": 10}, "longer than the pool"),
            ({"blocks": 1}, "unknown setting 'blocks'"),
            ({"capacity": 0}, "capacity=0"),
        ):
            with pytest.raises(ValueError, match=words):
                lab.reconfigure(**changes)
        with pytest.raises(ValueError, match="capacity=-1"):
            lab.set_capacity(-1)
        with pytest.raises(ValueError, match="longer than the pool"):
            lab.set_workload(workloads.scan(prompt_tokens=5000))
        assert lab.reconfigure(block_size=16) == CONFIG
        assert lab.engine is engine
        assert lab.config == CONFIG
        lab.run(steps=5)
        assert lab.frames.steps()["step"].tolist() == list(range(1, 11))


def test_a_prompt_longer_than_the_pool_is_refused_before_anything_is_built() -> None:
    with pytest.raises(ValueError, match=r"longer than the pool.*raise num_blocks"):
        Lab(LabConfig(num_blocks=30), workloads.grpo())


def test_another_workload_follows_and_ids_stay_apart() -> None:
    workload = workloads.scan(documents=5, prompt_tokens=60, requests=8, concurrency=3)
    with Lab(CONFIG, workload) as lab:
        lab.run(requests=2)
        handed_out = len(lab.frames.requests()) + lab._feeder.num_active
        lab.set_workload(workload)
        lab.run(requests=10)
        while not lab.done:
            lab.step()
        requests = list(lab.frames.requests()["request"])
        assert len(set(requests)) == len(requests)
        assert "2:scan-1-2" in requests
        # What the first had not handed out is dropped, what it had is run to its end.
        assert len(requests) == handed_out + 8
        events = lab.frames.events()
        assert list(events.loc[events["kind"] == "workload", "text"]) == (
            [repr(workload)] * 2
        )


def test_what_runs_of_a_former_workload_survives_a_new_engine() -> None:
    first = workloads.scan(documents=5, prompt_tokens=60, requests=8, concurrency=3)
    with Lab(CONFIG, first) as lab:
        lab.run(requests=1)
        running = {one.id for one in lab._feeder.active()}
        assert len(running) >= 2
        lab.set_workload(workloads.scan(documents=4, requests=4, prompt_tokens=50))
        lab.reconfigure(block_size=8)
        lab.run()
        ended = list(lab.frames.requests()["request"])
        assert len(set(ended)) == len(ended)
        assert running <= set(ended)
        assert lab.done


def test_any_iterable_of_requests_is_a_workload() -> None:
    requests = [LabRequest(f"r{n}", range(10, 50 + n), [3, 4]) for n in range(9)]
    with Lab(CONFIG, requests, concurrency=2) as lab:
        summary = lab.run(requests=100)
        assert summary.requests == 9
        assert lab.done
        assert lab.frames.steps()["running"].max() == 2
        assert "9 requests in" in repr(summary)


def test_requests_that_do_not_fit_are_refused_and_the_lab_goes_on() -> None:
    requests = [
        LabRequest("a", range(10, 50), [1]),
        LabRequest("long", range(10, 5010), [1]),
        LabRequest("b", range(10, 1500), [1] * 9),
    ]
    with Lab(CONFIG, requests, concurrency=3) as lab:
        with pytest.raises(ValueError, match=r"'long'.*5000 tokens.*raise num_blocks"):
            lab.step()
        events = lab.frames.events()
        assert "left out: request 'long'" in str(events["text"].iloc[-1])
        lab.step()
        # It runs now, and would not fit in a smaller pool.
        with pytest.raises(ValueError, match=r"'b'.*1490 tokens"):
            lab.reconfigure(num_blocks=60)
        lab.run(steps=50)
        assert sorted(lab.frames.requests()["request"]) == ["a", "b"]


def test_run_needs_an_end_and_good_numbers() -> None:
    with Lab(CONFIG, WORKLOAD) as lab:
        with pytest.raises(
            ValueError, match=r"nothing would end the run of grpo\(.*give requests="
        ):
            lab.run()
        for bad in (0, -1, 2.5, True):
            with pytest.raises(ValueError, match="steps="):
                lab.run(steps=bad)  # type: ignore[arg-type]
        assert lab.run(requests=10, steps=3).steps == 3
        assert lab.run(requests=1).requests >= 1


def test_a_bounded_workload_runs_to_its_end() -> None:
    with Lab(
        CONFIG, workloads.scan(requests=12, prompt_tokens=50, rate=0.5, documents=3)
    ) as lab:
        assert lab.run().requests == 12
        assert lab.run(steps=5).steps == 0


def test_abort_is_heard_by_engine_and_workload() -> None:
    with Lab(CONFIG, WORKLOAD) as lab:
        lab.run(steps=3)
        request = sorted(lab.engine.scheduler.requests)[0]
        assert lab.abort(request)
        assert not lab.abort(request)
        lab.run(steps=3)
        requests = lab.frames.requests()
        (reason,) = requests.loc[requests["request"] == request, "reason"]
        assert "abort" in reason


def test_frames_can_be_given_and_sinks_have_none() -> None:
    class Counting:
        rows = 0

        def emit(self, table: str, record: Any) -> None:
            self.rows += 1

        def hello(self, facts: Any, commands: Any) -> None:
            pass

    frames = FrameStore(rows=50)
    with Lab(CONFIG, WORKLOAD, frames=frames, name="mine") as lab:
        lab.run(steps=60)
        assert lab.frames is frames
        assert len(frames.steps()) == 50
        assert set(frames.steps()["engine"]) == {"mine"}
    sink = Counting()
    with Lab(CONFIG, WORKLOAD, sink=sink) as lab:
        lab.run(steps=5)
        with pytest.raises(RuntimeError, match="without sink="):
            _ = lab.frames
    assert sink.rows > 10


def test_runs_in_the_background_and_changes_in_between(no_thread_left: None) -> None:
    with Lab(CONFIG, WORKLOAD, steps_per_s=400.0) as lab:
        lab.start()
        assert lab.start().running
        with pytest.raises(RuntimeError, match=r"stop\(\) it first"):
            lab.run(steps=1)
        _until(lambda: lab.num_steps > 20)
        lab.set_capacity(30)
        lab.reconfigure(block_size=8)
        reached = lab.num_steps
        _until(lambda: lab.num_steps > reached + 20)
        assert lab.command("pause") == "paused"
        paused = lab.num_steps
        assert lab.command("step", n=2) == "paused after 2 steps"
        assert lab.num_steps == paused + 2
        assert lab.facts["paused"] is True
        assert lab.command("resume") == "running"
        _until(lambda: lab.num_steps > paused + 10)
        lab.stop()
        stopped = lab.num_steps
        assert not lab.running
        assert lab.frames.steps()["step"].tolist() == list(range(1, stopped + 1))
        lab.run(steps=1)
        assert lab.num_steps == stopped + 1


def _until(reached: Any, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_closing_ends_everything(no_thread_left: None) -> None:
    lab = Lab(CONFIG, WORKLOAD).start()
    _until(lambda: lab.num_steps > 3)
    lab.close()
    lab.close()
    assert not lab.running
    assert repr(lab) == "Lab(closed)"
    for use in (lab.step, lambda: lab.run(steps=1), lambda: lab.set_capacity(1)):
        with pytest.raises(RuntimeError, match="closed"):
            use()


def test_many_rebuilds_leave_no_thread(no_thread_left: None) -> None:
    with Lab(CONFIG, WORKLOAD) as lab:
        lab.run(steps=3)
        threads = threading.active_count()
        for turn in range(12):
            lab.reconfigure(block_size=(8, 16)[turn % 2], connector="vllm")
            lab.run(steps=3)
            assert threading.active_count() == threads


def test_an_engine_that_fails_says_so_and_stays_down(no_thread_left: None) -> None:
    with Lab(CONFIG, WORKLOAD) as lab:
        lab.run(steps=3)

        def broken(*args: Any, **kwargs: Any) -> None:
            raise OSError("no space left")

        lab.engine.worker._store._store.put = broken
        with pytest.raises(Exception, match="publication failed"):
            lab.run(steps=50)
        events = lab.frames.events()
        assert (
            "publication failed"
            in events.loc[events["kind"] == "error", "text"].iloc[-1]
        )
        with pytest.raises(RuntimeError, match="the engine failed"):
            lab.step()


def test_a_failure_in_the_background_is_raised_by_stop(no_thread_left: None) -> None:
    with Lab(CONFIG, WORKLOAD) as lab:

        def broken(*args: Any, **kwargs: Any) -> None:
            raise OSError("no space left")

        lab.engine.worker._store._store.put = broken
        lab.start()
        _until(lambda: not lab.running)
        with pytest.raises(RuntimeError, match="publication failed"):
            lab.stop()


@pytest.mark.parametrize(
    ("name", "args", "words"),
    [
        ("fly", {}, "no command 'fly'; there are set_capacity"),
        ("set_capacity", {}, "'blocks' is missing"),
        ("set_capacity", {"blocks": "7"}, "capacity='7'"),
        ("set_capacity", {"blocks": 7, "now": True}, "'now' is unknown"),
        ("reconfigure", {}, "name at least one setting"),
        ("reconfigure", {"fast": True}, "unknown setting 'fast'"),
        ("workload", {}, "needs a name"),
        ("workload", {"name": "x"}, "no workload 'x'"),
        ("workload", {"name": "scan", "documents": 0}, "documents=0"),
        ("speed", {"steps_per_s": -1}, "steps_per_s=-1"),
        ("pause", {"now": 1}, "pause takes nothing"),
        ("step", {"n": 0}, "n=0 is out of range"),
        ("step", {"n": 10**9}, "n=1000000000 is out of range"),
        ("step", {"n": 1.5}, "n=1.5 is not a whole number"),
        ("reset_prefix_cache", {"kv_tier": 1}, "kv_tier=1"),
        ("abort", {"request": "nobody"}, "no request 'nobody'"),
    ],
)
def test_commands_are_refused_in_words(
    name: str, args: dict[str, Any], words: str, idle_lab: Lab
) -> None:
    before = (idle_lab.config, idle_lab.engine, idle_lab.pacer.paused)
    with pytest.raises(ValueError, match=words):
        idle_lab.command(name, **args)
    assert (idle_lab.config, idle_lab.engine, idle_lab.pacer.paused) == before


@pytest.fixture(scope="module")
def idle_lab() -> Iterator[Lab]:
    with Lab(CONFIG, WORKLOAD) as lab:
        yield lab


def test_commands_are_carried_out_and_answered() -> None:
    with Lab(CONFIG, WORKLOAD) as lab:
        lab.run(steps=5)
        for name, args, answer in (
            ("set_capacity", {"blocks": 99}, "capacity 150 -> 99 blocks"),
            ("reconfigure", {"block_size": 8}, "block_size 16 -> 8"),
            ("reconfigure", {"block_size": 8}, "nothing to change"),
            ("speed", {"steps_per_s": None}, "as fast as it goes"),
            ("speed", {"steps_per_s": 20}, "20 steps/s"),
            ("reset_prefix_cache", {}, "prefix cache reset"),
            ("reset_prefix_cache", {"kv_tier": True}, "KV tier emptied"),
            ("step", {}, "paused after 1 step"),
        ):
            assert answer in lab.command(name, **args)
        answer = lab.command("workload", name="scan", documents=5, requests=3)
        assert answer == "workload scan(documents=5, requests=3)"
        assert lab.facts["workload"] == "scan(documents=5, requests=3)"
        assert lab.facts["steps_per_s"] == 20.0
        assert lab.facts["paused"] is True
        assert set(lab.commands) >= {"set_capacity", "reconfigure", "workload", "speed"}


def test_facts_describe_the_engine() -> None:
    config = CONFIG.replace(hash_block_size=4, kv_tier_blocks=0, capacity=None)
    with Lab(config, WORKLOAD) as lab:
        facts = lab.facts
    assert {
        name: facts[name]
        for name in (
            "source", "vllm_version", "connector", "num_blocks", "block_size",
            "hash_block_size", "capacity", "kv_tier_blocks", "num_layers",
            "num_experts", "top_k", "row_bytes", "bytes_per_block",
        )
    } == {
        "source": "lab", "vllm_version": "0.33.0", "connector": "auxconn",
        "num_blocks": 120, "block_size": 16, "hash_block_size": 4, "capacity": 120,
        "kv_tier_blocks": 0, "num_layers": 6, "num_experts": 32, "top_k": 4,
        "row_bytes": 24, "bytes_per_block": 384,
    }  # fmt: skip


@pytest.mark.parametrize("name", ["grpo", "multi_turn", "shared_prefix", "scan"])
def test_every_workload_runs(name: str) -> None:
    workload = getattr(workloads, name)(requests=60)
    ids = [one.id for one in islice(workload, 60)]
    with Lab(CONFIG.replace(num_blocks=400), workload) as lab:
        lab.run()
        assert sorted(lab.frames.requests()["request"]) == sorted(ids)


def test_in_the_demo_every_figure_moves_within_ten_seconds() -> None:
    from auxconn.lab import demo

    with Lab(demo.CONFIG, demo.WORKLOAD) as lab:
        # What vLLM's import leaves of ten seconds is not much; the half is meant here.
        lab.run(steps=int(demo.STEPS_PER_S * 6))
        frames = lab.frames
        steps, lookups, rows = frames.steps(), frames.lookups(), frames.rows()
    assert lookups["local_hit"].sum() > 0
    assert lookups["external_accepted"].sum() > 0
    refused = set(lookups.loc[lookups["external_refused"] > 0, "refusal"])
    assert refused >= {"not_retained", "last_token"}
    assert steps["hashes_released"].sum() > 100
    assert (steps["loading_requests"] > 0).mean() > 0.02
    assert steps["retained"].max() == demo.CONFIG.capacity
    assert steps["retained_on_gpu"].iloc[-1] < steps["retained"].iloc[-1]
    assert rows[["step_rows", "store_rows", "tail_rows"]].sum().min() > 0
    assert len(lookups["run_end_reason"].unique()) >= 4
