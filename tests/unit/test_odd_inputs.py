"""What comes from outside and is not what it should be costs nothing but itself."""

from __future__ import annotations

import math

import pytest

from auxconn import FrameStore
from auxconn.errors import MOST_CAPACITY, CapacityError
from auxconn.facts import sound
from auxconn.lab.config import LabConfig
from auxconn.lab.feeder import Feeder
from auxconn.records import Events
from auxconn.texts import clip


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
