"""Plots: what a snapshot becomes in `source.data`, without a browser."""

import dataclasses

import numpy as np
import pytest
from bokeh.core.validation import check_integrity
from bokeh.models import HoverTool

from auxconn.frames import FrameStore
from auxconn_dashboard.hub import Hub
from auxconn_dashboard.session import PLOTS, live
from auxconn_dashboard.snapshot import COARSE, FINE, Window
from auxconn_dashboard.theme import DARK, LIGHT, THEMES
from auxconn_dashboard.views.axis import TimeAxis
from auxconn_dashboard.views.base import nice
from auxconn_dashboard.views.cost import CostPlot
from auxconn_dashboard.views.hits import SHARE, HitsPlot
from auxconn_dashboard.views.loading import LoadingPlot
from auxconn_dashboard.views.pool import PoolPlot
from auxconn_dashboard.views.retained import ReleasedPlot, RetainedPlot
from auxconn_dashboard.views.rows import BYTES, RowsPlot
from auxconn_dashboard.views.store import StorePlot
from bench.feed import Feed

START = 1_700_000_000.0


class Lab:
    """An invented engine, its hub and a plot over both."""

    def __init__(self, **how):
        self.store = FrameStore(50_000)
        self.feed = Feed(self.store, start=START, **how)
        self.hub = Hub(self.store)
        self.pins = []
        self.axis = TimeAxis(self.pins.append)

    def snapshot(self, seconds=60, pinned=None):
        return self.hub.snapshot(None, Window(seconds, pinned))

    def plot(self, kind, steps=2000, theme=LIGHT):
        self.feed.run(steps)
        plot = kind(self.axis, theme)
        plot.update(self.snapshot())
        return plot


@pytest.mark.parametrize("kind", PLOTS, ids=lambda kind: kind.key)
def test_a_plot_of_nothing_says_what_would_fill_it(kind):
    lab = Lab()
    plot = lab.plot(kind, steps=0)
    assert len(plot.head.shown["note"]) > 20
    assert set(plot.source.data) >= {"x", *(band.key for band in plot.bands)}
    assert "–" in " ".join(plot.head.shown["values"].values())


@pytest.mark.parametrize("kind", PLOTS, ids=lambda kind: kind.key)
def test_a_plot_of_something_moves_with_it_and_rests_when_it_does(kind):
    lab = Lab()
    plot = lab.plot(kind)
    lengths = {len(column) for column in plot.source.data.values()}
    assert lengths == {FINE} or lengths == {FINE // COARSE}
    assert plot.head.shown["note"] == ""
    same = lab.snapshot()
    assert plot.update(same) is False
    before = plot.source.data["x"].copy()
    lab.feed.run(100)
    assert plot.update(lab.snapshot()) is True
    assert plot.source.data["x"][-1] > before[-1]


@pytest.mark.parametrize("kind", PLOTS, ids=lambda kind: kind.key)
def test_a_hidden_band_is_not_drawn_and_what_is_above_it_comes_down(kind):
    lab = Lab()
    plot = lab.plot(kind)
    layers = plot.layers()
    first = layers[0]
    plot.head.on_message({"hidden": [first]})
    drawn = {one.name: one for one in plot.figure.renderers}
    assert drawn[first].visible is False
    if len(layers) > 1:
        second = plot.stacks[layers[1]]
        assert first not in second[0].fields
        assert first not in second[1].fields
        assert layers[1] in second[1].fields
    plot.head.on_message({"hidden": []})
    assert drawn[first].visible is True
    assert plot.stacks["pointer"][1].fields[-len(layers) :] == layers


def test_what_a_browser_says_is_not_believed():
    plot = Lab().plot(HitsPlot, steps=10)
    plot.head.on_message({"hidden": ["<script>", 7], "option": "no such unit"})
    assert plot.hidden == []
    assert plot.option == plot.options[0]


def test_retained_blocks_are_split_by_where_their_kv_is():
    lab = Lab(capacity=1600)
    plot = lab.plot(RetainedPlot)
    last = lab.store.steps().iloc[-1]
    data = plot.source.data
    known = np.flatnonzero(~np.isnan(data["retained_on_gpu"]))[-1]
    assert data["retained_on_gpu"][known] == last["retained_on_gpu"]
    assert data["retained_off_gpu"][known] == last["retained"] - last["retained_on_gpu"]
    assert data["capacity"][known] == 1600
    values = plot.head.shown["values"]
    assert values["capacity"] == "1,600"
    assert plot.figure.y_range.end >= last["retained"]


def test_whiskers_span_what_happened_within_a_point():
    lab = Lab()
    lab.feed.run(6000)
    plot = RetainedPlot(lab.axis, LIGHT)
    plot.update(lab.snapshot(seconds=900))
    data = plot.source.data
    known = ~np.isnan(data["high"])
    assert (data["high"][known] >= data["low"][known]).all()
    retained = lab.store.steps()["retained"]
    assert data["high"][known].max() == retained.max()
    plot.head.on_message({"hidden": ["retained_on_gpu"]})
    assert np.isnan(plot.source.data["high"]).all()


def test_a_level_is_held_until_the_next_reading():
    lab = Lab(rate=2.0)
    plot = lab.plot(RetainedPlot, steps=60)
    data = plot.source.data
    known = np.flatnonzero(~np.isnan(data["capacity"]))
    # A step each half second, ten points a second, and no hole between the first and last.
    assert (np.diff(known) == 1).all()
    assert (data["capacity"][known] == 2048).all()


def test_a_level_is_not_held_while_the_engine_is_away():
    lab = Lab()
    lab.feed.run(500)
    lab.feed.event("stale", "nothing heard for 2.0 s")
    gone = lab.feed.t
    lab.feed.t += 10
    lab.feed.event("start", "another start")
    plot = lab.plot(RetainedPlot, steps=500)
    data = plot.source.data
    away = (data["x"] / 1000 > gone + 0.2) & (data["x"] / 1000 < gone + 9.8)
    assert away.sum() > 50
    assert np.isnan(data["retained_on_gpu"][away]).all()
    assert np.isnan(data["base"][away]).all(), "an area without a top has no floor"
    assert np.isfinite(data["retained_on_gpu"][data["x"] / 1000 > gone + 10.2]).any()


def test_nothing_is_drawn_beyond_now():
    lab = Lab()
    plot = lab.plot(PoolPlot, steps=100)
    data = plot.source.data
    later = data["x"] / 1000 > lab.feed.t + 0.1
    assert np.isnan(data["kv_free"][later]).all()


def test_hits_per_second_and_as_a_share():
    lab = Lab()
    plot = lab.plot(HitsPlot)
    bands = [band.key for band in plot.bands]
    width = 60 / FINE * COARSE
    table = lab.snapshot().tables["lookups"].coarse(COARSE)
    whole = np.sum([plot.source.data[band] for band in bands], axis=0)
    np.testing.assert_allclose(whole, table.sums["query_tokens"] / width, rtol=1e-5)
    plot.head.on_message({"option": SHARE})
    whole = np.sum([plot.source.data[band] for band in bands], axis=0)
    asked = table.sums["query_tokens"] > 0
    np.testing.assert_allclose(whole[asked], 100, rtol=1e-5)
    assert plot.figure.y_range.end == 100
    assert plot.head.shown["values"]["local_hit"].endswith("%")


def test_rows_are_counted_and_weighed():
    lab = Lab()
    plot = lab.plot(RowsPlot)
    rows = plot.source.data["store"].copy()
    plot.head.on_message({"option": BYTES})
    np.testing.assert_allclose(plot.source.data["store"], rows * 384, rtol=1e-5)
    assert "iB/s" in plot.head.shown["values"]["store"]
    assert "GiB" in plot.figure.yaxis[0].formatter.code


def test_released_blocks_and_those_wanted_again():
    lab = Lab(capacity=1600)
    plot = lab.plot(ReleasedPlot)
    released = (lab.store.blocks()["event"] == "released").sum()
    width = 60 / FINE * COARSE
    assert plot.source.data["released"].sum() * width == pytest.approx(
        released, rel=1e-4
    )
    assert plot.head.shown["values"] == {
        "released": f"{released:,}",
        "wanted_again": "0",
    }


def test_a_load_of_one_step_is_seen():
    lab = Lab()
    plot = lab.plot(LoadingPlot)
    loading = lab.store.steps()["loading_blocks"]
    assert np.nanmax(plot.source.data["loading_blocks"]) == loading.max()


def test_no_tier_is_said_to_be_why_nothing_loads():
    lab = Lab(kv_tier=False)
    plot = lab.plot(LoadingPlot)
    assert "while a KV connector" in plot.head.shown["note"]
    known = dataclasses.replace(lab.snapshot(), facts={"kv_tier_blocks": 0})
    plot.update(known)
    assert "No KV tier" in plot.head.shown["note"]
    plot.update(dataclasses.replace(known, facts={"kv_tier_blocks": 512}))
    assert "A smaller pool" in plot.head.shown["note"]


def test_time_in_the_connector_is_a_mean_over_steps():
    lab = Lab()
    plot = lab.plot(CostPlot)
    steps = lab.store.steps()
    mean = steps["ns_max_cache_hit"].mean() / 1000
    shown = float(plot.head.shown["values"]["ns_max_cache_hit"])
    assert shown == pytest.approx(mean, rel=0.01)
    drawn = plot.source.data["ns_max_cache_hit"]
    assert drawn[plot.source.data["rows"] > 0].mean() == pytest.approx(mean, rel=0.05)


def test_the_store_under_the_line_of_its_arena():
    lab = Lab()
    plot = lab.plot(StorePlot)
    last = lab.store.store().iloc[-1]
    assert (
        plot.head.shown["values"]["slots_referenced"] == f"{last['slots_referenced']:,}"
    )
    assert plot.figure.y_range.end >= last["slots_total"]


@pytest.mark.parametrize("kind", PLOTS, ids=lambda kind: kind.key)
def test_both_themes_colour_everything_that_is_not_data(kind):
    lab = Lab()
    plot = lab.plot(kind, steps=10)
    for theme in (DARK, LIGHT):
        plot.restyle(theme)
        assert plot.figure.background_fill_color == theme.card
        assert plot.figure.yaxis[0].major_label_text_color == theme.muted


@pytest.mark.parametrize("kind", PLOTS, ids=lambda kind: kind.key)
def test_every_plot_explains_itself_and_shares_the_axis(kind):
    lab = Lab()
    plot = lab.plot(kind, steps=10)
    assert plot.figure.x_range is lab.axis.range
    assert any(one.name == "marks" for one in plot.figure.renderers)
    assert plot.head.fixed.count("formula") >= 1
    assert plot.figure.min_border_left == 52


@pytest.mark.parametrize("kind", PLOTS, ids=lambda kind: kind.key)
def test_bokeh_finds_nothing_wrong_with_a_plot(kind):
    plot = Lab().plot(kind, steps=10)
    issues = check_integrity([plot.figure, *plot.figure.references()])
    assert issues.error == []


def test_changes_of_the_engine_are_marked_in_every_plot():
    lab = Lab()
    lab.feed.run(100)
    lab.feed.event("reconfigured", "block_size 16 -> 32 <b>&")
    lab.feed.event("growth", "the store grew")
    lab.feed.event("capacity", "capacity 2048 -> 205")
    lab.axis.update(lab.snapshot())
    assert lab.axis.marks.data["kind"] == ["reconfigured", "capacity"]
    assert lab.axis.marks.data["x"][0] == lab.feed.t * 1000
    assert lab.axis.marks.data["text"][0] == "block_size 16 -> 32 <b>&"


def test_marks_are_named_at_the_top_of_every_plot():
    lab = Lab()
    plots = [lab.plot(kind, steps=200) for kind in (RetainedPlot, HitsPlot)]
    for plot in plots:
        assert lab.axis.flags[plot.figure].y == plot.figure.y_range.end > 1


def test_the_axis_follows_until_it_is_held():
    lab = Lab()
    lab.feed.run(100)
    lab.axis.update(lab.snapshot())
    assert lab.axis.live.end == lab.feed.t * 1000
    lab.axis.range.tags = ["pinned", 1000.0, 5000.0]
    assert lab.pins == [(1.0, 5.0)]
    held = lab.axis.live.end
    lab.feed.run(100)
    lab.axis.update(lab.snapshot())
    assert lab.axis.live.end == held
    lab.axis.release()
    assert lab.pins[-1] is None
    lab.axis.update(lab.snapshot())
    assert lab.axis.live.end == lab.feed.t * 1000


def test_axes_end_at_round_numbers():
    assert [nice(value) for value in (0, 0.9, 1.0, 7, 99, 101, 1.08e4)] == [
        1.0, 1.0, 1.0, 8.0, 100.0, 120.0, 12_000.0,
    ]  # fmt: skip


def test_an_axis_rests_unless_it_has_to_move():
    plot = Lab().plot(RetainedPlot, steps=10)
    plot.figure.y_range.end = 2000
    plot._fit(1500)
    assert plot.figure.y_range.end == 2000
    plot._fit(1950)
    assert plot.figure.y_range.end == 2500
    plot._fit(300)
    assert plot.figure.y_range.end == 400


def test_tooltips_carry_the_colours_of_the_theme():
    page = live(Hub(FrameStore(10)), start=False)
    tools = [
        tool
        for plot in page.plots.values()
        for tool in plot.figure.select({"type": HoverTool})
    ]
    assert len(tools) == 2 * len(page.plots)
    for name in ("dark", "light"):
        page.theme = name
        theme = THEMES[name]
        for tool in tools:
            assert f"--tooltip-color:{theme.raised} !important" in tool.tooltips
            assert f"--tooltip-text:{theme.text} !important" in tool.tooltips
            assert "@x{custom}" in tool.tooltips or "@label" in tool.tooltips
    page.close()
