"""A request is what it should be, or is refused by name where it was written."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from auxconn.lab.requests import LabRequest


def test_tokens_of_any_kind_become_one_kind() -> None:
    for tokens in [3, 4], (3, 4), range(3, 5), np.array([3, 4], np.uint16):
        request = LabRequest("a", tokens, tokens)
        for kept in request.prompt, request.output:
            assert isinstance(kept, np.ndarray)
            assert kept.dtype == np.int64
            assert kept.tolist() == [3, 4]
        assert request.max_tokens == 2


def test_a_number_as_an_id_is_its_digits() -> None:
    request = LabRequest(7, [1], [2], group=3, after=np.int64(6))  # type: ignore[arg-type]
    assert (request.id, request.group, request.after) == ("7", "3", "6")
    assert replace(request, id="2:7").after == "6"


def test_it_is_shown_without_its_tokens() -> None:
    request = LabRequest("a", range(5000), [1] * 3, after="b")
    assert repr(request) == (
        "LabRequest('a', 5000 prompt tokens, 3 output tokens, after='b')"
    )
    assert len(repr(LabRequest("x" * 10_000, [1], [1]))) < 200


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"id": None}, "id=None is no text"),
        ({"id": True}, "id=True is no text"),
        ({"id": 1.5}, r"id=1\.5 is no text"),
        ({"id": b"a"}, "id=b'a' is no text"),
        ({"id": ""}, "an id of its own"),
        ({"group": ["g"]}, r"group=\['g'\] is no text"),
        ({"after": "a"}, "request 'a': it waits for its own end"),
        ({"after": None}, "after=None is no text"),
        ({"prompt": "hello"}, "request 'a': prompt='hello' is no list of token ids"),
        ({"prompt": None}, "prompt=None is no list"),
        ({"prompt": 5}, "prompt=5 is no list"),
        ({"prompt": {1, 2}}, "is no list of token ids"),
        ({"prompt": [1.0, 2.0]}, "is no list of token ids"),
        ({"prompt": [True, False]}, "is no list of token ids"),
        ({"prompt": [1, None]}, "is no list of token ids"),
        ({"prompt": [[1, 2], [3, 4]]}, "is no list of token ids"),
        ({"prompt": [[1, 2], [3]]}, "is no list of token ids"),
        ({"prompt": [10**30]}, "is no list of token ids"),
        ({"prompt": [10**5000]}, "is no list of token ids"),
        ({"prompt": iter([1, 2])}, "is no list of token ids"),
        ({"prompt": [5, -1]}, "token ids from -1 to 5"),
        ({"output": [2**31]}, "output has token ids from 2147483648"),
        ({"output": np.array([np.nan])}, "output=.* is no list"),
        ({"arrival_step": -1}, "arrival_step=-1 is out of range"),
        ({"arrival_step": 0.5}, r"arrival_step=0\.5 is not a whole number"),
        ({"arrival_step": float("nan")}, "arrival_step=nan"),
        ({"prompt_start": -1}, "prompt_start=-1 is out of range.*at least 0"),
        ({"prompt_start": None}, "prompt_start=None"),
    ],
)
def test_refuses_what_it_cannot_be(changes: dict[str, Any], words: str) -> None:
    given = {"id": "a", "prompt": [1, 2, 3], "output": [4], **changes}
    with pytest.raises(ValueError, match=words) as caught:
        LabRequest(**given)
    assert len(str(caught.value)) < 300


def test_an_empty_prompt_is_for_the_pool_to_refuse() -> None:
    assert len(LabRequest("a", [], [1]).prompt) == 0
