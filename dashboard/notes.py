"""What stands beside the controls: what one will do, what became of it, why it is off."""

from __future__ import annotations

from typing import Any

import numpy as np

from auxconn.lab.workload_specs import KINDS

from . import words
from .restarting import lab_line, serve_line
from .snapshot import Snapshot
from .steering import Outcome, Steering, capacity_preview, capacity_words
from .theme import asset
from .views.note import Note

SECTIONS = {
    "capacity": ("set_capacity",),
    "shape": ("reconfigure",),
    "load": ("workload",),
    "run": ("speed", "pause", "step", "reset_prefix_cache"),
}
"""Parts of the side panel, and the commands that their controls send."""

_SECTION_OF = {
    "capacity": "capacity", "block_size": "shape", "hash_block_size": "shape",
    "num_blocks": "shape", "kv_tier": "shape", "kv_tier_blocks": "shape",
    "connector": "shape", "workload": "load", "speed": "run", "run": "run",
}  # fmt: skip

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
_RECORDED = "A recording: what the engine ran with, and nobody to steer."
_READ_ONLY = "This page only looks: it was served without --allow-control."
_SEVERAL = "Several engines: choose one to steer it."
_LOST = "The engine does not answer; its controls come back with it."


class Notes:
    """A text below each section of the controls.

    Attributes
    ----------
    panes
        The texts by the name of their section.
    """

    def __init__(self, steering: Steering) -> None:
        self._steering = steering
        self.panes = {
            name: Note(
                "",
                sizing_mode="stretch_width",
                margin=0,
                stylesheets=[asset("section.css")],
            )
            for name in SECTIONS
        }

    def tell(
        self, snapshot: Snapshot | None, capacity: int, in_force: Any, workload: str
    ) -> None:
        """Say everything anew.

        Parameters
        ----------
        capacity
            Blocks that the control shows.
        in_force
            Blocks that are the engine's capacity.
        workload
            Name of the workload that the control shows.
        """
        self.tell_capacity(snapshot, capacity, in_force)
        for name in SECTIONS:
            if name == "capacity" or snapshot is None:
                continue
            told = []
            if name == "load" and workload in KINDS:
                told.append(_p("", KINDS[workload].help))
            self._put(name, [*told, *self._state(name, snapshot)])

    def tell_capacity(
        self, snapshot: Snapshot | None, blocks: int, in_force: Any
    ) -> None:
        """Say what a capacity is, and what it would do."""
        if snapshot is None:
            self._put("capacity", [_p("off", _ABSENT)])
            return
        told = []
        if blocks and snapshot.fact("block_size") is not None:
            told.append(_p("", capacity_words(snapshot, blocks)))
            if blocks != in_force and not self._steering.waits("capacity"):
                will = capacity_preview(snapshot, blocks)
                if will:
                    told.append(_p("will", f"will: {will}"))
        self._put("capacity", [*told, *self._state("capacity", snapshot)])

    def _state(self, name: str, snapshot: Snapshot) -> list[str]:
        """The newest outcome of a section, and why its controls are off."""
        outcomes = [
            outcome
            for control, outcome in self._steering.outcomes.items()
            if _SECTION_OF[control] == name
        ]
        told = []
        if outcomes:
            told.append(_outcome(max(outcomes, key=lambda one: one.at or np.inf)))
        why = _why(name, snapshot)
        if why:
            told.append(_p("off", why))
        if why == _WHY["reconfigure"]:
            told += _lines(snapshot)
        return told

    def _put(self, name: str, lines: list[str]) -> None:
        text = "".join(lines)
        if text != self.panes[name].object:
            self.panes[name].object = text


def _why(name: str, snapshot: Snapshot) -> str:
    """Why the controls of a section are disabled; empty when they are not."""
    state = snapshot.link.state
    if snapshot.parts and state != "replay":
        return _SEVERAL if name == "capacity" else ""
    if state in ("none", "still", "starting"):
        return _ABSENT if name == "capacity" else ""
    if state == "replay":
        return _RECORDED if name == "capacity" else ""
    if not snapshot.link.fresh:
        return _LOST if name == "capacity" else ""
    if snapshot.link.read_only:
        return _READ_ONLY if name == "capacity" else ""
    missing = [
        command for command in SECTIONS[name] if command not in snapshot.commands
    ]
    return _WHY[missing[0]] if missing else ""


def _lines(snapshot: Snapshot) -> list[str]:
    """Lines for a shell, of an engine that keeps its sizes."""
    found = []
    for what, line in (
        ("With another block size:", serve_line(snapshot.facts)),
        (
            "The same sizes in the lab, where all can be turned:",
            lab_line(snapshot.facts),
        ),
    ):
        if line:
            found += [_p("off", what), f"<code>{words.escape(line)}</code>"]
    return found


def _p(kind: str, text: str) -> str:
    return f'<p class="{kind}">{words.escape(text)}</p>'


def _outcome(outcome: Outcome) -> str:
    kind = {"sending": "sent", "applied": "done", "refused": "no"}[outcome.state]
    return _p(kind, outcome.told)
