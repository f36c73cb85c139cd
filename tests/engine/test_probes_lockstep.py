"""Observing changes nothing: two engines in lockstep, one of them watched.

Also when every part of the probes is made to fail, alone and all at once, and when what
they write to does.
"""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from auxconn.attach import attach
from auxconn.frames import FrameStore
from auxconn.lab.config import LabConfig
from auxconn.lab.engine import Engine
from auxconn.probes.guard import FAILURES
from auxconn.probes.pool import PoolProbe
from auxconn.probes.scheduler import SchedulerProbe
from auxconn.probes.scribe import Scribe
from auxconn.probes.store import StoreProbe
from auxconn.probes.worker import WorkerProbe
from tests.engine.probes_truth import SMALL_ROWS, Traffic

SETTINGS = {
    "plain": {"num_blocks": 100, "capacity": 60},
    "tier": {"num_blocks": 64, "kv_tier_blocks": 400, "async_scheduling": True},
    "hybrid": {
        "num_blocks": 110,
        "block_size": 32,
        "hash_block_size": 16,
        "kv_tier_blocks": 200,
    },
}

PARTS = [
    (SchedulerProbe, "on_lookup"),
    (SchedulerProbe, "on_cap"),
    (SchedulerProbe, "on_admitted"),
    (SchedulerProbe, "on_loading"),
    (SchedulerProbe, "on_finished"),
    (SchedulerProbe, "on_reset"),
    (SchedulerProbe, "on_build"),
    (Scribe, "put"),
    (Scribe, "work_up"),
    (PoolProbe, "on_cached"),
    (PoolProbe, "on_wiped"),
    (PoolProbe, "recount"),
    (PoolProbe, "take"),
    (WorkerProbe, "on_begin"),
    (WorkerProbe, "on_prepared"),
    (WorkerProbe, "on_read"),
    (WorkerProbe, "on_processed"),
    (StoreProbe, "on_put"),
    (StoreProbe, "on_evicted"),
    (StoreProbe, "look"),
    (WorkerProbe, "write"),
]


class Recorder:
    """What an engine decided: schedules, metadata, rows, outputs."""

    def __init__(self, settings, connector):
        self.config = LabConfig(
            connector=connector,
            max_num_seqs=8,
            max_num_batched_tokens=192,
            **SMALL_ROWS,
            **settings,
        )
        self.engine = Engine(self.config)
        self.traffic = Traffic(self.config, 10_000, seed=3, aborts=0.05)
        scheduler, worker = self.engine.scheduler, self.engine.worker
        schedule, commit = scheduler.schedule, worker._commit_output
        self.scheduled, self.rows, self.results = [], [], []

        def scheduled():
            output = schedule()
            self.scheduled.append(output)
            return output

        def committed(pending):
            outputs = commit(pending)
            self.rows.append(
                {
                    name: (one.token_start, one.rows.copy())
                    for name, one in outputs.items()
                }
            )
            return outputs

        scheduler.schedule, worker._commit_output = scheduled, committed

    def step(self, number):
        self.traffic.feed(self.engine, 14)
        result = self.engine.step()
        self.results.append(
            [
                (
                    one.request_id,
                    one.new_token_ids,
                    one.finish_reason,
                    one.routed_experts,
                )
                for one in result.outputs
            ]
        )
        if number == 60:
            # With a tier, blocks must stay retained after they left the GPU to be loaded.
            tier = self.config.kv_tier_blocks > 0
            self.engine.set_capacity(self.config.num_blocks * (3 if tier else 1) // 2)
        if number % 150 == 120:
            self.engine.reset_prefix_cache()


def equal(one, other):
    """Equal throughout, arrays too."""
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return type(one) is type(other) and np.array_equal(one, other)
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(equal(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return one == other


def assert_same(bare, watched):
    assert len(bare.scheduled) == len(watched.scheduled)
    for one, other in zip(bare.scheduled, watched.scheduled, strict=True):
        assert equal(one.num_scheduled_tokens, other.num_scheduled_tokens)
        assert one.finished_req_ids == other.finished_req_ids
        mine, theirs = (
            one.aux_output_connector_metadata,
            other.aux_output_connector_metadata,
        )
        for field in fields(mine):
            assert equal(getattr(mine, field.name), getattr(theirs, field.name))
        assert vars(mine).keys() == vars(theirs).keys()
    assert equal(bare.rows, watched.rows)
    assert equal(bare.results, watched.results)


def run(bare, watched, steps):
    for number in range(steps):
        bare.step(number)
        watched.step(number)
    assert_same(bare, watched)


@pytest.fixture(params=["vllm", "auxconn"])
def connector(request):
    return request.param


@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize("settings", SETTINGS)
def test_watched_engine_does_the_same(settings, connector, deferred):
    bare, watched = (Recorder(SETTINGS[settings], connector) for _ in range(2))
    store = FrameStore()
    attachment = attach(
        scheduler=watched.engine.scheduler,
        worker=watched.engine.worker,
        to=store,
        deferred=deferred,
    )
    run(bare, watched, 300)
    attachment.detach()
    assert store.version("steps") == len(watched.scheduled)
    assert store.version("rows") == len(watched.rows)
    # And after it was taken off.
    run(bare, watched, 30)
    assert store.version("steps") == len(watched.scheduled) - 30
    bare.engine.close()
    watched.engine.close()


def fail(*args, **kwargs):
    raise RuntimeError("made to fail")


@pytest.fixture(scope="module")
def undisturbed():
    """What engines do that nobody watches, by settings and connector."""
    made = {}

    def get(settings, connector, steps):
        key = settings, connector, steps
        if key not in made:
            made[key] = Recorder(SETTINGS[settings], connector)
            for number in range(steps):
                made[key].step(number)
            made[key].engine.close()
        return made[key]

    return get


@pytest.mark.parametrize("part", [*PARTS, None], ids=lambda part: str(part and part[1]))
def test_engine_does_the_same_when_a_probe_fails(part, undisturbed, monkeypatch):
    settings, steps = "tier", 240
    bare = undisturbed(settings, "vllm", steps)
    watched = Recorder(SETTINGS[settings], "vllm")
    store = FrameStore()
    attachment = attach(
        scheduler=watched.engine.scheduler, worker=watched.engine.worker, to=store
    )
    for owner, name in PARTS if part is None else [part]:
        monkeypatch.setattr(owner, name, fail)
    for number in range(steps):
        watched.step(number)
    assert_same(bare, watched)
    guards = attachment.scheduler_probe.guard, attachment.worker_probe.guard
    failures = guards[0].failures + guards[1].failures
    attachment.detach()
    watched.engine.close()
    assert failures.total() > 0
    assert max(failures.values()) <= FAILURES + 1
    errors = store.events()
    errors = errors[errors.kind == "error"].text
    # Once for each kind, and once more when the probe was switched off.
    for guard in guards:
        told = errors[errors.str.startswith(guard.probe)]
        assert len(told) == len(guard.failures) + guard.off
        assert guard.off == any(n >= FAILURES for n in guard.failures.values())


class BrokenSink:
    """Breaks its promise never to raise, after a while."""

    def __init__(self):
        self.calls = 0

    def emit(self, table, record):
        self.calls += 1
        if self.calls > 100:
            raise OSError("no space left")

    def hello(self, facts, commands):
        pass


def test_engine_does_the_same_when_the_sink_fails(undisturbed):
    bare = undisturbed("tier", "vllm", 240)
    watched = Recorder(SETTINGS["tier"], "vllm")
    sink = BrokenSink()
    attachment = attach(
        scheduler=watched.engine.scheduler, worker=watched.engine.worker, to=sink
    )
    for number in range(240):
        watched.step(number)
    assert_same(bare, watched)
    assert attachment.scheduler_probe.guard.off
    assert attachment.worker_probe.guard.off
    assert sink.calls < 400
    attachment.detach()
    watched.engine.close()
