"""What crosses the wire: all of it arrives as it was, and nothing else has an effect."""

from __future__ import annotations

import math
import re
from typing import Any, get_args, get_type_hints

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from auxconn.buffers import Buffer
from auxconn.frames import FrameStore
from auxconn.records import SCHEMA_VERSION, TABLES, Blocks, columns
from auxconn.sources import Sources
from auxconn.texts import limit_of
from auxconn.wire import (
    Ack,
    Batch,
    Beat,
    Bye,
    Command,
    Hello,
    Progress,
    ToCollector,
    ToEngine,
    Welcome,
)
from tests.unit import stream_made as made

ENCODE = msgspec.msgpack.Encoder().encode
TO_COLLECTOR = msgspec.msgpack.Decoder(ToCollector)
TO_ENGINE = msgspec.msgpack.Decoder(ToEngine)

int64 = st.integers(-(2**63), 2**63 - 1)
fact = st.none() | st.booleans() | int64 | st.floats(allow_nan=False) | st.text()


def records_of(table: str) -> st.SearchStrategy[Any]:
    if table == "blocks":
        return st.builds(made.blocks, st.integers(0, 1000), st.integers(0, 20))
    kinds = {
        "int64": int64,
        "float64": st.floats(),
        "str": st.text(),
        "bool": st.booleans(),
    }
    values = [
        st.sampled_from(column.categories) if column.categories else kinds[column.dtype]
        for column in columns(table)
    ]
    return st.builds(TABLES[table], *values)


batches = st.builds(
    Batch,
    st.integers(1, 2**62),
    st.dictionaries(st.sampled_from(list(TABLES)), st.integers(0, 2**62)),
    **{table: st.lists(records_of(table), max_size=3) for table in TABLES},
)
to_collector = st.one_of(
    batches,
    st.builds(
        Hello,
        int64,
        st.text(),
        int64,
        st.text(),
        st.text(),
        st.dictionaries(st.text(), fact),
        st.lists(st.text()).map(tuple),
    ),
    st.builds(Beat, st.floats(allow_nan=False)),
    st.builds(Progress, st.text(), st.floats(allow_nan=False), st.text()),
    st.builds(Ack, int64, st.booleans(), st.text(), st.floats(allow_nan=False)),
    st.builds(Bye, st.text()),
)
to_engine = st.one_of(
    st.builds(Command, int64, st.text(), st.dictionaries(st.text(), fact)),
    st.builds(Welcome, int64, st.booleans(), st.text()),
)


def same(one: Any, other: Any) -> bool:
    """Equal, with NaN equal to itself."""
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    if isinstance(one, msgspec.Struct):
        return type(one) is type(other) and all(
            map(same, msgspec.structs.astuple(one), msgspec.structs.astuple(other))
        )
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


@given(to_collector)
def test_messages_to_a_collector_arrive_as_they_were(message):
    assert same(TO_COLLECTOR.decode(ENCODE(message)), message)


@given(to_engine)
def test_messages_to_an_engine_arrive_as_they_were(message):
    assert same(TO_ENGINE.decode(ENCODE(message)), message)


@given(batches)
def test_the_rows_of_a_batch_reach_the_frames_as_they_were(batch):
    store = FrameStore(100)
    for table in TABLES:
        rows = getattr(batch, table)
        if table == "blocks" or not rows:
            continue
        decoded = getattr(TO_COLLECTOR.decode(ENCODE(batch)), table)
        store.append(table, decoded, "lab", typed=True)
        delta = store.since(table, 0)
        for column in columns(table):
            found = delta.columns[column.name].tolist()
            for value, row in zip(found, rows, strict=True):
                right = getattr(row, column.name)
                if column.dtype == "str" and len(right) > limit_of(table, column.name):
                    assert value == right[: limit_of(table, column.name) - 1] + "…"
                else:
                    assert same(value, right)


def greeted(store: FrameStore) -> Sources:
    sources = Sources(store, clock=made.Clock(), wall=lambda: made.T0)
    sources.receive(b"p", ENCODE(Hello(SCHEMA_VERSION, "lab", 0, "engine", "one")))
    return sources


def mangled(message: Any, cuts: list[tuple[int, int]]) -> bytes:
    raw = bytearray(ENCODE(message))
    for place, byte in cuts:
        raw[place % len(raw)] = byte
    return bytes(raw)


cuts = st.lists(
    st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4
)
anything = st.binary(max_size=200) | st.builds(mangled, to_collector, cuts)


@given(st.lists(st.tuples(st.sampled_from([b"p", b"q"]), anything), max_size=10))
def test_no_bytes_do_harm(messages):
    store = FrameStore(50)
    sources = greeted(store)
    for peer, raw in messages:
        sources.receive(peer, raw)
        sources.tick()
    # It still hears: a source that is there, or one that comes now.
    answer = sources.receive(
        b"new", ENCODE(Hello(SCHEMA_VERSION, "new", 0, "engine", "new"))
    )
    assert answer is not None
    assert answer.accepted
    before = store.version("steps")
    sources.receive(b"new", ENCODE(Batch(1, steps=[made.steps(1)])))
    assert store.version("steps") == before + 1
    for table in TABLES:
        assert len(store.frame(table)) == store.kept(table) <= 50


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.integers(0, 3)), min_size=1)
)
def test_every_row_of_a_stream_is_there_or_counted(fates):
    """Each batch arrives or is lost, with rows dropped before it and rows in it."""
    store = FrameStore(10_000)
    sources = greeted(store)
    sent_dropped = sent_rows = lost_batches = pending = 0
    first = None
    for seq, (arrives, dropped, rows) in enumerate(fates, start=1):
        if not arrives:
            pending += 1
            continue
        first = seq if first is None else first
        lost_batches += 0 if first == seq else pending
        pending = 0
        sent_dropped, sent_rows = sent_dropped + dropped, sent_rows + rows
        steps = [made.steps(seq) for _ in range(rows)]
        sources.receive(b"p", ENCODE(Batch(seq, {"steps": dropped}, steps=steps)))
    sources.receive(b"p", ENCODE(Bye("done")))
    (source,) = sources.snapshot()
    assert source.rows == store.version("steps") == sent_rows
    assert source.rows_lost.get("steps", 0) == sent_dropped
    assert source.batches_lost == lost_batches
    assert source.batches_before == (first or 1) - 1
    told = store.events()
    texts = " ".join(told["text"][told["kind"] == "gap"])
    assert sum(map(int, re.findall(r"(\d+) batches lost", texts))) == lost_batches
    assert sum(map(int, re.findall(r"steps (\d+)", texts))) == sent_dropped


@given(
    st.integers(1, 50),
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 60)), max_size=20),
)
def test_every_row_of_a_buffer_is_taken_in_order_or_counted(capacity, turns):
    buffer = Buffer("blocks", capacity)
    put = taken = told = 0
    order: list[int] = []
    for step, (size, weight) in enumerate(turns):
        buffer.inbox.append(made.blocks(step, size))
        put += size
        buffer.gather()
        assert sum(weigh for weigh, _ in buffer._records) <= max(capacity, size + 1)
        records, lost = buffer.take(weight)
        told += lost
        taken += sum(len(record.hash) // 8 for record in records)
        order += [record.step for record in records]
    records, lost = buffer.take(10**9)
    told += lost
    taken += sum(len(record.hash) // 8 for record in records)
    order += [record.step for record in records]
    assert taken + told == put
    assert told == buffer.lost_total
    assert order == sorted(order)


def test_every_field_of_the_schema_can_be_sent():
    """Fields of records are scalars that msgpack has, in the order of the struct."""
    for struct in TABLES.values():
        for hint in get_type_hints(struct).values():
            assert hint in (int, float, str, bool, bytes) or get_args(hint)
    assert Batch.__struct_fields__[2:] == tuple(TABLES)
    assert Blocks.__struct_config__.array_like


TOLD_OF = [table for table in TABLES if table != "events"]
spoilt = st.sampled_from(["", "many", None, 2**63, 1.5, b"x", [], -(2**63)])
fates = st.tuples(st.sampled_from(TOLD_OF), st.booleans(), st.integers(0, 40), spoilt)


@given(st.lists(fates, max_size=12))
def test_every_record_of_a_batch_is_there_or_counted(fates):
    """Whatever stands in the place of one of its values, a record answers for itself."""
    store = FrameStore(100)
    sources = greeted(store)
    sent: dict[str, list[Any]] = {table: [] for table in TOLD_OF}
    sound = dict.fromkeys(TOLD_OF, 0)
    for step, (table, is_sound, place, value) in enumerate(fates):
        record = made.blocks(step, 1) if table == "blocks" else made.MAKERS[table](step)
        sound[table] += is_sound
        if not is_sound:
            names = record.__struct_fields__
            setattr(record, names[place % len(names)], value)
        sent[table].append(record)
    sources.receive(b"p", ENCODE(Batch(1, **sent)))
    (source,) = sources.snapshot()
    assert source.batches_lost == 0
    for table, records in sent.items():
        lost = source.rows_lost.get(table, 0)
        assert store.kept(table) + lost == len(records)
        assert lost <= len(records) - sound[table]
        assert len(store.frame(table)) == store.kept(table)
