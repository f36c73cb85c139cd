"""The header: how it stands with the engine, what it is, and the controls of the view."""

from __future__ import annotations

from typing import Any, ClassVar

import param

from .. import words
from ..snapshot import WINDOWS, Link, Snapshot
from ..theme import asset
from .component import Component, script

WORDS = {
    "none": "no engine",
    "starting": "starting",
    "live": "live",
    "idle": "live, idle",
    "paused": "engine paused",
    "stale": "stale",
    "gone": "gone",
    "stopped": "stopped",
    "still": "frames only",
    "replay": "replay",
}
"""The word beside each state's sign."""

KEYS = (
    ("space", "pause or resume the view"),
    (".", "let a paused lab take one step"),
    ("/", "filter the look-ups"),
    ("esc", "follow the engine again after a zoom"),
    ("?", "this list"),
    ("drag", "zoom into a stretch of time, in all plots"),
    ("ctrl + wheel", "zoom in and out around the pointer"),
    ("double-click", "follow the engine again"),
)


class TopBar(Component):
    """The bar in the browser.

    `beat` changes with every tick: the bar notices when it stops, and answers some, so that
    the server notices when the browser does not keep up. `fixed` has windows, keys, page (it
    has the page for itself: keys, theme), chosen (the theme stood in the address) and replay
    (it plays a recording, which has a pause of its own). `state` has state, word, more,
    facts, engines, engine, window, zoomed, paused, theme and menu.
    """

    beat = param.Integer(0)

    _esm = script("topbar.js")
    _stylesheets: ClassVar[list[Any]] = [asset("topbar.css")]

    heard = sent = 0
    """Newest beat that the browser has answered, and that was sent."""

    def tick(self) -> None:
        """Let the browser know that somebody is there."""
        self.sent += 1
        for model, _ in list(self._models.values()):
            model.data.beat = self.sent


def state_words(link: Link) -> tuple[str, str]:
    """The word of the pill, and what stands beside it."""
    word = WORDS[link.state]
    if link.state in ("stale", "gone"):
        return f"{word} for {words.duration(link.age)}", words.plain(link.text, 120)
    if link.state == "starting":
        return word, words.plain(link.stage_text or link.stage, 120)
    return word, words.plain(link.text, 120)


def facts(snapshot: Snapshot) -> list[dict[str, Any]]:
    """What the engine is, in a few words each."""
    found: list[dict[str, Any]] = []

    def add(text: str, title: str, *, alert: bool = False) -> None:
        found.append({"text": words.plain(text, 80), "title": title, "alert": alert})

    generation = snapshot.level("steps", "generation")
    if generation is not None:
        add(
            f"gen {int(generation)}",
            "Generation of the auxiliary outputs: a reset of the prefix cache adds one",
        )
    version = snapshot.fact("vllm_version")
    if version:
        add(f"vLLM {version}", "Version of vLLM that runs")
    connector = snapshot.fact("connector")
    if connector:
        add(f"connector {connector}", "Scheduler connector in place")
    size = snapshot.fact("block_size")
    if size:
        hashed = snapshot.fact("hash_block_size")
        finer = f", hashed by {hashed}" if hashed and hashed != size else ""
        add(f"{size}-token blocks{finer}", "Tokens of a KV block, and of a block hash")
    lost = sum(snapshot.lost.values())
    if lost:
        add(
            f"{words.short(lost)} rows missed",
            "Rows that were overwritten before this page read them",
            alert=True,
        )
    model = snapshot.fact("model")
    if model:
        add(str(model), f"Model: {words.plain(model, 200)}")
    return found


def windows(known: tuple[int, ...] = WINDOWS) -> list[list[Any]]:
    """Stretches of time to choose from."""
    return [[f"last {words.span(seconds)}", seconds] for seconds in known]
