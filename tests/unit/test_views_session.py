"""A page's session: ticks, pause, zoom, theme, faults, and what is left when it ends."""

import gc
import json
import time
import weakref

import bokeh.document
import pytest
from panel.io import state
from pyviz_comms import Comm

from auxconn.frames import FrameStore
from auxconn_dashboard import session
from auxconn_dashboard.hub import Hub
from auxconn_dashboard.session import (
    MOST_FAILURES,
    MOST_UNHEARD,
    PLOTS,
    hub_of,
    live,
    open_sessions,
)
from bench.feed import Feed


class Page:
    """A page over an invented engine that ticks when the test says so."""

    def __init__(self, **params):
        self.store = FrameStore(20_000)
        self.feed = Feed(self.store, start=time.time() - 20)
        self.hub = Hub(self.store)
        self.dashboard = live(self.hub, start=False, **params)

    def tick(self, steps=25):
        self.feed.run(steps)
        self.dashboard._drawn = 0.0
        self.dashboard.tick()
        assert self.dashboard.failures == 0, self.dashboard.problem
        return self.dashboard


@pytest.fixture
def page():
    made = Page()
    yield made
    made.dashboard.close()


def shown_steps(dashboard):
    return dashboard.snapshot.versions["steps"]


def test_a_tick_shows_what_has_come(page):
    dashboard = page.tick(500)
    assert shown_steps(dashboard) == 500
    assert dashboard.bar.shown["word"] == "frames only"
    page.tick(100)
    assert shown_steps(dashboard) == 600
    assert dashboard.plots["retained"].source.data["x"][-1] > 0


def test_the_view_is_drawn_no_faster_than_it_is_asked_to(page):
    dashboard = page.dashboard
    dashboard.refresh = 5.0
    dashboard.tick()
    for _ in range(3):
        dashboard.tick()
    assert dashboard.draws == 1
    assert dashboard.ticks == 4


def test_a_paused_view_stands_still_and_the_reading_goes_on(page):
    dashboard = page.tick(500)
    dashboard.act("pause")
    before = dashboard.plots["retained"].source.data
    page.tick(200)
    assert shown_steps(dashboard) == 500
    assert dashboard.plots["retained"].source.data is before
    assert "200 steps behind" in dashboard.bar.shown["more"]
    dashboard.act("pause")
    assert shown_steps(dashboard) == 700
    assert dashboard.snapshot.lost.get("steps", 0) == 0


def test_a_hidden_tab_is_not_drawn_for_and_catches_up_when_it_is_seen(page):
    dashboard = page.tick(500)
    drawn = dashboard.draws
    dashboard.bar.on_message({"action": "seen", "value": False})
    page.tick(100)
    page.tick(100)
    assert dashboard.draws == drawn
    dashboard.bar.on_message({"action": "seen", "value": True})
    dashboard.tick()
    assert dashboard.draws == drawn + 1
    assert shown_steps(dashboard) == 700


def test_a_view_whose_cell_is_gone_ticks_no_more(page):
    dashboard = page.tick(10)
    dashboard.layout.root._models["cell"] = (None, None)
    dashboard._push()
    assert dashboard in session._open
    del dashboard.layout.root._models["cell"]
    dashboard._push()
    assert dashboard not in session._open


class Wire(Comm):
    """A notebook's comm that is open; keeps what is sent."""

    def __init__(self):
        super().__init__()
        self._comm, self.sent = True, []

    def send(self, data=None, metadata=None, buffers=()):
        assert not buffers
        self.sent.append(data)


@pytest.fixture
def wire(page):
    """The page is below a notebook's cell, and what it sends is kept."""
    dashboard, made = page.dashboard, Wire()
    document = bokeh.document.Document()
    document.hold()
    root = dashboard.layout.root.get_root(document, comm=made)
    ref = root.ref["id"]
    state._views[ref] = (dashboard.layout.root, root, document, made)
    dashboard.layout.root._comms[ref] = (made, made)
    document.add_root(root)
    document.callbacks._held_events = []
    yield made
    del state._views[ref]


def test_a_drawing_below_a_cell_is_three_messages_whatever_it_changes(page, wire):
    page.tick(500)
    assert len(wire.sent) == 3
    changed = json.loads(wire.sent[2])["events"]
    assert len(changed) > 20
    page.tick(100)
    assert len(wire.sent) == 6
    # Nothing has changed, so there is nothing to say but that somebody is there.
    page.tick(0)
    assert len(wire.sent) == 9
    assert len(json.loads(wire.sent[-1])["events"]) < len(changed)


def test_a_fault_is_told_below_a_cell_too(page, wire):
    page.tick(500)

    def fail(*_):
        raise ZeroDivisionError("a fault of a view")

    page.dashboard.indicators.update = fail
    page.dashboard._drawn = 0.0
    page.dashboard.tick()
    assert "a fault of a view" in wire.sent[-1]


class Document:
    """A served page's document, as far as its browser's connection goes."""

    def __init__(self):
        self.session_context = self.session = self
        self.connection_count = 1


def test_a_browser_that_is_gone_is_not_drawn_for_and_finds_all_when_it_is_back(page):
    dashboard = page.tick(100)
    dashboard._document = document = Document()
    document.connection_count = 0
    drawn, sent = dashboard.draws, dashboard.bar.sent
    page.tick(100)
    assert (dashboard.draws, dashboard.bar.sent) == (drawn, sent)
    page.tick(100)
    document.connection_count = 1
    dashboard.tick()
    assert dashboard.draws == drawn + 1
    assert shown_steps(dashboard) == 300


def test_a_browser_that_stands_still_is_sent_no_more_until_it_has_caught_up(page):
    dashboard = page.dashboard
    dashboard._document, dashboard._page = Document(), True
    for _ in range(3 * MOST_UNHEARD):
        page.tick(1)
    assert dashboard.draws == dashboard.bar.sent == MOST_UNHEARD
    # It answers every fifth beat, so the last answer may be some beats old.
    dashboard.bar.on_message({"action": "heard", "value": MOST_UNHEARD // 5 * 5})
    page.tick(1)
    assert dashboard.draws == MOST_UNHEARD + 1
    assert shown_steps(dashboard) == 3 * MOST_UNHEARD + 1
    # One that answers is never held up, whatever it claims to have heard.
    dashboard.bar.on_message({"action": "heard", "value": 10**9})
    assert dashboard.bar.heard == dashboard.bar.sent


def test_a_zoom_survives_ticks_and_ends_when_it_is_released(page):
    dashboard = page.tick(500)
    stretch = (page.feed.t - 6, page.feed.t - 3)
    dashboard.axis.range.tags = ["pinned", stretch[0] * 1000, stretch[1] * 1000]
    for _ in range(5):
        page.tick()
        assert dashboard.snapshot.window.pinned == pytest.approx(stretch)
        assert dashboard.axis.range.tags[0] == "pinned"
    assert dashboard.bar.shown["zoomed"] == pytest.approx(list(stretch))
    dashboard.act("release")
    page.tick()
    assert dashboard.snapshot.window.pinned is None
    assert dashboard.bar.shown["zoomed"] is None


def test_a_zoom_into_a_paused_view_looks_closer_and_stays_paused(page):
    dashboard = page.tick(500)
    dashboard.act("pause")
    held = dashboard.snapshot
    dashboard._pin((page.feed.t - 6, page.feed.t - 3))
    assert dashboard.snapshot is held
    x = dashboard.plots["retained"].source.data["x"]
    assert (x[-1] - x[0]) / 1000 < 10


def test_another_stretch_of_time_is_drawn_at_once(page):
    dashboard = page.tick(500)
    dashboard.bar.on_message({"action": "window", "value": 300})
    assert dashboard.snapshot.window.seconds == 300
    assert dashboard.bar.shown["window"] == 300
    dashboard.bar.on_message({"action": "window", "value": 7})
    assert dashboard.window == 300


def test_the_theme_is_everybodys_own(page):
    other = live(page.hub, start=False)
    page.dashboard.act("theme")
    assert page.dashboard.theme == "dark"
    assert "ac-dark" in page.dashboard.layout.root.css_classes
    assert page.dashboard.plots["hits"].figure.background_fill_color == "#181D25"
    assert other.theme == "light"
    assert "ac-dark" not in other.layout.root.css_classes
    page.dashboard.bar.on_message({"action": "prefers", "value": "no such theme"})
    assert page.dashboard.theme == "dark"
    other.close()


def test_a_tick_that_fails_is_shown_and_does_not_stop_the_page(page, monkeypatch):
    dashboard = page.tick(100)

    def fail(*_):
        raise ValueError("<b>broken</b>")

    monkeypatch.setattr(dashboard.reasons, "update", fail)
    page.feed.run(10)
    dashboard._drawn = 0.0
    dashboard.tick()
    assert dashboard.failures == 1
    assert "ValueError: <b>broken</b>" in dashboard.bar.shown["more"]
    assert dashboard.events.source.shown["rows"] == []
    assert dashboard.lookups.source.shown["rows"], "the other views were drawn"
    dashboard.tick()
    assert dashboard.failures == 1, "a look between two drawings proves nothing"
    monkeypatch.undo()
    page.tick()
    assert dashboard.failures == 0
    dashboard.tick()
    assert "fault" not in dashboard.bar.shown["more"]


def test_a_page_that_only_fails_stops_trying(page, monkeypatch):
    dashboard = page.tick(100)
    stopped = []

    def fail(*_):
        raise ValueError("broken")

    monkeypatch.setattr(dashboard, "draw", fail)
    monkeypatch.setattr(dashboard, "stop", lambda: stopped.append(True))
    for _ in range(MOST_FAILURES):
        dashboard._drawn = 0.0
        dashboard.tick()
    assert stopped == [True]
    assert "it has stopped" in dashboard.bar.shown["more"]


def test_history_is_forgotten_when_asked(page):
    dashboard = page.tick(500)
    dashboard.act("clear")
    page.tick(0)
    assert dashboard.snapshot.level("steps", "retained") is None
    assert dashboard.lookups.source.shown["rows"] == []
    page.tick(100)
    assert dashboard.snapshot.level("steps", "retained") is not None
    assert len(dashboard.lookups.source.shown["rows"]) == 12


def test_who_only_looks_takes_no_history_from_the_others(page):
    page.hub.read_only = True
    dashboard = page.tick(100)
    assert all(one["action"] != "clear" for one in dashboard._menu())
    dashboard.act("clear")
    assert page.store.version("steps") == 100
    assert page.store.kept("steps") == 100
    other = live(page.hub, start=False)
    assert other.settings.history.disabled
    before = page.hub.rows
    other.settings.history.value = 10_000
    assert page.hub.rows == before
    other.close()


def test_history_length_is_shared(page):
    other = live(page.hub, start=False)
    page.dashboard.settings.history.value = 10_000
    assert page.hub.rows == 10_000
    other.tick()
    assert other.settings.history.value == 10_000
    other.close()


def test_engines_are_chosen_by_name(page):
    class Engines:
        def sources(self):
            return []

    Feed(page.store, engine="other", start=time.time() - 20).run(50)
    page.tick(10)
    page.dashboard.bar.on_message({"action": "engine", "value": "nobody"})
    assert page.dashboard.engine == ""
    page.dashboard.engine = "other"
    assert page.dashboard.snapshot.engine == "other"
    assert page.dashboard.snapshot.tables["steps"].rows.sum() == 50


def test_a_closed_page_leaves_nothing_behind():
    before = open_sessions()
    made = Page()
    made.tick(100)
    gone = weakref.ref(made.dashboard)
    assert open_sessions() == before + 1
    made.dashboard.close()
    hub = made.hub
    del made
    gc.collect()
    assert gone() is None
    assert open_sessions() == before
    assert hub.names() == ["lab"]


def test_what_can_be_looked_at_is_looked_at():
    class Lab:
        def __init__(self):
            self.name, self.running = "lab", False
            self.facts = {"block_size": 16}
            self.commands = ("pause",)
            self.frames = FrameStore(10)

        def command(self, name, **args):
            if name != "pause":
                raise ValueError(f"no command {name!r}")
            return "paused"

    lab = Lab()
    hub = hub_of(lab)
    assert hub.store is lab.frames
    assert hub.names() == ["lab"]
    assert hub.link(None).state == "paused"
    assert hub.command("lab", "pause").result(5).ok
    refused = hub.command("lab", "fly").result(5)
    assert (refused.ok, refused.text) == (False, "no command 'fly'")
    store = FrameStore(10)
    assert hub_of(store).store is store
    assert hub_of(hub) is hub
    with pytest.raises(TypeError, match="a list cannot be looked at"):
        hub_of([])


def test_all_the_plots_are_on_the_page(page):
    assert list(page.dashboard.plots) == [kind.key for kind in PLOTS]
    assert len({kind.key for kind in PLOTS}) == len(PLOTS)
