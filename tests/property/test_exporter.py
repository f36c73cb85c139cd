"""Counters beside pandas: whatever is appended, wrapped, silent or started anew.

The store that is exported keeps few rows, and another one keeps them all. What the exporter
says of it must be what pandas adds up over the frames of the other.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pandas as pd
from hypothesis import example, given, settings
from hypothesis import strategies as st

from auxconn.exporter.account import Account
from auxconn.exporter.families import FAMILIES
from auxconn.frames import FrameStore
from auxconn.records import Blocks
from auxconn.source import Source
from tests.unit import stream_made as made

LIMIT = 24
"""Rows of each table in the store that is exported."""

KEYS = (("a", 0), ("a", 1), ("b", 0))
EVENTS = FAMILIES["block_events"].label_values
ENDS = FAMILIES["run_end"].label_values
REFUSALS = ("", *FAMILIES["refused_tokens"].label_values)
TABLES = ("lookups", "steps", "blocks", "requests")

ACTS = st.lists(
    st.tuples(
        st.sampled_from(KEYS),
        st.sampled_from(
            [*TABLES, *TABLES, "restart", "stale", "gone", "live", "forget"]
        ),
        st.integers(1, 4),
    ),
    min_size=1,
    max_size=60,
)
"""Who, what, and how many rows."""


def row(table: str, draw: np.random.Generator):
    """A row of a table, its numbers drawn."""

    def number(below: int = 5000) -> int:
        return int(draw.integers(0, below))

    def one_of(values):
        return values[number(len(values))]

    def seconds(count: int) -> bytes:
        values = draw.exponential(100.0, count)
        values[draw.random(count) < 0.2] = np.nan
        values[draw.random(count) < 0.1] = 1.0  # a bucket's very bound
        return values.astype("<f4").tobytes()

    if table == "blocks":
        count = 1 + number(6)
        uses = draw.integers(0, 100, count).astype("<u4").tobytes()
        hashes = bytes(8 * count)
        event = one_of(EVENTS)
        return Blocks(
            made.T0, 1, event, "r", hashes, seconds(count), seconds(count), uses
        )
    drawn = {
        "lookups": lambda: {
            "query_tokens": number(),
            "retained_hit": number(),
            "local_hit": number(),
            "external_accepted": number(),
            "external_refused": number(),
            "refusal": one_of(REFUSALS),
            "run_end_reason": one_of(ENDS),
            "attempts": 1 + number(70),
        },
        "steps": lambda: {
            "retained": number(),
            "capacity": number(),
            "ns_probe": number(10**9),
        },
        "requests": lambda: {
            "reason": one_of(["stopped", "aborted", 'a"b\n']),
            "first_scheduled": one_of([math.nan, made.T0 + 0.5]),
            "preemptions": number(3),
        },
    }[table]()
    return msgspec.structs.replace(made.MAKERS[table](1), **drawn)


class Life:
    """An exporter with few rows beside a store with all of them."""

    def __init__(self) -> None:
        self.few, self.all = FrameStore(LIMIT), FrameStore(100_000)
        self.there = {key: self.source(key, "1") for key in KEYS}
        self.account = Account(self.few, self)
        self.account.advance()
        self.begun: dict[tuple[tuple[str, int], str], int] = {}
        """Rows of a table at which the life that is counted now began."""
        self.before: dict[object, float] = {}

    @staticmethod
    def source(key: tuple[str, int], incarnation: str) -> Source:
        return Source(
            *key, "engine", incarnation, {}, (), "live", 0.0, 0.0, None, 0, {}, 0, 0, 0,
            "",
        )  # fmt: skip

    def sources(self) -> list[Source]:
        return list(self.there.values())

    def act(self, key, what, rows) -> None:
        if what in TABLES:
            self.few.append(what, rows, *key)
            self.all.append(what, rows, *key)
        elif what == "restart":
            self.there[key] = self.source(key, "2")
        elif what == "forget":
            # The collector drops it; when it comes back, its counters begin at 0.
            self.account.advance()
            del self.there[key]
            self.account.advance()
            for table in TABLES:
                self.begun[key, table] = len(self.frame(table, key))
            self.before = {
                name: value for name, value in self.before.items() if name[0] != key
            }
            self.there[key] = self.source(key, "3")
        else:
            self.there[key] = msgspec.structs.replace(self.there[key], state=what)
        with self.account.reading() as reading:
            for table in TABLES:
                for shown, numbers in reading.numbers[table].items():
                    assert self.there[shown].state == "live"
                    self.never_falls(shown, numbers)

    def never_falls(self, key, numbers) -> None:
        for metric, series in numbers.sums.items():
            for label, value in series.items():
                assert value >= self.before.get((key, metric, label), 0.0)
                self.before[key, metric, label] = value

    def frame(self, table: str, key: tuple[str, int]) -> pd.DataFrame:
        whole = self.all.frame(table, engine=key[0])
        return whole[whole["rank"] == key[1]]

    def check(self) -> None:
        assert not any(self.account.lost.values())
        with self.account.reading() as reading:
            for key in KEYS:
                for table in TABLES:
                    frame = self.frame(table, key).iloc[
                        self.begun.get((key, table), 0) :
                    ]
                    numbers = reading.numbers[table].get(key)
                    if self.there[key].state != "live" or frame.empty:
                        assert numbers is None
                    else:
                        CHECKS[table](frame, numbers)


@settings(max_examples=40)
@example([(KEYS[0], "blocks", 4), (KEYS[1], "lookups", 4)] * 30, 1)
@given(ACTS, st.integers(0, 2**32))
def test_the_numbers_are_those_of_pandas(acts, seed) -> None:
    draw = np.random.default_rng(seed)
    life = Life()
    for key, what, count in acts:
        rows = [row(what, draw) for _ in range(count)] if what in TABLES else []
        life.act(key, what, rows)
    life.check()


def same_spread(metric: str, numbers, values: pd.Series) -> None:
    """A histogram's counts are those of `pandas.cut`, and its sum is the sum."""
    values = values.dropna().astype("float64")
    if values.empty:
        assert metric not in numbers.spreads
        return
    family, spread = FAMILIES[metric], numbers.spreads[metric]
    edges = [-math.inf, *family.buckets, math.inf]
    expected = pd.cut(values, edges).value_counts(sort=False).to_numpy()
    assert spread.counts.tolist() == expected.tolist()
    assert math.isclose(spread.sum, values.sum(), rel_tol=1e-9, abs_tol=1e-12)


def check_lookups(frame: pd.DataFrame, numbers) -> None:
    sums = numbers.sums
    hit = frame.local_hit + frame.external_accepted
    assert sums["hit_tokens"] == {"": hit.sum()}
    assert sums["query_tokens"] == {"": frame.query_tokens.sum()}
    assert sums["lookups"] == {"": len(frame)}
    reached = hit + frame.external_refused
    rows = frame.retained_hit.clip(upper=frame.query_tokens)
    assert sums["rows_only_tokens"] == {"": (rows - reached).clip(lower=0).sum()}
    missed = frame.query_tokens - pd.concat([rows, reached], axis=1).max(axis=1)
    assert sums["missed_tokens"] == {"": missed.clip(lower=0).sum()}
    for reason in REFUSALS[1:]:
        mine = frame.external_refused[frame.refusal == reason].sum()
        assert sums["refused_tokens"][reason] == mine
    counts = frame.run_end_reason.value_counts()
    assert sums["run_end"] == {end: counts[end] for end in ENDS}
    same_spread("attempts", numbers, frame.attempts)
    same_spread("lookup_hit", numbers, hit)


def check_steps(frame: pd.DataFrame, numbers) -> None:
    newest = frame.iloc[-1]
    assert numbers.sums["steps_rate"] == {"": len(frame)}
    assert numbers.levels["retained"] == newest.retained
    assert numbers.levels["over_capacity"] == max(0, newest.retained - newest.capacity)
    same_spread("probe_cost", numbers, frame.ns_probe * 1e-9)


def check_blocks(frame: pd.DataFrame, numbers) -> None:
    counts = frame.event.value_counts()
    assert numbers.sums["block_events"] == {event: counts[event] for event in EVENTS}
    released = frame[frame.event == "released"]
    assert numbers.sums["released_rate"] == {"": len(released)}
    same_spread("release_age", numbers, released.age)
    same_spread("release_uses", numbers, released.uses)


def check_requests(frame: pd.DataFrame, numbers) -> None:
    assert numbers.sums["finish_reasons"] == frame.reason.value_counts().to_dict()
    assert numbers.sums["preemptions"] == {"": frame.preemptions.sum()}
    queued = frame.first_scheduled - frame.arrival
    same_spread("queue_time", numbers, queued)


CHECKS = {
    "lookups": check_lookups,
    "steps": check_steps,
    "blocks": check_blocks,
    "requests": check_requests,
}


@settings(max_examples=30)
@given(st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=20))
def test_a_number_that_cannot_be_makes_no_counter_fall(numbers) -> None:
    """An engine is outside text: what it says is negative adds nothing."""
    store = FrameStore(100)
    account = Account(store)
    last = 0.0
    for number in numbers:
        row = msgspec.structs.replace(made.rows(1), step_rows=number)
        store.append("rows", [row], "e")
        with account.reading() as reading:
            value = reading.numbers["rows"]["e", 0].sums["rows_step"][""]
        assert value == last + max(0, number)
        last = value
