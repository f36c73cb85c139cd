"""What comes from outside and is not what it should be costs nothing but itself."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from auxconn import FrameStore
from auxconn.checks import number, whole
from auxconn.errors import MOST_CAPACITY, CapacityError
from auxconn.facts import sound
from auxconn.lab import LabConfig, LabProcess, WorkloadSpec
from auxconn.lab.feeder import Feeder
from auxconn.lab.job import Job
from auxconn.records import Events
from auxconn.texts import clip, shown


def test_half_a_surrogate_pair_becomes_a_question_mark() -> None:
    assert clip("a\ud800b", 10) == "a?b"
    assert clip("ü" * 5, 3) == "üü…"


def test_a_text_no_encoder_takes_leaves_the_table_readable() -> None:
    store = FrameStore(10)
    store.append("events", [Events(1.0, 1, "mark", "bad \ud800")], "lab")
    assert list(store.events().text) == ["bad ?"]


def test_a_fact_that_is_no_number_where_one_belongs_is_missing() -> None:
    given = {"block_size": math.nan, "num_blocks": "many", "capacity": 7, "model": "x"}
    assert sound(given) == {
        "block_size": None,
        "num_blocks": None,
        "capacity": 7,
        "model": "x",
    }


@pytest.mark.parametrize("concurrency", [0, -1, True, 1.5, "x"])
def test_a_concurrency_that_would_run_nothing_is_refused(concurrency: object) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Feeder([], concurrency)  # type: ignore[arg-type]


@pytest.mark.parametrize(("prompt", "output"), [(0, 1), (1, 0)])
def test_an_empty_prompt_or_output_is_refused(prompt: int, output: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        LabConfig().check_request(prompt, output, "request 'a'")


def test_a_capacity_no_column_can_hold_is_refused_by_its_value() -> None:
    with pytest.raises(ValueError, match=str(10**30)):
        LabConfig(capacity=10**30)
    assert str(MOST_CAPACITY) in str(CapacityError(2**63))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"config": "x"}, "config='x' is no LabConfig"),
        ({"workload_spec": [1]}, r"workload_spec=\[1\] cannot be sent"),
        ({"workload_spec": None}, "workload_spec=None cannot be sent"),
        ({"address": 5}, "address 5"),
        ({"address": "nowhere"}, "address 'nowhere'"),
        ({"engine": 5}, "engine=5"),
        ({"steps_per_s": -1}, "steps_per_s=-1 is out of range"),
        ({"steps_per_s": math.nan}, "steps_per_s=nan"),
        ({"paused": 0}, "paused=0 is not a switch"),
        ({"config": LabConfig(num_blocks=9)}, "longer than the pool"),
    ],
)
def test_a_lab_process_that_cannot_be_is_refused_before_it_starts(
    given: dict[str, Any], words: str
) -> None:
    good = {"config": LabConfig(), "address": "tcp://127.0.0.1:9"}
    with pytest.raises(ValueError, match=words):
        LabProcess(**{"workload_spec": WorkloadSpec("grpo"), **good, **given})


def test_a_speed_of_numpy_reaches_the_child_as_a_number() -> None:
    job = Job(
        LabConfig(), WorkloadSpec("grpo"), "tcp://127.0.0.1:9", "lab", np.int64(5)
    )
    assert Job.from_line(job.to_line()) == job
    assert job.steps_per_s == 5.0


@pytest.mark.parametrize(
    ("value", "whole_one", "any_one"),
    [
        (3, 3, 3.0),
        (np.uint8(3), 3, 3.0),
        (np.float32(0.5), None, 0.5),
        (2.0, None, 2.0),
        (10**400, 10**400, math.inf),
        (True, None, None),
        (np.bool_(True), None, None),
        ("3", None, None),
        (None, None, None),
        (3j, None, None),
    ],
)
def test_numbers_from_outside(value: Any, whole_one: Any, any_one: Any) -> None:
    assert whole(value) == whole_one
    assert number(value) == any_one


def test_any_value_is_shown_shortly() -> None:
    class Rude:
        def __repr__(self) -> str:
            raise RuntimeError

    assert shown("a\nb") == r"'a\nb'"
    assert shown(np.eye(2)) == "array([[1., 0.],        [0., 1.]])"
    assert len(shown("x" * 10**6)) == 80
    assert shown(Rude()) == "<Rude that cannot be shown>"
    assert shown(10**5000) == "<int that cannot be shown>"
