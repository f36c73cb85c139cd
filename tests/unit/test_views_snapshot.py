"""A snapshot says what the frames say, for the stretch it shows."""

import time

import numpy as np
import pytest

from auxconn.frames import FrameStore
from auxconn.records import Lookups
from auxconn_dashboard.hub import Hub
from auxconn_dashboard.reader import UNWATCHED_SECONDS, About, Reader
from auxconn_dashboard.snapshot import (
    COARSE,
    FINE,
    Link,
    Window,
)
from bench.feed import Feed

START = 1_700_000_000.0


@pytest.fixture
def store():
    return FrameStore(50_000)


def reader_of(store, steps=2000, **how):
    feed = Feed(store, start=START, **how)
    feed.run(steps)
    reader = Reader(store, feed.engine)
    reader.advance()
    return feed, reader


def shown(reader, window, state="still"):
    return reader.snapshot(window, About(Link(state), {}, frozenset()))


def test_counters_of_a_window_that_holds_everything_are_the_frames_sums(store):
    feed, reader = reader_of(store)
    snapshot = shown(reader, Window(60))
    lookups = store.lookups(engine="lab")
    tokens = lookups[["query_tokens", "local_hit", "external_accepted"]].sum()
    assert snapshot.total("lookups", "query_tokens") == tokens["query_tokens"]
    assert snapshot.total("lookups", "local_hit") == tokens["local_hit"]
    assert (
        snapshot.total("lookups", "hit_tokens")
        == tokens["local_hit"] + (tokens["external_accepted"])
    )
    rows = store.rows()
    assert snapshot.total("rows", "store_rows") == rows["store_rows"].sum()
    events = store.blocks()["event"].value_counts()
    assert snapshot.total("blocks", "released") == events["released"]
    assert snapshot.totals["released"] == events["released"]
    assert snapshot.end == pytest.approx(feed.t)


def test_every_looked_up_token_is_in_exactly_one_band(store):
    _, reader = reader_of(store)
    table = shown(reader, Window(60)).visible("lookups")
    bands = ["local_hit", "external_accepted", "retained_unused", "missed"]
    bands += [
        f"refused_{reason}" for reason in ("unaligned", "not_retained", "last_token")
    ]
    whole = np.sum([table.sums[band] for band in bands], axis=0)
    np.testing.assert_array_equal(whole, table.sums["query_tokens"])


def test_rows_retained_without_kv_are_told_from_misses(store):
    one = Lookups(START, 1, "r", 100, 100, False, 10, 70, 20, 30, 0, 30, "not_retained",
                  50, "evicted", 1)  # fmt: skip
    store.append("lookups", [one], "lab")
    reader = Reader(store, "lab")
    reader.advance()
    table = shown(reader, Window(30))
    assert table.total("lookups", "refused_not_retained") == 30
    # 70 tokens have rows: 20 hit, 30 were offered and refused, 20 nobody offered.
    assert table.total("lookups", "retained_unused") == 20
    assert table.total("lookups", "missed") == 30
    assert table.total("lookups", "missed_evicted") == 50


def test_levels_keep_the_spike_of_a_single_step(store):
    feed, reader = reader_of(store, steps=100)
    highest = store.steps()["loading_blocks"].max()
    feed.run(15_000)
    reader.advance()
    snapshot = shown(reader, Window(3600))
    loading = store.steps()["loading_blocks"]
    assert np.nanmax(snapshot.tables["steps"].high["loading_blocks"]) == loading.max()
    assert highest <= loading.max()


def test_a_window_is_whole_bars_and_ends_at_the_newest_row(store):
    feed, reader = reader_of(store)
    snapshot = shown(reader, Window(30))
    table = snapshot.tables["steps"]
    assert len(table) == FINE
    assert len(table) % COARSE == 0
    assert table.start[0] == pytest.approx(snapshot.start, abs=table.width * COARSE)
    assert table.start[-1] >= feed.t - table.width * COARSE
    assert snapshot.end - snapshot.start == pytest.approx(30)


def test_a_pinned_window_is_finer_and_has_room_on_both_sides(store):
    feed, reader = reader_of(store)
    stretch = (feed.t - 20, feed.t - 10)
    snapshot = shown(reader, Window(60, stretch))
    table = snapshot.tables["steps"]
    assert (snapshot.start, snapshot.end) == stretch
    assert table.width == pytest.approx(10 / FINE)
    assert table.start[0] <= feed.t - 30 + table.width * COARSE
    assert table.start[-1] >= feed.t - table.width * COARSE
    steps = store.steps()
    t = steps["t"].astype("int64") / 1e9 if steps["t"].dtype.kind == "M" else steps["t"]
    first = snapshot.visible("steps").start[0]
    last = snapshot.visible("steps").start[-1] + table.width
    mine = steps[(t >= first) & (t < last)]
    assert snapshot.visible("steps").rows.sum() == pytest.approx(len(mine), abs=1)


def test_a_pinned_window_stands_still_while_rows_come(store):
    feed, reader = reader_of(store)
    window = Window(60, (feed.t - 20, feed.t - 10))
    before = shown(reader, window)
    feed.run(500)
    reader.advance()
    after = shown(reader, window)
    for name, values in before.tables["steps"].last.items():
        inside = slice(FINE, 2 * FINE)
        np.testing.assert_array_equal(
            values[inside], after.tables["steps"].last[name][inside]
        )


def test_rates_are_of_the_last_seconds_and_never_zero_for_unknown(store):
    _, reader = reader_of(store)
    snapshot = shown(reader, Window(60))
    assert snapshot.rate("steps", "") == pytest.approx(50, rel=0.05)
    rows = store.rows().tail(250)
    delivered = (rows["step_rows"] + rows["store_rows"] + rows["tail_rows"]).sum()
    assert snapshot.rate("rows", "rows") == pytest.approx(delivered / 5, rel=0.1)
    empty = Reader(FrameStore(10), "lab")
    assert shown(empty, Window(60)).rate("blocks", "released") is None


def test_releases_are_zero_only_while_the_engine_steps(store):
    _, reader = reader_of(store, steps=300, capacity=10_000)
    assert shown(reader, Window(60)).rate("blocks", "released") == 0.0


def test_engines_are_read_apart(store):
    Feed(store, engine="a", start=START).run(100)
    Feed(store, engine="b", start=START).run(50)
    readers = {name: Reader(store, name) for name in "ab"}
    for name, steps in (("a", 100), ("b", 50)):
        readers[name].advance()
        assert shown(readers[name], Window(60)).tables["steps"].rows.sum() == steps


def test_what_was_cleared_is_gone_from_the_page(store):
    feed = Feed(store, start=START)
    feed.run(500)
    hub = Hub(store)
    before = hub.snapshot("lab", Window(60))
    assert before.level("steps", "retained") is not None
    hub.clear()
    after = hub.snapshot("lab", Window(60))
    assert after.level("steps", "retained") is None
    assert not after.tables["steps"].rows.any()
    assert after.moved(("steps",)) != before.moved(("steps",))


def test_rows_overwritten_before_they_were_read_are_counted(store):
    small = FrameStore(100)
    feed = Feed(small, start=START)
    feed.run(50)
    reader = Reader(small, "lab")
    reader.advance()
    feed.run(300)
    reader.advance()
    assert shown(reader, Window(60)).lost["steps"] == 200


def test_time_goes_on_while_an_engine_runs_and_stands_still_when_it_is_lost(store):
    feed = Feed(store, start=time.time() - 2)
    feed.run(50)
    reader = Reader(store, "lab")
    reader.advance()
    assert reader.standing.end(Link("live"), time.time()) == pytest.approx(
        time.time(), abs=0.5
    )
    for state in ("paused", "stale", "gone", "still"):
        assert reader.standing.end(Link(state), time.time()) == pytest.approx(feed.t)


def test_the_clock_of_an_engine_elsewhere_is_followed(store):
    feed = Feed(store, start=time.time() + 3600)
    feed.run(50)
    reader = Reader(store, "lab")
    reader.advance()
    assert reader.standing.end(Link("live"), time.time()) == pytest.approx(
        feed.t, abs=0.5
    )


def test_a_window_nobody_looks_at_is_forgotten(store, monkeypatch):
    _, reader = reader_of(store, steps=50)
    for seconds in (30, 60, 300):
        shown(reader, Window(seconds))
    assert len({width for _, width, _ in reader._rollups}) == 3
    now = time.monotonic()
    monkeypatch.setattr("time.monotonic", lambda: now + 100)
    shown(reader, Window(60))
    assert len({width for _, width, _ in reader._rollups}) == 1


def test_a_forgotten_window_is_built_anew_from_the_rows_kept(store, monkeypatch):
    _, reader = reader_of(store, steps=500)
    before = shown(reader, Window(60)).total("lookups", "query_tokens")
    now = time.monotonic()
    monkeypatch.setattr("time.monotonic", lambda: now + 100)
    shown(reader, Window(30))
    assert shown(reader, Window(60)).total("lookups", "query_tokens") == before


def test_what_is_overwritten_while_nobody_looks_is_no_loss(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("auxconn_dashboard.reader.time.monotonic", lambda: clock[0])
    store = FrameStore(50)
    feed = Feed(store)
    reader = Reader(store, "lab", clock=lambda: feed.t)
    feed.run(10)
    reader.advance()

    def lost():
        snapshot = reader.snapshot(Window(60), About(Link("live"), {}, frozenset()))
        return snapshot.lost["steps"]

    clock[0] += 1
    feed.run(80)
    reader.advance()
    assert lost() == 30
    clock[0] += UNWATCHED_SECONDS + 1
    feed.run(80)
    reader.advance()
    assert lost() == 30
