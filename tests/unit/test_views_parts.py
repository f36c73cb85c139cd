"""Indicators, look-ups, reasons, events, banner, header: what they show of a snapshot."""

import dataclasses

import pytest

from auxconn.frames import FrameStore
from auxconn.records import Events, Lookups
from auxconn_dashboard import words
from auxconn_dashboard.hub import Hub
from auxconn_dashboard.lookups import PAGE, REFUSED, LookupLog, shown
from auxconn_dashboard.snapshot import Link, Window
from auxconn_dashboard.subjects import Subject
from auxconn_dashboard.views.banner import RESTART, BannerView
from auxconn_dashboard.views.events import EventsView
from auxconn_dashboard.views.indicators import IndicatorsView, over_capacity
from auxconn_dashboard.views.lookups import LookupsView
from auxconn_dashboard.views.reasons import ReasonsView
from auxconn_dashboard.views.topbar import facts, state_words
from bench.feed import Feed

START = 1_700_000_000.0
HOSTILE = "<script>alert(1)</script>\x00\u202e"


@pytest.fixture
def lab():
    store = FrameStore(50_000)
    return Feed(store, start=START), Hub(store)


def cards(view):
    return {card["key"]: card for card in view.source.shown["cards"]}


def test_indicators_before_anything_is_known_are_dashes(lab):
    _, hub = lab
    view = IndicatorsView()
    assert {card["value"] for card in cards(view).values()} == {"–"}
    view.update(hub.snapshot(None, Window(60)))
    assert {card["value"] for card in cards(view).values()} == {"–"}


def test_indicators_have_both_counters(lab):
    feed, hub = lab
    feed.run(2000)
    view = IndicatorsView()
    view.update(hub.snapshot(None, Window(60)))
    lookups = feed.store.lookups()
    hit = (lookups["local_hit"] + lookups["external_accepted"]).sum()
    asked = lookups["query_tokens"].sum()
    card = cards(view)["hits"]
    assert f"{card['value']}{words.THIN}{card['unit']}" == words.share(hit, asked)
    assert f"{hit:,} of {asked:,} looked-up tokens" in card["tip"]
    assert card["sub"] == f"{words.short(hit)} of {words.short(asked)}"


def test_indicators_of_a_full_window(lab):
    feed, hub = lab
    feed.run(2000)
    view = IndicatorsView()
    assert view.update(hub.snapshot(None, Window(60))) is True
    assert view.update(hub.snapshot(None, Window(60))) is False
    found = cards(view)
    last = feed.store.steps().iloc[-1]
    assert found["retained"]["value"] == f"{last['retained']:,}"
    assert found["retained"]["base"] == 2048
    released = (feed.store.blocks()["event"] == "released").sum()
    assert found["released"]["sub"] == f"{released:,} in all"
    assert found["engine"]["value"] in ("50", "50.0", "49.9", "50.1", "50.2")
    assert found["rows"]["unit"].endswith("rows/s")
    assert found["rows"]["sub"].endswith("MiB/s")
    assert found["store"]["unit"] == "/ 4,096"
    for card in found.values():
        assert 2 <= len(card["spark"]) <= 60


def test_the_counter_of_releases_goes_on_over_windows(lab):
    feed, hub = lab
    view = IndicatorsView()
    feed.run(2000)
    view.update(hub.snapshot(None, Window(30)))
    before = int(cards(view)["released"]["sub"].split()[0].replace(",", ""))
    feed.run(3000)
    view.update(hub.snapshot(None, Window(30)))
    after = int(cards(view)["released"]["sub"].split()[0].replace(",", ""))
    assert after > before


@pytest.mark.parametrize(
    ("retained", "capacity", "on_gpu", "text"),
    [
        (None, None, None, "no steps"),
        (1980, 2048, 900, "96.7"),
        (2082, 2048, 900, "34 over, on GPU"),
        (2082, 2048, 10, "34 over capacity"),
    ],
)
def test_over_capacity_is_explained(retained, capacity, on_gpu, text):
    assert over_capacity(retained, capacity, on_gpu).startswith(text)


def row(request="r", step=1, **how):
    fields = {
        "query_tokens": 100, "prompt_tokens": 90, "resumed": False, "block_size": 16,
        "retained_hit": 64, "local_hit": 32, "external_offered": 16,
        "external_accepted": 0, "external_refused": 16, "refusal": "unaligned",
        "run_end": 64, "run_end_reason": "evicted", "attempts": 2,
    } | how  # fmt: skip
    return Lookups(START + step / 50, step, request, **fields)


def test_the_look_ups_say_in_words_why_they_ended(lab):
    feed, hub = lab
    feed.store.append("lookups", [row()], "lab")
    view = LookupsView(feed.store)
    assert "No look-ups yet" in view.source.shown["empty"]
    view.update(hub.snapshot(None, Window(60)))
    (one,) = view.source.shown["rows"]
    assert one["why"] == "left the GPU, not retained"
    assert one["offer"] == "16 refused: not a whole number of blocks"
    assert one["hit"] == words.share(32, 100)
    assert [one[part] for part in ("local", "external", "refused", "unused", "missed")] == [
        32, 0, 16, 16, 36,
    ]  # fmt: skip
    told = " ".join(one["detail"])
    assert "at attempt 2" in told
    assert "64 tokens" in told
    assert view.update(hub.snapshot(None, Window(60))) is False


def test_request_ids_are_hostile(lab):
    feed, hub = lab
    feed.store.append("lookups", [row(HOSTILE)], "lab")
    feed.store.append("events", [Events(START, 1, "error", HOSTILE)], "lab")
    snapshot = hub.snapshot(None, Window(60))
    table, log = LookupsView(feed.store), EventsView()
    table.update(snapshot)
    log.update(snapshot)
    # They reach the browser as JSON strings and are set as text there; what could turn the
    # line around or end it is gone already.
    assert (
        table.source.shown["rows"][0]["request"]
        == "<script>alert(1)</script>\ufffd\ufffd"
    )
    assert (
        log.source.shown["rows"][0]["text"] == "<script>alert(1)</script>\ufffd\ufffd"
    )


def test_look_ups_are_filtered_by_id_and_by_reason(lab):
    feed, hub = lab
    rows = [row(f"a-{n}", n) for n in range(1, 31)]
    rows += [row(f"B-{n}", n, run_end_reason="short") for n in range(31, 41)]
    rows += [row("c", 41, external_refused=0, refusal="", external_accepted=16)]
    feed.store.append("lookups", rows, "lab")
    view = LookupsView(feed.store)
    view.update(hub.snapshot(None, Window(60)))
    assert view.source.shown["count"] == "1 to 12 of 41"
    view.source.on_message({"filter": "b-"})
    assert {one["request"] for one in view.source.shown["rows"]} == {
        f"B-{n}" for n in range(31, 41)
    }
    view.source.on_message({"filter": "", "reason": "short"})
    assert view.source.shown["count"] == "1 to 10 of 10 that match"
    view.source.on_message({"reason": REFUSED})
    assert view.log.total == 40
    view.source.on_message({"reason": "no such reason", "filter": "nothing has this"})
    assert view.source.shown["rows"] == []
    assert "Clear the filter" in view.source.shown["empty"]


def test_an_older_page_stays_where_it_is_while_rows_come():
    store = FrameStore(1000)
    store.append("lookups", [row(f"r{n}", n) for n in range(50)], "lab")
    log = LookupLog(store, [Subject("lab")])
    log.turn(1)
    page = [one["request"] for one in log.rows()]
    assert page == [f"r{n}" for n in range(37, 25, -1)]
    store.append("lookups", [row(f"r{n}", n) for n in range(50, 60)], "lab")
    assert log.advance() is True
    assert [one["request"] for one in log.rows()] == page
    log.turn(2)
    assert log.rows()[0]["request"] == "r25"
    log.turn(0)
    assert log.rows()[0]["request"] == "r59"


def test_the_last_page_says_so():
    store = FrameStore(1000)
    store.append("lookups", [row(f"r{n}", n) for n in range(PAGE + 1)], "lab")
    log = LookupLog(store, [Subject("lab")])
    assert log.older
    log.turn(1)
    assert len(log.rows()) == 1
    assert not log.older


def test_a_look_up_is_told_in_sentences():
    columns = {name: getattr(row(), name) for name in Lookups.__struct_fields__}
    told = shown({**columns, "request": "x"})["detail"]
    assert told[0].startswith("Asked for 100 tokens, 6 whole blocks of 16")
    assert "offered 16 further tokens: refused, not a whole number of blocks" in told[2]
    again = shown({**columns, "resumed": True})["detail"]
    assert "preemption" in again[0]


def test_reasons_add_up(lab):
    feed, hub = lab
    feed.run(2000)
    view = ReasonsView()
    assert view.source.shown["empty"]
    assert view.update(hub.snapshot(None, Window(60))) is True
    rows = view.source.shown["rows"]
    assert sum(one["part"] for one in rows[:5]) == pytest.approx(1)
    assert view.source.shown["empty"] == ""
    ends = feed.store.lookups()["run_end_reason"].value_counts()
    assert rows[1]["count"] == words.short(ends["never_seen"])
    assert view.update(hub.snapshot(None, Window(60))) is False


def test_events_are_told_newest_first(lab):
    feed, hub = lab
    view = EventsView()
    view.update(hub.snapshot(None, Window(60)))
    assert "resets" in view.source.shown["empty"]
    feed.event("start", "watching")
    feed.event("capacity", "capacity 2048 -> 205")
    assert view.update(hub.snapshot(None, Window(60))) is True
    assert [one["label"] for one in view.source.shown["rows"]] == [
        "capacity",
        "started",
    ]
    assert view.update(hub.snapshot(None, Window(60))) is False


def linked(hub, **how):
    return dataclasses.replace(hub.snapshot(None, Window(60)), link=Link(**how))


def test_the_banner_tells_the_start_the_end_and_absence(lab):
    _, hub = lab
    asked = []
    banner = BannerView("tcp://127.0.0.1:5599", "the lab", asked.append)
    banner.update(linked(hub, state="starting", stage="engine", fraction=0.6))
    said = banner.source.shown
    assert said["kind"] == "wait"
    assert [how for _, how in said["stages"]] == [
        "done",
        "done",
        "now",
        "later",
        "later",
    ]
    banner.update(
        linked(hub, state="stale", text="its process was ended by SIGKILL", age=3)
    )
    said = banner.source.shown
    assert "Its process was ended by SIGKILL" in said["text"]
    assert said["action"] == [RESTART, "Restart the lab"]
    banner.source.on_message({"action": RESTART})
    assert asked == [RESTART]
    banner.update(linked(hub, state="live"))
    assert banner.root.visible is False
    waiting = BannerView("tcp://127.0.0.1:5599", "", asked.append)
    waiting.update(linked(hub, state="none"))
    assert "AUXCONN_COLLECTOR=tcp://127.0.0.1:5599" in waiting.source.shown["code"]


@pytest.mark.parametrize("state", ["none", "starting", "live", "idle", "paused", "stale",
                                   "gone", "stopped", "still"])  # fmt: skip
def test_every_state_has_a_word(state):
    word, _ = state_words(Link(state, age=4.2))
    assert word
    assert ("4.2" in word) == (state in ("stale", "gone"))


def test_the_header_has_the_engine_in_a_line(lab):
    feed, hub = lab
    feed.run(10)
    snapshot = dataclasses.replace(
        hub.snapshot(None, Window(60)),
        facts={
            "vllm_version": "0.33.0", "model": HOSTILE, "connector": "auxconn",
            "block_size": 32, "hash_block_size": 16,
        },
    )  # fmt: skip
    texts = [fact["text"] for fact in facts(snapshot)]
    assert texts == [
        "gen 1", "vLLM 0.33.0", "connector auxconn", "32-token blocks, hashed by 16",
        "<script>alert(1)</script>\ufffd\ufffd",
    ]  # fmt: skip
    lossy = dataclasses.replace(snapshot, lost={"steps": 12})
    assert any(
        fact["alert"] and "12 rows missed" in fact["text"] for fact in facts(lossy)
    )
