"""Controls: they show the engine's facts, say what they will do, and what became of it."""

import dataclasses
import json
import time
from concurrent.futures import Future

import param
import pytest

from auxconn.frames import FrameStore
from auxconn.lab.commands import NAMES
from auxconn.lab.workload_specs import KINDS, WorkloadSpec
from auxconn.wire import Ack
from auxconn_dashboard import words
from auxconn_dashboard.changes import number, parse_workload
from auxconn_dashboard.controls import ARMED_SECONDS, BLOCK_SIZES, Controls
from auxconn_dashboard.hub import Hub
from auxconn_dashboard.snapshot import Link, Window
from auxconn_dashboard.steering import (
    Change,
    Steering,
    capacity_preview,
    capacity_words,
)
from auxconn_dashboard.views.parameters import MOST_TEXT
from bench.feed import Feed

FACTS = {
    "source": "lab", "block_size": 16, "hash_block_size": 16, "num_blocks": 1024,
    "kv_tier_blocks": 4096, "capacity": 1600, "connector": "auxconn",
    "workload": "grpo(prompts=48, samples=4)", "steps_per_s": 50.0, "paused": False,
    "bytes_per_block": 6144,
}  # fmt: skip


def let_go(widget, value):
    """What the browser does when a slider is let go or a number is entered."""
    widget.value = value
    with param.edit_constant(widget):
        widget.value_throttled = value


class Bench:
    """Controls over an invented engine whose answers the test gives."""

    def __init__(self, facts=FACTS, commands=NAMES, state="live", steps=500, link=None):
        self.sent = []
        self.answers = []
        self.steering = Steering(self.send)
        self.controls = Controls(self.steering)
        store = FrameStore(20_000)
        self.feed = Feed(store, start=time.time() - 10, capacity=1600)
        self.feed.run(steps)
        self.hub = Hub(store)
        self.facts, self.commands, self.state = dict(facts), commands, state
        self.link = link
        self.update()

    def send(self, name, /, **args):
        self.sent.append((name, args))
        self.answers.append(Future())
        return self.answers[-1]

    def answer(self, ok=True, text="done"):
        self.answers[-1].set_result(Ack(len(self.answers), ok, text, time.time()))
        self.update()

    @property
    def snapshot(self):
        return dataclasses.replace(
            self.hub.snapshot(None, Window(60)),
            facts=self.facts,
            commands=frozenset(self.commands),
            link=self.link or Link(self.state),
        )

    def update(self):
        return self.controls.update(self.snapshot)

    def note(self, section):
        return self.controls.notes.panes[section].object


def test_controls_show_what_the_engine_says():
    controls = Bench().controls
    assert controls.capacity.value == 1600
    assert 2**controls.slider.value == pytest.approx(1600)
    assert 2**controls.slider.end >= 2 * 4096
    assert controls.block_size.value == 16
    assert controls.hash_block_size.value == 0
    assert controls.num_blocks.value == 1024
    assert controls.kv_tier.value is True
    assert controls.kv_tier_blocks.value == 4096
    assert controls.connector.value == "auxconn"
    assert controls.workload.value == "grpo"
    assert controls.speed.value == 50
    assert not any(widget.disabled for widget in controls.widgets.values())


def test_showing_facts_sends_nothing():
    bench = Bench()
    bench.facts |= {"block_size": 32, "hash_block_size": 32, "connector": "vllm"}
    bench.update()
    assert bench.controls.block_size.value == 32
    assert bench.controls.connector.value == "vllm"
    assert bench.sent == []


def test_a_tick_does_not_disturb_a_hand_on_a_control():
    bench = Bench()
    bench.controls.slider.value = 8.0
    assert bench.controls.capacity.value == 256
    bench.feed.run(50)
    bench.update()
    assert bench.controls.slider.value == 8.0
    assert bench.controls.capacity.value == 256
    assert bench.sent == []


def test_the_capacity_says_what_it_will_do_before_it_does_it():
    bench = Bench()
    bench.controls.slider.value = 8.0
    retained = bench.snapshot.level("steps", "retained")
    on_gpu = bench.snapshot.level("steps", "retained_on_gpu")
    note = bench.note("capacity")
    assert (
        f"releases about {int(min(retained - 256, retained - on_gpu)):,} blocks" in note
    )
    assert f"{int(on_gpu - 256):,} over it stay while they are on the GPU" in note
    assert "4,096 tokens" in note
    assert "1.50\u202fMiB of R3 rows" in note
    assert bench.sent == []


def test_the_capacity_is_set_told_and_put_back():
    bench = Bench()
    controls = bench.controls
    controls.slider.value = 8.0
    let_go(controls.slider, 8.0)
    assert bench.sent == [("set_capacity", {"blocks": 256})]
    assert "sending: capacity 1,600 → 256" in bench.note("capacity")
    bench.answer(text="capacity 1600 -> 256 blocks")
    assert "applied" in bench.note("capacity")
    assert controls.undo.visible
    assert "capacity 1,600 → 256" in controls.undo.label
    controls.undo.clicks += 1
    assert bench.sent[-1] == ("set_capacity", {"blocks": 1600})
    bench.answer()
    assert not controls.undo.visible


def test_a_capacity_that_was_not_known_is_set_and_cannot_be_put_back():
    facts = {name: value for name, value in FACTS.items() if name != "capacity"}
    bench = Bench(facts=facts, steps=0)
    let_go(bench.controls.capacity, 64)
    assert bench.sent == [("set_capacity", {"blocks": 64})]
    bench.answer()
    assert not bench.controls.undo.visible


def test_a_refusal_is_told_and_the_control_goes_back():
    bench = Bench()
    let_go(bench.controls.capacity, 5)
    assert bench.sent == [("set_capacity", {"blocks": 5})]
    bench.answer(ok=False, text="capacity must be <positive>")
    assert "refused: capacity must be &lt;positive&gt;" in bench.note("capacity")
    assert bench.controls.capacity.value == 1600
    assert not bench.controls.undo.visible


def test_an_engine_that_does_not_answer_is_told():
    bench = Bench()
    bench.controls.block_size.value = 32
    bench.answers[-1].set_exception(TimeoutError("no answer within 5 s"))
    bench.update()
    assert "refused: no answer within 5 s" in bench.note("shape")
    assert bench.controls.block_size.value == 16


@pytest.mark.parametrize(
    ("control", "value", "command", "args", "back"),
    [
        ("block_size", 32, "reconfigure", {"block_size": 32}, {"block_size": 16}),
        ("hash_block_size", 8, "reconfigure", {"hash_block_size": 8}, {"hash_block_size": None}),
        ("kv_tier", False, "reconfigure", {"kv_tier_blocks": 0}, {"kv_tier_blocks": 4096}),
        ("connector", "vllm", "reconfigure", {"connector": "vllm"}, {"connector": "auxconn"}),
        ("workload", "scan", "workload", {"name": "scan"},
         {"name": "grpo", "prompts": 48, "samples": 4}),
    ],
)  # fmt: skip
def test_each_choice_is_a_command_that_can_be_undone(
    control, value, command, args, back
):
    bench = Bench()
    bench.controls.widgets[control].value = value
    assert bench.sent == [(command, args)]
    bench.answer()
    bench.controls.undo.clicks += 1
    assert bench.sent[-1] == (command, back)


@pytest.mark.parametrize(
    ("control", "value", "command", "args"),
    [
        ("num_blocks", 2048, "reconfigure", {"num_blocks": 2048}),
        ("kv_tier_blocks", 512, "reconfigure", {"kv_tier_blocks": 512}),
        ("speed", 0.0, "speed", {"steps_per_s": None}),
        ("speed", 10, "speed", {"steps_per_s": 10}),
    ],
)
def test_numbers_and_speeds_are_sent_when_let_go(control, value, command, args):
    bench = Bench()
    bench.controls.widgets[control].value = value
    assert bench.sent == []
    let_go(bench.controls.widgets[control], value)
    assert bench.sent == [(command, args)]


def test_a_finer_hash_that_does_not_divide_the_new_block_is_given_up():
    bench = Bench(facts={**FACTS, "block_size": 32, "hash_block_size": 16})
    assert bench.controls.hash_block_size.value == 16
    bench.controls.block_size.value = 8
    assert bench.sent == [("reconfigure", {"block_size": 8, "hash_block_size": None})]


def test_the_tier_comes_back_with_the_size_it_had():
    bench = Bench()
    bench.controls.kv_tier.value = False
    bench.answer()
    bench.facts["kv_tier_blocks"] = 0
    bench.update()
    assert bench.controls.kv_tier_blocks.disabled
    bench.controls.kv_tier.value = True
    assert bench.sent[-1] == ("reconfigure", {"kv_tier_blocks": 4096})


def test_hash_sizes_that_fit_the_block_are_offered():
    controls = Bench(facts={**FACTS, "block_size": 32, "hash_block_size": 32}).controls
    assert list(controls.hash_block_size.options.values()) == [0, 16, 8, 4]
    odd = Bench(facts={**FACTS, "block_size": 48, "hash_block_size": 16}).controls
    assert 48 in odd.block_size.options.values()
    assert set(BLOCK_SIZES) < set(odd.block_size.options.values())
    assert odd.hash_block_size.value == 16


def test_what_an_engine_does_not_obey_is_disabled_and_says_why():
    bench = Bench(commands=("set_capacity",), facts={**FACTS, "source": "vllm"})
    off = {name for name, widget in bench.controls.widgets.items() if widget.disabled}
    assert off == {
        "block_size", "hash_block_size", "num_blocks", "kv_tier", "kv_tier_blocks",
        "connector", "workload", "speed", "pause", "step", "reset",
    }  # fmt: skip
    assert "keeps the sizes it was started with" in bench.note("shape")
    assert "from its users" in bench.note("load")
    assert 'class="off"' in bench.note("run")
    bench.controls.one_step()
    bench.controls.toggle_engine()
    assert bench.sent == []


def test_nothing_can_be_steered_that_is_not_there():
    lost = Bench(state="stale")
    assert all(widget.disabled for widget in lost.controls.widgets.values())
    assert "does not answer" in lost.note("capacity")
    assert lost.controls.capacity.value == 1600
    starting = Bench(state="starting", commands=(), facts={})
    assert "No engine to steer yet" in starting.note("capacity")


def test_pause_step_and_resume():
    bench = Bench()
    bench.controls.pause.clicks += 1
    assert bench.sent[-1] == ("pause", {})
    bench.facts["paused"] = True
    bench.answer()
    assert "Resume" in bench.controls.pause.label
    bench.controls.step.clicks += 1
    assert bench.sent[-1] == ("step", {"n": 1})
    bench.answer()
    bench.controls.pause.clicks += 1
    assert bench.sent[-1] == ("resume", {})


def test_the_capacity_of_a_paused_engine_is_the_one_it_announces():
    bench = Bench(facts={**FACTS, "paused": True}, state="paused")
    assert bench.snapshot.level("steps", "capacity") == 1600
    bench.facts["capacity"] = 300
    bench.update()
    assert bench.controls.capacity.value == 300
    # And one that announces nothing is believed by its steps.
    bench.feed.capacity = 500
    bench.feed.run(5)
    bench.update()
    assert bench.controls.capacity.value == 500


def test_a_reset_asks_first():
    bench = Bench()
    bench.controls.reset.clicks += 1
    assert bench.sent == []
    assert "again" in bench.controls.reset.label
    bench.controls.reset.clicks += 1
    assert bench.sent == [("reset_prefix_cache", {})]
    assert bench.controls.reset.label == "Reset prefix cache"


def test_another_engines_changes_cannot_be_undone():
    bench = Bench()
    let_go(bench.controls.capacity, 200)
    bench.answer()
    bench.steering.forget()
    assert bench.steering.undo() is False
    assert bench.steering.undoable == ""


def test_a_command_that_cannot_even_be_sent_is_told():
    def send(name, /, **args):
        raise RuntimeError("the collector is closed")

    steering = Steering(send)
    steering.ask(Change("capacity", "capacity 1 → 2", "set_capacity", {"blocks": 2}))
    assert steering.outcomes["capacity"].told == "refused: the collector is closed"
    assert not steering.busy


def entered(bench, **values):
    """What the form's button sends: texts as they were typed, empty ones for defaults."""
    bench.controls.parameters.source.on_message({"kind": "grpo", "values": values})


def test_parameters_in_force_are_shown_and_others_are_applied_at_once():
    bench = Bench()
    shown = bench.controls.parameters.source.shown
    assert shown["kind"] == "grpo"
    assert shown["values"] == {"prompts": "48", "samples": "4"}
    assert shown["disabled"] is False
    entered(bench, prompts="12", samples="", rate="0.5", seed=" 7 ", requests="1e3")
    changed = {"prompts": 12, "rate": 0.5, "seed": 7, "requests": 1000}
    assert bench.sent == [("workload", {"name": "grpo", **changed})]
    assert "prompts 12, rate 0.5, requests 1000, seed 7" in bench.note("load")
    bench.answer()
    bench.facts["workload"] = WorkloadSpec("grpo", changed).describe()
    bench.update()
    assert bench.controls.parameters.source.shown["values"] == {
        "prompts": "12", "rate": "0.5", "seed": "7", "requests": "1000",
    }  # fmt: skip
    bench.controls.undo.clicks += 1
    back = {"name": "grpo", "prompts": 48, "samples": 4}
    assert bench.sent[-1] == ("workload", back)


@pytest.mark.parametrize(
    ("name", "text"),
    [("prompts", "0"), ("prompts", "many"), ("prompts", "1.5"), ("rate", "nan"),
     ("samples", "<b>"), ("output_tokens", "-1"), ("seed", "9" * 60)],
)  # fmt: skip
def test_a_bad_parameter_is_refused_with_the_workloads_own_words(name, text):
    bench = Bench()
    with pytest.raises(ValueError, match=name) as refusal:
        WorkloadSpec("grpo", {name: number(text[:MOST_TEXT])})
    entered(bench, **{name: text})
    assert bench.sent == []
    assert f"refused: {words.escape(str(refusal.value))}" in bench.note("load")
    # The next good one takes the error away.
    entered(bench, prompts="5")
    assert bench.sent == [("workload", {"name": "grpo", "prompts": 5})]
    assert "refused" not in bench.note("load")


def test_what_is_no_form_is_not_taken():
    bench = Bench()
    for said in ({}, {"kind": "none", "values": {}}, {"kind": "scan", "values": "x"}):
        bench.controls.parameters.source.on_message(said)
    assert bench.sent == []
    entered(bench, nonsense="1")
    assert bench.sent == [("workload", {"name": "grpo"})]


def test_every_parameter_of_every_workload_is_in_the_form():
    fields = json.loads(Bench().controls.parameters.source.fixed)["kinds"]
    assert list(fields) == list(KINDS)
    for name, kind in KINDS.items():
        for field, one in zip(fields[name], kind.parameters, strict=True):
            assert field["name"] == one.name
            assert field["default"] == ("" if one.default is None else f"{one.default}")
            assert one.unit in f"{field['label']} {field['unit']}"
            assert one.help in field["hint"]
            least, most = field["hint"].replace(",", "").split(" to ")[-2:]
            assert float(least.split()[-1]) == one.least
            assert float(most.split()[0].rstrip(";")) == one.most


def test_another_workload_comes_with_its_own_parameters():
    bench = Bench()
    bench.controls.workload.value = "scan"
    assert bench.controls.parameters.source.shown["kind"] == "scan"
    assert bench.controls.parameters.source.shown["values"] == {}
    fixed = Bench(commands=("set_capacity",)).controls.parameters.source.shown
    assert fixed["disabled"] is True


def test_a_preview_knows_upstreams_connector_releases_later():
    snapshot = Bench(facts={**FACTS, "connector": "vllm"}).snapshot
    assert "when the next request ends" in capacity_preview(snapshot, 1000)
    assert capacity_preview(snapshot, 1600) == "the capacity in force"
    assert "room for" in capacity_preview(snapshot, 5000)


def test_blocks_are_told_in_tokens_and_bytes_as_far_as_they_are_known():
    bench = Bench()
    assert (
        capacity_words(bench.snapshot, 100) == "1,600 tokens, 600\u202fKiB of R3 rows"
    )
    bench.facts = {"block_size": 16}
    assert capacity_words(bench.snapshot, 100) == "1,600 tokens"


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("grpo()", {"name": "grpo"}),
        ("scan(documents=8, rate=0.5)", {"name": "scan", "documents": 8, "rate": 0.5}),
        ("shared_prefix(zipf=1e-3)", {"name": "shared_prefix", "zipf": 0.001}),
        ("a list of requests", None),
        ("grpo(prompts=many)", None),
    ],
)
def test_a_workloads_words_are_read_back(text, known):
    assert parse_workload(text) == known


def test_an_engine_that_keeps_its_sizes_says_how_to_have_others():
    sizes = {
        "num_blocks": 5000, "block_size": 16, "capacity": 4000, "kv_tier_blocks": 0,
    }  # fmt: skip
    facts = {**FACTS, **sizes, "source": "vllm", "model": "org/it's <b>MoE</b>"}
    bench = Bench(commands=("set_capacity",), facts=facts)
    note = bench.note("shape")
    assert "keeps the sizes it was started with" in note
    assert (
        "vllm serve &#x27;org/it&#x27;&quot;&#x27;&quot;&#x27;s &lt;b&gt;MoE&lt;/b&gt;&#x27; "
        "--enable-return-routed-experts --block-size 16"
    ) in note
    assert (
        "auxconn demo --blocks 5000 --block-size 16 --capacity 4000 --kv-tier 0"
    ) in note
    assert "<b>" not in note


def test_our_own_engine_is_had_with_other_sizes_by_its_own_command():
    facts = {**FACTS, "num_blocks": 1024, "block_size": 32, "kv_tier_blocks": 256}
    facts |= {"source": "vllm", "model": "toy-moe"}
    note = Bench(commands=("set_capacity",), facts=facts).note("shape")
    assert "auxconn engine --blocks 1024 --kv-tier 256 --block-size 32" in note
    assert "vllm serve" not in note


def test_a_page_that_only_looks_says_so():
    bench = Bench(link=Link("live", read_only=True), commands=())
    assert all(widget.disabled for widget in bench.controls.widgets.values())
    assert "without --allow-control" in bench.note("capacity")


@pytest.mark.parametrize("blocks", [-1, -5, 10**20])
def test_a_capacity_that_cannot_be_is_refused_and_the_box_goes_back(blocks):
    bench = Bench()
    let_go(bench.controls.capacity, blocks)
    bench.update()
    assert bench.sent == []
    assert f"refused: capacity={blocks}" in bench.note("capacity")
    assert bench.controls.capacity.value == 1600


@pytest.mark.parametrize("name", ["capacity", "num_blocks", "kv_tier_blocks"])
def test_a_box_that_was_emptied_shows_what_is_in_force(name):
    bench = Bench()
    widget = bench.controls.widgets[name]
    before = widget.value
    let_go(widget, None)
    bench.update()
    assert bench.sent == []
    assert widget.value == before


@pytest.mark.parametrize(
    ("name", "value", "args"),
    [
        ("num_blocks", 1, {"num_blocks": 1}),
        ("kv_tier_blocks", -1, {"kv_tier_blocks": -1}),
    ],
)
def test_a_number_below_a_limit_goes_to_who_can_say_so(name, value, args):
    bench = Bench()
    widget = bench.controls.widgets[name]
    before = widget.value
    let_go(widget, value)
    assert bench.sent == [("reconfigure", args)]
    bench.answer(ok=False, text=f"{name}={value} is out of range")
    assert "is out of range" in bench.note("shape")
    assert widget.value == before


def test_a_reset_that_was_not_meant_is_not_armed_for_long(monkeypatch):
    bench = Bench()
    bench.controls.reset.clicks += 1
    assert "again" in bench.controls.reset.label
    later = time.monotonic() + ARMED_SECONDS + 1
    monkeypatch.setattr("auxconn_dashboard.controls.time.monotonic", lambda: later)
    bench.update()
    assert bench.controls.reset.label == "Reset prefix cache"
    bench.controls.reset.clicks += 1
    assert bench.sent == []


def test_what_another_browser_has_changed_since_is_not_put_back():
    bench = Bench()
    let_go(bench.controls.capacity, 700)
    bench.answer(text="capacity 1600 -> 700 blocks")
    bench.facts["capacity"] = 700
    bench.update()
    assert bench.controls.undo.visible
    assert "applied" in bench.note("capacity")
    # The other one's change comes as a fact.
    bench.facts["capacity"] = 450
    bench.update()
    assert not bench.controls.undo.visible
    assert "applied" not in bench.note("capacity")
    assert bench.controls.capacity.value == 450
