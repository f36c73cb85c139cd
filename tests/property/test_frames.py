"""A store beside the simplest thing that does the same: lists that forget nothing."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from auxconn.frames import FrameStore
from auxconn.records import Blocks
from auxconn.sink import StoreSink
from tests.unit import stream_made as made

ENGINES = ("a", "b", "c")
LIMITS = st.integers(1, 40)


class StoreBesideLists(RuleBasedStateMachine):
    @initialize(limit=LIMITS)
    def begin(self, limit: int) -> None:
        self.store = FrameStore(limit)
        self.limit = limit
        self.ever: list[tuple[str, int]] = []
        """Engine and step of every row appended; a place without for each clearing."""
        self.kept = 0
        self.cleared = 0
        self.readers: list[int] = [0]

    def added(self, engine: str, numbers: range) -> None:
        self.ever += [(engine, number) for number in numbers]
        self.kept = min(self.kept + len(numbers), self.limit)

    def next(self, count: int) -> range:
        return range(len(self.ever), len(self.ever) + count)

    @property
    def rows(self) -> list[tuple[str, int]]:
        return self.ever[len(self.ever) - self.kept :]

    @rule(engine=st.sampled_from(ENGINES), count=st.integers(0, 60))
    def append(self, engine: str, count: int) -> None:
        numbers = self.next(count)
        assert (
            self.store.append("steps", [made.steps(i) for i in numbers], engine)
            == count
        )
        self.added(engine, numbers)

    @rule(engine=st.sampled_from(ENGINES), count=st.integers(1, 5))
    def emit(self, engine: str, count: int) -> None:
        sink = StoreSink(self.store, engine)
        numbers = self.next(count)
        for i in numbers:
            sink.emit("steps", made.steps(i))
        self.added(engine, numbers)

    @rule(limit=LIMITS)
    def resize(self, limit: int) -> None:
        self.store.resize(limit)
        self.limit = limit
        self.kept = min(self.kept, limit)

    @rule()
    def clear(self) -> None:
        self.store.clear("steps")
        self.ever.append(("", -1))
        self.kept = 0
        self.cleared = len(self.ever)

    @rule(data=st.data(), limit=st.none() | st.integers(0, 50))
    def since(self, data: st.DataObject, limit: int | None) -> None:
        version = data.draw(st.sampled_from(self.readers))
        delta = self.store.since("steps", version, limit=limit)
        oldest = len(self.ever) - self.kept
        there = self.ever[max(version, oldest) :]
        seen = there if limit is None else there[max(0, len(there) - limit) :]
        assert (
            list(zip(delta.columns["engine"], delta.columns["step"], strict=True))
            == seen
        )
        assert delta.version == len(self.ever)
        assert delta.cleared == (version < self.cleared)
        assert delta.rows + delta.lost == len(self.ever) - max(version, self.cleared)
        self.readers = [*self.readers[-4:], delta.version]

    @rule(engine=st.sampled_from([*ENGINES, "nobody"]), n=st.integers(0, 50))
    def tail(self, engine: str, n: int) -> None:
        mine = [number for name, number in self.rows if name == engine]
        expected = mine[max(0, len(mine) - n) :]
        delta = self.store.tail("steps", n, engine=engine, columns=["step", "retained"])
        assert delta.columns["step"].tolist() == expected
        frame = self.store.steps(last=n, engine=engine)
        assert frame["step"].tolist() == expected
        assert frame["retained"].tolist() == [made.steps(i).retained for i in expected]

    @precondition(lambda self: hasattr(self, "store"))
    @invariant()
    def all_there(self) -> None:
        frame = self.store.steps()
        assert list(zip(frame["engine"], frame["step"], strict=True)) == self.rows
        assert self.store.kept("steps") == self.kept <= self.limit


StoreBesideLists.TestCase.settings = settings(max_examples=60, stateful_step_count=25)
TestStoreBesideLists = StoreBesideLists.TestCase

packed_rows = st.lists(
    st.lists(
        st.tuples(
            st.integers(0, 2**64 - 1),
            st.floats(width=32),
            st.floats(width=32),
            st.integers(0, 2**32 - 1),
        ),
        max_size=8,
    ),
    max_size=6,
)


@given(packed_rows, st.integers(1, 20))
def test_packed_rows_come_out_as_they_went_in(batches, limit):
    store = FrameStore(limit)
    every: list[tuple[int, float, float, int, int]] = []
    for step, rows in enumerate(batches):
        columns = list(zip(*rows, strict=True)) or [(), (), (), ()]
        packed = [
            np.array(column, dtype).tobytes()
            for column, dtype in zip(columns, ("<u8", "<f4", "<f4", "<u4"), strict=True)
        ]
        record = Blocks(made.T0 + step, step, "retained", "r", *packed)
        assert store.append("blocks", [record], "lab") == len(rows)
        every += [(*row, step) for row in rows]
    names = ["hash", "age", "idle", "uses", "step"]
    delta = store.since("blocks", 0, columns=names)
    found = list(zip(*(delta.columns[name].tolist() for name in names), strict=True))
    expected = every[-limit:] if every else []
    assert delta.lost == len(every) - len(expected)
    assert len(found) == len(expected)
    for row, right in zip(found, expected, strict=True):
        for value, other in zip(row, right, strict=True):
            assert value == other or (math.isnan(value) and math.isnan(other))
