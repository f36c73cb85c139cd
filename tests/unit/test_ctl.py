"""Orders from a shell: what is read of the words, and how engines are listed."""

from __future__ import annotations

import pytest

from auxconn.ctl import arguments, table
from auxconn.operators import Engine


def test_values_are_read_as_what_they_are():
    assert arguments(["blocks=1000", "on=true", "rate=2.5", "none=null", "a=x=y"]) == {
        "blocks": 1000,
        "on": True,
        "rate": 2.5,
        "none": None,
        "a": "x=y",
    }


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        (["1000"], "'1000': write name=value"),
        (["=3"], "'=3': write name=value"),
        (["a=1", "a=2"], "a is given twice"),
    ],
)
def test_what_is_no_pair_is_refused(pairs, said):
    with pytest.raises(ValueError, match=said):
        arguments(pairs)


def test_engines_stand_in_columns_and_their_names_are_harmless():
    engines = [
        Engine("vllm", 0, "scheduler", "live", ("set_capacity",), 12345),
        Engine("a\x1b[31m", 3, "worker", "gone", (), None),
    ]
    assert table(engines).splitlines() == [
        "engine     rank  role       state  capacity  obeys",
        "vllm       0     scheduler  live   12,345    set_capacity",
        r"a\x1b[31m  3     worker     gone   -         -",
    ]
