"""What goes wrong around an engine must not reach it: the same tokens and rows come out.

Each engine here is stepped to its end while something fails, and everything it decided is
compared with an undisturbed run. What was lost meanwhile must be counted, to the row.
"""

from __future__ import annotations

import os
import signal
import socket
import time

import pytest

from auxconn.attach import attach
from auxconn.collector import Collector
from auxconn.frames import FrameStore
from auxconn.lab.config import LabConfig
from auxconn.lab.process import LabProcess
from auxconn.lab.workload_specs import WorkloadSpec
from bench.collecting import Collecting
from tests.engine.test_probes_lockstep import SETTINGS, Recorder, assert_same

pytestmark = pytest.mark.engine

STEPS = 240
BREAK, MEND = 80, 160
"""Steps at which something begins to fail, and is well again."""
SECONDS = 20.0


@pytest.fixture(scope="module")
def undisturbed():
    """The run of an engine that nobody watches and nothing happens to."""
    recorder = Recorder(SETTINGS["tier"], "auxconn")
    for number in range(STEPS):
        recorder.step(number)
    recorder.engine.close()
    return recorder


class Watched:
    """An engine like it, watched by the collector at an address."""

    def __init__(self, address, engine="lab"):
        self.recorder = Recorder(SETTINGS["tier"], "auxconn")
        self.attachment = attach(
            scheduler=self.recorder.engine.scheduler,
            worker=self.recorder.engine.worker,
            to=address,
            engine=engine,
        )
        self.channel = self.attachment.channel

    def run(self, first=0, end=STEPS):
        for number in range(first, end):
            self.recorder.step(number)
        self.attachment.flush()

    def end(self):
        """Take the probes off and send what is left; `steps` rows that were dropped."""
        self.attachment.detach()
        self.recorder.engine.close()
        return self.channel.dropped.get("steps", 0)


def free_address():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


def until(wanted):
    """Wait until `wanted` says so, for a while."""
    end = time.monotonic() + SECONDS
    while not wanted() and time.monotonic() < end:
        time.sleep(0.02)
    assert wanted()


def test_a_collector_that_never_comes(undisturbed):
    watched = Watched(free_address())
    watched.run()
    assert not watched.channel.connected
    watched.end()
    assert_same(undisturbed, watched.recorder)


def test_a_collector_that_is_killed_and_comes_back(undisturbed):
    address = free_address()
    with Collecting(address) as first:
        watched = Watched(address)
        assert watched.channel.wait_connected(SECONDS)
        watched.run(0, BREAK)
        until(lambda: first.rows("steps") == BREAK)
        first.kill()
    until(lambda: not watched.channel.connected)
    watched.run(BREAK, MEND)
    with Collecting(address) as second:
        assert watched.channel.wait_connected(SECONDS)
        watched.run(MEND, STEPS)
        # What was made meanwhile waited for it.
        until(lambda: second.rows("steps") == STEPS - BREAK)
        assert watched.end() == 0
    assert_same(undisturbed, watched.recorder)


def test_a_collector_that_hangs(undisturbed):
    with Collecting() as collecting:
        watched = Watched(collecting.address)
        assert watched.channel.wait_connected(SECONDS)
        watched.run(0, BREAK)
        until(lambda: collecting.rows("steps") == BREAK)
        with collecting.asleep():
            watched.run(BREAK, MEND)
        watched.run(MEND, STEPS)
        until(lambda: collecting.rows("steps") == STEPS)
        assert watched.end() == 0
    assert_same(undisturbed, watched.recorder)


@pytest.mark.parametrize("hours", [1, -1])
def test_a_clock_that_is_set_by_an_hour(undisturbed, monkeypatch, hours):
    real = time.time
    recorder = Recorder(SETTINGS["tier"], "auxconn")
    store = FrameStore()
    attachment = attach(
        scheduler=recorder.engine.scheduler, worker=recorder.engine.worker, to=store
    )
    for number in range(STEPS):
        if number == BREAK:
            monkeypatch.setattr(time, "time", lambda: real() + hours * 3600)
        recorder.step(number)
    monkeypatch.undo()
    attachment.detach()
    recorder.engine.close()
    assert_same(undisturbed, recorder)
    steps, blocks = store.steps(), store.blocks()
    assert steps["step"].tolist() == list(range(1, STEPS + 1))
    leaps = steps["t"].diff().dt.total_seconds().dropna()
    assert (leaps.abs() > 3000).sum() == 1
    # Ages are by another clock, which nobody sets.
    for column in "age", "idle":
        known = blocks[column].dropna()
        assert len(known)
        assert known.between(0, 3000).all()


def test_two_engines_of_one_name(undisturbed):
    with Collector() as collector:
        first = Watched(collector.address, "twin")
        assert first.channel.wait_connected(SECONDS)
        first.run(0, BREAK)
        second = Watched(collector.address, "twin")
        second.run(0, BREAK)
        # The newer process takes the name; the older is told, and neither takes turns.
        until(lambda: first.channel.refusal or second.channel.refusal)
        for one in first, second:
            one.run(BREAK, STEPS)
        refused, heard = sorted((first, second), key=lambda one: one.channel.connected)
        assert "of its own" in refused.channel.refusal
        until(lambda: collector.store.steps()["step"].max() == STEPS)
        heard.end()
        refused.end()
    for one in first, second:
        assert_same(undisturbed, one.recorder)


@pytest.mark.timeout(120)
def test_an_engine_that_is_killed_in_the_middle():
    config = LabConfig(num_blocks=256, num_layers=2, top_k=2, num_experts=16)
    with Collector() as collector:
        lab = LabProcess(config, WorkloadSpec("grpo"), collector.address, "lab")
        lab.start()
        try:
            collector.wait(lambda all_: any(one.state == "live" for one in all_), 60)
            assert collector.store.wait("steps", 20, SECONDS)
            os.kill(lab.pid, signal.SIGKILL)
            (source,) = collector.wait(
                lambda all_: all_[0].state in ("stale", "gone"), 30
            )
            told = collector.store.events()
            assert told["kind"].isin(["stale", "gap", "stop"]).any()
            kept = collector.store.version("steps")
            assert kept >= 20
            lab.restart()
            collector.wait(
                lambda all_: any(
                    one.state == "live" and one.incarnation != source.incarnation
                    for one in all_
                ),
                60,
            )
            assert collector.store.wait("steps", kept + 20, SECONDS)
        finally:
            lab.stop()
    # Its steps begin at 1 again, under the same name.
    steps = collector.store.steps()["step"].to_numpy()
    assert (steps[1:] < steps[:-1]).sum() == 1
