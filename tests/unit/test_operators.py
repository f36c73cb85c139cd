"""Steering engines through the collector, by those who may."""

from __future__ import annotations

import threading

import msgspec
import pytest
import zmq

from auxconn.channel import Channel
from auxconn.collector import Collector
from auxconn.keys import load, new
from auxconn.operators import Answer, Ask, Engine, NoAnswerError, Operators, Order, ask

SECONDS = 20.0


@pytest.fixture
def collector():
    with Collector() as one:
        yield one


@pytest.fixture
def engine(collector):
    channel = Channel(collector.address, "vllm")
    channel.hello({"capacity": 700}, ("set_capacity",))
    collector.wait(lambda all_: bool(all_ and all_[0].commands), SECONDS)
    yield channel
    channel.close()


@pytest.fixture
def operators(collector):
    with Operators(collector, "tcp://127.0.0.1:*") as one:
        yield one


def obey(channel, ok=True, text="capacity 700 -> 900 blocks"):
    """Answer the next command as an engine's thread does; what was asked is kept."""
    asked = []

    def run():
        (command,) = channel.poll_commands(timeout=SECONDS)
        asked.append((command.name, command.args))
        channel.ack(command, ok, text)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, asked


def test_who_is_there(engine, operators):
    assert ask(Ask(), operators.address) == Answer(
        True, "", (Engine("vllm", 0, "engine", "live", ("set_capacity",), 700),)
    )


@pytest.mark.parametrize("ok", [True, False])
def test_an_order_is_answered_by_the_engine(engine, operators, ok):
    thread, asked = obey(engine, ok, "so be it")
    order = Order("vllm", "set_capacity", None, {"blocks": 900})
    assert ask(order, operators.address) == Answer(ok, "so be it")
    thread.join()
    assert asked == [("set_capacity", {"blocks": 900})]


@pytest.mark.parametrize(
    ("order", "said"),
    [
        (Order("other", "set_capacity"), "engine 'other' is not there"),
        (Order("vllm", "halt"), "does not obey it; it obeys set_capacity"),
        (Order("vllm", "set_capacity", 7), "rank 7, does not obey it"),
        (Order("vllm", "set_capacity", None, {"engine": 1, "timeout": "x"}), ""),
    ],
)
def test_an_order_nobody_can_obey_is_refused_with_the_reason(
    engine, operators, order, said
):
    answer = ask(order, operators.address)
    assert not answer.ok
    assert said in answer.text


def test_nonsense_gets_an_answer_and_ends_nothing(engine, operators):
    context = zmq.Context()
    asking = context.socket(zmq.REQ)
    asking.connect(operators.address)
    for data in b"", b"\xff", msgspec.msgpack.encode(["order", 1, 2]):
        asking.send(data)
        assert asking.poll(SECONDS * 1000)
        answer = msgspec.msgpack.decode(asking.recv(), type=Answer)
        assert not answer.ok
        assert answer.text.startswith("no question")
    asking.close(0)
    context.term()
    assert ask(Ask(), operators.address).ok


def test_only_operators_get_in(collector, engine, tmp_path):
    new(tmp_path)
    with Operators(
        collector,
        "tcp://127.0.0.1:*",
        keys=load(tmp_path / "collector.key", "collector"),
    ) as operators:
        operator = load(tmp_path / "operator.key", "operator")
        assert ask(Ask(), operators.address, keys=operator).ok
        for key in None, load(tmp_path / "engine.key", "engine"):
            with pytest.raises(NoAnswerError, match="the operator's key"):
                ask(Ask(), operators.address, keys=key, timeout=0.5)


def test_nobody_there_is_told():
    with pytest.raises(NoAnswerError, match=r"tcp://127.0.0.1:9 within 0.2 s"):
        ask(Ask(), "tcp://127.0.0.1:9", timeout=0.2)


def test_beyond_the_machine_it_takes_keys_or_a_word(collector):
    with pytest.raises(ValueError, match="from other machines"):
        Operators(collector, "tcp://0.0.0.0:*")
    with Operators(collector, "tcp://0.0.0.0:*", insecure=True):
        pass


def test_an_address_that_is_taken_is_told(collector, operators):
    with pytest.raises(OSError, match=r"cannot listen at .*: it is taken"):
        Operators(collector, operators.address)
