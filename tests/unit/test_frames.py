from __future__ import annotations

import random
import signal
import threading
from datetime import UTC, date, datetime, timedelta

import numpy as np
import pandas as pd
import pytest

from auxconn.frames import (
    DEFAULT_ROWS,
    MOST_ROWS,
    TAKE_IN_AT,
    FrameStore,
)
from auxconn.intake import INBOX_RECORDS, UNNAMED
from auxconn.records import TABLES, Steps, columns
from auxconn.sink import Sink, StoreSink
from auxconn.texts import NAME_LIMIT, TEXT_LIMIT
from tests.unit import stream_made as made


@pytest.fixture
def store() -> FrameStore:
    return FrameStore(100)


@pytest.mark.parametrize("table", TABLES)
def test_every_table_comes_back_as_pandas_with_the_dtypes_of_the_schema(store, table):
    store.append(table, [made.MAKERS[table](i) for i in range(3)], "lab", 2)
    frame = store.frame(table)
    assert list(frame.columns) == ["engine", "rank", *TABLES[table].__struct_fields__]
    assert len(frame) == (9 if table == "blocks" else 3)
    assert frame["engine"].dtype == pd.CategoricalDtype(pd.Index(["lab"], dtype="str"))
    assert frame["rank"].dtype == np.int32
    assert (frame["rank"] == 2).all()
    assert str(frame["t"].dtype) == "datetime64[ns, UTC]"
    for column in columns(table):
        if column.name == "t":
            continue
        if column.categories:
            kind = frame[column.name].dtype
            assert isinstance(kind, pd.CategoricalDtype)
            assert tuple(kind.categories) == column.categories
        else:
            assert frame[column.name].dtype == column.dtype
    # The same frame from a table's own method, and with nothing in it.
    pd.testing.assert_frame_equal(getattr(store, table)(), frame)
    empty = getattr(FrameStore(), table)()
    assert len(empty) == 0
    assert str(empty["t"].dtype) == "datetime64[ns, UTC]"
    assert list(empty.dtypes[2:]) == list(frame.dtypes[2:])


def test_values_arrive_as_they_were_sent(store):
    store.append("lookups", [made.lookups(i) for i in range(4)], "lab")
    frame = store.lookups()
    assert frame["request"].tolist() == [f"request-{i}" for i in range(4)]
    assert frame["query_tokens"].tolist() == [100, 101, 102, 103]
    assert frame["resumed"].tolist() == [False, True, False, True]
    assert frame["refusal"].tolist() == ["not_retained"] * 4
    assert frame["t"].iloc[1] == pd.Timestamp("2023-11-14 22:13:21", tz="UTC")


def test_times_keep_their_microseconds_and_impossible_ones_are_missing(store):
    marks = [made.events(0) for _ in range(4)]
    times = (1_700_000_000.123456, float("nan"), float("inf"), 1e300)
    for mark, t in zip(marks, times, strict=True):
        mark.t = t
    store.append("events", marks, "lab")
    found = store.events()["t"]
    assert found.iloc[0] == pd.Timestamp("2023-11-14 22:13:20.123456", tz="UTC")
    assert found.isna().tolist() == [False, True, True, True]


def test_a_record_of_blocks_becomes_a_row_for_each_block(store):
    assert store.append("blocks", [made.blocks(1, 2), made.blocks(2, 0)], "lab") == 2
    assert store.append("blocks", [made.blocks(3, 3, "retained", "x")], "lab") == 3
    frame = store.blocks()
    assert store.version("blocks") == len(frame) == 5
    assert frame["hash"].tolist() == [1000, 1001, 3000, 3001, 3002]
    assert frame["hash"].dtype == np.uint64
    assert frame["age"].tolist() == [1000.5, 1001.5, 3000.5, 3001.5, 3002.5]
    assert frame["idle"].tolist() == [1000.25, 1001.25, 3000.25, 3001.25, 3002.25]
    assert frame["uses"].tolist() == [1007, 1008, 3007, 3008, 3009]
    assert frame["event"].tolist() == ["released"] * 2 + ["retained"] * 3
    assert frame["request"].tolist() == ["r"] * 2 + ["x"] * 3


def test_since_gives_what_is_new_and_says_what_was_overwritten(store):
    store.append("steps", [made.steps(i) for i in range(30)], "lab")
    delta = store.since("steps", 0, columns=["step"])
    assert (delta.version, delta.lost, delta.rows, delta.cleared) == (30, 0, 30, False)
    assert store.since("steps", 30).rows == 0
    store.append("steps", [made.steps(i) for i in range(30, 180)], "lab")
    delta = store.since("steps", delta.version, columns=["step", "t", "engine"])
    assert (delta.version, delta.lost) == (180, 50)
    assert delta.columns["step"].tolist() == list(range(80, 180))
    assert delta.columns["t"].dtype == np.float64
    assert set(delta.columns["engine"]) == {"lab"}


def test_since_until_an_earlier_answer_leaves_out_what_came_after_it(store):
    store.append("steps", [made.steps(i) for i in range(30)], "lab")
    seen = store.since("steps", 20).version
    store.append("steps", [made.steps(i) for i in range(30, 60)], "lab")
    delta = store.since("steps", 10, columns=["step"], until=seen)
    assert (delta.version, delta.lost) == (30, 0)
    assert delta.columns["step"].tolist() == list(range(10, 30))
    delta = store.since("steps", 10, columns=["step"], until=seen, limit=5)
    assert delta.columns["step"].tolist() == list(range(25, 30))
    assert delta.lost == 15
    # By now all of it is overwritten.
    store.append("steps", [made.steps(i) for i in range(60, 200)], "lab")
    delta = store.since("steps", 10, until=seen)
    assert (delta.version, delta.rows, delta.lost) == (30, 0, 20)
    for until in (9, 201):
        with pytest.raises(ValueError, match=rf"until {until} of 'steps'.*10, to 200"):
            store.since("steps", 10, until=until)


def test_since_with_an_engine_and_a_limit(store):
    for i in range(20):
        store.append("lookups", [made.lookups(i)], f"engine-{i % 2}", i)
    delta = store.since("lookups", 5, engine="engine-1", limit=3)
    assert delta.columns["rank"].tolist() == [15, 17, 19]
    assert delta.lost == 5  # those of ranks 5, 7, 9, 11, 13
    assert delta.columns["refusal"].tolist() == ["not_retained"] * 3
    assert store.since("lookups", 0, engine="nobody").rows == 0
    assert store.since("lookups", 0, engine="engine-1", rank=7).rows == 1
    assert store.since("lookups", 0, engine="engine-1", rank=8).rows == 0
    assert store.since("lookups", 0, rank=8).columns["engine"].tolist() == ["engine-0"]
    assert store.tail("lookups", 5, rank=8).columns["rank"].tolist() == [8]
    assert store.lookups(engine="engine-0", rank=8)["step"].tolist() == [8]
    assert store.since("lookups", 0, limit=0).lost == 20
    tail = store.tail("lookups", 2, engine="engine-0", columns=["step"])
    assert tail.columns["step"].tolist() == [16, 18]
    assert store.tail("lookups", 3).columns["step"].tolist() == [17, 18, 19]
    assert store.tail("lookups", 1000).rows == 20


def test_frames_can_be_narrowed(store):
    for i in range(20):
        store.append("steps", [made.steps(i)], f"engine-{i % 2}")
    assert store.steps(engine="engine-1")["step"].tolist() == list(range(1, 20, 2))
    assert store.steps(last=2)["step"].tolist() == [18, 19]
    assert store.steps(last=2, engine="engine-0")["step"].tolist() == [16, 18]
    moment = datetime.fromtimestamp(made.T0, UTC) + timedelta(seconds=17)
    for since_t in (made.T0 + 17, moment, pd.Timestamp(moment)):
        frame = store.steps(since_t=since_t, columns=["step", "engine"])
        assert list(frame.columns) == ["step", "engine"]
        assert frame["step"].tolist() == [17, 18, 19]
    assert store.steps(engine="engine-1")["engine"].cat.categories.tolist() == [
        "engine-1"
    ]


def test_clearing_tells_readers_and_is_no_loss(store):
    store.append("steps", [made.steps(i) for i in range(10)], "lab")
    store.append("events", [made.events(0)], "lab")
    store.clear("steps")
    assert (store.version("steps"), store.kept("steps")) == (11, 0)
    assert store.kept("events") == 1
    # Also those who had seen every row, and only once.
    delta = store.since("steps", 10)
    assert (delta.version, delta.lost, delta.cleared, delta.rows) == (11, 0, True, 0)
    assert store.since("steps", 11).cleared is False
    delta = store.since("steps", 4)
    assert (delta.lost, delta.cleared, delta.rows) == (0, True, 0)
    store.append("steps", [made.steps(i) for i in range(150)], "lab")
    delta = store.since("steps", 4)
    assert (delta.lost, delta.cleared, delta.rows) == (50, True, 100)
    assert store.since("steps", delta.version).cleared is False
    store.clear()
    assert store.kept("events") == 0


def test_resizing_keeps_the_newest(store):
    store.append("steps", [made.steps(i) for i in range(90)], "lab")
    store.resize({"steps": 10})
    assert store.steps()["step"].tolist() == list(range(80, 90))
    assert store.limits["steps"] == 10
    assert store.limits["events"] == 100
    assert store.since("steps", 0).lost == 80
    store.resize(50)
    store.append("steps", [made.steps(i) for i in range(90, 120)], "lab")
    assert store.steps()["step"].tolist() == list(range(80, 120))


def test_each_table_can_have_its_own_number_of_rows():
    store = FrameStore({"events": 5})
    assert store.limits == dict.fromkeys(TABLES, DEFAULT_ROWS) | {"events": 5}


@pytest.mark.parametrize(
    "rows", [0, -1, MOST_ROWS + 1, 1.5, True, "many", {"steps": 0}]
)
def test_a_number_of_rows_that_cannot_be_is_refused(rows):
    with pytest.raises(ValueError, match="rows of 'steps'"):
        FrameStore(rows)


def test_names_that_do_not_exist_are_refused(store):
    with pytest.raises(ValueError, match="no table 'step'; the tables are steps"):
        store.version("step")
    with pytest.raises(ValueError, match="no column 'hits' in 'steps'"):
        store.since("steps", 0, columns=["hits"])
    with pytest.raises(ValueError, match="no table"):
        FrameStore({"nothing": 3})
    with pytest.raises(ValueError, match="no table"):
        store.clear("nothing")


def test_a_version_that_never_was_is_refused(store):
    store.append("steps", [made.steps(1)], "lab")
    for version in (-1, 2):
        with pytest.raises(ValueError, match=rf"version {version} of 'steps'.*0 to 1"):
            store.since("steps", version)


def test_negative_numbers_of_rows_and_naive_times_are_refused(store):
    for ask in (
        lambda: store.tail("steps", -1),
        lambda: store.since("steps", 0, limit=-1),
        lambda: store.frame("steps", last=-1),
    ):
        with pytest.raises(ValueError, match="-1 rows of 'steps'"):
            ask()
    with pytest.raises(ValueError, match="no time zone"):
        store.frame("steps", since_t=datetime(2026, 1, 1))  # noqa: DTZ001


@pytest.mark.parametrize(
    ("table", "change", "message"),
    [
        ("steps", {"retained": 1.5}, "steps.retained: takes int, not float"),
        ("steps", {"retained": float("nan")}, "steps.retained: takes int, not float"),
        ("steps", {"retained": None}, "steps.retained: takes int, not NoneType"),
        ("steps", {"retained": 2**63}, "steps.retained: "),
        ("steps", {"t": "now"}, "steps.t: takes float, not str"),
        ("lookups", {"request": 7}, "lookups.request: takes str, not int"),
        ("lookups", {"resumed": 1}, "lookups.resumed: takes bool, not int"),
        ("lookups", {"refusal": "mood"}, "lookups.refusal: 'mood' is none of ''"),
        ("blocks", {"age": b"1234"}, "blocks.age: holds another number of items"),
        (
            "blocks",
            {"hash": b"123"},
            "blocks.hash: holds bytes that are no whole number",
        ),
        ("blocks", {"uses": None}, "blocks.uses: "),
    ],
)
def test_a_value_that_does_not_fit_is_named_and_nothing_is_appended(
    store, table, change, message
):
    good, bad = made.MAKERS[table](1), made.MAKERS[table](2)
    for name, value in change.items():
        setattr(bad, name, value)
    with pytest.raises(ValueError, match=message):
        store.append(table, [good, bad], "lab")
    assert store.version(table) == 0


def test_records_of_another_table_are_refused(store):
    with pytest.raises(
        ValueError, match="steps takes records of type Steps, not Events"
    ):
        store.append("steps", [made.steps(1), made.events(1)], "lab")


def test_numbers_of_numpy_are_numbers(store):
    step = made.steps(1)
    step.retained, step.t = np.int32(5), np.float32(2.0)
    store.append("steps", [step], "lab")
    assert store.steps()["retained"].tolist() == [5]


def test_missing_is_allowed_where_the_schema_has_a_real_number(store):
    store.append("rows", [made.rows(1)], "lab")
    assert store.rows()["ms_commit"].isna().all()


def test_texts_of_any_length_take_bounded_memory(store):
    store.append("lookups", [made.lookups(1, "x" * 10_000)], "lab")
    store.append("events", [made.events(1, "y" * 10_000)], "lab")
    request = store.lookups()["request"].iloc[0]
    assert len(request) == NAME_LIMIT
    assert request == "x" * (NAME_LIMIT - 1) + "…"
    assert len(store.events()["text"].iloc[0]) == TEXT_LIMIT


def test_a_sink_shows_its_records_at_once_and_in_order(store):
    sink = StoreSink(store, "lab", 3)
    assert isinstance(sink, Sink)
    for i in range(5):
        sink.emit("steps", made.steps(i))
        sink.emit("lookups", made.lookups(i))
    assert store.version("steps") == 5
    frame = store.lookups()
    assert frame["step"].tolist() == list(range(5))
    assert set(frame["rank"]) == {3}
    assert set(frame["engine"]) == {"lab"}
    sink.hello({"block_size": 16}, ("pause",))
    assert (sink.facts, sink.commands) == ({"block_size": 16}, ("pause",))


def test_what_several_sinks_emit_in_turn_keeps_its_order_in_each_table(store):
    sinks = [StoreSink(store, name) for name in ("a", "b")]
    for i in range(20):
        sink = sinks[i // 3 % 2]
        sink.emit("steps", made.steps(i))
        if i % 2:
            sink.emit("lookups", made.lookups(i))
    assert store.steps()["step"].tolist() == list(range(20))
    assert store.lookups()["step"].tolist() == list(range(1, 20, 2))
    assert store.steps()["engine"].tolist() == [
        ("a", "b")[i // 3 % 2] for i in range(20)
    ]


def test_a_sink_never_raises_and_what_does_not_fit_is_told(store):
    sink = StoreSink(store, "lab")
    sink.emit("steps", made.steps(1))
    sink.emit("steps", made.events(1))
    sink.emit("nothing", made.steps(1))
    sink.emit(["steps"], made.steps(1))  # type: ignore[arg-type]
    sink.emit("steps", None)  # type: ignore[arg-type]
    sink.emit("steps", made.steps(2))
    assert store.steps()["step"].tolist() == [1, 2]
    assert store.rejected["steps"] == 2
    told = store.events()
    assert told["kind"].tolist() == ["error"] * 3
    assert told["text"].str.startswith("a record was rejected: ").all()
    assert sink.dropped == 1


def test_what_a_sink_is_told_of_never_raises(store):
    sink = StoreSink(store, "lab")
    sink.hello({"a": 1, "\ud800": "\ud800", "b": float("nan")}, ("pause",))
    assert sink.facts == {"a": 1, "?": "?", "b": None}
    for facts, commands in ((None, ()), ({}, None), (3, 4)):
        sink.hello(facts, commands)
    assert sink.facts == {"a": 1, "?": "?", "b": None}
    assert sink.commands == ("pause",)


def spoilt(table: str, **values: object) -> object:
    record = made.MAKERS[table](2)
    for name, value in values.items():
        setattr(record, name, value)
    return record


def without(table: str, name: str) -> object:
    record = made.MAKERS[table](2)
    delattr(record, name)
    return record


@pytest.mark.parametrize(
    ("table", "bad"),
    [
        ("steps", spoilt("steps", retained=2**63)),
        ("steps", spoilt("steps", retained=10**400)),
        ("steps", without("steps", "retained")),
        ("lookups", spoilt("lookups", refusal=["mood"])),
        ("lookups", spoilt("lookups", request=b"x")),
        ("blocks", spoilt("blocks", hash=b"123")),
    ],
)
def test_a_bad_record_costs_itself_alone(store, table, bad):
    sink = StoreSink(store, "lab", 1)
    good = made.MAKERS[table]
    for record in (good(1), bad, good(3)):
        sink.emit(table, record)
    assert sorted(set(store.frame(table)["step"])) == [1, 3]
    assert store.rejected == dict.fromkeys(TABLES, 0) | {table: 1}
    (told,) = store.events().itertuples()
    assert (told.kind, told.engine, told.rank) == ("error", "lab", 1)
    assert told.text.startswith(f"a record was rejected: {table}.")


UNNAMABLE = [
    ("lab", 2**31, "rank=2147483648: a whole number from 0 to 2147483647"),
    ("lab", -1, "rank=-1"),
    ("lab", None, "rank=None"),
    ("lab", 1.0, "rank=1.0"),
    ("\ud800", 0, r"engine='\\ud800': a name of at most 128 printable"),
    (7, 0, "engine=7"),
    ("x" * 129, 0, "129 characters, the limit is 128"),
]


@pytest.mark.parametrize(("engine", "rank", "wrong"), UNNAMABLE)
def test_a_source_that_cannot_be_named_is_refused_and_harms_no_reader(
    store, engine, rank, wrong
):
    with pytest.raises(ValueError, match=wrong):
        store.append("steps", [made.steps(1)], engine, rank)
    with pytest.raises(ValueError, match=wrong):
        StoreSink(store, engine, rank)
    assert store.version("events") == 0
    store.offer("steps", made.steps(1), engine, rank)
    store.offer("steps", made.steps(2), "lab", 0)
    assert store.steps()["step"].tolist() == [2]
    assert store.rejected["steps"] == 1
    (told,) = store.events(engine=UNNAMED)["text"]
    assert told.startswith("a record was rejected: ")


@pytest.mark.parametrize("records", [made.steps(1), 3, None])
def test_what_is_no_list_of_records_is_refused(store, records):
    with pytest.raises(ValueError, match="steps: give a list of records"):
        store.append("steps", records, "lab")


def test_records_may_come_from_a_generator(store):
    assert store.append("steps", (made.steps(i) for i in range(3)), "lab") == 3


@pytest.mark.parametrize("wrong", [1.5, "2", None, float("nan"), True])
def test_a_number_that_is_none_is_refused_by_its_value(store, wrong):
    asks = [
        lambda: store.tail("steps", wrong),
        lambda: store.since("steps", wrong),
        lambda: store.wait("steps", wrong, 0.0),
    ]
    if wrong is not None:
        asks += [
            lambda: store.since("steps", 0, limit=wrong),
            lambda: store.frame("steps", last=wrong),
        ]
    for ask in asks:
        with pytest.raises(ValueError, match=f"{wrong!r} is not a whole number"):
            ask()


@pytest.mark.parametrize("timeout", ["1", None, float("nan"), True])
def test_a_time_to_wait_that_is_none_is_refused(store, timeout):
    with pytest.raises(ValueError, match=r"timeout=.*: give a number of seconds"):
        store.wait("steps", 1, timeout)


def test_numbers_beyond_all_measure_are_refused_in_words(store):
    for ask in (
        lambda: store.since("steps", 10**5000),
        lambda: store.resize(10**5000),
        lambda: store.tail("steps", -(10**5000)),
    ):
        with pytest.raises(
            ValueError, match=r"'steps'.*(0 to 0|0 or more|between 1 and)"
        ):
            ask()
    assert store.tail("steps", 10**5000).rows == 0


def test_whole_numbers_of_numpy_are_whole_numbers(store):
    store.append("steps", [made.steps(i) for i in range(9)], "lab")
    assert store.tail("steps", np.int64(2)).columns["step"].tolist() == [7, 8]
    assert store.since("steps", np.uint8(7), limit=np.int32(1)).rows == 1
    store.resize(np.int64(5))
    assert store.steps(last=np.int64(9))["step"].tolist() == [4, 5, 6, 7, 8]


def test_names_that_are_none_are_refused_by_their_value(store):
    for table in (5, None, ["steps"], "\ud800"):
        with pytest.raises(ValueError, match=r"no table .*; the tables are steps"):
            store.tail(table, 1)
    with pytest.raises(ValueError, match="columns='step': give a list of names"):
        store.tail("steps", 1, columns="step")
    with pytest.raises(ValueError, match="columns=5: give a list of names"):
        store.frame("steps", columns=5)
    for engine in (5, ["lab"]):
        with pytest.raises(ValueError, match="give the name of an engine"):
            store.since("steps", 0, engine=engine)


@pytest.mark.parametrize(
    "since_t",
    [
        "2023-11-14 22:13:37",
        "2023-11-14T23:13:37+01:00",
        np.datetime64("2023-11-14T22:13:37"),
        np.float64(made.T0 + 17),
        int(made.T0) + 17,
    ],
)
def test_times_can_be_texts_which_are_of_utc(store, since_t):
    store.append("steps", [made.steps(i) for i in range(20)], "lab")
    assert store.steps(since_t=since_t)["step"].tolist() == [17, 18, 19]


def test_a_date_alone_is_its_midnight(store):
    store.append("steps", [made.steps(i) for i in (0, 3600, 7200)], "lab")
    for since_t in ("2023-11-15", date(2023, 11, 15)):
        assert store.steps(since_t=since_t)["step"].tolist() == [7200]
    assert len(store.steps(since_t="2020")) == 3


@pytest.mark.parametrize(
    "since_t",
    ["yesterday or so", "", "NaT", float("nan"), True, [1], pd.NaT, {}, 1j, 10**400],
)
def test_what_is_no_time_is_refused_by_its_value(store, since_t):
    with pytest.raises(ValueError, match=r"since_t=.*: .*(give seconds|time zone)"):
        store.steps(since_t=since_t)


def test_a_sink_does_not_wait_for_a_reader_that_holds_the_lock(store):
    store.resize(2 * INBOX_RECORDS)
    sink = StoreSink(store, "lab")
    step = made.steps(1)
    done = threading.Event()

    def engine() -> None:
        for _ in range(INBOX_RECORDS + 10):
            sink.emit("steps", step)
        done.set()

    with store._lock:
        thread = threading.Thread(target=engine)
        thread.start()
        assert done.wait(made.PATIENCE)
    thread.join()
    assert sink.dropped == 10
    assert store.version("steps") == INBOX_RECORDS


def test_a_sink_takes_in_what_it_offered_long_before_anybody_reads(store):
    sink = StoreSink(store, "lab")
    for i in range(10_000):
        sink.emit("steps", made.steps(i))
    assert len(store._inbox) < 1000


def test_waiting_ends_when_the_rows_are_there(store):
    sink = StoreSink(store, "lab")
    assert store.wait("steps", 0, timeout=0)
    assert not store.wait("steps", 1, timeout=0)
    outcome: list[bool] = []
    reader = threading.Thread(
        target=lambda: outcome.append(store.wait("steps", 3, made.PATIENCE))
    )
    reader.start()
    for i in range(3):
        sink.emit("steps", made.steps(i))
    reader.join(made.PATIENCE)
    assert outcome == [True]


def test_many_threads_write_and_read_without_losing_a_row():
    store = FrameStore(10_000)
    writers, each = 4, 500
    wrong: list[str] = []

    def write(rank: int) -> None:
        sink = StoreSink(store, f"engine-{rank}", rank)
        for i in range(each):
            if i % 2:
                sink.emit("steps", made.steps(i))
            else:
                store.append("steps", [made.steps(i)], f"engine-{rank}", rank)

    def read() -> None:
        version = seen = 0
        while seen < writers * each:
            delta = store.since("steps", version, columns=["rank", "step"])
            version, seen = delta.version, seen + delta.rows + delta.lost
            if delta.lost:
                wrong.append(f"lost {delta.lost}")

    threads = [threading.Thread(target=write, args=(i,)) for i in range(writers)]
    threads.append(threading.Thread(target=read))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(made.PATIENCE)
    assert wrong == []
    frame = store.steps()
    for rank in range(writers):
        mine = frame[frame["rank"] == rank]
        assert mine["step"].tolist() == list(range(each))
        assert set(mine["engine"]) == {f"engine-{rank}"}


def test_engines_of_a_long_life_take_bounded_memory(monkeypatch):
    monkeypatch.setattr("auxconn.rings.Names.LIMIT", 8)
    store = FrameStore(4)
    for i in range(100):
        store.append("steps", [made.steps(i)], f"engine-{i}")
    assert store.steps()["engine"].tolist() == [f"engine-{i}" for i in range(96, 100)]
    assert len(store._names.all()) == 8


def test_more_engines_than_can_be_told_apart_are_refused_by_name(monkeypatch):
    monkeypatch.setattr("auxconn.rings.Names.LIMIT", 3)
    store = FrameStore(100)
    for i in range(3):
        store.append("steps", [made.steps(i)], f"engine-{i}")
    with pytest.raises(ValueError, match=r"'engine-3'.*3 engines"):
        store.append("steps", [made.steps(3)], "engine-3")
    StoreSink(store, "engine-4").emit("steps", made.steps(4))
    assert store.rejected["steps"] == 1
    assert store.version("events") == 0


def test_a_full_ring_of_steps_takes_the_memory_of_its_columns():
    store = FrameStore({"steps": 10_000})
    step = [made.steps(1)]
    for _ in range(20):
        store.append("steps", step * 1000, "lab")
    fields = len(Steps.__struct_fields__)
    assert store._tables["steps"].ring.nbytes == 10_000 * (8 * fields + 2 + 4)


def test_a_finalizer_may_emit_while_the_store_is_written(store):
    """What runs when an object goes away runs anywhere, inside the store itself too."""
    sink = StoreSink(store, "lab")

    push = store._push

    def interrupted(*arguments: object) -> None:
        for _ in range(TAKE_IN_AT):
            sink.emit("steps", made.steps(2))
        push(*arguments)  # type: ignore[arg-type]

    store._push = interrupted  # type: ignore[method-assign]
    store.append("steps", [made.steps(1)], "lab")
    store._push = push  # type: ignore[method-assign]
    assert store.version("steps") == 1 + TAKE_IN_AT
    assert store.tail("steps", 100).columns["step"].tolist() == [2] * 100


def test_a_time_is_looked_for_in_all_rows_though_clocks_of_engines_disagree(store):
    for engine, numbers in ("a", (10, 40)), ("b", (5, 30)), ("a", (50, 20)):
        store.append("steps", [made.steps(i) for i in numbers], engine)

    def found(**how) -> list[int]:
        return store.steps(since_t=made.T0 + 30, **how)["step"].tolist()

    assert found() == [40, 30, 50]
    assert found(columns=["step"]) == [40, 30, 50]
    assert found(last=3) == [30, 50]
    assert found(engine="b") == [30]
    assert len(store.steps(since_t=made.T0 + 60)) == 0


def test_an_interrupt_at_any_moment_leaves_the_store_open():
    store = FrameStore(100)
    store.append("steps", [made.steps(1)], "lab")

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    draw = random.Random(0)
    try:
        for _ in range(300):
            try:
                signal.setitimer(signal.ITIMER_REAL, draw.uniform(2e-5, 6e-4))
                while True:
                    store.since("steps", 0, columns=("t",))
            except KeyboardInterrupt:
                assert store._lock.acquire(timeout=5)
                store._lock.release()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
