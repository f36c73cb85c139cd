"""The page on the real lab, in a real browser, as a person meets it."""

import math
import time

import pytest

from .driving import within

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def test_numbers_change_and_plots_move(lab, open_page):
    lab.started()
    page = open_page(lab.url).live()
    before = {key: page.card(key) for key in ("hits", "rows", "engine", "released")}
    plots = ("hits", "retained", "pool", "rows", "store", "cost")
    drawn = {plot: page.newest(plot, "x") for plot in plots}
    start = page.range()
    page.until(lambda: page.range()[1] > start[1] + 1500, 15)
    for plot in plots:
        page.until(lambda plot=plot: page.newest(plot, "x") > drawn[plot], 15)
    page.until(
        lambda: sum(page.card(key) != old for key, old in before.items()) >= 3, 20
    )
    # Something to see: hits, rows, blocks retained, and a tier that loads.
    page.until(lambda: page.newest("retained", "retained_on_gpu") > 0, 20)
    page.until(lambda: sum(v or 0 for v in page.column("hits", "local_hit")) > 0, 20)
    page.until(
        lambda: max(v or 0 for v in page.column("loading", "loading_blocks")) > 0, 40
    )
    assert "vLLM 0.33.0" in page.header
    assert "16-token blocks" in page.header
    assert page.faults == []
    assert [one for one in page.console if one.startswith("error")] == []


def test_a_tenth_of_the_capacity_releases_within_five_seconds(lab, page):
    page.until(lambda: page.newest("retained", "retained_off_gpu") > 400, 60)
    capacity = lab.hub.source("lab").facts["capacity"]
    tenth = capacity // 10
    released = page.level("released")
    retained = page.level("retained")
    assert retained > 4 * tenth

    page.enter("capacity", tenth)
    began, allowed = time.monotonic(), within(5)
    page.until(lambda: page.level("released") > released + 100, allowed)
    page.until(lambda: page.newest("retained", "capacity") == tenth, allowed)

    def fallen():
        # Down to the capacity, save what is on the GPU or loading, which may not go.
        on_gpu = page.newest("retained", "retained_on_gpu")
        off_gpu = page.newest("retained", "retained_off_gpu")
        loading = max(v or 0 for v in page.column("loading", "loading_blocks")[-100:])
        return on_gpu + off_gpu <= max(tenth, on_gpu) + loading

    page.until(fallen, max(allowed - (time.monotonic() - began), 1))
    print(
        f"\nfallen and told after {time.monotonic() - began:.1f} s, allowed {allowed:.1f}"
    )
    told = page.page.locator("p.done").first.inner_text()
    assert told.startswith("applied ")
    assert f"capacity {capacity:,} → {tenth}" in told
    page.until(lambda: any(one["kind"] == "capacity" for one in page.marks()), 5)

    # And back, by the one button that undoes it.
    page.click("Undo: capacity")
    page.until(lambda: page.newest("retained", "capacity") == capacity, 10)


def test_a_number_that_cannot_be_is_refused_and_the_box_goes_back(lab, page):
    box = page.page.locator(".ac-control-capacity input")
    before = page.until(lambda: int(box.input_value()) and box.input_value(), 20)
    for number in (-5, 0):
        page.enter("capacity", number)
        refused = page.page.locator("p.no", has_text=f"capacity={number} ")
        refused.first.wait_for(timeout=10_000)
        page.until(lambda: box.input_value() == before, 10)
    pool = page.page.locator(".ac-control-num_blocks input")
    before = pool.input_value()
    page.enter("num_blocks", 1)
    page.page.locator("p.no", has_text="num_blocks=1 ").first.wait_for(timeout=20_000)
    page.until(lambda: pool.input_value() == before, 10)


def test_another_block_size_keeps_the_page_alive_and_is_marked(lab, page):
    page.choose("block_size", "32 tokens")
    page.until(lambda: "32-token blocks" in page.header, 30)
    marks = page.until(
        lambda: [one for one in page.marks() if one["kind"] == "reconfigured"], 10
    )
    assert "block_size 16 -> 32" in marks[-1]["text"]
    at = marks[-1]["x"]
    # The line is drawn in every plot, and rows of the new engine come behind it.
    names = page.page.evaluate(
        """() => Bokeh.documents[0].get_model_by_name('auxconn-figure-hits') &&
        [...Bokeh.documents[0]._all_models.values()]
          .filter((m) => m.type === 'Figure')
          .map((m) => m.renderers.some((r) => r.name === 'marks'))"""
    )
    assert len(names) == 8
    assert all(names)
    page.until(lambda: page.newest("retained", "x") > at + 2000, 20)
    page.until(lambda: page.word == "live", 20)
    rows = page.until(lambda: page.state("auxconn-lookups")["rows"], 20)
    page.until(
        lambda: any(
            "blocks of 32" in one["detail"][0]
            for one in page.state("auxconn-lookups")["rows"]
        ),
        20,
    )
    assert rows
    assert page.faults == []


def test_an_engine_that_dies_is_stale_within_three_seconds_and_comes_back(lab, page):
    page.until(lambda: page.newest("retained", "retained_on_gpu") > 0, 30)
    lab.kill()
    page.until(lambda: page.word.startswith("stale"), within(3))
    assert " for " in page.word
    dimmed = page.page.locator(".ac-content.ac-stale")
    dimmed.wait_for(timeout=1000 * within(2))
    # Each part of the page hears of it by itself, and dims in a moment.
    opacity = "node => getComputedStyle(node).opacity"
    page.until(lambda: float(dimmed.evaluate(opacity)) < 1, 5)
    page.until(lambda: "SIGKILL" in page.page.locator(".banner").inner_text(), 5)
    page.until(page.page.locator(".ac-control-capacity input").is_disabled, 5)
    kept = page.newest("retained", "x")
    page.click("Restart the lab")
    page.until(lambda: page.word == "starting", 5)
    page.until(lambda: "import vLLM" in page.page.locator(".banner").inner_text(), 5)
    page.until(lambda: page.word == "live", 120)
    page.until(lambda: page.newest("retained", "x") > kept + 1000, 20)
    page.until(lambda: not page.page.locator(".ac-content.ac-stale").count(), 5)
    page.until(page.page.locator(".ac-control-capacity input").is_enabled, 5)


def test_two_browsers_see_one_engine_and_do_not_disturb_each_other(
    lab, open_page, page
):
    other = open_page(lab.url, "?theme=dark&window=300").live()
    page.page.locator("select.range").select_option("30")
    page.pause(True)
    page.drag("hits", 0.3, 0.6)
    zoomed = page.until(lambda: page.state("auxconn-topbar")["zoomed"], 10)
    page.pause(False)
    page.page.keyboard.press("Escape")
    assert other.state("auxconn-topbar")["zoomed"] is None
    assert other.state("auxconn-topbar")["theme"] == "dark"
    assert other.page.locator("select.range").input_value() == "300"
    assert zoomed
    # What is done to the engine is everybody's.
    page.enter("capacity", 900)
    other.until(
        lambda: other.page.locator(".ac-control-capacity input").input_value() == "900",
        10,
    )
    other.pause(True)
    assert "Pause view" in page.header
    still = other.newest("retained", "x")
    moving = page.newest("retained", "x")
    page.until(lambda: page.newest("retained", "x") > moving + 1000, 15)
    assert other.newest("retained", "x") == still


def test_sessions_that_were_closed_leave_nothing_behind(lab, chromium, open_page):
    from auxconn_dashboard.session import open_sessions

    lab.started()
    keep = open_page(lab.url).live()
    before = (open_sessions(), lab.serving.sessions)
    for _ in range(3):
        context = chromium.new_context()
        one = context.new_page()
        one.goto(lab.url)
        one.locator(".pill .word").wait_for(timeout=60_000)
        one.wait_for_timeout(500)
        context.close()
    # A closed browser may come back within a minute, so the server keeps its session for a
    # while; the test asks it to look now.
    keep.until(
        lambda: (discard(lab), (open_sessions(), lab.serving.sessions) <= before)[1], 40
    )
    assert not math.isnan(keep.level("steps"))


def discard(lab):
    """Ask the server to drop the sessions nobody is connected to, as it does in time."""
    tornado = lab.serving.server._tornado
    for context in tornado._applications.values():
        lab.serving.loop.call_soon_threadsafe(
            lambda context=context: lab.serving.loop.create_task(
                context._cleanup_sessions(0)
            )
        )


def test_a_zoom_survives_ticks_and_is_the_same_in_all_plots(page):
    page.until(
        lambda: page.newest("retained", "x") - page.column("retained", "x")[0] > 0, 10
    )
    page.pause(True)
    page.drag("retained", 0.35, 0.75)
    page.until(lambda: page.page.locator(".back").is_visible(), 10)
    page.pause(False)
    start, end = page.range()
    assert 5_000 < end - start < 50_000
    drawn = page.level("released")
    page.until(lambda: page.state("auxconn-topbar")["zoomed"], 5)
    steps = page.state("auxconn-indicators")
    page.until(lambda: page.state("auxconn-indicators") != steps, 10)
    page.page.wait_for_timeout(2500)
    assert page.level("released") >= drawn
    assert page.range() == (start, end)
    assert len({tuple(one) for one in ranges(page)}) == 1
    # Closer means finer: the points are nearer to each other than they were.
    x = page.column("retained", "x")
    assert x[1] - x[0] < 100
    page.page.locator(".back").click()
    page.until(lambda: page.range()[1] > end, 10)
    page.until(lambda: not page.page.locator(".back").is_visible(), 10)


def ranges(page):
    return page.page.evaluate(
        """() => [...Bokeh.documents[0]._all_models.values()]
        .filter((m) => m.type === 'Figure').map((m) => [m.x_range.start, m.x_range.end])"""
    )


def test_keys(lab, page):
    page.page.keyboard.press("?")
    help_ = page.page.locator("dialog.keys")
    help_.wait_for(state="visible")
    assert "filter the look-ups" in help_.inner_text()
    page.page.keyboard.press("?")
    help_.wait_for(state="hidden")
    page.page.keyboard.press("Space")
    page.until(lambda: "Resume view" in page.header, 5)
    page.page.keyboard.press("Space")
    page.until(lambda: "Pause view" in page.header, 5)
    # A step pauses the engine, and each one adds one.
    page.page.keyboard.press(".")
    page.until(lambda: page.word == "engine paused", 10)
    page.page.wait_for_timeout(600)
    steps = lab.hub.store.version("steps")
    page.page.keyboard.press(".")
    page.until(lambda: lab.hub.store.version("steps") == steps + 1, 10)
    page.page.keyboard.press("/")
    page.page.keyboard.type("-3")
    page.until(lambda: page.state("auxconn-lookups").get("asked") == "-3|", 10)
    shown = page.state("auxconn-lookups")["rows"]
    assert shown
    assert all("-3" in row["request"] for row in shown)


def test_look_ups_say_why_they_missed_and_a_chosen_one_stays_chosen(page):
    page.until(lambda: len(page.state("auxconn-lookups")["rows"]) == 12, 40)
    page.pause(True)
    row = page.page.locator(".ac-lookups tbody tr").nth(3)
    request = row.locator("td.id").inner_text()
    row.click()
    detail = page.page.locator("tr.detail")
    assert "R3 rows exist for its first" in detail.inner_text()
    assert page.page.locator("tr.on td.id").inner_text() == request
    page.page.locator(".ac-lookups select").select_option(label="next block never seen")
    page.until(lambda: page.state("auxconn-lookups")["asked"] == "|never_seen", 5)
    whys = page.page.locator(".ac-lookups td.why").all_inner_texts()
    assert set(whys) <= {"next block never seen"}


def test_bands_are_toggled_in_the_legend(page):
    chip = page.page.locator(".ac-plot-retained .chip", has_text="off the GPU")
    chip.click()
    page.until(
        lambda: page.page.evaluate(
            """() => Bokeh.documents[0].get_model_by_name('auxconn-figure-retained')
            .renderers.find((r) => r.name === 'retained_off_gpu').visible === false"""
        ),
        5,
    )
    assert chip.get_attribute("aria-pressed") == "false"
    chip.click()
    assert chip.get_attribute("aria-pressed") == "true"


def test_the_page_takes_its_settings_from_the_address_and_keeps_them_there(
    lab, open_page
):
    lab.started()
    page = open_page(lab.url, "?theme=dark&window=900&refresh=1.0&engine=lab").live()
    assert page.page.locator("html").get_attribute("data-theme") == "dark"
    assert page.page.locator("select.range").input_value() == "900"
    page.page.locator("select.range").select_option("30")
    page.until(lambda: "window=30" in page.page.url, 5)
    odd = open_page(lab.url, "?theme=purple&window=abc&refresh=-1").live()
    assert odd.page.locator("select.range").input_value() == "60"


def test_a_probe_of_liveness_opens_no_session(lab, page):
    before = lab.serving.sessions
    answer = page.page.request.get(lab.url + "liveness")
    assert answer.ok
    assert lab.serving.sessions == before
