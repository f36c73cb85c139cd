"""The lab's child process: it reports, obeys, dies well and leaves no orphan."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from auxconn import Collector
from auxconn.lab import LabConfig, LabProcess, WorkloadSpec
from auxconn.lab.job import Job
from auxconn.records import TABLES
from auxconn.sources import Source

CONFIG = LabConfig(
    num_blocks=120,
    kv_tier_blocks=400,
    capacity=150,
    num_layers=6,
    num_experts=32,
    top_k=4,
)
WORKLOAD = WorkloadSpec(
    "grpo",
    {"prompts": 12, "samples": 3, "prompt_tokens": 200, "output_tokens": 24},
)
pytestmark = pytest.mark.timeout(180)

START_SECONDS = 150.0
"""Importing vLLM takes 10 s on an idle machine of two cores, a minute on a busy one."""


def until(reached: Callable[[], Any], seconds: float = 15.0) -> Any:
    end = time.monotonic() + seconds
    while True:
        found = reached()
        if found:
            return found
        assert time.monotonic() < end, "nothing came of it"
        time.sleep(0.02)


def source_of(collector: Collector, engine: str = "lab") -> Source | None:
    found = [one for one in collector.sources() if one.engine == engine]
    return found[-1] if found else None


def live(collector: Collector) -> Source | None:
    source = source_of(collector)
    if source is not None and source.state == "live" and "capacity" in source.facts:
        return source
    return None


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as one:
        yield one


@pytest.fixture(scope="module")
def lab(collector: Collector) -> Iterator[LabProcess]:
    """A lab that runs, for all tests that leave it running."""
    began = time.monotonic()
    process = LabProcess(CONFIG, WORKLOAD, collector.address, steps_per_s=100.0)
    process.start()
    assert time.monotonic() - began < 1.0
    stages: list[tuple[str, float]] = []

    def ready() -> Source | None:
        source = source_of(collector)
        if source is not None and source.progress is not None:
            stage = (source.progress.stage, source.progress.fraction)
            if not stages or stages[-1] != stage:
                stages.append(stage)
        assert process.alive, process.output
        return live(collector)

    until(ready, START_SECONDS)
    fractions = [fraction for _, fraction in stages]
    assert fractions == sorted(fractions)
    assert "import" in {stage for stage, _ in stages}
    assert len(stages) > 5  # the bar moves while vLLM is imported
    yield process
    process.stop()


def ask(collector: Collector, name: str, /, **args: Any) -> tuple[bool, str]:
    ack = collector.command("lab", name, **args).result(20)
    return ack.ok, ack.text


def test_rows_of_every_table_come_and_the_facts_are_there(
    collector: Collector, lab: LabProcess
) -> None:
    until(lambda: all(map(collector.store.version, TABLES)), 30)
    source = until(lambda: live(collector))
    assert source.role == "engine"
    assert source.facts["pid"] == lab.pid
    assert source.facts["source"] == "lab"
    assert source.facts["num_blocks"] == 120
    assert source.facts["workload"] == WORKLOAD.describe()
    assert not source.rows_lost


def test_commands_act_and_the_facts_follow(
    collector: Collector, lab: LabProcess
) -> None:
    ok, text = ask(collector, "set_capacity", blocks=60)
    assert (ok, text) == (True, "capacity 150 -> 60 blocks")
    until(lambda: (one := live(collector)) and one.facts["capacity"] == 60)
    ok, text = ask(collector, "reconfigure", block_size=8, num_blocks=200)
    assert ok
    assert "block_size 16 -> 8" in text
    until(lambda: (one := live(collector)) and one.facts["block_size"] == 8)
    until(lambda: "reconfigured" in set(collector.store.events()["kind"].astype(str)))
    assert ask(collector, "pause") == (True, "paused")
    until(lambda: (one := live(collector)) and one.facts["paused"])
    ok, text = ask(collector, "step", n=3)
    assert (ok, text) == (True, "paused after 3 steps")
    assert ask(collector, "resume") == (True, "running")
    assert ask(collector, "speed", steps_per_s=200) == (True, "200 steps/s")
    ok, text = ask(collector, "workload", name="scan", documents=20, prompt_tokens=100)
    assert (ok, text) == (True, "workload scan(documents=20, prompt_tokens=100)")
    assert ask(collector, "reset_prefix_cache") == (True, "prefix cache reset")
    seen = collector.store.version("steps")
    until(lambda: collector.store.version("steps") > seen + 20)


def test_refused_commands_are_answered_and_the_engine_goes_on(
    collector: Collector, lab: LabProcess
) -> None:
    before = until(lambda: live(collector))
    for name, args, words in (
        ("set_capacity", {"blocks": 0}, "capacity=0"),
        ("reconfigure", {"hash_block_size": 3}, "not a multiple"),
        ("reconfigure", {"num_blocks": 3}, "longer than the pool"),
        ("reconfigure", {"name": "x"}, "unknown setting 'name'"),
        ("workload", {"name": "nothing"}, "no workload 'nothing'"),
        ("speed", {"steps_per_s": "fast"}, "steps_per_s='fast'"),
    ):
        ok, text = ask(collector, name, **args)
        assert not ok
        assert words in text
    seen = collector.store.version("steps")
    until(lambda: collector.store.version("steps") > seen + 5)
    after = until(lambda: live(collector))
    assert after.facts == before.facts
    assert after.incarnation == before.incarnation


def test_stopping_is_orderly_and_quick_and_it_can_be_restarted(
    collector: Collector, lab: LabProcess
) -> None:
    first = until(lambda: live(collector))
    began = time.monotonic()
    assert lab.stop() == 0
    assert time.monotonic() - began < 5
    assert not lab.alive
    until(lambda: (one := source_of(collector)) and one.state == "gone")
    stops = collector.store.events()
    assert "SIGTERM" in str(stops.loc[stops["kind"] == "stop", "text"].iloc[-1])
    lab.restart(CONFIG.replace(block_size=4), steps_per_s=50.0)
    assert lab.config.block_size == 4

    def again() -> Source | None:
        source = live(collector)
        return source if source and source.incarnation != first.incarnation else None

    second = until(again, START_SECONDS)
    assert second.facts["block_size"] == 4
    assert second.facts["steps_per_s"] == 50.0


def test_a_killed_child_is_noticed(collector: Collector, lab: LabProcess) -> None:
    assert lab.pid is not None
    os.kill(lab.pid, signal.SIGKILL)
    until(lambda: not lab.alive)
    assert lab.returncode == -signal.SIGKILL
    until(lambda: (one := source_of(collector)) and one.state in ("stale", "gone"), 5)
    assert lab.stop() == -signal.SIGKILL


def child_of(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    )


PARENT = """
import sys, time
from auxconn.lab import LabConfig, LabProcess, WorkloadSpec
lab = LabProcess(LabConfig(), WorkloadSpec("grpo"), "tcp://127.0.0.1:9").start()
print(lab.pid, flush=True)
{then}
"""


@pytest.mark.parametrize(
    "then", ["time.sleep(600)", "sys.exit(0)"], ids=["killed", "ended"]
)
def test_no_orphan_is_left_when_the_parent_goes(then: str) -> None:
    parent = child_of(PARENT.format(then=then))
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    if then.startswith("time"):
        parent.kill()
    parent.wait()
    parent.stdout.close()
    gone, _ = psutil.wait_procs([child], timeout=20)
    assert gone


def test_a_lab_is_stopped_while_it_still_imports() -> None:
    lab = LabProcess(CONFIG, WORKLOAD, "tcp://127.0.0.1:9").start()
    assert lab.alive
    time.sleep(0.5)
    began = time.monotonic()
    lab.stop()
    assert time.monotonic() - began < 6
    assert not lab.alive


def test_an_engine_that_raises_says_so_and_the_child_exits(
    collector: Collector, tmp_path: Any
) -> None:
    # The child imports what is in this folder first: a workload that goes wrong.
    (tmp_path / "sitecustomize.py").write_text(
        "import auxconn.lab.engine as engine\n"
        "step = engine.Engine.step\n"
        "def broken(self):\n"
        "    if self.num_requests > 3:\n"
        "        raise RuntimeError('the <pool> is gone')\n"
        "    return step(self)\n"
        "engine.Engine.step = broken\n"
    )
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(tmp_path)
    try:
        lab = LabProcess(CONFIG, WORKLOAD, collector.address, "broken").start()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    until(lambda: not lab.alive, START_SECONDS)
    assert lab.returncode == 1
    assert "RuntimeError: the <pool> is gone" in lab.output
    until(lambda: (one := source_of(collector, "broken")) and one.state == "gone")
    events = collector.store.events(engine="broken")
    errors = events.loc[events["kind"] == "error", "text"]
    assert any("the <pool> is gone" in str(text) for text in errors)
    lab.stop()


def test_what_does_not_fit_is_refused_before_a_process_is_started() -> None:
    with pytest.raises(ValueError, match="longer than the pool"):
        LabProcess(LabConfig(num_blocks=10), WORKLOAD, "tcp://127.0.0.1:9")
    lab = LabProcess(CONFIG, WORKLOAD, "tcp://127.0.0.1:9")
    assert lab.returncode is None
    assert lab.pid is None
    assert lab.stop() is None
    with pytest.raises(ValueError, match="longer than the pool"):
        lab.restart(LabConfig(num_blocks=10))
    assert not lab.alive


def test_a_job_survives_its_line_and_nonsense_is_refused() -> None:
    job = Job(CONFIG, WORKLOAD, "tcp://127.0.0.1:9", "a", 50.0, paused=True)
    assert Job.from_line(job.to_line()) == job
    for line in ("", "[]", "{}", '{"config": {"num_blocks": 0}}'):
        with pytest.raises(ValueError, match=r"no job|Expecting|num_blocks"):
            Job.from_line(line)


def test_a_child_without_a_job_says_so() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "auxconn.lab.child"],
        input="nonsense\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "Expecting value" in done.stderr


def test_a_lab_in_a_process_is_quiet_and_hides_no_gpu_from_it() -> None:
    code = (
        "import os\n"
        "from auxconn.lab import Lab, LabConfig, workloads\n"
        "config = LabConfig(kv_tier_blocks=300, hash_block_size=8)\n"
        "with Lab(config, workloads.scan(requests=5)) as lab:\n"
        "    lab.run()\n"
        "    lab.reconfigure(async_scheduling=True)\n"
        "print(os.environ.get('CUDA_VISIBLE_DEVICES'))\n"
    )
    variables = dict(os.environ)
    variables.pop("CUDA_VISIBLE_DEVICES", None)
    variables.pop("VLLM_LOGGING_LEVEL", None)
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=variables,
    )
    assert done.stdout == "None\n"
    assert not done.stderr
