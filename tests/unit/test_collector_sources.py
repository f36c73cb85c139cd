"""Lives of sources, played through with a clock that the test turns."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from auxconn import roster, sources
from auxconn.frames import FrameStore
from auxconn.records import SCHEMA_VERSION, TABLES
from auxconn.source import Source
from auxconn.sources import Sources
from auxconn.telling import OWN_ENGINE
from auxconn.wire import Ack, Batch, Beat, Bye, Hello, Progress, Welcome
from tests.unit import stream_made as made


class Scene:
    """Sources with a store and a clock, and the engines that speak to them."""

    def __init__(self, **how: Any) -> None:
        self.clock = made.Clock()
        self.store = FrameStore(1000)
        self.acks: list[tuple[Any, ...]] = []
        self.gone: list[tuple[Any, ...]] = []
        self.sources = Sources(
            self.store,
            clock=self.clock,
            wall=lambda: made.T0,
            on_ack=lambda *answer: self.acks.append(answer),
            on_gone=lambda *source: self.gone.append(source),
            **how,
        )

    def say(self, peer: str, message: Any) -> Welcome | None:
        raw = message if isinstance(message, bytes) else msgspec.msgpack.encode(message)
        return self.sources.receive(peer.encode(), raw)

    def hello(
        self,
        peer: str = "p",
        engine: str = "lab",
        rank: int = 0,
        role: str = "engine",
        incarnation: str = "one",
        **how: Any,
    ) -> Welcome:
        how = {"facts": {"block_size": 16}} | how
        answer = self.say(
            peer, Hello(SCHEMA_VERSION, engine, rank, role, incarnation, **how)
        )
        assert answer is not None
        return answer

    def only(self) -> Source:
        (source,) = self.sources.snapshot()
        return source

    def told(self, kind: str, engine: str = "lab") -> list[str]:
        events = self.store.events(engine=engine)
        return events["text"][events["kind"] == kind].tolist()

    def pass_(self, seconds: float) -> None:
        self.clock.pass_(seconds)
        self.sources.tick()


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_source_is_known_by_its_greeting(scene):
    answer = scene.hello(rank=3, role="worker", commands=("pause",))
    assert answer == Welcome(SCHEMA_VERSION, True, "welcome")
    source = scene.only()
    assert (source.engine, source.rank, source.role) == ("lab", 3, "worker")
    assert source.facts == {"block_size": 16}
    assert source.commands == ("pause",)
    assert (source.state, source.age_s, source.rows) == ("live", 0.0, 0)
    scene.clock.pass_(0.75)
    assert scene.only().age_s == 0.75
    assert scene.only().last_seen == 1000.0


def test_rows_go_to_the_store_under_the_name_of_their_source(scene):
    scene.hello(engine="a", rank=1)
    scene.hello("q", engine="b", rank=2)
    steps, blocks = [made.steps(4), made.steps(5)], [made.blocks(5, 30)]
    scene.say("p", Batch(1, steps=steps, blocks=blocks))
    scene.say("q", Batch(1, events=[made.events(1)]))
    assert scene.store.steps()["step"].tolist() == [4, 5]
    assert set(scene.store.blocks()["engine"]) == {"a"}
    assert scene.store.events()["rank"].tolist() == [2]
    assert [source.rows for source in scene.sources.snapshot()] == [32, 1]


def test_starting_ends_with_the_progress_or_with_facts_or_rows(scene):
    scene.hello(facts={})
    assert scene.only().state == "starting"
    scene.say("p", Progress("import", 0.25, "importing vLLM"))
    scene.hello()
    source = scene.only()
    assert source.state == "starting"
    assert source.progress == Progress("import", 0.25, "importing vLLM")
    scene.say("p", Progress("ready", 1.0, ""))
    assert scene.only().state == "live"
    scene.hello("q", engine="other", facts={})
    scene.say("q", Batch(1))
    assert [source.state for source in scene.sources.snapshot()] == ["live", "live"]


def test_silence_makes_a_source_stale_once_and_a_word_brings_it_back(scene):
    scene.hello()
    scene.say("p", Batch(1, steps=[made.steps(41)]))
    scene.pass_(2.0)
    assert scene.only().state == "live"
    scene.pass_(0.5)
    assert scene.only().state == "stale"
    scene.pass_(5.0)
    assert scene.told("stale") == ["nothing heard for 2.5 s"]
    scene.say("p", Beat(made.T0))
    assert scene.only().state == "live"
    assert scene.told("back") == ["heard again after 7.5 s"]
    events = scene.store.events()
    assert events["step"].tolist() == [41, 41]
    assert events["engine"].tolist() == ["lab", "lab"]
    scene.pass_(2.5)
    assert len(scene.told("stale")) == 2


def test_an_engine_that_starts_may_be_silent_longer(scene):
    scene.hello(facts={})
    scene.say("p", Progress("import", 0.2, ""))
    scene.pass_(9.9)
    assert scene.only().state == "starting"
    scene.pass_(0.2)
    assert scene.only().state == "stale"


def test_missing_batches_are_counted_and_told(scene):
    scene.hello()
    scene.say("p", Batch(1))
    scene.say("p", Batch(5, steps=[made.steps(1)]))
    assert scene.only().batches_lost == 3
    assert scene.told("gap") == ["3 batches lost on the way (2 to 4)"]
    # The rows after the hole are there, and those of the next batch too.
    scene.say("p", Batch(6, steps=[made.steps(2)]))
    assert scene.store.steps()["step"].tolist() == [1, 2]
    assert scene.only().batches_lost == 3


def test_dropped_rows_are_counted_and_told(scene):
    scene.hello()
    scene.say("p", Batch(1, {"steps": 120, "lookups": 3}))
    scene.say("p", Batch(2, {"steps": 5}))
    assert scene.only().rows_lost == {"steps": 125, "lookups": 3}
    assert scene.told("gap") == [
        "rows lost, the collector was away or slow, or they were no records: steps 120, lookups 3"
    ]
    scene.pass_(1.0)
    assert scene.told("gap")[1:] == [
        "rows lost, the collector was away or slow, or they were no records: steps 5"
    ]


def test_many_gaps_make_few_events_and_exact_sums(scene):
    scene.hello()
    seq = 1
    for _ in range(1000):
        scene.say("p", Batch(seq, {"steps": 2}))
        seq += 3
        scene.clock.pass_(0.01)
        scene.sources.tick()
    scene.sources.close()
    source = scene.only()
    assert source.batches_lost == 2 * 999
    assert source.rows_lost == {"steps": 2000}
    told = scene.told("gap")
    assert len(told) <= 12
    assert sum(int(text.rsplit(" ", 1)[1]) for text in told) == 2000
    batches = [int(text.split(" ", 1)[0]) for text in told if "batches" in text]
    assert sum(batches) == 2 * 999
    assert "(between 2 to" in " ".join(told)


def test_what_came_before_a_collector_listened_is_no_loss_but_is_told(scene):
    scene.hello()
    scene.say("p", Batch(58))
    source = scene.only()
    assert (source.batches_before, source.batches_lost) == (57, 0)
    assert scene.told("gap") == [
        "the first batch here is 58: those before it went to another collector or were lost"
    ]


def test_a_reconnection_of_the_same_start_goes_on_where_it_was(scene):
    scene.hello()
    scene.say("p", Batch(1))
    scene.hello("q", facts={"block_size": 32})
    scene.say("q", Batch(3))
    source = scene.only()
    assert source.facts == {"block_size": 32}
    assert source.batches_lost == 1
    assert scene.sources.peer_of(("lab", 0, "engine"), "one") == b"q"
    # The former connection is nobody's.
    answer = scene.say("p", Batch(4))
    assert answer == Welcome(SCHEMA_VERSION, True, "say hello first")
    assert scene.sources.strangers == 1


def test_a_batch_that_came_before_is_not_taken_twice(scene):
    scene.hello()
    scene.say("p", Batch(1, steps=[made.steps(1)]))
    scene.say("p", Batch(1, steps=[made.steps(1)]))
    scene.say("p", Batch(0))
    assert scene.store.version("steps") == 1
    assert scene.only().errors == 2
    assert scene.only().error == "batch 0 when 2 is the next"


def test_a_goodbye_ends_a_source(scene):
    scene.hello()
    scene.say("p", Batch(1, {"rows": 7}))
    scene.say("p", Batch(2, {"rows": 8}))
    scene.say("p", Bye("stopped by a person"))
    assert scene.only().state == "gone"
    assert scene.told("stop") == ["ended: stopped by a person"]
    assert len(scene.told("gap")) == 2
    assert scene.gone == [(("lab", 0, "engine"), "one")]
    scene.pass_(sources.GONE_SECONDS - 1)
    assert scene.only().state == "gone"
    scene.pass_(2)
    assert scene.sources.snapshot() == []
    assert scene.told("stale") == []


def test_a_restart_takes_the_place_of_what_was_there(scene):
    scene.hello(incarnation="one")
    scene.say("p", Batch(9))
    scene.hello("q", incarnation="two")
    scene.say("q", Batch(1))
    past, live = scene.sources.snapshot()
    assert (past.incarnation, past.state) == ("one", "gone")
    assert (live.incarnation, live.state) == ("two", "live")
    assert (live.batches_lost, live.batches_before) == (0, 0)
    assert scene.told("stop") == ["replaced by another start of the engine"]
    assert scene.gone == [(("lab", 0, "engine"), "one")]
    assert scene.sources.peer_of(("lab", 0, "engine"), "one") is None
    assert scene.sources.peer_of(("lab", 0, "engine"), "two") == b"q"
    scene.say("q", Beat(0))
    scene.pass_(sources.PAST_SECONDS + 0.1)
    assert [source.incarnation for source in scene.sources.snapshot()] == ["two"]


def test_restarts_without_end_are_listed_within_bounds(scene):
    for i in range(1000):
        scene.hello(f"p{i}", incarnation=str(i))
    assert len(scene.sources.snapshot()) == roster.MOST_PAST + 1
    assert len(scene.sources._roster.replaced) <= roster.MOST_SOURCES
    assert len(scene.sources._roster.peers) == 1


def test_two_processes_of_one_name_do_not_take_turns(scene):
    scene.hello("p", incarnation="one")
    scene.hello("q", incarnation="two")
    answer = scene.say("p", Batch(1, steps=[made.steps(1)]))
    assert answer is not None
    assert not answer.accepted
    assert "another process has this engine's name" in answer.text
    answer = scene.hello("p", incarnation="one")
    assert not answer.accepted
    assert "another process is engine 'lab', rank 0, role engine" in answer.text
    assert scene.store.version("steps") == 0
    assert scene.told("error", OWN_ENGINE)
    # Once the second is gone, the first is welcome again.
    scene.say("q", Bye("done"))
    assert scene.hello("p", incarnation="one").accepted


def test_a_silent_source_is_given_up_in_the_end(scene):
    scene.hello()
    scene.pass_(3)
    scene.pass_(sources.GONE_SECONDS)
    assert scene.only().state == "gone"
    assert scene.told("stop") == ["given up: nothing heard for 303 s"]
    scene.say("p", Beat(0))
    assert scene.only().state == "live"
    assert scene.told("back") == ["heard again after 303.0 s"]


def test_another_schema_is_refused_and_told(scene):
    answer = scene.say("p", Hello(SCHEMA_VERSION + 1, "lab", 0, "engine", "one"))
    assert answer is not None
    assert (answer.schema, answer.accepted) == (SCHEMA_VERSION, False)
    assert f"schema {SCHEMA_VERSION + 1}, the collector {SCHEMA_VERSION}" in answer.text
    assert scene.sources.snapshot() == []
    assert scene.sources.refused == 1
    (told,) = scene.told("error", OWN_ENGINE)
    assert told.startswith("refused 'lab': the engine speaks schema 2")


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"engine": ""}, "engine=''"),
        ({"engine": "a\nb"}, "engine="),
        ({"rank": -1}, "rank=-1"),
        ({"role": "king"}, "role='king'"),
        ({"facts": {str(i): i for i in range(257)}}, "more than 256 facts"),
        ({"facts": {"a": "x" * 2000}}, "more than 1024 characters"),
        ({"commands": ("x" * 2000,)}, "more than 1024 characters"),
        ({"incarnation": "x" * 2000}, "more than 1024 characters"),
    ],
)
def test_greetings_that_cannot_be_are_refused(scene, how, why):
    answer = scene.hello(**how)
    assert not answer.accepted
    assert why in answer.text
    assert scene.sources.snapshot() == []


def test_a_connection_is_of_one_source(scene):
    scene.hello("p", engine="a")
    answer = scene.hello("p", engine="b")
    assert not answer.accepted
    assert "this connection is that of engine 'a'" in answer.text
    assert scene.only().errors == 1


def test_sources_are_bounded_and_those_that_are_lost_make_room():
    scene = Scene(most=3)
    for i in range(3):
        scene.hello(f"p{i}", engine=f"e{i}")
    answer = scene.hello("p3", engine="e3")
    assert not answer.accepted
    assert "3 sources are connected already" in answer.text
    scene.clock.pass_(1.5)
    scene.say("p0", Beat(0))
    scene.say("p2", Beat(0))
    scene.pass_(1.0)
    assert scene.hello("p3", engine="e3").accepted
    engines = [source.engine for source in scene.sources.snapshot()]
    assert engines == ["e0", "e2", "e3"]
    assert scene.told("stop", "e1") == ["given up to make room for another source"]


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xc1",
        b"\x00",
        b"\x91" * 100_000,
        msgspec.msgpack.encode(["batch", "one"]),
        msgspec.msgpack.encode(["nothing", 1]),
        msgspec.msgpack.encode({"seq": 1}),
        msgspec.msgpack.encode(["batch", 1, {}, "steps"]),
        msgspec.msgpack.encode(["batch", 1, {"nothing": 1}]),
        msgspec.msgpack.encode(["batch", 1, {"steps": -1}]),
        msgspec.msgpack.encode(["batch", 1, {"steps": "many"}]),
        msgspec.msgpack.encode(["batch", -3]),
    ],
)
def test_what_is_no_message_is_counted_and_told_and_changes_nothing(scene, raw):
    scene.hello()
    scene.say("p", raw)
    scene.say("stranger", raw)
    source = scene.only()
    assert source.errors == 1
    assert source.error
    assert source.rows == 0
    assert len(scene.told("error")) == 1
    assert len(scene.told("error", OWN_ENGINE)) == 1
    scene.say("p", Batch(1, steps=[made.steps(1)]))
    assert scene.only().rows == 1
    assert scene.only().rows_lost == {}


def test_a_message_that_is_too_long_is_counted_and_told(scene, monkeypatch):
    monkeypatch.setattr("auxconn.sources.MESSAGE_LIMIT", 1000)
    scene.hello()
    scene.say("p", Batch(1, events=[made.events(1, "x" * 1000)]))
    assert scene.sources.malformed == 1
    (told,) = scene.told("error")
    assert "the limit is 1000" in told


def test_a_flood_of_errors_makes_few_events(scene):
    scene.hello()
    for _ in range(5000):
        scene.say("p", b"\xc1")
        scene.clock.pass_(0.001)
    scene.pass_(1.0)
    assert scene.only().errors == 5000
    told = scene.told("error")
    assert len(told) <= 7
    told_of = [
        1 if "messages" not in text else int(text.split(" ", 1)[0]) for text in told
    ]
    assert sum(told_of) == 5000


def test_rows_the_store_refuses_are_lost_and_counted(scene):
    scene.hello()
    step = made.steps(1)
    step.retained = step.step = 2**63
    blocks = made.blocks(1, 5)
    blocks.age = b"123"
    scene.say("p", Batch(1, steps=[made.steps(2), step], blocks=[blocks]))
    source = scene.only()
    assert source.rows_lost == {"steps": 1, "blocks": 5}
    assert (source.errors, source.rows) == (2, 1)
    assert "blocks.age" in source.error
    assert scene.store.steps()["step"].tolist() == [2]
    scene.pass_(1.0)
    assert scene.told("gap") == [
        "rows lost, they could not be used: steps 1",
        "rows lost, they could not be used: blocks 5",
    ]
    # The step of the events is one that can be stored, or they would be lost as well.
    assert scene.store.events()["step"].isin([0, 2]).all()


def wrong(table: str, **values: Any) -> Any:
    record = made.MAKERS[table](9)
    for name, value in values.items():
        setattr(record, name, value)
    return record


@pytest.mark.parametrize(
    ("table", "bad", "rows"),
    [
        ("steps", wrong("steps", retained="many"), 1),
        ("steps", wrong("steps", retained=None), 1),
        ("steps", [], 1),
        ("steps", "a step", 1),
        ("lookups", wrong("lookups", refusal="mood"), 1),
        ("lookups", wrong("lookups", request=b"\xff"), 1),
        ("blocks", wrong("blocks", event="moved"), 3),
        ("blocks", wrong("blocks", hash="text"), 1),
        ("blocks", wrong("blocks", age=5), 3),
    ],
)
def test_a_record_that_is_none_costs_its_batch_nothing_else(scene, table, bad, rows):
    scene.hello()
    batch = {name: [made.MAKERS[name](1), made.MAKERS[name](2)] for name in TABLES}
    batch[table].insert(1, bad)
    scene.say("p", Batch(1, {"rows": 7}, **batch))
    scene.say("p", Batch(2, steps=[made.steps(3)]))
    source = scene.only()
    assert source.rows_lost == {"rows": 7} | {table: rows}
    assert (source.errors, source.batches_lost) == (1, 0)
    assert f"not a record: {table}: " in source.error
    assert scene.store.steps()["step"].tolist() == [1, 2, 3]
    for name in TABLES:
        assert set(scene.store.frame(name)["step"]) >= {1, 2}
    (told,) = scene.told("gap")
    assert told.endswith(f"rows lost, they could not be used: {table} {rows}")
    assert scene.told("error") == [source.error]


def test_a_string_that_is_no_text_costs_its_record_alone(scene):
    scene.hello()
    raw = msgspec.msgpack.encode(
        Batch(1, lookups=[made.lookups(1), made.lookups(2, "XYZ"), made.lookups(3)])
    )
    scene.say("p", raw.replace(b"XYZ", b"\xff\xfe\xfd"))
    assert scene.store.lookups()["step"].tolist() == [1, 3]
    assert scene.only().rows_lost == {"lookups": 1}


def test_answers_go_to_whoever_waits_for_them(scene):
    scene.hello()
    ack = Ack(7, True, "done", made.T0)
    scene.say("p", ack)
    assert scene.acks == [(ack, ("lab", 0, "engine"), "one")]


def test_the_version_rises_with_what_can_be_seen(scene):
    seen = scene.sources.version

    def moved() -> bool:
        nonlocal seen
        before, seen = seen, scene.sources.version
        return seen > before

    scene.hello()
    assert moved()
    scene.say("p", Beat(0))
    assert not moved()
    scene.say("p", Batch(1, steps=[made.steps(1)]))
    assert moved()  # it spoke for the first time
    scene.say("p", Batch(2, steps=[made.steps(1)]))
    assert not moved()
    scene.say("p", Progress("x", 0.5, ""))
    assert moved()
    scene.say("p", Progress("x", 0.5, ""))
    assert not moved()
    scene.say("p", Batch(3, {"steps": 1}))
    assert moved()
    scene.pass_(20)
    assert moved()
    scene.pass_(1)
    assert not moved()


def test_engines_beyond_what_the_store_can_name_are_no_end(scene, monkeypatch):
    monkeypatch.setattr("auxconn.rings.Names.LIMIT", 2)
    for i in range(4):
        scene.hello(f"p{i}", engine=f"e{i}")
        scene.say(f"p{i}", Batch(1, steps=[made.steps(1)]))
    lost = [source.rows_lost for source in scene.sources.snapshot()]
    assert lost == [{}, {}, {"steps": 1}, {"steps": 1}]
