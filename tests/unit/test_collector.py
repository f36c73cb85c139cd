from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future

import msgspec
import numpy as np
import pytest
import zmq

from auxconn import Collector, FrameStore
from auxconn.channel import Channel
from auxconn.collector import CommandError, Source
from auxconn.records import SCHEMA_VERSION
from auxconn.telling import OWN_ENGINE
from auxconn.wire import Ack, Batch, Beat, Bye, Hello, ToEngine, Welcome
from tests.unit import stream_made as made


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        yield collector


class Peer:
    """An engine's socket that says what the test tells it."""

    def __init__(self, address: str) -> None:
        self.context = zmq.Context()
        self.dealer = self.context.socket(zmq.DEALER)
        self.dealer.connect(address)

    def say(self, *messages: object) -> None:
        for message in messages:
            raw = (
                message
                if isinstance(message, bytes)
                else msgspec.msgpack.encode(message)
            )
            self.dealer.send(raw)

    def hears(self) -> ToEngine:
        assert self.dealer.poll(made.PATIENCE * 1000), "nothing came"
        return msgspec.msgpack.decode(self.dealer.recv(), type=ToEngine)

    def greet(self, engine: str = "lab", **how: object) -> None:
        self.say(Hello(SCHEMA_VERSION, engine, 0, "engine", "one", **how))  # type: ignore[arg-type]
        assert self.hears() == Welcome(SCHEMA_VERSION, True, "welcome")

    def close(self) -> None:
        self.dealer.close(0)
        self.context.term()


@pytest.fixture
def peer(collector: Collector) -> Iterator[Peer]:
    peer = Peer(collector.address)
    yield peer
    peer.close()


def open_channel(collector: Collector, engine: str = "lab", **how: object) -> Channel:
    channel = Channel(collector.address, engine, **how)  # type: ignore[arg-type]
    assert channel.wait_connected(made.PATIENCE)
    return channel


def live(sources: list[Source]) -> bool:
    return bool(sources) and all(source.state == "live" for source in sources)


def why(future: Future[Ack]) -> str:
    problem = future.exception(made.PATIENCE)
    assert isinstance(problem, CommandError)
    return str(problem)


def test_every_row_of_an_engine_arrives_in_order(collector):
    channel = open_channel(collector, rank=2)
    channel.hello({"block_size": 16}, ("pause",))
    for i in range(5000):
        channel.emit("steps", made.steps(i))
        if i % 10 == 0:
            channel.emit("lookups", made.lookups(i))
            channel.emit("blocks", made.blocks(i, 7))
    assert collector.store.wait("steps", 5000, made.PATIENCE)
    assert collector.store.wait("lookups", 500, made.PATIENCE)
    assert collector.store.wait("blocks", 3500, made.PATIENCE)
    assert collector.store.steps()["step"].tolist() == list(range(5000))
    assert set(collector.store.blocks()["rank"]) == {2}
    (source,) = collector.wait(lambda all_: bool(all_[0].facts), made.PATIENCE)
    assert (source.rows, source.rows_lost, source.batches_lost) == (9000, {}, 0)
    assert source.facts == {"block_size": 16}
    assert len(collector.store.events()) == 0
    channel.close()


def test_the_order_of_start_does_not_matter():
    with Collector() as first:
        address = first.address
    channel = Channel(address, "lab")
    for i in range(10):
        channel.emit("steps", made.steps(i))
    with Collector(address) as collector:
        assert collector.store.wait("steps", 10, made.PATIENCE)
        (source,) = collector.sources()
        assert (source.batches_before, source.rows_lost) == (0, {})
    channel.close(timeout=0)


def test_a_collector_that_comes_back_gets_what_waited_and_counts_the_hole():
    store = FrameStore()
    with Collector(store=store) as first:
        address = first.address
        channel = open_channel(first, capacity_rows=50)
        channel.emit("steps", made.steps(0))
        assert store.wait("steps", 1, made.PATIENCE)
    with channel._changed:
        assert channel._changed.wait_for(lambda: not channel.connected, made.PATIENCE)
    for i in range(1, 101):
        channel.emit("steps", made.steps(i))
    with Collector(address, store) as second:
        (source,) = second.wait(
            lambda all_: live(all_) and all_[0].rows > 0, made.PATIENCE
        )
        assert source.rows + sum(source.rows_lost.values()) == 100
        assert source.rows_lost == {"steps": 50}
        assert (source.batches_before, source.batches_lost) == (1, 0)
        assert store.steps()["step"].tolist() == [0, *range(51, 101)]
        told = store.events()
        assert told["kind"].tolist() == ["gap", "gap"]
        assert (
            told["text"]
            .iloc[1]
            .endswith("away or slow, or they were no records: steps 50")
        )
        channel.close()
        second.wait(lambda all_: all_[0].state == "gone", made.PATIENCE)


def test_a_cluster_on_one_port(collector):
    channels = [
        open_channel(collector, f"engine-{i // 2}", rank=i % 2, role="worker")
        for i in range(6)
    ]
    for i, channel in enumerate(channels):
        channel.hello({"rank": i}, ())
        for _ in range(i + 1):
            channel.emit("rows", made.rows(i))
    assert collector.store.wait("rows", 21, made.PATIENCE)
    sources = collector.wait(
        lambda all_: len(all_) == 6 and all(source.facts for source in all_),
        made.PATIENCE,
    )
    assert [(source.engine, source.rank) for source in sources] == [
        ("engine-0", 0), ("engine-0", 1), ("engine-1", 0),
        ("engine-1", 1), ("engine-2", 0), ("engine-2", 1),
    ]  # fmt: skip
    assert [source.rows for source in sources] == [1, 2, 3, 4, 5, 6]
    for channel in channels:
        channel.close()
    collector.wait(
        lambda all_: all(source.state == "gone" for source in all_), made.PATIENCE
    )


def test_an_engine_that_is_killed_goes_stale_and_its_restart_is_live(root):
    code = (
        "import sys, threading; from auxconn.channel import Channel\n"
        "channel = Channel(sys.argv[1], 'lab'); channel.hello({'a': 1}, ())\n"
        "threading.Event().wait()"
    )
    clock = made.Clock()
    with Collector(clock=clock) as collector:

        def start() -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                [sys.executable, "-c", code, collector.address], cwd=root
            )

        with start() as engine:
            try:
                (before,) = collector.wait(live, made.PATIENCE)
            finally:
                engine.kill()
        clock.pass_(2.5)
        (stale,) = collector.wait(lambda all_: all_[0].state == "stale", made.PATIENCE)
        assert stale.incarnation == before.incarnation
        with start() as engine:
            try:
                sources = collector.wait(
                    lambda all_: any(source.state == "live" for source in all_),
                    made.PATIENCE,
                )
            finally:
                engine.kill()
        assert [source.state for source in sources] == ["gone", "live"]
        assert sources[1].incarnation != before.incarnation
        kinds = collector.store.events(engine="lab")["kind"].tolist()
        assert kinds == ["stale", "stop"]


def test_a_command_is_carried_out_and_answered(collector):
    channel = open_channel(collector)
    channel.hello({}, ("workload", "step"))
    collector.wait(lambda all_: bool(all_[0].commands), made.PATIENCE)
    # `name` and `engine` are arguments like any other.
    answer = collector.command(
        "lab", "workload", name="grpo", engine="x", prompts=np.int64(3)
    )
    (command,) = channel.poll_commands(timeout=made.PATIENCE)
    assert (command.name, command.args) == (
        "workload",
        {"name": "grpo", "engine": "x", "prompts": 3},
    )
    channel.ack(command, True, "grpo from now on")
    ack = answer.result(made.PATIENCE)
    assert (ack.ok, ack.text) == (True, "grpo from now on")
    refused = collector.command("lab", "step", n=-1)
    (command,) = channel.poll_commands(timeout=made.PATIENCE)
    channel.ack(command, False, "n=-1 is not positive")
    assert refused.result(made.PATIENCE).ok is False
    channel.close()


def test_a_command_goes_to_the_rank_that_obeys_it(collector):
    worker = open_channel(collector, rank=0, role="worker")
    scheduler = open_channel(collector, rank=1, role="scheduler")
    scheduler.hello({}, ("set_capacity",))
    collector.wait(lambda all_: any(source.commands for source in all_), made.PATIENCE)
    collector.command("lab", "set_capacity", blocks=5)
    (command,) = scheduler.poll_commands(timeout=made.PATIENCE)
    assert command.args == {"blocks": 5}
    assert worker.poll_commands() == []
    assert "engine 'lab', rank 0, does not obey it; it obeys set_capacity" in why(
        collector.command("lab", "set_capacity", rank=0, blocks=5)
    )
    worker.close()
    scheduler.close()


def test_a_command_nobody_can_take_fails_at_once_and_says_why(collector):
    assert (
        why(collector.command("lab", "pause")) == "'pause': engine 'lab' is not there"
    )
    channel = open_channel(collector)
    assert why(collector.command("lab", "pause")) == (
        "'pause': engine 'lab' does not obey it; it obeys nothing"
    )
    channel.hello({}, ("pause",))
    collector.wait(lambda all_: bool(all_[0].commands), made.PATIENCE)
    assert "cannot be sent" in why(collector.command("lab", "pause", what=object()))
    assert "cannot be sent" in why(collector.command("lab", "pause", what=2**80))
    channel.close()
    collector.wait(lambda all_: all_[0].state == "gone", made.PATIENCE)
    assert (
        why(collector.command("lab", "pause")) == "'pause': engine 'lab' is not there"
    )


def test_a_command_without_an_answer_fails():
    clock = made.Clock()
    with Collector(clock=clock) as collector:
        channel = open_channel(collector)
        channel.hello({}, ("pause",))
        collector.wait(lambda all_: bool(all_[0].commands), made.PATIENCE)
        late = collector.command("lab", "pause", timeout=3)
        assert len(channel.poll_commands(timeout=made.PATIENCE)) == 1
        clock.pass_(4)
        assert why(late) == "'pause': engine 'lab' did not answer within 3 s"
        left = collector.command("lab", "pause")
        assert len(channel.poll_commands(timeout=made.PATIENCE)) == 1
        channel.close()
        assert why(left) == "'pause': engine 'lab' ended before it answered"
    assert why(collector.command("lab", "pause")) == "'pause': the collector is closed"


def test_closing_ends_the_commands_that_wait(collector, peer):
    peer.greet(commands=("pause",))
    waiting = collector.command("lab", "pause")
    collector.close()
    assert why(waiting) == "'pause': the collector was closed"
    collector.close()


def test_a_callback_of_an_answer_may_use_the_collector(collector):
    channel = open_channel(
        collector, on_command=lambda command: channel.ack(command, True)
    )
    channel.hello({}, ("pause",))
    collector.wait(lambda all_: bool(all_[0].commands), made.PATIENCE)
    seen: list[int] = []
    done = threading.Event()

    def answered(_: Future[Ack]) -> None:
        other = threading.Thread(target=lambda: seen.append(len(collector.sources())))
        other.start()
        other.join(made.PATIENCE)
        done.set()

    collector.command("lab", "pause").add_done_callback(answered)
    assert done.wait(made.PATIENCE)
    assert seen == [1]
    channel.close()


def test_nothing_from_outside_ends_the_thread(collector, peer, monkeypatch):
    monkeypatch.setattr("auxconn.sources.MESSAGE_LIMIT", 100_000)
    peer.greet()
    peer.say(b"", b"\xc1" * 100, b"x" * 100_001, msgspec.msgpack.encode({"a": 1}))
    peer.dealer.send_multipart([b"one", b"two", b"three"])
    peer.say(Batch(1, steps=[made.steps(1)]))
    assert collector.store.wait("steps", 1, made.PATIENCE)
    (source,) = collector.sources()
    assert (source.errors, collector.malformed, collector.failures) == (5, 5, 0)
    assert source.error == "a message of 3 parts"
    assert "error" in collector.store.events(engine="lab")["kind"].tolist()


def test_a_message_beyond_all_measure_costs_the_sender_its_connection(
    peer, collector, monkeypatch
):
    peer.greet()
    peer.say(bytes((64 << 20) + 1))
    peer.say(Beat(0.0))
    other = Peer(collector.address)
    other.greet("other")
    other.say(Batch(1, steps=[made.steps(1)]))
    assert collector.store.wait("steps", 1, made.PATIENCE)
    assert collector.failures == 0
    other.close()


def test_what_goes_wrong_in_the_thread_is_counted_and_it_goes_on(
    collector, peer, monkeypatch, caplog
):
    peer.greet()
    working = collector.store.append
    broken = iter([MemoryError("no room")])

    def append(*args: object, **how: object) -> int:
        for problem in broken:
            raise problem
        return working(*args, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(collector.store, "append", append)
    peer.say(Batch(1, steps=[made.steps(1)]), Batch(2, steps=[made.steps(2)]))
    assert collector.store.wait("steps", 1, made.PATIENCE)
    assert collector.failures == 1
    assert "the collector goes on" in caplog.text


def test_a_stranger_is_asked_who_it_is(collector, peer):
    peer.say(Batch(1, steps=[made.steps(1)]))
    assert peer.hears() == Welcome(SCHEMA_VERSION, True, "say hello first")
    assert collector.store.version("steps") == 0
    assert collector.store.events(engine=OWN_ENGINE)["kind"].tolist() == ["error"]
    assert collector.sources() == []


def test_another_schema_is_refused(collector, peer):
    peer.say(Hello(SCHEMA_VERSION + 1, "lab", 0, "engine", "one"))
    answer = peer.hears()
    assert isinstance(answer, Welcome)
    assert not answer.accepted
    assert collector.refused == 1


def test_sources_are_bounded():
    with Collector(most_sources=2) as collector:
        peers = [Peer(collector.address) for _ in range(3)]
        peers[0].greet("a")
        peers[1].greet("b")
        peers[2].say(Hello(SCHEMA_VERSION, "c", 0, "engine", "one"))
        answer = peers[2].hears()
        assert isinstance(answer, Welcome)
        assert "2 sources are connected already" in answer.text
        peers[0].say(Bye("done"))
        collector.wait(lambda all_: all_[0].state == "gone", made.PATIENCE)
        peers[2].greet("c")
        for peer in peers:
            peer.close()


def test_an_address_that_is_taken_is_named(collector):
    assert re.fullmatch(r"tcp://127\.0\.0\.1:\d+", collector.address)
    taken = re.escape(f"cannot listen at {collector.address}: it is taken")
    with pytest.raises(OSError, match=taken):
        Collector(collector.address)
    with pytest.raises(OSError, match=r"cannot listen at tcp://203\.0\.113\.7:5599"):
        Collector("tcp://203.0.113.7:5599", insecure=True)
    with pytest.raises(ValueError, match="address '5599'"):
        Collector("5599")


def test_a_path_can_be_an_address(tmp_path):
    with Collector(f"ipc://{tmp_path}/c.sock") as collector:
        channel = open_channel(collector)
        channel.emit("steps", made.steps(1))
        assert collector.store.wait("steps", 1, made.PATIENCE)
        channel.close()


def test_waiting_in_vain_says_what_there_was(collector, peer):
    peer.greet()
    with pytest.raises(TimeoutError, match="engine='lab'"):
        collector.wait(lambda all_: False, timeout=0)
