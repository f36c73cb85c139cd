"""The hub: how it stands with engines, who is asked, what several browsers share."""

import dataclasses
import subprocess
import sys
import threading
import time
from concurrent.futures import Future

import numpy as np
import pytest

from auxconn.engine.config import EngineConfig
from auxconn.frames import FrameStore
from auxconn.lab.config import LabConfig
from auxconn.listening import Listening
from auxconn.wire import Ack, Progress
from auxconn_dashboard.hub import IDLE_SECONDS, LAB, MOST_READERS, Hub
from auxconn_dashboard.keeper import Keeper
from auxconn_dashboard.snapshot import Window
from bench.feed import Feed


@dataclasses.dataclass
class Source:
    engine: str = LAB
    state: str = "live"
    rank: int = 0
    role: str = "engine"
    facts: dict = dataclasses.field(default_factory=dict)
    commands: tuple = ("set_capacity",)
    last_seen: float = 0.0
    age_s: float = 0.1
    progress: Progress | None = None
    error: str = ""


class Engines:
    """Engines as a test sets them."""

    def __init__(self, *sources):
        self.now = list(sources)
        self.asked = []

    def sources(self):
        return self.now

    def command(self, engine, name, /, *, rank=None, **args):
        self.asked.append((engine, rank, name, args))
        answer = Future()
        answer.set_result(Ack(1, True, "done", 0.0))
        return answer


class Process:
    """A lab's process as far as the hub sees it."""

    def __init__(self):
        self.alive, self.returncode = True, None
        self.config = LabConfig(num_blocks=1024, kv_tier_blocks=4096, capacity=1600)
        self.restarts = []
        self.gate = threading.Event()
        self.gate.set()

    def restart(self, config=None, workload=None):
        assert self.gate.wait(5)
        self.restarts.append((config, workload))
        self.alive, self.returncode = True, None

    def die(self, code):
        self.alive, self.returncode = False, code


def settled(hub):
    end = time.monotonic() + 5
    while hub.restarting and time.monotonic() < end:
        time.sleep(0.005)
    assert not hub.restarting


def test_no_engine_frames_only_and_a_live_one():
    assert Hub(FrameStore(10), Engines()).link(None).state == "none"
    assert Hub(FrameStore(10)).link(None).state == "still"
    assert Hub(FrameStore(10), Engines(Source())).link(None).state == "live"


def test_an_engine_that_takes_no_steps_is_idle_and_a_paused_one_says_so(monkeypatch):
    now = time.monotonic()
    monkeypatch.setattr("time.monotonic", lambda: now)
    store = FrameStore(1000)
    source = Source()
    hub = Hub(store, Engines(source))
    feed = Feed(store)
    feed.run(5)
    assert hub.snapshot(None, Window(60)).link.state == "live"
    now += IDLE_SECONDS + 0.1
    assert hub.snapshot(None, Window(60)).link.state == "idle"
    feed.run(5)
    assert hub.snapshot(None, Window(60)).link.state == "live"
    source.facts = {"paused": True}
    assert hub.snapshot(None, Window(60)).link.state == "paused"


def test_a_lab_is_starting_until_it_speaks_and_stale_when_its_process_has_ended():
    process = Process()
    engines = Engines()
    hub = Hub(FrameStore(10), engines, lab=process)
    assert hub.link(None).stage == "spawn"
    progress = Progress("engine", 0.6, "building the engine")
    engines.now = [
        Source(state="starting", progress=progress, last_seen=time.monotonic())
    ]
    link = hub.link(None)
    assert (link.state, link.stage, link.fraction) == ("starting", "engine", 0.6)
    engines.now = [Source(last_seen=time.monotonic())]
    assert hub.link(None).state == "live"
    process.die(-9)
    link = hub.link(None)
    assert link.state == "stale"
    assert "SIGKILL" in link.text
    assert not link.fresh
    process.die(1)
    assert "exit code 1" in hub.link(None).text


def test_a_supervisor_speaks_while_its_engine_starts_and_no_longer():
    progress = Progress("load", 0.7, "loading the model")
    supervisor = Source(role="supervisor", state="starting", progress=progress)
    worker = Source(role="worker", facts={"num_layers": 4})
    scheduler = Source(role="scheduler", facts={"capacity": 48})
    engines = Engines(supervisor)
    hub = Hub(FrameStore(10), engines)
    link = hub.link(None)
    assert (link.state, link.stage, link.fraction) == ("starting", "load", 0.7)
    engines.now = [supervisor, worker]
    assert hub.link(None).stage == "load"
    engines.now = [supervisor, worker, scheduler]
    assert hub.source(None).facts == {"capacity": 48}
    supervisor.state = "live"
    scheduler.state = "stale"
    worker.state = "stale"
    assert hub.link(None).state == "stale"
    assert hub.names() == [LAB]


def test_a_real_engine_is_kept_as_a_lab_is():
    process = Process()
    process.config = EngineConfig(num_blocks=64, kv_tier_blocks=0)
    facts = {"num_blocks": 48, "capacity": 9, "connector": "vllm", "block_size": 64}
    source = Source(engine="mine", role="scheduler", facts=facts, last_seen=0.0)
    engines = Engines()
    hub = Hub(FrameStore(10), engines, lab=process)
    hub.keeper = Keeper(process, "mine", "vLLM")
    assert hub.noun == "vLLM"
    assert hub.names() == ["mine"]
    assert hub.snapshot(None, Window(60)).facts["capacity"] == 64
    source.last_seen = time.monotonic()
    engines.now = [source]
    assert hub.link(None).state == "live"
    process.die(1)
    assert "exit code 1" in hub.link("mine").text
    hub.restart_lab()
    settled(hub)
    config = process.config.replace(num_blocks=48, connector="vllm", block_size=64)
    assert process.restarts == [(config, None)]


def test_a_restart_brings_back_what_one_looked_at_and_makes_nobody_wait():
    process = Process()
    facts = {
        "num_blocks": 512, "block_size": 32, "hash_block_size": 32, "capacity": 99,
        "kv_tier_blocks": 0, "connector": "vllm",
    }  # fmt: skip
    engines = Engines(Source(facts=facts, last_seen=time.monotonic()))
    hub = Hub(FrameStore(10), engines, lab=process)
    hub.command(LAB, "workload", name="scan", documents=16)
    process.die(-9)
    process.gate.clear()
    began = time.monotonic()
    hub.restart_lab()
    hub.restart_lab()
    assert time.monotonic() - began < 1
    assert hub.link(None).state == "starting"
    process.gate.set()
    settled(hub)
    ((config, workload),) = process.restarts
    assert (config.num_blocks, config.block_size, config.capacity) == (512, 32, 99)
    assert config.hash_block_size is None
    assert config.connector == "vllm"
    assert workload.name == "scan"
    assert workload.params["documents"] == 16
    # The old incarnation is not taken for the new one.
    assert hub.link(None).state == "starting"
    engines.now = [Source(last_seen=time.monotonic())]
    assert hub.link(None).state == "live"


def test_a_restart_that_fails_is_told():
    process = Process()
    hub = Hub(FrameStore(10), Engines(), lab=process)

    def fail(*_):
        raise OSError("no more processes")

    process.restart = fail
    hub.restart_lab()
    settled(hub)
    link = hub.link(None)
    assert link.state == "stopped"
    assert "no more processes" in link.text


def test_the_liveliest_source_of_the_lowest_rank_speaks_for_an_engine():
    engines = Engines(
        Source(rank=0, state="gone"),
        Source(rank=2),
        Source(rank=1),
        Source(rank=0, role="worker"),
        Source(engine="other"),
    )
    hub = Hub(FrameStore(10), engines)
    assert hub.source(LAB).rank == 1
    assert hub.source("other").engine == "other"
    assert hub.source("nobody") is None
    assert hub.names() == [f"{LAB} · rank {rank}" for rank in range(3)] + ["other"]


def cluster():
    """Two ranks of one engine with numbers of their own, and an engine beside them."""
    store = FrameStore(10_000)
    feeds = [
        Feed(store, start=time.time() - 10, capacity=capacity, rank=rank)
        for rank, capacity in enumerate((1000, 3000))
    ]
    for _ in range(100):
        for feed in feeds:
            feed.run(1)
    return store


@pytest.mark.parametrize("engines", [Engines(Source(), Source(rank=1)), None])
def test_ranks_of_one_engine_are_sources_of_their_own(engines):
    store = cluster()
    hub = Hub(store, engines)
    names = [f"{LAB} · rank 0", f"{LAB} · rank 1"]
    assert hub.names() == names
    first, second = (hub.snapshot(name, Window(60)) for name in names)
    assert (first.rank, second.rank) == (0, 1)
    frame = store.steps()
    for one, capacity in ((first, 1000), (second, 3000)):
        rows = frame[frame["rank"] == one.rank]
        assert one.level("steps", "capacity") == capacity
        assert one.level("steps", "retained") == rows.retained.iloc[-1]
        assert one.tables["steps"].rows.sum() == len(rows) == 100
        assert np.nanmax(one.tables["steps"].high["capacity"]) == capacity
        lookups = store.lookups()
        asked = lookups[lookups["rank"] == one.rank].query_tokens.sum()
        assert one.total("lookups", "query_tokens") == asked
    # The engine's name alone, and none, are its first rank: never all of them in one.
    for name in (LAB, None):
        assert hub.snapshot(name, Window(60)).name == names[0]


def test_the_lowest_rank_that_lives_speaks_when_none_is_asked_for():
    hub = Hub(cluster(), Engines(Source(state="gone"), Source(rank=1)))
    assert hub.snapshot(None, Window(60)).rank == 1
    assert hub.snapshot(f"{LAB} · rank 0", Window(60)).link.state == "gone"


def test_a_command_goes_to_the_rank_that_is_looked_at():
    engines = Engines(Source(), Source(rank=1))
    hub = Hub(FrameStore(10), engines)
    hub.command(f"{LAB} · rank 1", "set_capacity", blocks=9)
    assert engines.asked == [(LAB, 1, "set_capacity", {"blocks": 9})]


def test_engines_in_frames_are_not_read_as_one():
    store = FrameStore(1000)
    for engine, steps in (("a", 30), ("b", 50)):
        Feed(store, engine=engine, start=time.time() - 10).run(steps)
    hub = Hub(store)
    assert hub.names() == ["a", "b"]
    assert hub.snapshot(None, Window(60)).tables["steps"].rows.sum() == 30
    assert hub.snapshot("b", Window(60)).tables["steps"].rows.sum() == 50
    store.clear()
    assert hub.names() == []


def test_commands_go_to_the_engine_and_a_workload_may_be_called_by_name():
    engines = Engines(Source())
    hub = Hub(FrameStore(10), engines)
    assert hub.command(LAB, "workload", name="scan").result().ok
    assert engines.asked == [(LAB, 0, "workload", {"name": "scan"})]
    answer = Hub(FrameStore(10)).command(LAB, "pause")
    with pytest.raises(RuntimeError, match="nobody can obey"):
        answer.result(timeout=1)


def test_browsers_share_one_reading():
    store = FrameStore(10_000)
    Feed(store).run(500)
    hub = Hub(store)
    first, second = hub.snapshot(None, Window(60)), hub.snapshot(None, Window(300))
    assert first.latest == second.latest
    assert first.total("lookups", "query_tokens") == second.total(
        "lookups", "query_tokens"
    )
    assert len(hub._readers) == 1


def test_engines_that_come_and_go_do_not_pile_up():
    hub = Hub(FrameStore(10), Engines())
    for number in range(3 * MOST_READERS):
        hub.snapshot(f"engine-{number}", Window(60))
    assert len(hub._readers) == MOST_READERS


def test_history_is_resized_for_all():
    store = FrameStore(1000)
    hub = Hub(store)
    Feed(store).run(900)
    hub.resize(100)
    assert hub.rows == 100
    assert store.kept("steps") == 100
    assert hub.snapshot(None, Window(60)).level("steps", "retained") is not None


def test_closing_closes_in_order_and_once():
    closed = []
    hub = Hub(FrameStore(10))
    hub._closers = [lambda: closed.append("lab"), lambda: closed.append("collector")]
    with hub:
        pass
    hub.close()
    assert closed == ["lab", "collector"]


PURE = (
    "derive", "hub", "keeper", "local", "lookups", "rollup", "server", "snapshot", "steering",
    "subjects", "words",
)  # fmt: skip


@pytest.mark.parametrize("name", PURE)
def test_what_reads_and_decides_loads_no_panel(name):
    code = (
        f"import sys, auxconn_dashboard.{name}\n"
        "loaded = {one.split('.')[0] for one in sys.modules}\n"
        "print(sorted(loaded & {'panel', 'bokeh', 'param', 'vllm', 'torch'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_a_hub_that_only_looks_steers_nothing():
    engines = Engines(Source())
    hub = Hub(FrameStore(10), engines)
    hub.read_only = True
    snapshot = hub.snapshot(LAB, Window(60))
    assert snapshot.link.read_only
    assert snapshot.commands == frozenset()
    answer = hub.command(LAB, "set_capacity", blocks=3)
    assert "--allow-control" in str(answer.exception(5))
    assert engines.asked == []


def test_who_may_steer_is_said_when_it_listens():
    with Hub.watch(Listening("tcp://127.0.0.1:*")) as hub:
        assert hub.read_only
    listening = Listening(
        "tcp://127.0.0.1:*", control=True, operators="tcp://127.0.0.1:*"
    )
    with Hub.watch(listening) as hub:
        assert not hub.read_only
    with pytest.raises(ValueError, match="from other machines"):
        Hub.watch(Listening("tcp://0.0.0.0:*"))
