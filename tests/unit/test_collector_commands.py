from __future__ import annotations

from concurrent.futures import Future

import pytest

from auxconn.commands import MOST_COMMANDS, CommandError, Commands, failed
from auxconn.errors import AuxConnError
from auxconn.wire import Ack
from tests.unit import stream_made as made

KEY = ("lab", 0, "engine")


@pytest.fixture
def clock() -> made.Clock:
    return made.Clock()


@pytest.fixture
def commands(clock) -> Commands:
    return Commands(clock)


def why(future: Future) -> str:
    problem = future.exception(0)
    assert isinstance(problem, CommandError)
    assert isinstance(problem, AuxConnError)
    return str(problem)


def test_an_answer_settles_the_command_with_its_number(commands):
    first = commands.add(KEY, "one", "step", {"n": 1}, 10)
    second = commands.add(KEY, "one", "pause", {}, 10)
    assert (first.command.name, first.command.args) == ("step", {"n": 1})
    assert first.command.id != second.command.id
    ack = Ack(second.command.id, True, "done", made.T0)
    assert commands.answer(ack, KEY, "one")
    assert second.future.result(0) == ack
    assert not first.future.done()
    assert not commands.answer(ack, KEY, "one")
    assert len(commands) == 1


def test_an_answer_of_another_source_or_start_is_not_taken(commands):
    waiting = commands.add(KEY, "one", "pause", {}, 10)
    ack = Ack(waiting.command.id, True, "done", made.T0)
    assert not commands.answer(ack, ("lab", 1, "engine"), "one")
    assert not commands.answer(ack, KEY, "two")
    assert not waiting.future.done()


def test_time_runs_out(commands, clock):
    waiting = commands.add(KEY, "one", "pause", {}, 2.5)
    clock.pass_(2.4)
    commands.expire()
    assert not waiting.future.done()
    clock.pass_(0.1)
    commands.expire()
    assert why(waiting.future) == "'pause': engine 'lab' did not answer within 2.5 s"
    assert len(commands) == 0


def test_the_end_of_a_source_ends_its_commands(commands):
    mine = commands.add(KEY, "one", "pause", {}, 10)
    other = commands.add(KEY, "two", "pause", {}, 10)
    commands.source_gone(KEY, "one")
    assert why(mine.future) == "'pause': engine 'lab' ended before it answered"
    assert not other.future.done()
    commands.fail_all("the collector was closed")
    assert why(other.future) == "'pause': the collector was closed"


def test_commands_that_wait_are_bounded(commands):
    for _ in range(MOST_COMMANDS):
        commands.add(KEY, "one", "pause", {}, 10)
    with pytest.raises(CommandError, match="1024 commands wait"):
        commands.add(KEY, "one", "pause", {}, 10)


def test_a_future_that_was_cancelled_stays_so(commands):
    waiting = commands.add(KEY, "one", "pause", {}, 10)
    assert waiting.future.cancel()
    assert commands.answer(Ack(waiting.command.id, True, "", 0.0), KEY, "one")
    assert waiting.future.cancelled()


def test_a_command_that_cannot_be_given_has_failed_already():
    assert why(failed("nobody there")) == "nobody there"
