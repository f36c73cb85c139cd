from __future__ import annotations

import numpy as np
import pytest

from auxconn.rings import FIRST_ROOM, Names, Ring

DTYPES = {
    "n": np.dtype(np.int64),
    "text": np.dtype(object),
    "source": np.dtype(np.uint16),
}


def push(ring: Ring, numbers: range) -> None:
    texts = np.array([str(n) for n in numbers], dtype=object)
    ring.push(len(numbers), {"n": np.array(numbers), "text": texts}, {"source": 7})


def numbers(ring: Ring) -> list[int]:
    return ring.read("n", ring.oldest, ring.total).tolist()


def test_a_ring_keeps_the_newest_rows_in_order():
    ring = Ring(DTYPES, 10)
    push(ring, range(7))
    push(ring, range(7, 14))
    assert (ring.total, ring.kept, ring.oldest) == (14, 10, 4)
    assert numbers(ring) == list(range(4, 14))
    assert ring.read("text", 12, 14).tolist() == ["12", "13"]
    assert ring.read("source", 4, 14).tolist() == [7] * 10


def test_a_push_larger_than_the_ring_leaves_its_end():
    ring = Ring(DTYPES, 4)
    push(ring, range(3))
    push(ring, range(3, 103))
    assert (ring.total, ring.kept) == (103, 4)
    assert numbers(ring) == [99, 100, 101, 102]


def test_a_ring_grows_only_as_far_as_it_is_filled():
    ring = Ring(DTYPES, 100 * FIRST_ROOM)
    empty = ring.nbytes
    push(ring, range(FIRST_ROOM))
    assert ring.nbytes == empty
    push(ring, range(FIRST_ROOM, FIRST_ROOM + 1))
    assert ring.nbytes == 2 * empty
    assert numbers(ring) == list(range(FIRST_ROOM + 1))


def test_resizing_keeps_the_newest_rows_and_the_versions():
    ring = Ring(DTYPES, 10)
    push(ring, range(25))
    ring.resize(4)
    assert (ring.total, ring.oldest) == (25, 21)
    assert numbers(ring) == [21, 22, 23, 24]
    ring.resize(6)
    push(ring, range(25, 29))
    assert numbers(ring) == [23, 24, 25, 26, 27, 28]


def test_clearing_forgets_the_rows_and_lets_go_of_their_texts():
    ring = Ring(DTYPES, 10)
    push(ring, range(10))
    ring.clear()
    assert (ring.total, ring.kept) == (11, 0)
    assert numbers(ring) == []
    assert all(text is None for text in ring._columns["text"])
    push(ring, range(10, 12))
    assert numbers(ring) == [10, 11]


def test_what_is_read_is_a_copy():
    ring = Ring(DTYPES, 10)
    push(ring, range(5))
    ring.read("n", 0, 5)[:] = -1
    ring.take("n", ring.positions(0, 5))[:] = -1
    assert numbers(ring) == list(range(5))


def test_names_give_out_numbers_once_and_reclaim_those_without_rows(monkeypatch):
    monkeypatch.setattr(Names, "LIMIT", 3)
    names = Names()
    assert [names.code(name, []) for name in ("a", "b", "a", "c")] == [0, 1, 0, 2]
    in_use = [np.array([0, 2], dtype=np.uint16)]
    assert names.code("d", in_use) == 1
    assert names.find("b") is None
    assert names.decode(np.array([0, 1, 2])).tolist() == ["a", "d", "c"]
    with pytest.raises(ValueError, match=r"'e'.*3 engines"):
        names.code("e", [np.arange(3)])
