"""A recording that plays: in recorded order, by the recording's clock, anywhere in it."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from auxconn import FrameStore
from auxconn.commands import CommandError
from auxconn.recording import track
from auxconn.recording.player import SPEEDS, Player
from auxconn.records import Steps
from auxconn_dashboard.hub import Hub
from auxconn_dashboard.session import live
from auxconn_dashboard.snapshot import Window
from bench.feed import Feed
from tests.unit import stream_made as made
from tests.unit.recording_made import Taped
from tests.unit.stream_made import PATIENCE, T0, Clock

pytest.importorskip("pyarrow")


@pytest.fixture
def recording(tmp_path, monkeypatch):
    """A hundred seconds: a step and a look-up each, an event every tenth; four parts."""
    monkeypatch.setattr(track, "PART_ROWS", 30)
    taped = Taped(tmp_path / "r")
    for start in range(0, 100, 10):
        taped.store.append("events", [made.events(start)], "a")
        taped.steps(range(start, start + 10), tables=("steps", "lookups"))
        taped.recorder.flush()
    return taped.close()


def played(recording, **how):
    clock = Clock()
    return Player(recording, clock=clock, start=False, **how), clock


def steps_of(player):
    return player.store.steps().step.tolist()


def test_rows_come_when_their_time_has_come(recording):
    player, clock = played(recording)
    player.tick()
    assert steps_of(player) == [0]
    clock.pass_(4.5)
    player.tick()
    assert steps_of(player) == list(range(5))
    assert player.store.lookups().step.tolist() == list(range(5))
    player.speed = 10
    clock.pass_(3)
    player.tick()
    assert steps_of(player) == list(range(35))
    assert player.store.events().step.tolist() == [0, 10, 20, 30]
    assert player.place == pytest.approx(T0 + 34.5)
    player.pause()
    clock.pass_(100)
    player.tick()
    assert steps_of(player) == list(range(35))
    assert not player.playing
    player.play()
    clock.pass_(1)
    player.tick()
    assert steps_of(player) == list(range(45))


def test_it_stops_at_the_end_and_plays_again_from_the_beginning(recording):
    player, clock = played(recording, speed=100)
    clock.pass_(2)
    player.tick()
    assert steps_of(player) == list(range(100))
    assert not player.playing
    assert player.place == player.ends == pytest.approx(T0 + 99.1)
    player.play()
    player.tick()
    assert player.playing
    assert steps_of(player) == [0]


@pytest.mark.parametrize("place", [0, 4.5, 29.9, 30, 31, 60.05, 98.9, 99.1])
def test_a_jump_shows_what_was_there_then_and_goes_on_from_it(recording, place):
    player, clock = played(recording, speed=10)
    clock.pass_(5)
    player.tick()
    player.seek(T0 + place)
    player.tick()
    assert steps_of(player) == list(range(int(place) + 1))
    assert player.store.events().step.tolist() == list(range(0, int(place) + 1, 10))
    clock.pass_(2)
    player.tick()
    assert steps_of(player) == list(range(min(int(place) + 21, 100)))


def test_a_jump_brings_no_more_than_the_store_keeps(recording):
    player, _ = played(recording, store=FrameStore(25))
    player.seek(T0 + 70)
    player.tick()
    assert steps_of(player) == list(range(46, 71))
    # All of the few events, though: their table is as long.
    assert player.store.events().step.tolist() == list(range(0, 71, 10))


def test_a_jump_is_held_to_the_ends_and_to_numbers(recording):
    player, _ = played(recording)
    player.seek(0)
    assert player.place == player.begins == T0
    player.seek(float("inf"))
    player.tick()
    assert player.place == player.ends
    for wrong in (float("nan"), "now"):
        with pytest.raises(ValueError, match="give a number of seconds"):
            player.seek(wrong)
    for wrong in (0, 1000, float("inf"), float("nan"), True, "fast"):
        with pytest.raises(ValueError, match=r"give a number (from 0\.25 to 100|of)"):
            player.speed = wrong
    assert player.speed == 1.0


def test_order_is_that_of_the_recording_whatever_the_engines_clocks_say(tmp_path):
    """One clock is an hour slow, the other is set back by an hour on the way."""
    taped = Taped(tmp_path / "r")
    for i in range(20):
        taped.clock.now = 1000.0 + i
        set_back = 0 if i < 10 else -3600
        for engine, wrong in (("slow", -3600), ("set", set_back)):
            record = made.steps(i)
            record.t = T0 + i - 0.2 + wrong
            taped.store.append("steps", [record], engine)
        taped.recorder.read()
    recording = taped.close()
    assert recording.begins == T0
    assert recording.ends == T0 + 19
    player, clock = played(recording)
    for i in range(20):
        player.tick()
        frame = player.store.steps()
        # Of rows with a wrong clock it is known between which two readings they came.
        assert 2 * i + 2 <= len(frame) <= 2 * i + 4
        clock.pass_(1)
    assert frame.step.tolist() == sorted([*range(20), *range(20)])
    assert frame.engine.tolist() == ["slow", "set"] * 20


def test_nobody_obeys(recording):
    player, _ = played(recording)
    with pytest.raises(CommandError, match="this is a recording of engine 'a'"):
        player.command("a", "pause").result(0)


def test_a_part_that_is_damaged_is_passed_over(recording):
    part = recording.parts("steps")[1]
    data = bytearray(part.path.read_bytes())
    data[300] ^= 0x10
    part.path.write_bytes(data)
    player, clock = played(recording, speed=100)
    clock.pass_(2)
    with pytest.warns(UserWarning, match="steps-000002.parquet is damaged"):
        player.tick()
    assert steps_of(player) == [*range(30), *range(60, 100)]
    assert recording.gaps.rows.tolist() == [30]
    player.seek(T0 + 45)
    player.tick()
    assert steps_of(player) == list(range(30))


def test_a_thread_plays_and_what_fails_in_it_is_told(recording, monkeypatch):
    player = Player(recording, speed=SPEEDS[-1])
    until(lambda: not player.playing)
    assert steps_of(player) == list(range(100))
    monkeypatch.setattr(player.store, "clear", lambda: 1 / 0)
    player.seek(T0)
    until(lambda: player.problem)
    assert player.problem == "ZeroDivisionError: division by zero"
    player.close()
    assert not [one for one in threading.enumerate() if one.name == "auxconn-player"]


def until(reached):
    end = time.monotonic() + PATIENCE
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.01)


# On the page


@pytest.fixture
def hub(tmp_path):
    """A minute of an invented engine, which was stale for the last ten seconds."""
    taped = Taped(tmp_path / "r", sources=lambda: [source])
    feed = Feed(taped.store, start=T0)
    source = made.Source("lab", facts={"capacity": 2048, "block_size": 16})
    for second in range(1, 61):
        feed.run(50)
        source.state = "live" if second < 50 else "stale"
        taped.clock.now = 1000.0 + second
        taped.recorder.read()
    recording = taped.close()
    clock = Clock()
    with Hub.replay(recording) as hub:
        hub.player.close()
        hub.player._clock = clock
        hub.player._seen = clock.now
        hub.player.clock = clock
        hub.player.seek(recording.begins)
        hub.player.tick()
        yield hub


def played_to(hub, seconds):
    hub.player.clock.pass_(T0 + seconds - hub.player.place)
    hub.player.tick()


def test_the_page_shows_the_place_and_not_the_present(hub):
    played_to(hub, 30)
    snapshot = hub.snapshot(None, Window(60))
    assert (snapshot.name, snapshot.link.state, snapshot.link.text) == (
        "lab",
        "replay",
        "",
    )
    assert snapshot.end == pytest.approx(T0 + 30, abs=0.05)
    assert snapshot.fact("capacity") == 2048
    assert snapshot.totals["steps"] == 1500
    played_to(hub, 40)
    assert hub.snapshot(None, Window(60)).end == pytest.approx(T0 + 40, abs=0.05)
    assert hub.snapshot(None, Window(60)).totals["steps"] == 2000
    # Back: what came later is gone, and the readers with it.
    hub.player.seek(T0 + 10)
    hub.player.tick()
    snapshot = hub.snapshot(None, Window(60))
    assert snapshot.end == pytest.approx(T0 + 10, abs=0.05)
    assert snapshot.totals["steps"] == 500
    assert snapshot.epoch > 0
    assert sum(snapshot.lost.values()) == 0
    hub.player.seek(T0 + 55)
    hub.player.tick()
    assert hub.snapshot(None, Window(60)).link.text == "the engine was stale"


def test_the_strip_moves_the_replay_and_takes_no_nonsense(hub):
    dashboard = live(hub, start=False)
    strip = dashboard.replay.source
    dashboard.tick()
    assert dashboard.failures == 0, dashboard.problem
    assert strip.shown == {
        "place": T0 + 0.02, "playing": True, "speed": 1.0, "notes": [], "problem": "",
    }  # fmt: skip
    assert dashboard.bar.shown["word"] == "replay"
    strip.on_message({"action": "play"})
    assert not hub.player.playing
    assert not strip.shown["playing"]
    # Space pauses the replay, not the view: there is one thing that moves.
    dashboard.act("pause")
    assert hub.player.playing
    assert not dashboard.paused
    strip.on_message({"action": "speed", "value": 10})
    assert hub.player.speed == 10
    strip.on_message({"action": "seek", "value": T0 + 30})
    assert strip.shown["place"] == T0 + 30
    hub.player.tick()
    dashboard._drawn = 0.0
    dashboard.tick()
    assert dashboard.snapshot.totals["steps"] == 1500
    for nonsense in (
        {"action": "speed", "value": 3}, {"action": "seek", "value": "x"}, {"action": "seek"},
        {"action": "seek", "value": float("nan")}, {"action": "speed", "value": "1"}, {},
    ):  # fmt: skip
        strip.on_message(nonsense)
    assert (hub.player.speed, hub.player.place) == (10, T0 + 30)
    # Nothing can be steered, recorded or cleared.
    assert all(
        one.disabled for one in dashboard.controls.widgets.values() if one.visible
    )
    assert "A recording" in dashboard.controls.notes.panes["capacity"].object
    assert dashboard.record is None
    assert [one["action"] for one in dashboard._menu()] == ["controls"]
    dashboard.close()


def test_gaps_stand_on_the_track_and_in_the_plots(tmp_path):
    taped = Taped(tmp_path / "r", rows=10)
    taped.steps(range(5))
    taped.steps(range(5, 40))
    recording = taped.close()
    with Hub.replay(recording) as hub:
        dashboard = live(hub, start=False)
        told = "25 rows of steps, overwritten in the store before they could be written"
        assert f"missing: {told}" in dashboard.replay.source.fixed
        dashboard.close()
    player, clock = played(recording)
    clock.pass_(10)
    player.tick()
    assert player.store.events().empty
    clock.pass_(30)
    player.tick()
    for _ in range(2):
        events = player.store.events()
        assert events.kind.tolist() == ["gap"]
        assert events.text.tolist() == [f"not in the recording: {told}"]
        assert (events.engine[0], events.t[0].timestamp()) == ("a", T0 + 39.1)
        player.seek(player.ends)
        player.tick()


def test_a_recording_is_begun_and_ended_with_one_button(tmp_path):
    store = FrameStore(1000)
    feed = Feed(store, start=time.time())
    hub = Hub(store)
    hub.tape.folder = tmp_path / "recordings"
    dashboard = live(hub, start=False)
    record = dashboard.record
    assert "keeps all tables in" in record.note.object
    feed.run(10)
    record.button.clicks += 1
    assert record.button.label == "■  Stop recording"
    assert hub.tape.running
    feed.run(10)
    record.button.clicks += 1
    until(lambda: not hub.tape.ending)
    dashboard.tick()
    assert record.button.label == "●  Record"
    (folder,) = hub.tape.folder.iterdir()
    assert f"auxconn replay {folder}" in record.note.object
    from auxconn import Recording

    found = Recording(folder)
    assert found.complete
    assert len(found.frames.steps()) == 20
    # Another one, which the end of the server ends.
    record.button.clicks += 1
    hub.close()
    assert len(list(hub.tape.folder.glob("*/recording.json"))) == 2
    dashboard.close()


def test_a_folder_that_cannot_be_written_to_is_told_beside_the_button(tmp_path):
    hub = Hub(FrameStore(10))
    (tmp_path / "file").write_text("")
    hub.tape.folder = tmp_path / "file"
    dashboard = live(hub, start=False)
    dashboard.record.button.clicks += 1
    assert "Not a directory" in dashboard.record.note.object
    assert dashboard.record.button.label == "●  Record"
    dashboard.close()


def test_a_page_that_only_looks_records_nothing(tmp_path):
    hub = Hub(FrameStore(10))
    hub.read_only = True
    hub.tape.folder = tmp_path / "recordings"
    dashboard = live(hub, start=False)
    assert dashboard.record.button.disabled
    assert "without --allow-control" in dashboard.record.note.object
    dashboard.record.button.clicks += 1
    dashboard.tick()
    assert dashboard.record.button.disabled
    assert not hub.tape.folder.exists()
    dashboard.close()


def test_rows_as_columns_are_looked_at():
    store, other = FrameStore(10), FrameStore(10)
    store.append("lookups", [made.lookups(i) for i in range(3)], "a", 2)
    columns = store.since("lookups", 0).columns
    assert other.put("lookups", columns) == 3
    assert other.lookups().equals(store.lookups())
    with pytest.raises(ValueError, match="lookups: the columns lack rank"):
        other.put("lookups", {n: v for n, v in columns.items() if n != "rank"})
    with pytest.raises(ValueError, match="not of one length"):
        other.put("lookups", columns | {"t": np.zeros(2)})
    odd = np.array(["", "odd", ""], dtype=object)
    with pytest.raises(ValueError, match="'odd' is none of '', 'unaligned'"):
        other.put("lookups", columns | {"refusal": odd})
    assert other.version("lookups") == 3
    assert isinstance(made.steps(1), Steps)
