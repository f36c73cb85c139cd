"""Several engines looked at together: their sums, their levels, and the lines side by side."""

import threading
import time

import numpy as np
import pytest

from auxconn.frames import FrameStore
from auxconn.records import Events
from auxconn_dashboard.crowd import FEW
from auxconn_dashboard.derive import PLANS
from auxconn_dashboard.hub import MOST_TOGETHER, Hub
from auxconn_dashboard.reader import About, CrowdReader, Reader
from auxconn_dashboard.session import live
from auxconn_dashboard.snapshot import Link, Window
from auxconn_dashboard.subjects import Subject
from auxconn_dashboard.together import ALL, _moved, joined_link, together
from auxconn_dashboard.views.engines import PAGE
from bench.feed import Feed
from tests.unit.test_hub import Engines, Source

START = 1_700_000_000.0
WINDOW = Window(60)
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture
def store():
    return FrameStore(50_000)


def fed(store, *engines, steps=500, rate=50.0):
    feeds = [
        Feed(store, engine=engine, rank=rank, start=START, rate=rate, seed=seed)
        for seed, (engine, rank) in enumerate(engines)
    ]
    for feed in feeds:
        feed.run(steps)
    return feeds


def parts_of(store, *engines, states=None, window=WINDOW):
    found = []
    for engine in engines:
        reader = Reader(store, engine)
        reader.advance()
        link = Link((states or {}).get(engine, "still"))
        found.append(reader.snapshot(window, About(link, {}, frozenset())))
    return found


class Levels:
    """Steps of one engine whose levels a test sets."""

    def __init__(self, store, engine):
        self.feed = Feed(FrameStore(10), engine=engine, start=START)
        self.store, self.engine = store, engine

    def step(self, t, retained, capacity=1000):
        record = next(one for table, one in self.feed._one() if table == "steps")
        record.t, record.retained, record.capacity = START + t, retained, capacity
        self.store.append("steps", [record], self.engine)

    def event(self, t, kind):
        self.store.append("events", [Events(START + t, 0, kind, kind)], self.engine)


def test_counters_are_the_sums_of_all_rows(store):
    fed(store, ("a", 0), ("a", 1), ("b", 0))
    seen = Hub(store).together((), WINDOW)
    whole = Reader(store, None)
    whole.advance()
    rows = whole.snapshot(WINDOW, About(Link("still"), {}, frozenset()))
    for table, plan in PLANS.items():
        assert seen.visible(table).rows.sum() == rows.visible(table).rows.sum()
        for name in plan.sums:
            assert seen.total(table, name) == rows.total(table, name), (table, name)
    lookups = store.lookups()
    hit = lookups["local_hit"].sum() + lookups["external_accepted"].sum()
    assert seen.total("lookups", "hit_tokens") == hit
    assert seen.rate("steps", "") == pytest.approx(150, rel=0.05)
    assert seen.totals["released"] == (store.blocks()["event"] == "released").sum()
    assert [part.name for part in seen.parts] == ["a · rank 0", "a · rank 1", "b"]


@pytest.mark.parametrize(
    "window", [Window(60), Window(30), Window(60, (START + 2, START + 5))]
)
def test_read_together_each_is_what_it_is_alone(store, window):
    feeds = fed(store, ("a", 0), ("a", 1), ("b", 0), steps=100)
    about = About(Link("still"), {}, frozenset())
    crowd = CrowdReader(store)
    alone = {}

    def look():
        crowd.advance()
        abouts = {}
        for feed in feeds:
            subject = Subject(feed.engine, feed.rank)
            abouts[subject] = about
            if subject not in alone:
                alone[subject] = Reader(store, *subject, clock=crowd._clock)
            alone[subject].advance()
        found = crowd.snapshots(window, abouts)
        return [(one, alone[one.subject].snapshot(window, about)) for one in found]

    for round_number in range(4):
        for number, feed in enumerate(feeds):
            # Not the same number, and never in step.
            feed.run(17 * (number + 1))
            feed.event("mark", f"round {round_number}")
        if round_number == 2:
            new = Feed(store, engine="c", start=feeds[0].t, seed=9)
            new.run(40)
            feeds.append(new)
        pairs = look()
        assert len(pairs) == len(feeds)
        for one, own in pairs:
            assert one.totals == own.totals
            assert one.events == own.events
            assert {**one.latest} == {
                table: {
                    name: value.item() if hasattr(value, "item") else value
                    for name, value in row.items()
                }
                for table, row in own.latest.items()
            }
            assert (one.end, one.rank) == (own.end, own.rank)
            for table in PLANS:
                mine = own.tables[table]
                theirs = _moved(one.tables[table], mine)
                np.testing.assert_array_equal(theirs.rows, mine.rows)
                for kind in ("sums", "low", "high", "last"):
                    for name, values in getattr(mine, kind).items():
                        np.testing.assert_allclose(
                            getattr(theirs, kind)[name],
                            values,
                            err_msg=f"{table}.{name}",
                        )


def test_only_those_chosen_are_added_up(store):
    fed(store, ("a", 0), ("b", 0), ("c", 0))
    hub = Hub(store)
    seen = hub.together(["a", "c"], WINDOW)
    rows = (
        store.rows(engine="a").step_rows.sum() + store.rows(engine="c").step_rows.sum()
    )
    assert seen.total("rows", "step_rows") == rows
    assert [one.engine for one in seen.summed] == ["a", "c"]
    assert len(seen.parts) == 3
    # Names that are not there any more choose nothing: all are shown instead of none.
    assert len(hub.together(["gone since"], WINDOW).summed) == 3
    assert seen.moved(("rows",)) != hub.together(["a", "b"], WINDOW).moved(("rows",))


def test_a_level_is_added_up_as_it_stood_at_each_moment(store):
    a, b = Levels(store, "a"), Levels(store, "b")
    for second in range(0, 60, 2):
        a.step(second + 0.5, retained=100 + second)
        b.step(second + 1.5, retained=50)
    seen = together(parts_of(store, "a", "b"))
    retained = seen.tables["steps"].last["retained"]
    known = retained[~np.isnan(retained)]
    # Never one engine alone, though they take turns.
    assert known.min() >= 150
    assert known[-1] == 158 + 50
    assert seen.level("steps", "retained") == 158 + 50
    assert seen.level("steps", "capacity") == 2000
    assert seen.tables["steps"].high["retained"][~np.isnan(retained)].max() == 208


def test_an_engine_that_is_gone_has_counted_and_stands_no_more(store):
    a, b = Levels(store, "a"), Levels(store, "b")
    for second in range(50):
        a.step(second, retained=100)
        if second < 20:
            b.step(second, retained=50)
    b.event(20, "stop")
    seen = together(parts_of(store, "a", "b", states={"b": "gone"}))
    assert seen.visible("steps").rows.sum() == 70
    assert seen.level("steps", "retained") == 100
    retained = seen.tables["steps"].last["retained"]
    start = seen.tables["steps"].start
    assert np.nanmax(retained[start > START + 21]) == 100
    assert np.nanmax(retained[start < START + 19]) == 150
    assert seen.link.state == "still"
    assert seen.link.text == "1 still, 1 gone"


def test_an_engine_without_a_step_in_the_window_stands_as_it_stood(store):
    a, b = Levels(store, "a"), Levels(store, "b")
    b.step(0, retained=70)
    for second in range(100, 200):
        a.step(second, retained=30)
    seen = together(parts_of(store, "a", "b", states={"a": "live", "b": "idle"}))
    retained = seen.tables["steps"].last["retained"]
    assert np.nanmin(retained) == np.nanmax(retained) == 100


def test_before_an_engine_came_it_is_not_counted(store):
    a, b = Levels(store, "a"), Levels(store, "b")
    for second in range(50):
        a.step(second, retained=10)
    b.event(30, "start")
    for second in range(31, 50):
        b.step(second, retained=5)
    steps = together(parts_of(store, "a", "b")).tables["steps"]
    retained = steps.last["retained"]
    assert np.nanmax(retained[steps.start < START + 30]) == 10
    assert np.nanmax(retained[steps.start > START + 31.5]) == 15


def test_engines_whose_windows_end_apart_are_added_up_by_the_clock(store):
    a, b = Levels(store, "a"), Levels(store, "b")
    for second in range(40):
        a.step(second, retained=10)
    for second in range(20):
        b.step(second, retained=5)
    seen = together(parts_of(store, "a", "b", states={"b": "gone"}))
    steps = seen.tables["steps"]
    assert seen.end == pytest.approx(START + 39)
    for second in range(40):
        inside = (steps.start >= START + second - 0.05) & (
            steps.start < START + second + 0.95
        )
        assert steps.rows[inside].sum() == (2 if second < 20 else 1)


def test_only_what_all_agree_on_is_said_of_all():
    hub = Hub(
        FrameStore(10),
        Engines(
            Source("a", facts={"vllm_version": "0.33.0", "block_size": 16}),
            Source("b", facts={"vllm_version": "0.33.0", "block_size": 32}),
        ),
    )
    seen = hub.together((), WINDOW)
    assert seen.facts == {"vllm_version": "0.33.0"}
    assert seen.commands == frozenset()
    assert all(part.commands for part in seen.parts)


def test_a_link_of_several_is_the_best_of_them_and_says_how_many_differ():
    links = [Link("stale", age=3), Link("live"), Link("gone"), Link("live", age=1)]
    assert joined_link(links) == Link("live", text="2 live, 1 stale, 1 gone")
    assert joined_link([Link("live")] * 2).text == ""


def test_no_more_engines_than_can_be_looked_at():
    store = FrameStore(1000)
    fed(store, *(("many", rank) for rank in range(MOST_TOGETHER + 6)), steps=2)
    assert len(Hub(store).together((), WINDOW).parts) == MOST_TOGETHER


class Page:
    """A page over several invented engines."""

    def __init__(self, *engines, **params):
        self.store = FrameStore(50_000)
        self.feeds = [
            Feed(
                self.store, engine=engine, rank=rank, start=time.time() - 20, seed=seed
            )
            for seed, (engine, rank) in enumerate(engines)
        ]
        self.run(500)
        self.dashboard = live(Hub(self.store), start=False, **params)
        self.tick()

    def run(self, steps):
        for feed in self.feeds:
            feed.run(steps)

    def tick(self):
        self.dashboard._drawn = 0.0
        self.dashboard.tick()
        assert self.dashboard.failures == 0, self.dashboard.problem

    def read(self):
        """Tick until what the thread reads is drawn."""
        end = time.monotonic() + 20
        while not self.dashboard.snapshot.parts:
            assert time.monotonic() < end
            self.tick()

    def say(self, **said):
        self.dashboard.engines.ask(said)

    @property
    def lines(self):
        return self.dashboard.engines.source.shown["rows"]

    @property
    def names(self):
        return [line["name"] for line in self.lines]

    def card(self, key):
        found = self.dashboard.indicators.source.shown["cards"]
        return next(card for card in found if card["key"] == key)


def test_one_engine_has_no_line_beside_others():
    page = Page(("a", 0))
    assert not page.dashboard.engines.root.visible
    assert page.dashboard.bar.shown["engines"] == []


def test_the_page_goes_from_one_to_all_and_back():
    page = Page(("a", 0), ("b", 0), engine="a")
    choices = page.dashboard.bar.shown["engines"]
    assert choices == [[ALL, "all 2, side by side"], ["a", "a"], ["b", "b"]]
    one = page.card("hits")["amount"]
    page.dashboard.bar.on_message({"action": "engine", "value": ALL})
    assert page.dashboard.engines.root.visible
    assert page.names == ["a", "b"]
    assert page.lines[0]["figures"][0]["key"] == "hits"
    assert page.dashboard.bar.shown["engine"] == ALL
    lookups = page.store.lookups()
    assert str(len(lookups)) in page.dashboard.lookups.source.shown["count"].replace(
        ",", ""
    )
    assert {row["engine"] for row in page.dashboard.lookups.source.shown["rows"]} <= {
        "a",
        "b",
    }
    page.say(look="a")
    assert page.dashboard.engine == "a"
    assert not page.dashboard.engines.root.visible
    assert page.card("hits")["amount"] == one
    assert not page.dashboard.lookups.source.shown["several"]


def test_ticks_choose_what_is_added_up():
    page = Page(("a", 0), ("b", 0), ("c", 0), engine=ALL)
    page.say(tick="b")
    assert page.dashboard.only == ["a", "c"]
    assert [line["on"] for line in page.lines] == [True, False, True]
    assert page.dashboard.engines.source.shown["ticked"] == "2 of 3"
    assert set(page.dashboard.lookups.log._subjects) == {("a", 0), ("c", 0)}
    page.say(tick="b")
    assert page.dashboard.only == []
    for name in "abc":
        page.say(tick=name)
    # Of nothing there is nothing to see.
    assert page.dashboard.only == []
    page.say(tick="a")
    page.say(all=True)
    assert page.dashboard.only == []


def test_lines_are_sorted_by_what_one_asks_for_and_turned():
    page = Page(*(("many", rank) for rank in range(PAGE + 5)), engine=ALL)
    page.read()
    first = [f"many · rank {rank}" for rank in range(PAGE)]
    assert page.names == first
    page.say(page=1)
    assert len(page.names) == 5
    page.say(sort="hits")
    shares = [line["figures"][0]["value"] for line in page.lines]
    assert shares == sorted(shares, key=float, reverse=True)
    page.say(sort="hits")
    shares = [line["figures"][0]["value"] for line in page.lines]
    assert shares == sorted(shares, key=float)
    page.say(sort="no such column", page=99)
    page.say(page=99)
    assert len(page.names) == 5


def test_a_figure_has_one_scale_in_all_lines():
    page = Page(("a", 0), ("b", 0), engine=ALL)
    for column in zip(*(line["figures"] for line in page.lines), strict=True):
        (top,) = {figure["top"] for figure in column}
        assert all(
            value is None or value <= top for f in column for value in f["spark"]
        )


def test_a_hostile_name_is_text():
    page = Page((HOSTILE, 0), ("b", 0), engine=ALL)
    assert HOSTILE in page.names
    page.say(tick="b")
    assert page.dashboard.only == [HOSTILE]
    page.say(look="nobody")
    assert page.dashboard.engine == ALL


def test_a_paused_view_of_all_reads_on_and_counts_what_it_missed():
    page = Page(("a", 0), ("b", 0), engine=ALL)
    page.dashboard.act("pause")
    page.run(100)
    page.tick()
    assert "200 steps behind" in page.dashboard.bar.shown["more"]
    page.dashboard.act("pause")
    assert page.dashboard.snapshot.totals["steps"] == 1200


def test_all_together_are_not_steered():
    page = Page(("a", 0), ("b", 0), engine=ALL)
    assert all(page.dashboard.controls.widgets[name].disabled for name in ("capacity",))


def test_many_are_read_by_a_thread_and_the_page_draws_what_was_read_last():
    page = Page(*(("many", rank) for rank in range(FEW + 1)), engine=ALL)
    dashboard = page.dashboard
    first = dashboard.snapshot
    assert first.name == ALL
    assert first.parts or first.link.text == f"reading {FEW + 1} engines"
    crowd = dashboard.hub._crowd
    page.read()
    assert len(page.lines) == FEW + 1
    # Other ticks are drawn at once, of what is there.
    page.say(tick="many · rank 0")
    assert len(dashboard.snapshot.summed) == FEW
    assert [line["on"] for line in page.lines][:2] == [False, True]
    page.say(all=True)
    end = time.monotonic() + 20
    # It rests in between, and what was read is drawn meanwhile.
    drawn, crowd._rested = dashboard.snapshot, time.monotonic() + 60
    page.run(10)
    page.tick()
    assert dashboard.snapshot is drawn
    crowd._rested = 0.0
    while dashboard.snapshot is drawn:
        assert time.monotonic() < end
        page.tick()
    assert dashboard.snapshot.totals["steps"] == 510 * (FEW + 1)
    dashboard.hub.close()
    page.tick()


def test_what_fails_in_the_thread_is_told_by_the_page():
    page = Page(*(("many", rank) for rank in range(FEW + 1)), engine=ALL)
    dashboard, crowd = page.dashboard, page.dashboard.hub._crowd

    def fail(*_):
        raise ZeroDivisionError("a fault of the reading")

    crowd._under_way.result(20)
    crowd._about, crowd._rested = fail, 0.0
    end = time.monotonic() + 20
    while "a fault of the reading" not in dashboard.bar.shown["more"]:
        assert time.monotonic() < end
        dashboard._drawn = 0.0
        dashboard.tick()
    dashboard.hub.close()


def test_a_hub_is_closed_while_the_thread_reads():
    page = Page(*(("many", rank) for rank in range(FEW + 1)), engine=ALL)
    crowd = page.dashboard.hub._crowd
    reading, go_on = threading.Event(), threading.Event()
    about = crowd._about

    def slow(*args):
        reading.set()
        assert go_on.wait(20)
        return about(*args)

    crowd._under_way.result(20)
    crowd._about, crowd._rested = slow, 0.0
    page.tick()
    assert reading.wait(20)
    closing = threading.Thread(target=page.dashboard.hub.close)
    closing.start()
    go_on.set()
    closing.join(20)
    assert not closing.is_alive()
