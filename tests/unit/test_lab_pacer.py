"""Speed and pause, by a clock of the test's own."""

from __future__ import annotations

import threading

import pytest

from auxconn.lab.pacer import Pacer


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_lets_through_at_the_speed() -> None:
    clock = Clock()
    pacer = Pacer(10.0, clock)
    taken = 0
    for _ in range(1000):
        taken += pacer.wait(0)
        clock.now += 0.01
    assert taken == pytest.approx(100, abs=1)


def test_does_not_hurry_after_a_long_step() -> None:
    clock = Clock()
    pacer = Pacer(10.0, clock)
    assert pacer.wait(0)
    clock.now += 60.0
    burst = 0
    while pacer.wait(0):
        burst += 1
    assert burst <= 2


def test_as_fast_as_it_goes() -> None:
    pacer = Pacer(None, Clock())
    assert all(pacer.wait(0) for _ in range(100))


def test_paused_lets_nothing_through() -> None:
    pacer = Pacer(None, Clock())
    pacer.pause()
    assert pacer.paused
    assert not pacer.wait(0)
    pacer.resume()
    assert pacer.wait(0)


def test_resume_wakes_who_waits() -> None:
    pacer = Pacer(None)
    pacer.pause()
    through: list[bool] = []
    thread = threading.Thread(target=lambda: through.append(pacer.wait(30)))
    thread.start()
    pacer.resume()
    thread.join(10)
    assert through == [True]


@pytest.mark.parametrize("speed", [0, -1, float("nan"), float("inf"), "fast", True])
def test_refuses_speeds_that_are_none(speed: object) -> None:
    pacer = Pacer(5.0, Clock())
    with pytest.raises(ValueError, match="steps_per_s="):
        pacer.steps_per_s = speed  # type: ignore[assignment]
    assert pacer.steps_per_s == 5.0
