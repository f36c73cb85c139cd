from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq

from auxconn.channel import WAITING_COMMANDS, Channel
from auxconn.collector import Collector
from auxconn.records import SCHEMA_VERSION
from auxconn.sink import Sink
from auxconn.texts import NAME_LIMIT, TEXT_LIMIT
from auxconn.wire import (
    Ack,
    Batch,
    Beat,
    Bye,
    Command,
    Hello,
    Progress,
    ToCollector,
    Welcome,
)
from tests.unit import stream_made as made

WELCOME = Welcome(SCHEMA_VERSION, True, "welcome")


class Desk:
    """A collector's socket that does only what the test tells it."""

    def __init__(self, bind: str = "tcp://127.0.0.1:*") -> None:
        self.context = zmq.Context()
        self.router = self.context.socket(zmq.ROUTER)
        self.router.setsockopt(zmq.LINGER, 0)
        # What it does not read is soon in the way, instead of in its memory.
        self.router.setsockopt(zmq.RCVHWM, 1)
        self.router.setsockopt(zmq.RCVBUF, 1 << 14)
        self.router.bind(bind)
        self.address = self.router.getsockopt_string(zmq.LAST_ENDPOINT)
        self.peer = b""
        self.decoder = msgspec.msgpack.Decoder(ToCollector)

    def next(self, *skip: type) -> ToCollector:
        """The next message that is none of `skip`; the last sender is answered."""
        while True:
            assert self.router.poll(made.PATIENCE * 1000), "nothing came"
            self.peer, data = self.router.recv_multipart()
            message = self.decoder.decode(data)
            if not isinstance(message, skip):
                return message

    def say(self, message: Command | Welcome | bytes) -> None:
        raw = message if isinstance(message, bytes) else msgspec.msgpack.encode(message)
        self.router.send_multipart([self.peer, raw])

    def greet(self) -> Hello:
        hello = self.next(Beat)
        assert isinstance(hello, Hello)
        self.say(WELCOME)
        return hello

    def batch(self) -> Batch:
        batch = self.next(Beat)
        assert isinstance(batch, Batch)
        return batch

    def hear(self, kind: type) -> Any:
        """The next message of a kind; greetings before it are answered."""
        while not isinstance(message := self.next(), kind):
            if isinstance(message, Hello):
                self.say(WELCOME)
        return message

    def rest(self) -> tuple[list[int], ToCollector]:
        """Steps of the batches that come before another message, and that one."""
        seen: list[int] = []
        while isinstance(message := self.next(Beat), Batch):
            seen += [record.step for record in message.steps]
        return seen, message

    def close(self) -> None:
        self.router.close(0)
        self.context.term()


@pytest.fixture
def another() -> Iterator[Callable[..., Desk]]:
    """Makes a desk, at an address of its own or one that was left."""
    with ExitStack() as stack:

        def make(bind: str = "tcp://127.0.0.1:*") -> Desk:
            desk = Desk(bind)
            stack.callback(desk.close)
            return desk

        yield make


@pytest.fixture
def desk(another: Callable[..., Desk]) -> Desk:
    return another()


@pytest.fixture
def channel(desk: Desk) -> Iterator[Channel]:
    channel = Channel(desk.address, "lab", 1, capacity_rows=100)
    yield channel
    channel.close(timeout=0)


def test_an_engine_says_who_it_is_before_anything_else(desk, channel):
    assert isinstance(channel, Sink)
    channel.emit("steps", made.steps(1))
    channel.hello({"block_size": np.int64(16), "model": "moe", "x": None}, ("pause",))
    hello = desk.greet()
    assert (hello.schema, hello.engine, hello.rank) == (SCHEMA_VERSION, "lab", 1)
    assert hello.incarnation == channel.incarnation
    while not hello.facts:
        hello = desk.greet()
    assert hello.facts == {"block_size": 16, "model": "moe", "x": None}
    assert hello.commands == ("pause",)
    batch = desk.batch()
    assert (batch.seq, batch.dropped, len(batch.steps)) == (1, {}, 1)
    assert batch.steps[0] == made.steps(1)


def test_no_row_leaves_before_the_welcome(desk, channel):
    channel.emit("steps", made.steps(1))
    assert isinstance(desk.next(), Hello)
    assert desk.router.poll(200) == 0
    assert not channel.connected
    desk.say(WELCOME)
    assert desk.batch().seq == 1
    assert channel.wait_connected(made.PATIENCE)


def test_facts_that_changed_are_told_again(desk, channel):
    desk.greet()
    channel.hello({"capacity": 5}, ())
    assert desk.greet().facts == {"capacity": 5}
    channel.hello({"capacity": 6, "odd": [1, 2], "huge": 2**70}, ())
    assert desk.greet().facts == {"capacity": 6, "odd": "[1, 2]", "huge": str(2**70)}


def test_what_does_not_fit_is_dropped_and_the_next_batch_says_so(desk, channel):
    desk.next()
    for i in range(250):
        channel.emit("steps", made.steps(i))
    for i in range(10):
        channel.emit("blocks", made.blocks(i, 30))
    channel.emit("events", made.events(1))
    desk.say(WELCOME)
    batch = desk.batch()
    assert [record.step for record in batch.steps] == list(range(150, 250))
    assert batch.dropped == {"steps": 150, "blocks": 210}
    assert len(batch.events) == 1
    assert channel.dropped == {"steps": 150, "blocks": 210}
    channel.emit("steps", made.steps(250))
    batch = desk.batch()
    assert (batch.seq, batch.dropped) == (2, {})


def test_numbers_of_numpy_are_sent_as_numbers(desk, channel):
    desk.greet()
    step = made.steps(1)
    step.retained, step.t = np.int64(7), np.float32(2.0)
    channel.emit("steps", step)
    assert desk.batch().steps[0].retained == 7
    assert channel.errors == 0


def test_what_is_no_record_is_left_out_and_counted(desk, channel):
    desk.greet()
    bad = made.steps(2)
    bad.retained = object()  # type: ignore[assignment]
    for record in (made.steps(1), bad, made.events(2), made.steps(3)):
        channel.emit("steps", record)
    channel.emit("lookups", None)  # type: ignore[arg-type]
    channel.emit("nothing", made.steps(4))
    kept: list[int] = []
    dropped: dict[str, int] = {}
    while len(kept) < 2 or sum(dropped.values()) < 3:
        batch = desk.batch()
        kept += [record.step for record in batch.steps]
        for table, rows in batch.dropped.items():
            dropped[table] = dropped.get(table, 0) + rows
    assert kept == [1, 3]
    assert dropped == channel.dropped == {"steps": 2, "lookups": 1}
    assert channel.errors >= 2


def spoilt(table, **values):
    record = made.MAKERS[table](2)
    for name, value in values.items():
        setattr(record, name, value)
    return record


class Unspeakable:
    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __str__

    def __len__(self):
        raise RuntimeError("no length")


@pytest.mark.parametrize(
    ("table", "bad"),
    [
        ("steps", spoilt("steps", retained=2**64)),
        ("steps", spoilt("steps", retained=Unspeakable())),
        ("events", spoilt("events", kind="\ud800")),
        ("lookups", spoilt("lookups", request=Unspeakable())),
        ("lookups", spoilt("lookups", request=7)),
        ("blocks", spoilt("blocks", hash=Unspeakable())),
    ],
)
def test_a_record_that_cannot_be_encoded_is_left_out_alone(desk, channel, table, bad):
    # Before anybody listens, so that all of them are in one batch.
    for name in ("steps", "events", "lookups", "blocks"):
        channel.emit(name, made.MAKERS[name](1))
    channel.emit(table, bad)
    channel.emit(table, made.MAKERS[table](3))
    desk.greet()
    batch = desk.batch()
    for name in ("steps", "events", "lookups", "blocks"):
        kept = [record.step for record in getattr(batch, name)]
        assert kept == ([1, 3] if name == table else [1])
    assert batch.dropped == channel.dropped == {table: 1}
    assert channel.errors == 1


def test_a_record_that_cannot_be_decoded_costs_itself_alone():
    with Collector() as collector:
        channel = Channel(collector.address, "lab")
        channel.emit("steps", made.steps(1))
        channel.emit("steps", spoilt("steps", retained="many"))
        channel.emit("steps", made.steps(3))
        channel.emit("lookups", made.lookups(3))
        assert collector.store.wait("steps", 2, made.PATIENCE)
        assert collector.store.wait("lookups", 1, made.PATIENCE)
        assert collector.store.steps()["step"].tolist() == [1, 3]
        (source,) = collector.sources()
        assert source.rows_lost == {"steps": 1}
        assert source.batches_lost == 0
        channel.close()


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda channel, odd: channel.progress(odd, 0.5, odd), Progress),
        (lambda channel, odd: channel.ack(7, True, odd), Ack),
    ],
)
def test_odd_texts_are_sent_as_what_they_can_be(desk, channel, call, name):
    desk.greet()
    for odd, sent in (
        ("\ud800", "?"),
        (Unspeakable(), "<Unspeakable>"),
        (None, "None"),
    ):
        call(channel, odd)
        assert desk.hear(name).text == sent
    assert channel.errors == 0


def test_stages_and_answers_that_are_none_are_counted_and_do_no_harm(desk, channel):
    desk.greet()
    for fraction in ("x", None, math.nan, Unspeakable()):
        channel.progress("import", fraction)
    for number in ("x", None, 2**70, 1.5):
        channel.ack(number, True)
    channel.ack(1, Unspeakable())
    assert channel.errors == 9
    channel.progress("ready", 7.0)
    assert desk.hear(Progress) == Progress("ready", 1.0, "")
    channel.ack(2, True)
    assert desk.hear(Ack).id == 2


def test_odd_facts_cost_themselves_alone(desk, channel):
    channel.hello(
        {
            "block_size": np.int64(16),
            "\ud800": "\udfff",
            Unspeakable(): Unspeakable(),
            "many": np.arange(3),
            "loss": math.inf,
            "huge": 10**5000,
            "none": None,
        },
        ("pause", "\ud800", Unspeakable()),
    )
    hello = desk.greet()
    while not hello.facts:
        hello = desk.hear(Hello)
    assert hello.facts == {
        "block_size": 16,
        "?": "?",
        "<Unspeakable>": "<Unspeakable>",
        "many": None,
        "loss": None,
        "huge": "<int>",
        "none": None,
    }
    assert hello.commands == ("pause", "?", "<Unspeakable>")
    assert channel.errors == 0
    for facts, commands in ((None, ()), ({}, None), (3, 4)):
        channel.hello(facts, commands)
    assert channel.errors == 3
    channel.close(Unspeakable())
    assert desk.hear(Bye).reason == "<Unspeakable>"


def test_long_texts_are_cut(desk, channel):
    desk.greet()
    channel.emit("events", made.events(1, "e" * 5000))
    channel.emit("requests", made.requests(1))
    channel.emit("lookups", made.lookups(1, "r" * 5000))
    texts: dict[str, int] = {}
    while len(texts) < 2:
        batch = desk.batch()
        for event in batch.events:
            texts["text"] = len(event.text)
        for lookup in batch.lookups:
            texts["request"] = len(lookup.request)
    assert texts == {"text": TEXT_LIMIT, "request": NAME_LIMIT}


def test_a_silent_engine_says_that_it_is_there(desk, channel):
    desk.greet()
    assert isinstance(desk.next(), Beat)
    assert isinstance(desk.next(), Beat)


def test_progress_is_told_and_told_again_to_a_new_collector(desk, channel, another):
    channel.progress("import", 0.2, "importing vLLM")
    desk.greet()
    assert desk.next(Beat) == Progress("import", 0.2, "importing vLLM")
    channel.progress("ready", 1.0)
    assert desk.next(Beat) == Progress("ready", 1.0, "")
    desk.close()
    again = another(desk.address)
    again.greet()
    assert again.next(Beat) == Progress("ready", 1.0, "")


def test_the_stream_goes_on_with_a_collector_that_came_back(desk, channel, another):
    desk.greet()
    channel.emit("steps", made.steps(1))
    assert desk.batch().seq == 1
    desk.close()
    again = another(desk.address)
    hello = again.next(Beat)
    assert isinstance(hello, Hello)
    assert hello.incarnation == channel.incarnation
    for i in range(2, 130):
        channel.emit("steps", made.steps(i))
    again.say(WELCOME)
    batch = again.batch()
    assert batch.seq == 2
    assert [record.step for record in batch.steps] == list(range(30, 130))
    assert batch.dropped == {"steps": 28}


@pytest.fixture
def asleep(desk: Desk) -> Iterator[tuple[Channel, int]]:
    """A channel whose collector reads nothing any more, and how many rows it was given."""
    channel = Channel(desk.address, "lab", capacity_rows=1000)
    desk.greet()
    assert channel.wait_connected(made.PATIENCE)
    emitted = 0
    blocked = 0
    while blocked < 3:
        for _ in range(100):
            channel.emit("blocks", made.blocks(emitted, 100))
            emitted += 1
        assert sum(channel.waiting.values()) <= 1000 + 11
        blocked = blocked + 1 if channel._link._blocked else 0
    yield channel, emitted
    channel.close(timeout=0)


def test_a_collector_that_sleeps_costs_bounded_memory_and_no_uncounted_row(
    desk, asleep
):
    channel, emitted = asleep
    last = made.blocks(emitted, 100)
    channel.emit("blocks", last)
    total = lost = 0
    seqs = []
    while True:
        batch = desk.batch()
        seqs.append(batch.seq)
        lost += batch.dropped.get("blocks", 0)
        total += sum(len(record.hash) // 8 for record in batch.blocks)
        if batch.blocks and batch.blocks[-1] == last:
            break
    assert seqs == list(range(1, len(seqs) + 1))
    assert total + lost == (emitted + 1) * 100
    assert lost == channel.dropped["blocks"] > 0


def test_what_was_queued_for_a_collector_that_died_is_not_for_the_next_one(
    desk, asleep, another
):
    desk.close()
    again = another(desk.address)
    again.greet()
    assert again.batch().seq > 1


def test_a_refused_engine_keeps_still_and_asks_again_when_its_facts_change(
    desk, channel
):
    desk.next()
    desk.say(Welcome(SCHEMA_VERSION + 1, False, "another schema"))
    channel.emit("steps", made.steps(1))
    assert desk.router.poll(700) == 0
    assert (channel.refusal, channel.connected) == ("another schema", False)
    channel.hello({"a": 1}, ())
    desk.greet()
    assert desk.batch().seq == 1
    assert channel.refusal == ""


def test_a_refusal_stops_the_rows_that_flowed(desk, channel):
    desk.greet()
    assert channel.wait_connected(made.PATIENCE)
    desk.say(Welcome(SCHEMA_VERSION, False, "another process has this name"))
    with channel._changed:
        assert channel._changed.wait_for(lambda: not channel.connected, made.PATIENCE)
    channel.emit("steps", made.steps(1))
    assert desk.router.poll(300) == 0
    assert channel.waiting == {"steps": 1}


def test_a_collector_that_forgot_the_engine_is_told_again(desk, channel):
    desk.greet()
    desk.say(Welcome(SCHEMA_VERSION, True, "say hello first"))
    assert isinstance(desk.next(Beat), Hello)
    desk.say(WELCOME)
    channel.emit("steps", made.steps(1))
    assert desk.batch().seq == 1


def test_commands_wait_for_the_engine_and_are_answered(desk, channel):
    channel.hello({}, ("pause", "step"))
    hello = desk.greet()
    while not hello.commands:
        hello = desk.greet()
    assert channel.poll_commands() == []
    desk.say(Command(7, "step", {"n": 3}))
    desk.say(Command(8, "pause"))
    commands = channel.poll_commands(timeout=made.PATIENCE)
    while len(commands) < 2:
        commands += channel.poll_commands(timeout=made.PATIENCE)
    assert commands == [Command(7, "step", {"n": 3}), Command(8, "pause", {})]
    channel.ack(commands[0], True, "3 steps done")
    channel.ack(8, False, "x" * 5000)
    answers = [desk.next(Beat), desk.next(Beat)]
    assert all(isinstance(answer, Ack) for answer in answers)
    assert [(answer.id, answer.ok) for answer in answers] == [(7, True), (8, False)]
    assert answers[0].text == "3 steps done"
    assert len(answers[1].text) == TEXT_LIMIT


def test_commands_nobody_can_take_are_refused(desk, channel):
    desk.greet()
    desk.say(Command(1, "pause"))
    answer = desk.next(Beat)
    assert isinstance(answer, Ack)
    assert (answer.ok, answer.text) == (False, "no command 'pause'; obeyed: none")
    channel.hello({}, ("pause",))
    desk.greet()
    for i in range(WAITING_COMMANDS + 1):
        desk.say(Command(i, "pause"))
    answer = desk.next(Beat)
    assert isinstance(answer, Ack)
    assert (answer.id, answer.ok) == (WAITING_COMMANDS, False)
    assert "64 commands wait" in answer.text
    assert len(channel.poll_commands()) == WAITING_COMMANDS


def test_a_handler_gets_the_commands_and_its_errors_are_the_answer(desk):
    got: list[Command] = []

    def handle(command: Command) -> None:
        if command.args.get("bad"):
            raise ValueError("blocks=-1 is not positive")
        got.append(command)

    channel = Channel(desk.address, "lab", on_command=handle)
    channel.hello({}, ("set_capacity",))
    hello = desk.greet()
    while not hello.commands:
        hello = desk.greet()
    desk.say(Command(1, "set_capacity", {"bad": True}))
    answer = desk.next(Beat)
    assert isinstance(answer, Ack)
    assert (answer.id, answer.ok) == (1, False)
    assert answer.text == "ValueError: blocks=-1 is not positive"
    desk.say(Command(2, "set_capacity"))
    desk.say(Command(3, "unknown"))
    assert isinstance(desk.next(Beat), Ack)
    assert [command.id for command in got] == [2]
    channel.close()


def test_what_a_hostile_collector_sends_is_counted_and_ignored(desk, channel):
    desk.greet()
    for raw in (
        b"",
        b"\xc1",
        b"\x93\xa7command",
        b"\x91" * 5000,
        msgspec.msgpack.encode(3),
    ):
        desk.say(raw)
    desk.say(Command(1, "pause"))
    assert isinstance(desk.next(Beat), Ack)
    assert channel.errors == 5


def test_closing_sends_what_is_left_and_says_goodbye(desk, channel):
    desk.greet()
    assert channel.wait_connected(made.PATIENCE)
    for i in range(5):
        channel.emit("steps", made.steps(i))
    channel.close("finished")
    assert desk.rest() == ([0, 1, 2, 3, 4], Bye("finished"))
    channel.emit("steps", made.steps(6))
    channel.hello({}, ())
    channel.progress("x", 1.0)
    channel.ack(1, True)
    channel.close()
    assert (channel.ignored, channel.closed, channel.poll_commands(1.0)) == (
        1,
        True,
        [],
    )


def test_a_row_emitted_as_late_as_can_be_before_closing_is_sent(desk, channel):
    desk.greet()
    assert channel.wait_connected(made.PATIENCE)
    gather, late = channel._link._engine.turn, iter([1])

    def turn() -> None:
        gather()
        for step in late:
            channel.emit("steps", made.steps(step))
            channel.close("finished")

    channel._link._engine.turn = turn  # type: ignore[method-assign]
    assert desk.rest() == ([1], Bye("finished"))


def test_closing_without_a_collector_ends_soon_and_counts_what_was_not_sent():
    channel = Channel("tcp://127.0.0.1:9", "lab")
    for i in range(3):
        channel.emit("steps", made.steps(i))
    channel.close()
    assert not channel._link._thread.is_alive()
    assert channel.ignored == 3


def test_closing_wakes_an_engine_that_waits_for_commands(channel):
    answers: list[list[Command]] = []
    engine = threading.Thread(
        target=lambda: answers.append(channel.poll_commands(timeout=made.PATIENCE))
    )
    engine.start()
    channel.close(timeout=0)
    engine.join(made.PATIENCE)
    assert answers == [[]]


def test_a_handler_may_close_its_channel(desk):
    channel = Channel(
        desk.address, "lab", on_command=lambda _: channel.close("told to")
    )
    channel.hello({}, ("stop",))
    hello = desk.greet()
    while not hello.commands:
        hello = desk.greet()
    desk.say(Command(1, "stop"))
    assert desk.next(Beat) == Bye("told to")
    channel._link._thread.join(made.PATIENCE)
    assert not channel._link._thread.is_alive()


def test_the_thread_goes_on_after_what_goes_wrong_in_it(desk, channel, monkeypatch):
    desk.greet()
    assert channel.wait_connected(made.PATIENCE)
    broken = iter([RuntimeError("no luck"), RuntimeError("again")])
    working = channel._link._listen

    def listen(dealer: zmq.Socket) -> None:
        for problem in broken:
            raise problem
        working(dealer)

    monkeypatch.setattr(channel._link, "_listen", listen)
    channel.emit("steps", made.steps(1))
    desk.greet()
    assert desk.batch().steps[0].step == 1
    assert channel.errors == 2


@pytest.mark.parametrize("capacity", [0, -1, 1.5, True, "many"])
def test_a_capacity_that_cannot_be_is_refused(capacity):
    with pytest.raises(ValueError, match="capacity_rows="):
        Channel("tcp://127.0.0.1:9", "lab", capacity_rows=capacity)


def test_an_address_or_a_name_that_cannot_be_is_refused():
    with pytest.raises(ValueError, match="address"):
        Channel("127.0.0.1:9", "lab")
    with pytest.raises(ValueError, match="engine="):
        Channel("tcp://127.0.0.1:9", "")


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_in_a_forked_child_the_channel_is_inert(desk, channel):
    desk.greet()
    assert channel.wait_connected(made.PATIENCE)
    # The worst moment: each lock is held, and whoever holds it is not in the child.
    held = channel._counting, channel._changed
    for lock in held:
        lock.acquire()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        channel.emit("steps", made.steps(1))
        channel.hello({"child": True}, ())
        channel.progress("child", 1.0)
        channel.close("the child ended")
        right = channel.ignored == 1 and channel.closed and not channel.connected
        os._exit(0 if right and channel.poll_commands(1.0) == [] else 1)
    for lock in held:
        lock.release()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    channel.emit("steps", made.steps(2))
    batch = desk.batch()
    assert (batch.seq, batch.steps[0].step) == (1, 2)


ENDS = """
import sys
from auxconn.channel import Channel
from tests.unit import stream_made as made
channel = Channel(sys.argv[1], "lab")
if sys.argv[2] == "connected":
    assert channel.wait_connected(20)
for i in range(100):
    channel.emit("steps", made.steps(i))
"""


def test_a_process_that_just_ends_sends_what_is_left(desk, root):
    command = [sys.executable, "-W", "error", "-c", ENDS, desk.address, "connected"]
    with subprocess.Popen(command, cwd=root) as child:
        try:
            desk.greet()
            assert desk.rest() == (list(range(100)), Bye("the process ended"))
            assert child.wait(made.PATIENCE) == 0
        finally:
            child.kill()


def test_a_process_ends_without_a_collector(root):
    command = [sys.executable, "-W", "error", "-c", ENDS, "tcp://127.0.0.1:9", "alone"]
    done = subprocess.run(
        command, cwd=root, timeout=made.PATIENCE, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_an_engine_does_not_pay_for_the_viewers_libraries():
    code = (
        "import sys, auxconn.channel, auxconn.sink; "
        "print(sorted({'pandas', 'numpy', 'vllm', 'torch', 'panel'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
