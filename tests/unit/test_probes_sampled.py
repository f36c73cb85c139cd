"""Timing the calls of one step in sixteen, and leaving the others alone."""

from __future__ import annotations

import pytest

from auxconn.probes import sampled
from auxconn.probes.access import UnknownConnectorError
from auxconn.probes.sampled import EVERY, SampledTime


class Connector:
    def take_output(self, request, output):
        return (request, output)


def is_watched(connector) -> bool:
    return "take_output" in vars(connector)


@pytest.fixture
def clock(monkeypatch):
    """A clock that moves on by 100 ns whenever it is read."""
    now = [0]

    def read():
        now[0] += 100
        return now[0]

    monkeypatch.setattr(sampled, "perf_counter_ns", read)


@pytest.fixture
def timed(clock):
    connector = Connector()
    time = SampledTime(connector, "take_output", ("request", "output"))
    time.install()
    return connector, time


def test_the_calls_of_one_step_in_sixteen_are_timed(timed):
    connector, time = timed
    for _ in range(3):
        watched = []
        for step in range(EVERY):
            watched.append(is_watched(connector))
            for _ in range(4):
                assert connector.take_output(1, 2) == (1, 2)
            assert time.until_next == (EVERY - step) % EVERY
            assert time.turn() == ((400, 4) if step == 0 else None)
        assert watched == [True] + [False] * (EVERY - 1)


def test_a_step_without_calls_is_no_sample(timed):
    connector, time = timed
    assert time.turn() == (0, 0)
    assert is_watched(connector)
    connector.take_output(1, 2)
    assert time.turn() == (100, 1)


def test_nothing_is_left_behind(timed):
    connector, time = timed
    assert is_watched(connector)
    time.remove()
    assert vars(connector) == {}


def test_a_hook_that_has_to_stay_does_nothing(timed):
    connector, time = timed
    below = connector.take_output

    def above(request, output):
        return below(request, output)

    connector.take_output = above
    connector.take_output(1, 2)
    assert time.turn() == (100, 1)
    for _ in range(EVERY - 1):
        connector.take_output(1, 2)
        assert time.turn() is None
    # The next one is in front of the other's wrapper: the calls are counted once.
    connector.take_output(1, 2)
    assert time.turn() == (100, 1)


def test_a_method_of_another_shape_is_refused():
    class Other:
        def take_output(self, one, two):
            return None

    with pytest.raises(UnknownConnectorError, match=r"takes \(one, two\)"):
        SampledTime(Other(), "take_output", ("request", "output")).install()
