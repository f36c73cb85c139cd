"""A recording is made with a button of one page, and played on another."""

import time

import pandas as pd
import pytest

from auxconn import FrameStore, Recording
from auxconn_dashboard.hub import Hub
from auxconn_dashboard.server import serve
from bench.feed import Feed
from bench.serving import Serving

from .driving import within

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


def served(hub):
    return Serving(lambda: serve(hub, 0, show=False, start=False))


@pytest.fixture
def folder(tmp_path, open_page):
    """A hundred seconds of an invented engine, recorded from its page."""
    store = FrameStore()
    feed = Feed(store, start=time.time() - 100)
    hub = Hub(store)
    hub.tape.folder = tmp_path / "recordings"
    feed.run(5000)
    with hub, served(hub) as serving:
        page = open_page(serving.url)
        button = page.page.locator(".ac-record button")
        button.click()
        page.until(lambda: "Stop recording" in button.inner_text())
        page.until(lambda: " rows" in note(page))
        button.click()
        page.until(lambda: "auxconn replay" in note(page), 20)
        assert page.faults == []
    (made,) = hub.tape.folder.iterdir()
    return made


def note(page):
    return " ".join(page.page.locator(".ac-record-note p").all_inner_texts())


def test_a_recording_plays_pauses_and_goes_where_it_is_sent(folder, open_page):
    recording = Recording(folder)
    assert recording.complete
    steps = recording.frames.steps()
    assert len(steps) == 5000
    half = (recording.begins + recording.ends) / 2
    last = steps.t.iloc[-1].timestamp()
    with Hub.replay(recording) as hub, served(hub) as serving:
        hub.player.pause()
        page = open_page(serving.url)
        strip = page.page.locator(".transport")
        play, track = strip.locator("button.play"), strip.locator("input")

        def state():
            return page.state("auxconn-replay")

        def until(true):
            page.until(true, within(15))

        until(lambda: page.word == "replay")
        assert "Play" in play.inner_text()
        minutes, seconds = divmod(int(recording.ends - recording.begins), 60)
        whole = f"0:00 of {minutes}:{seconds:02d}"
        assert strip.locator(".length").inner_text() == whole
        # The replay has the only pause there is.
        assert not page.page.locator(".pause").is_visible()
        play.click()
        until(lambda: "Pause" in play.inner_text())
        moving = state()["place"]
        until(lambda: state()["place"] > moving + 0.5)
        strip.locator("select").select_option("10")
        until(lambda: state()["speed"] == 10)
        until(lambda: state()["place"] > recording.begins + 10)
        # The space bar pauses the replay, and the page with it.
        page.page.locator("body").press("Space")
        until(lambda: "Play" in play.inner_text())
        assert not hub.player.playing

        # Click the middle of the track, then go on with the keyboard.
        box = track.bounding_box()
        page.page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        until(lambda: abs(state()["place"] - half) < 2)
        until(lambda: abs(page.newest("retained", "x") / 1000 - half) < 3)
        place = state()["place"]
        there = int((steps.t <= pd.Timestamp(place, unit="s", tz="UTC")).sum())
        assert abs(hub.store.kept("steps") - there) <= 1
        track.press("ArrowLeft")
        until(lambda: abs(state()["place"] - (place - 5)) < 0.1)
        until(lambda: page.newest("retained", "x") / 1000 < place - 4)
        assert hub.store.kept("steps") == pytest.approx(there - 250, abs=2)
        # At the end it stops, and begins anew when it is played.
        track.press("End")
        until(lambda: state()["place"] > recording.ends - 0.1)
        until(lambda: page.newest("retained", "x") / 1000 > last - 1)
        assert hub.store.kept("steps") == 5000
        play.click()
        until(lambda: state()["place"] < half)
        assert "Pause" in play.inner_text()
        assert page.faults == []
        assert [one for one in page.console if one.startswith("error")] == []
