"""The controls of the engine: what it runs with, what it is given, how fast it goes.

A control shows the engine's own facts, so that all browsers agree; it is moved by a fact
that changes, never by a tick, so a hand on it is not disturbed. What it will do stands
beside it before it is done, what became of it afterwards, and the newest change can be
undone. One that the engine does not obey is disabled and says why.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import panel as pn

from auxconn.lab.workload_specs import KINDS

from . import words
from .snapshot import Snapshot
from .steering import Change, Outcome, Steering, capacity_preview, capacity_words
from .theme import asset
from .views.note import Note

BLOCK_SIZES = (4, 8, 16, 32, 64, 128)
SPEEDS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 0.0)
"""Steps per second to choose from; 0 is as fast as it goes, which engines call None."""

KV_TIER_FACTOR = 4
"""A KV tier that is switched on is so many times the pool, unless it had a size before."""

LEAST_CAPACITY = 8

_WHY = {
    "set_capacity": "This engine's capacity cannot be set while it runs.",
    "reconfigure": "This engine keeps the sizes it was started with: stop it and start it "
    "with others.",
    "workload": "This engine gets its requests from its users.",
    "speed": "This engine runs as fast as it can.",
    "pause": "This engine cannot be paused from here.",
    "step": "This engine cannot be stepped from here.",
    "reset_prefix_cache": "This engine's prefix cache cannot be reset from here.",
}
_ABSENT = "No engine to steer yet."
_LOST = "The engine does not answer; its controls come back with it."

_CALL = re.compile(r"^([a-z_]+)\((.*)\)$")


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
        css = [asset("widgets.css")]
        wide: dict[str, Any] = {
            "sizing_mode": "stretch_width",
            "margin": 0,
            "stylesheets": css,
        }
        self.capacity = pn.widgets.IntInput(
            label="", value=0, start=1, step=16, width=104, margin=0, stylesheets=css
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
            label="Pool, blocks", value=0, start=2, step=128, **wide
        )
        self.kv_tier = pn.widgets.RadioButtonGroup(
            label="KV tier", options={"off": False, "on": True}, value=False, **wide
        )
        self.kv_tier_blocks = pn.widgets.IntInput(
            label="KV tier, blocks", value=0, start=0, step=512, **wide
        )
        self.connector = pn.widgets.RadioButtonGroup(
            label="Connector", options=["auxconn", "vllm"], value="auxconn", **wide
        )
        self.workload = pn.widgets.Select(
            label="", options={kind.title: name for name, kind in KINDS.items()}, **wide
        )
        self.speed = pn.widgets.DiscreteSlider(
            label="Speed",
            options={_speed(speed): speed for speed in SPEEDS},
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
        self._notes = {
            name: Note("", sizing_mode="stretch_width", margin=0, stylesheets=[
                asset("section.css")])
            for name in ("capacity", "shape", "load", "run")
        }  # fmt: skip
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
            self._notes["capacity"],
            _title("Engine", "changes rebuild it"),
            pn.Row(self.block_size, self.hash_block_size, **_row()),
            pn.Row(self.num_blocks, self.kv_tier_blocks, **_row()),
            pn.Row(_label("KV tier"), self.kv_tier, **_row()),
            pn.Row(_label("Connector"), self.connector, **_row()),
            self._notes["shape"],
            _title("Workload"),
            self.workload,
            self._notes["load"],
            pn.Column(self.speed, margin=(10, 8, 4, 8), sizing_mode="stretch_width"),
            pn.Row(self.pause, self.step, **_row()),
            pn.Row(self.reset, **_row()),
            self._notes["run"],
            pn.Row(self.undo, **_row()),
            sizing_mode="stretch_width",
            margin=0,
            css_classes=["ac-controls"],
        )

    # From the engine

    def update(self, snapshot: Snapshot) -> bool:
        """Take over facts that have changed; False when nothing has."""
        self._snapshot = snapshot
        came = self._steering.poll()
        facts = {name: snapshot.facts.get(name) for name in _SHOWN}
        facts["capacity"] = self._capacity_in_force(snapshot)
        state = (snapshot.name, snapshot.link.state, snapshot.commands)
        changed = {
            name: value
            for name, value in facts.items()
            if value != self._facts.get(name)
        }
        if came or changed or state != self._state:
            self._facts, self._state = facts, state
            refused = came and any(
                one.state == "refused" for one in self._steering.outcomes.values()
            )
            self._quietly(self._adopt, facts if refused else changed)
            self._enable(snapshot)
            self._tell()
            return True
        self._preview()
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
            self.speed.value = _nearest(facts["steps_per_s"])
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
        self.undo.disabled = not fresh

    # To the engine

    def _watch(self) -> None:
        self.capacity.param.watch(self._by("capacity", "number"), "value_throttled")
        self.slider.param.watch(self._drag, "value")
        self.slider.param.watch(self._by("capacity", "slider"), "value_throttled")
        for name in (
            "block_size",
            "hash_block_size",
            "kv_tier",
            "connector",
            "workload",
        ):
            self.widgets[name].param.watch(self._by(name), "value")
        for name in ("num_blocks", "kv_tier_blocks"):
            self.widgets[name].param.watch(self._by(name), "value_throttled")
        self.speed.param.watch(self._by("speed"), "value_throttled")
        self.pause.on_click(lambda _: self.toggle_engine())
        self.step.on_click(lambda _: self.one_step())
        self.reset.on_click(lambda _: self._ask_reset())
        self.undo.on_click(lambda _: self._undo())

    def _by(self, control: str, how: str = "") -> Callable[[Any], None]:
        def changed(event: Any) -> None:
            if not self._quiet and event.new is not None:
                getattr(self, f"_change_{control}")(event.new, how)
                self._tell()

        return changed

    def _drag(self, event: Any) -> None:
        """The slider moves: show the number, and what it would do."""
        if not self._quiet:
            self._quietly(setattr, self.capacity, "value", _blocks(event.new))
            self._preview()

    def _change_capacity(self, value: float, how: str) -> None:
        blocks = _blocks(value) if how == "slider" else int(value)
        self._quietly(setattr, self.capacity, "value", blocks)
        self._quietly(
            setattr, self.slider, "value", float(np.log2(max(blocks, LEAST_CAPACITY)))
        )
        before = self._facts.get("capacity")
        if blocks == before:
            return
        self._send(
            "capacity",
            f"capacity {words.whole(before)} → {words.whole(blocks)}",
            "set_capacity",
            {"blocks": blocks},
            {"blocks": before} if before else None,
            f"capacity back to {words.whole(before)}",
        )

    def _change_block_size(self, value: int, _how: str) -> None:
        changes: dict[str, Any] = {"block_size": int(value)}
        hashed = self._facts.get("hash_block_size")
        if hashed and (int(value) % int(hashed) or int(hashed) > int(value)):
            # The finer hashing does not divide the new size: hash by whole blocks.
            changes["hash_block_size"] = None
        self._rebuild("block_size", changes, f"block size {value} tokens")

    def _change_hash_block_size(self, value: int, _how: str) -> None:
        text = f"hash block size {value}" if value else "hashing by whole blocks"
        self._rebuild("hash_block_size", {"hash_block_size": int(value) or None}, text)

    def _change_num_blocks(self, value: int, _how: str) -> None:
        self._rebuild(
            "num_blocks",
            {"num_blocks": int(value)},
            f"pool of {words.whole(value)} blocks",
        )

    def _change_kv_tier(self, value: bool, _how: str) -> None:
        pool = int(self._facts.get("num_blocks") or 1024)
        blocks = (self._tier or KV_TIER_FACTOR * pool) if value else 0
        text = f"KV tier of {words.whole(blocks)} blocks" if value else "KV tier off"
        self._rebuild("kv_tier", {"kv_tier_blocks": blocks}, text)

    def _change_kv_tier_blocks(self, value: int, _how: str) -> None:
        text = f"KV tier of {words.whole(value)} blocks" if value else "KV tier off"
        self._rebuild("kv_tier_blocks", {"kv_tier_blocks": int(value)}, text)

    def _change_connector(self, value: str, _how: str) -> None:
        self._rebuild("connector", {"connector": value}, f"connector {value}")

    def _rebuild(self, control: str, changes: dict[str, Any], what: str) -> None:
        back = {name: self._facts.get(name) for name in changes}
        if back.get("hash_block_size") == self._facts.get("block_size"):
            back["hash_block_size"] = None
        if all(self._facts.get(name) == value for name, value in changes.items()):
            return
        self._send(control, what, "reconfigure", changes, back, f"undo: {what}")

    def _change_workload(self, value: str, _how: str) -> None:
        before = parse_workload(str(self._facts.get("workload") or ""))
        title = KINDS[value].title
        self._send(
            "workload", f"workload {title}", "workload", {"name": value}, before,
            "workload as before",
        )  # fmt: skip

    def _change_speed(self, value: float, _how: str) -> None:
        before = self._facts.get("steps_per_s")
        if _nearest(before) == value:
            return
        self._send(
            "speed",
            f"speed {_speed(value)}",
            "speed",
            {"steps_per_s": value or None},
            {"steps_per_s": before},
            f"speed back to {_speed(before)}",
        )

    def toggle_engine(self) -> None:
        """Pause the engine, or let it run on."""
        paused = bool(self._facts.get("paused"))
        name = "resume" if paused else "pause"
        if name in self._commands:
            self._send("run", "engine running" if paused else "engine paused", name, {})
            self._tell()

    def one_step(self) -> None:
        """Let the engine take one step; it is paused after it."""
        if "step" in self._commands:
            self._send("run", "one step", "step", {"n": 1})
            self._tell()

    def _ask_reset(self) -> None:
        """A reset cannot be undone: the first click asks, the second one does it."""
        if self.reset.label.startswith("Reset"):
            self.reset.label = "Empties all caches: click again"
            return
        self.reset.label = "Reset prefix cache"
        self._send("run", "prefix cache reset", "reset_prefix_cache", {})
        self._tell()

    def _undo(self) -> None:
        self._steering.undo()
        self._tell()

    @property
    def _commands(self) -> frozenset[str]:
        return frozenset() if self._snapshot is None else self._snapshot.commands

    def _send(
        self,
        control: str,
        what: str,
        command: str,
        args: dict[str, Any],
        back: dict[str, Any] | None = None,
        back_words: str = "",
    ) -> None:
        undo = None if back is None else (command, back, back_words)
        self._steering.ask(Change(control, what, command, args, undo))

    # Words beside the controls

    def _preview(self) -> None:
        self._note("capacity")

    def _tell(self) -> None:
        for name in self._notes:
            self._note(name)
        undoable = self._steering.undoable
        self.undo.param.update(visible=bool(undoable), label=f"Undo: {undoable}")

    def _note(self, name: str) -> None:
        text = "".join(self._lines(name))
        if text != self._notes[name].object:
            self._notes[name].object = text

    def _lines(self, name: str) -> list[str]:
        snapshot = self._snapshot
        if snapshot is None:
            return [_p("off", _ABSENT)] if name == "capacity" else []
        told = []
        if name == "capacity":
            told += self._capacity_lines(snapshot)
        if name == "load" and self.workload.value in KINDS:
            told.append(_p("", KINDS[self.workload.value].help))
        outcomes = [
            outcome
            for control, outcome in self._steering.outcomes.items()
            if _NOTE_OF[control] == name
        ]
        if outcomes:
            told.append(_outcome(max(outcomes, key=lambda one: one.at or np.inf)))
        why = self._why(name, snapshot)
        if why:
            told.append(_p("off", why))
        return told

    def _capacity_lines(self, snapshot: Snapshot) -> list[str]:
        blocks = self.capacity.value
        if not blocks or snapshot.fact("block_size") is None:
            return []
        told = [_p("", capacity_words(snapshot, int(blocks)))]
        if blocks != self._facts.get("capacity") and not self._steering.waits(
            "capacity"
        ):
            will = capacity_preview(snapshot, int(blocks))
            if will:
                told.append(_p("will", f"will: {will}"))
        return told

    def _why(self, name: str, snapshot: Snapshot) -> str:
        """Why the controls of a section are disabled; empty when they are not."""
        state = snapshot.link.state
        if state in ("none", "still", "starting"):
            return _ABSENT if name == "capacity" else ""
        if not snapshot.link.fresh:
            return _LOST if name == "capacity" else ""
        missing = [
            command for command in _SECTIONS[name] if command not in snapshot.commands
        ]
        return _WHY[missing[0]] if missing else ""

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

_SECTIONS = {
    "capacity": ("set_capacity",),
    "shape": ("reconfigure",),
    "load": ("workload",),
    "run": ("speed", "pause", "step", "reset_prefix_cache"),
}

_NOTE_OF = {
    "capacity": "capacity", "block_size": "shape", "hash_block_size": "shape",
    "num_blocks": "shape", "kv_tier": "shape", "kv_tier_blocks": "shape",
    "connector": "shape", "workload": "load", "speed": "run", "run": "run",
}  # fmt: skip


def parse_workload(text: str) -> dict[str, Any] | None:
    """Name and parameters of a workload from the fact's words; None for what is not one."""
    found = _CALL.match(text)
    if found is None:
        return None
    known: dict[str, Any] = {"name": found[1]}
    for part in filter(None, (part.strip() for part in found[2].split(","))):
        name, _, value = part.partition("=")
        try:
            known[name] = float(value) if "." in value or "e" in value else int(value)
        except ValueError:
            return None
    return known


def _blocks(power: float) -> int:
    """Blocks of a slider position, rounded so that the number reads well."""
    blocks = 2.0**power
    digits = 10.0 ** max(0, np.floor(np.log10(blocks)) - 1)
    if abs(power - round(power)) < 0.006:
        return int(2 ** round(power))
    return max(1, int(round(blocks / digits) * digits))


def _nearest(speed: float | None) -> float:
    if speed is None:
        return 0.0
    known = [one for one in SPEEDS if one]
    return min(known, key=lambda one: abs(np.log(one / max(speed, 1e-6))))


def _speed(speed: float | None) -> str:
    return f"{speed:g} steps/s" if speed else "as fast as it goes"


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


def _p(kind: str, text: str) -> str:
    return f'<p class="{kind}">{words.escape(text)}</p>'


def _outcome(outcome: Outcome) -> str:
    kind = {"sending": "sent", "applied": "done", "refused": "no"}[outcome.state]
    return _p(kind, outcome.told)
