"""The controls of the engine: what it runs with, what it is given, how fast it goes.

A control shows the engine's own facts, so that all browsers agree; it is moved by a fact
that changes, never by a tick, so a hand on it is not disturbed. What it will do stands
beside it before it is done, what became of it afterwards, and the newest change can be
undone. One that the engine does not obey is disabled and says why.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import panel as pn

from auxconn.checks import check_capacity
from auxconn.lab.workload_specs import KINDS

from . import changes
from .changes import SPEEDS, nearest, parse_workload, speed_words
from .notes import Notes
from .snapshot import Snapshot
from .steering import Change, Steering
from .theme import asset
from .views.parameters import ParametersView

BLOCK_SIZES = (4, 8, 16, 32, 64, 128)

LEAST_CAPACITY = 8

ARMED_SECONDS = 6.0
"""How long a button that asks for a second click waits for it."""


class Controls:
    """The side panel's part that steers the engine.

    Parameters
    ----------
    steering
        Sends what is asked.

    Attributes
    ----------
    root
        What to show.
    widgets
        Every widget by the name of its control, for tests.
    """

    def __init__(self, steering: Steering) -> None:
        self._steering = steering
        self._snapshot: Snapshot | None = None
        self._facts: dict[str, Any] = {}
        self._quiet = False
        self._tier = 0
        self._state: Any = None
        self._said: tuple[Any, Any, Any] = ("", None, None)
        self._capacity: int | None = None
        self._armed_until = 0.0
        self._back = False
        """True when a box shows what is not, and has to go back with the next look."""
        css = [asset("widgets.css")]
        wide: dict[str, Any] = {
            "sizing_mode": "stretch_width",
            "margin": 0,
            "stylesheets": css,
        }
        # Without limits of their own: a browser swallows a number beyond one without a
        # word, and what the engine takes is told by who refuses it.
        self.capacity = pn.widgets.IntInput(
            label="",
            value=0,
            step=16,
            width=104,
            margin=0,
            align="end",
            stylesheets=css,
        )
        self.slider = pn.widgets.FloatSlider(
            label="",
            start=np.log2(LEAST_CAPACITY),
            end=12.0,
            step=0.01,
            value=10.0,
            show_value=False,
            tooltips=False,
            **wide,
        )
        self.block_size = pn.widgets.Select(
            label="Block size", options={f"{n} tokens": n for n in BLOCK_SIZES}, **wide
        )
        self.hash_block_size = pn.widgets.Select(
            label="Hash block size", options={"as the block": 0}, **wide
        )
        self.num_blocks = pn.widgets.IntInput(
            label="Pool, blocks", value=0, step=128, **wide
        )
        self.kv_tier = pn.widgets.RadioButtonGroup(
            label="KV tier", options={"off": False, "on": True}, value=False, **wide
        )
        self.kv_tier_blocks = pn.widgets.IntInput(
            label="KV tier, blocks", value=0, step=512, **wide
        )
        self.connector = pn.widgets.RadioButtonGroup(
            label="Connector", options=["auxconn", "vllm"], value="auxconn", **wide
        )
        self.workload = pn.widgets.Select(
            label="", options={kind.title: name for name, kind in KINDS.items()}, **wide
        )
        self.speed = pn.widgets.DiscreteSlider(
            label="Speed",
            options={speed_words(speed): speed for speed in SPEEDS},
            value=50.0,
            **wide,
        )
        self.pause = pn.widgets.Button(label="❚❚  Pause", **wide)
        self.step = pn.widgets.Button(label="▶❚  Step", **wide)
        self.reset = pn.widgets.Button(label="Reset prefix cache", **wide)
        self.undo = pn.widgets.Button(label="Undo", visible=False, **wide)
        self.widgets: dict[str, Any] = {
            name: getattr(self, name)
            for name in (
                "capacity", "slider", "block_size", "hash_block_size", "num_blocks",
                "kv_tier", "kv_tier_blocks", "connector", "workload", "speed", "pause",
                "step", "reset", "undo",
            )
        }  # fmt: skip
        for name, widget in self.widgets.items():
            widget.css_classes = [f"ac-control-{name}"]
        self.source = self.widgets
        self.parameters = ParametersView(self._change_parameters)
        self.notes = Notes(steering)
        self._watch()
        self.root = pn.Column(
            pn.Row(
                _title("Capacity", "blocks"),
                self.capacity,
                sizing_mode="stretch_width",
                margin=0,
                align="end",
                stylesheets=[":host { align-items: flex-end; }"],
            ),
            pn.Column(self.slider, margin=(10, 8, 4, 8), sizing_mode="stretch_width"),
            self.notes.panes["capacity"],
            _title("Engine", "changes rebuild it"),
            pn.Row(self.block_size, self.hash_block_size, **_row()),
            pn.Row(self.num_blocks, self.kv_tier_blocks, **_row()),
            pn.Row(_label("KV tier"), self.kv_tier, **_row()),
            pn.Row(_label("Connector"), self.connector, **_row()),
            self.notes.panes["shape"],
            _title("Workload"),
            self.workload,
            self.parameters.root,
            self.notes.panes["load"],
            pn.Column(self.speed, margin=(10, 8, 4, 8), sizing_mode="stretch_width"),
            pn.Row(self.pause, self.step, **_row()),
            pn.Row(self.reset, **_row()),
            self.notes.panes["run"],
            pn.Row(self.undo, **_row()),
            sizing_mode="stretch_width",
            margin=0,
            css_classes=["ac-controls"],
        )

    # From the engine

    def update(self, snapshot: Snapshot) -> bool:
        """Take over facts that have changed; False when nothing has."""
        self._snapshot = snapshot
        if self._armed_until and time.monotonic() > self._armed_until:
            self._disarm()
        came = self._steering.poll()
        facts = {name: snapshot.facts.get(name) for name in _SHOWN}
        facts["capacity"] = self._capacity_in_force(snapshot)
        state = (snapshot.name, snapshot.link.state, snapshot.commands)
        changed = {
            name: value
            for name, value in facts.items()
            if value != self._facts.get(name)
        }
        if came or changed or self._back or state != self._state:
            self._steering.overtaken(self._facts, changed)
            self._facts, self._state = facts, state
            refused = came and any(
                one.state == "refused" for one in self._steering.outcomes.values()
            )
            back, self._back = refused or self._back, False
            self._quietly(self._adopt, facts if back else changed)
            self._enable(snapshot)
            self._tell()
            return True
        self._tell_capacity()
        return False

    def _capacity_in_force(self, snapshot: Snapshot) -> int | None:
        """The capacity as it was said last: as a fact, or by the newest step.

        A paused engine takes no steps and announces; a vLLM that is steered from elsewhere
        takes steps and may not announce.
        """
        level = snapshot.level("steps", "capacity") if snapshot.link.fresh else None
        said = (snapshot.name, snapshot.facts.get("capacity"), level)
        for now, before in zip(said[1:], self._said[1:], strict=True):
            if now is not None and (now != before or said[0] != self._said[0]):
                self._capacity = int(now)
        self._said = said
        return self._capacity

    def _adopt(self, facts: dict[str, Any]) -> None:
        """Move the widgets to the engine's facts."""
        for name, value in facts.items():
            if value is None:
                continue
            if name == "capacity":
                self._slider_room(int(value))
                self.capacity.value = int(value)
                self.slider.value = float(np.log2(max(int(value), LEAST_CAPACITY)))
            elif name == "block_size":
                self._block_sizes(int(value))
            elif name == "hash_block_size":
                self._hash_sizes()
            elif name == "num_blocks":
                self.num_blocks.value = int(value)
            elif name == "kv_tier_blocks":
                self._tier = int(value) or self._tier
                self.kv_tier.value = bool(value)
                self.kv_tier_blocks.value = int(value)
            elif name == "connector" and value in self.connector.options:
                self.connector.value = value
            elif name == "workload":
                known = parse_workload(str(value))
                if known is not None and known["name"] in KINDS:
                    self.workload.value = known["name"]
        if "steps_per_s" in facts and "steps_per_s" in (self._facts or {}):
            self.speed.value = nearest(facts["steps_per_s"])
        if "paused" in facts:
            running = not facts["paused"]
            self.pause.label = "❚❚  Pause" if running else "▶  Resume"

    def _slider_room(self, capacity: int) -> None:
        """The slider reaches over twice what a pool and its tier can bring."""
        pool = int(self._facts.get("num_blocks") or 0)
        tier = int(self._facts.get("kv_tier_blocks") or 0)
        most = max(2 * pool, 2 * tier, capacity, 64)
        self.slider.end = float(np.ceil(np.log2(most)))

    def _block_sizes(self, size: int) -> None:
        sizes = sorted({*BLOCK_SIZES, size})
        self.block_size.options = {f"{n} tokens": n for n in sizes}
        self.block_size.value = size
        self._hash_sizes()

    def _hash_sizes(self) -> None:
        block = int(self._facts.get("block_size") or 0)
        hashed = int(self._facts.get("hash_block_size") or block)
        finer = [block // parts for parts in (2, 4, 8) if block and block % parts == 0]
        options = {"as the block": 0}
        options.update({f"{n} (hybrid pool)": n for n in finer})
        if hashed != block and hashed not in finer:
            options[f"{hashed} (hybrid pool)"] = hashed
        self.hash_block_size.options = options
        self.hash_block_size.value = 0 if hashed == block else hashed

    def _enable(self, snapshot: Snapshot) -> None:
        """Disable what the engine does not obey."""
        fresh = snapshot.link.state in ("live", "idle", "paused")
        able = snapshot.commands if fresh else frozenset()
        for command, names in _BY_COMMAND.items():
            for name in names:
                self.widgets[name].disabled = command not in able
        self.kv_tier_blocks.disabled = (
            self.kv_tier_blocks.disabled or not self.kv_tier.value
        )
        self.undo.disabled = not able
        self._show_parameters()

    def _show_parameters(self) -> None:
        """Show the parameters in force, or the defaults of a workload that is not."""
        name = self.workload.value
        known = parse_workload(str(self._facts.get("workload") or "")) or {}
        values = {
            key: value
            for key, value in known.items()
            if key != "name" and known["name"] == name
        }
        self.parameters.show(name, values, self.workload.disabled)

    # To the engine

    def _watch(self) -> None:
        self.capacity.param.watch(self._by(self._change_capacity), "value_throttled")
        self.slider.param.watch(self._drag, "value")
        self.slider.param.watch(
            self._by(lambda power: self._change_capacity(_blocks(power))),
            "value_throttled",
        )
        for name, event, change in (
            ("block_size", "value", changes.block_size),
            ("hash_block_size", "value", changes.hash_block_size),
            ("connector", "value", changes.connector),
            ("num_blocks", "value_throttled", changes.num_blocks),
            ("kv_tier_blocks", "value_throttled", changes.kv_tier_blocks),
            ("speed", "value_throttled", changes.speed),
        ):
            self.widgets[name].param.watch(self._by_facts(change), event)
        self.kv_tier.param.watch(
            self._by(
                lambda on: self._ask(changes.kv_tier(self._facts, on, self._tier))
            ),
            "value",
        )
        self.workload.param.watch(
            self._by(lambda name: self._change_parameters(name, {})), "value"
        )
        self.pause.on_click(lambda _: self.toggle_engine())
        self.step.on_click(lambda _: self.one_step())
        self.reset.on_click(lambda _: self._ask_reset())
        self.undo.on_click(lambda _: self._undo())

    def _by(self, change: Callable[[Any], None]) -> Callable[[Any], None]:
        """Do `change` when the user moved a widget, not when an engine's fact did."""

        def changed(event: Any) -> None:
            if self._quiet:
                return
            if event.new is None:  # a box that was emptied
                self._put_back()
                return
            change(event.new)
            self._tell()

        return changed

    def _by_facts(
        self, change: Callable[[dict[str, Any], Any], Change | None]
    ) -> Callable[[Any], None]:
        return self._by(lambda value: self._ask(change(self._facts, value)))

    def _ask(self, change: Change | None) -> None:
        if change is not None:
            self._steering.ask(change)

    def _drag(self, event: Any) -> None:
        """The slider moves: show the number, and what it would do."""
        if not self._quiet:
            self._quietly(setattr, self.capacity, "value", _blocks(event.new))
            self._tell_capacity()

    def _change_capacity(self, blocks: int) -> None:
        try:
            check_capacity(blocks)
        except ValueError as problem:
            self._steering.refuse("capacity", str(problem))
            self._put_back()
            return
        self._quietly(setattr, self.capacity, "value", blocks)
        self._quietly(
            setattr, self.slider, "value", float(np.log2(max(blocks, LEAST_CAPACITY)))
        )
        self._ask(changes.capacity(self._facts, blocks))

    def _change_parameters(self, name: str, values: dict[str, Any]) -> None:
        """Another workload, or other parameters; what is wrong with them is told."""
        try:
            self._ask(changes.workload(self._facts, name, values))
        except ValueError as problem:
            self._steering.refuse("workload", str(problem))
        self._show_parameters()
        self._tell()

    def toggle_engine(self) -> None:
        """Pause the engine, or let it run on."""
        paused = bool(self._facts.get("paused"))
        self._run(
            "engine running" if paused else "engine paused",
            "resume" if paused else "pause",
        )

    def one_step(self) -> None:
        """Let the engine take one step; it is paused after it."""
        self._run("one step", "step", n=1)

    def _ask_reset(self) -> None:
        """A reset cannot be undone: the first click asks, the second one does it."""
        if not self._armed_until:
            self.reset.label = "Empties all caches: click again"
            self._armed_until = time.monotonic() + ARMED_SECONDS
            return
        self._disarm()
        self._run("prefix cache reset", "reset_prefix_cache")

    def _put_back(self) -> None:
        """Show what is in force at the next look.

        Not now: what is set while a browser's message is worked up is not sent to it.
        """
        self._back = True

    def _disarm(self) -> None:
        self.reset.label = "Reset prefix cache"
        self._armed_until = 0.0

    def _run(self, what: str, command: str, **args: Any) -> None:
        if self._snapshot is not None and command in self._snapshot.commands:
            self._steering.ask(Change("run", what, command, args))
            self._tell()

    def _undo(self) -> None:
        self._steering.undo()
        self._tell()

    # Words beside the controls

    def _tell_capacity(self) -> None:
        self.notes.tell_capacity(
            self._snapshot,
            int(self.capacity.value or 0),
            self._facts.get("capacity"),
        )

    def _tell(self) -> None:
        self.notes.tell(
            self._snapshot,
            int(self.capacity.value or 0),
            self._facts.get("capacity"),
            self.workload.value,
        )
        undoable = self._steering.undoable
        self.undo.param.update(visible=bool(undoable), label=f"Undo: {undoable}")

    def _quietly(self, do: Callable[..., Any], *args: Any) -> None:
        """Move a widget without taking it for the user's hand."""
        before, self._quiet = self._quiet, True
        try:
            do(*args)
        finally:
            self._quiet = before


_SHOWN = (
    "num_blocks", "kv_tier_blocks", "block_size", "hash_block_size", "capacity", "connector",
    "workload", "steps_per_s", "paused",
)  # fmt: skip

_BY_COMMAND = {
    "set_capacity": ("capacity", "slider"),
    "reconfigure": (
        "block_size", "hash_block_size", "num_blocks", "kv_tier", "kv_tier_blocks", "connector",
    ),
    "workload": ("workload",),
    "speed": ("speed",),
    "pause": ("pause",),
    "step": ("step",),
    "reset_prefix_cache": ("reset",),
}  # fmt: skip


def _blocks(power: float) -> int:
    """Blocks of a slider position, rounded so that the number reads well."""
    blocks = 2.0**power
    digits = 10.0 ** max(0, np.floor(np.log10(blocks)) - 1)
    if abs(power - round(power)) < 0.006:
        return int(2 ** round(power))
    return max(1, int(round(blocks / digits) * digits))


def _title(text: str, more: str = "") -> Any:
    return pn.pane.HTML(
        f"<h4>{text}<small>{more}</small></h4>",
        sizing_mode="stretch_width",
        margin=0,
        stylesheets=[asset("section.css")],
    )


def _label(text: str) -> Any:
    return pn.pane.HTML(
        f"<p style='margin-top:7px'>{text}</p>",
        width=72,
        margin=0,
        stylesheets=[asset("section.css")],
    )


def _row() -> dict[str, Any]:
    return {
        "sizing_mode": "stretch_width",
        "margin": (4, 0, 2, 0),
        "stylesheets": [":host { gap: 8px; }"],
    }
