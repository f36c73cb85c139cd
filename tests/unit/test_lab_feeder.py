"""When requests go in: closed loop, arrival steps, followers, engines built anew."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any

import pytest

from auxconn.lab import workloads
from auxconn.lab.feeder import Feeder
from auxconn.lab.requests import LabRequest


def request(name: str, after: str = "", arrival_step: int = 0) -> LabRequest:
    return LabRequest(name, [1], [2], after=after, arrival_step=arrival_step)


def names(requests: Iterable[LabRequest]) -> list[str]:
    return [one.id for one in requests]


def test_keeps_as_many_as_asked_in_the_engine() -> None:
    feeder = Feeder([request(name) for name in "abcde"], concurrency=2)
    assert names(feeder.due()) == ["a", "b"]
    assert names(feeder.due()) == []
    feeder.ended("a")
    assert names(feeder.due()) == ["c"]
    feeder.ended("b")
    feeder.ended("c")
    assert names(feeder.due()) == ["d", "e"]
    assert not feeder.done
    feeder.ended("d")
    feeder.ended("e")
    assert feeder.done


def test_requests_arrive_at_their_steps() -> None:
    stream = [request("a"), request("b", arrival_step=2), request("c", arrival_step=2)]

    class Arriving(list[LabRequest]):
        concurrency = None

    feeder = Feeder(Arriving(stream))
    assert [names(feeder.due()) for _ in range(4)] == [["a"], [], ["b", "c"], []]


def test_a_follower_waits_and_lets_others_pass() -> None:
    stream = [request("a"), request("a2", after="a"), request("b"), request("c")]
    feeder = Feeder(stream, concurrency=2)
    assert names(feeder.due()) == ["a", "b"]
    feeder.ended("b")
    assert names(feeder.due()) == ["c"]
    assert not feeder.done
    feeder.ended("a")
    assert names(feeder.due()) == ["a2"]


def test_a_follower_of_a_follower_waits_for_both() -> None:
    stream = [request("a"), request("b", after="a"), request("c", after="b")]
    feeder = Feeder(stream, concurrency=3)
    assert names(feeder.due()) == ["a"]
    assert names(feeder.due()) == []
    feeder.ended("a")
    assert names(feeder.due()) == ["b"]
    assert names(feeder.due()) == []
    feeder.ended("b")
    assert names(feeder.due()) == ["c"]


def test_a_follower_of_nobody_goes_at_once() -> None:
    feeder = Feeder([request("b", after="a")], concurrency=1)
    assert names(feeder.due()) == ["b"]


def test_endless_followers_are_not_read_without_end() -> None:
    read = count()

    def stream() -> Iterator[LabRequest]:
        yield request("a")
        while True:
            yield request(f"f{next(read)}", after="a")

    feeder = Feeder(stream(), concurrency=4)
    assert names(feeder.due()) == ["a"]
    assert next(read) < 12
    feeder.ended("a")
    assert len(list(feeder.due())) == 4


def test_what_had_not_ended_goes_again_first_and_in_order() -> None:
    feeder = Feeder([request(name) for name in "abcd"], concurrency=3)
    list(feeder.due())
    feeder.ended("b")
    feeder.restart_active()
    assert feeder.num_active == 0
    assert names(feeder.due()) == ["a", "c", "d"]


def test_followers_still_wait_after_a_restart() -> None:
    feeder = Feeder([request("a"), request("b", after="a")], concurrency=2)
    list(feeder.due())
    feeder.restart_active()
    assert names(feeder.due()) == ["a"]
    feeder.ended("a")
    assert names(feeder.due()) == ["b"]


def test_ids_of_a_second_workload_are_its_own() -> None:
    feeder = Feeder([request("a"), request("b", after="a")], concurrency=2, prefix="2:")
    assert names(feeder.due()) == ["2:a"]
    feeder.ended("2:a")
    (follower,) = feeder.due()
    assert (follower.id, follower.after) == ("2:b", "2:a")


def test_an_unknown_end_is_ignored() -> None:
    feeder = Feeder([request("a")], concurrency=1)
    feeder.ended("nobody")
    assert names(feeder.due()) == ["a"]


@pytest.mark.parametrize("bad", [None, 5, "abc", {"id": "a"}, workloads.scan])
def test_what_is_no_request_is_left_out(bad: Any) -> None:
    feeder = Feeder([request("a"), bad, request("b")], concurrency=3)
    due = feeder.due()
    assert next(due).id == "a"
    with pytest.raises(ValueError, match="is no LabRequest"):
        next(due)
    assert not feeder.done
    assert names(feeder.due()) == ["b"]


def test_an_id_that_has_not_ended_is_left_out_and_may_come_again_later() -> None:
    feeder = Feeder([request("a"), request("a"), request("b")], concurrency=3)
    due = feeder.due()
    next(due)
    with pytest.raises(ValueError, match="id 'a' is that of a request which has not"):
        next(due)
    assert names(feeder.due()) == ["b"]
    assert names(feeder.active()) == ["a", "b"]
    again = Feeder([request("a"), request("a")], concurrency=1)
    assert names(again.due()) == ["a"]
    again.ended("a")
    assert names(again.due()) == ["a"]


def test_a_waiting_id_is_left_out_too() -> None:
    stream = [request("a"), request("b", after="a"), request("b", after="a")]
    feeder = Feeder(stream, concurrency=3)
    due = feeder.due()
    next(due)
    with pytest.raises(ValueError, match="id 'b'"):
        next(due)
    assert names(feeder.due()) == []
    feeder.ended("a")
    assert names(feeder.due()) == ["b"]
    feeder.ended("b")
    assert feeder.done


def test_a_circle_of_followers_goes_round_once() -> None:
    feeder = Feeder([request("a", after="b"), request("b", after="a")], concurrency=2)
    assert names(feeder.due()) == ["a"]
    feeder.ended("a")
    assert names(feeder.due()) == ["b"]
    feeder.ended("b")
    assert feeder.done


def test_a_workload_that_fails_is_over_and_says_so() -> None:
    def stream() -> Iterator[LabRequest]:
        yield request("a")
        raise KeyError("prompt")

    feeder = Feeder(stream(), concurrency=2)
    due = feeder.due()
    next(due)
    assert not feeder.done  # looking does not raise
    with pytest.raises(ValueError, match="workload failed: KeyError: 'prompt'") as told:
        next(due)
    assert isinstance(told.value.__cause__, KeyError)
    feeder.ended("a")
    assert feeder.done
