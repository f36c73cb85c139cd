"""The ledger of blocks: against a plain model, and its bound."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from auxconn.probes import ledger as module
from auxconn.probes.ledger import Ledger


def key(number: int) -> bytes:
    return number.to_bytes(32, "big")


def keys(*numbers: int) -> list[bytes]:
    return [key(number) for number in numbers]


def numbers(ledger: Ledger, block: int, now: float) -> tuple[float, float, int]:
    age, idle, uses = ledger.numbers(ledger.find([key(block)]), now)
    return (
        float(np.frombuffer(age, "<f4")[0]),
        float(np.frombuffer(idle, "<f4")[0]),
        int(np.frombuffer(uses, "<u4")[0]),
    )


def test_a_block_from_retention_to_release():
    ledger = Ledger()
    ledger.retain(keys(1, 2, 3), 10.0)
    assert numbers(ledger, 2, 12.0)[0] == 2.0
    assert math.isnan(numbers(ledger, 2, 12.0)[1])
    ledger.touch(keys(1, 2), 13.0)
    ledger.touch(keys(1), 15.0)
    assert numbers(ledger, 1, 16.0) == (6.0, 1.0, 2)
    assert numbers(ledger, 2, 16.0) == (6.0, 3.0, 1)
    retained, _ = ledger.lose(keys(1, 3), [], 16.0)
    assert retained.tolist() == [True, True]
    assert not ledger.is_lost(key(1))
    ledger.lose([], keys(1), 16.0)
    assert ledger.is_lost(key(1))
    assert numbers(ledger, 1, 16.0) == (6.0, 1.0, 2)
    # Looking up what is lost is no use of it.
    ledger.touch(keys(1), 17.0)
    assert numbers(ledger, 1, 17.0)[2] == 2
    # Retained again, it begins anew.
    ledger.retain(keys(1), 20.0)
    assert not ledger.is_lost(key(1))
    assert numbers(ledger, 1, 21.0)[0] == 1.0
    assert numbers(ledger, 1, 21.0)[2] == 0


def test_evicted_without_having_been_retained_is_lost_and_has_no_age():
    ledger = Ledger()
    retained, (ages, _, _) = ledger.lose(keys(7, 7), [], 5.0)
    assert np.isnan(np.frombuffer(ages, "<f4")).all()
    assert retained.tolist() == [False, False]
    assert ledger.is_lost(key(7))
    age, idle, uses = numbers(ledger, 7, 5.0)
    assert math.isnan(age)
    assert math.isnan(idle)
    assert uses == 0
    assert ledger.released_run(keys(7))[0] == []


def test_the_run_of_lost_blocks_ends_at_the_first_that_is_here_or_never_was():
    ledger = Ledger()
    ledger.retain(keys(1, 2, 4, 5), 0.0)
    ledger.lose([], keys(1, 2, 5), 0.0)
    ledger.lose(keys(3), [], 0.0)
    found, slots = ledger.released_run(keys(1, 3, 2, 4, 5))
    assert found == keys(1, 2)
    assert (slots == ledger.find(keys(1, 2))).all()
    assert ledger.released_run(keys(9, 1))[0] == []


def test_unknown_blocks_have_no_numbers():
    ledger = Ledger()
    assert ledger.find(keys(1)).tolist() == [-1]
    assert math.isnan(numbers(ledger, 1, 1.0)[0])
    assert not ledger.is_lost(key(1))
    assert not ledger.is_retained(key(1))


def test_memory_is_bounded_and_the_oldest_losses_go(monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 10)
    ledger = Ledger(memory=50)
    for block in range(1000):
        ledger.retain(keys(block), 0.0)
        ledger.lose([], keys(block), 0.0)
        assert len(ledger) <= 60
    assert ledger.forgotten == 1000 - len(ledger)
    assert ledger.is_lost(key(999))
    assert ledger.is_lost(key(950))
    assert not ledger.is_lost(key(900))
    # Their slots are used again.
    assert ledger._room <= 1024


def test_a_block_lost_again_is_remembered_from_its_last_loss(monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 1)
    ledger = Ledger(memory=3)
    ledger.retain(keys(1), 0.0)
    ledger.lose([], keys(1), 0.0)
    ledger.retain(keys(2, 3, 4), 0.0)
    ledger.lose([], keys(2, 3), 0.0)
    ledger.retain(keys(1), 1.0)
    ledger.lose([], keys(1, 4), 0.0)
    assert ledger.is_lost(key(1))
    assert ledger.is_lost(key(4))


def test_keep_only_loses_the_others():
    ledger = Ledger()
    ledger.retain(keys(1, 2, 3), 0.0)
    ledger.keep_only(ledger.find(keys(2)))
    assert ledger.retained() == keys(2)
    assert ledger.is_lost(key(1))
    assert ledger.is_lost(key(3))


class Model:
    """The same, the plain way."""

    def __init__(self):
        self.state: dict[int, str] = {}
        self.uses: dict[int, int] = {}
        self.first: dict[int, float] = {}

    def retained(self):
        return [block for block, state in self.state.items() if state == "retained"]


steps = st.lists(
    st.tuples(
        st.sampled_from(["retain", "release", "evict", "touch"]),
        st.lists(st.integers(0, 12), unique=True, max_size=6),
    ),
    max_size=40,
)


@given(steps)
def test_ledger_agrees_with_a_model(ops):
    ledger, model = Ledger(), Model()
    for now, (op, named) in enumerate(ops):
        blocks = named
        if op == "retain":
            # The connector only retains what it does not retain yet.
            blocks = [one for one in named if model.state.get(one) != "retained"]
            for one in blocks:
                model.state[one], model.uses[one] = "retained", 0
                model.first[one] = now
            ledger.retain([key(one) for one in blocks], float(now))
        elif op == "release":
            blocks = [one for one in named if model.state.get(one) == "retained"]
            for one in blocks:
                model.state[one] = "released"
            ledger.lose([], [key(one) for one in blocks], float(now))
        elif op == "evict":
            expected = [model.state.get(one) == "retained" for one in blocks]
            for one in blocks:
                if one not in model.state:
                    model.state[one] = "evicted"
            retained, _ = ledger.lose([key(one) for one in blocks], [], float(now))
            assert retained.tolist() == expected
        else:
            for one in blocks:
                if model.state.get(one) == "retained":
                    model.uses[one] += 1
            ledger.touch([key(one) for one in blocks], float(now))
        assert sorted(ledger.retained()) == sorted(map(key, model.retained()))
        for one in range(13):
            state = model.state.get(one)
            assert ledger.is_retained(key(one)) == (state == "retained")
            assert ledger.is_lost(key(one)) == (state in ("released", "evicted"))
            if state in ("retained", "released"):
                age, _, uses = numbers(ledger, one, float(now))
                assert age == now - model.first[one]
                assert uses == model.uses[one]
    assert len(ledger) == len(model.state)


@pytest.mark.parametrize("count", [1, 1000, 5000])
def test_growing_keeps_what_was_there(count):
    ledger = Ledger()
    ledger.retain(keys(0), 1.0)
    ledger.retain([key(one) for one in range(1, count + 1)], 2.0)
    assert numbers(ledger, 0, 3.0)[0] == 2.0
    assert numbers(ledger, count, 3.0)[0] == 1.0
    assert math.isnan(numbers(ledger, count + 1, 3.0)[0])
