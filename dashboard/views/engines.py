"""Engines side by side: a line each, and a tick for those that the page adds up."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, ClassVar

import panel as pn

from .. import words
from ..snapshot import Snapshot
from ..theme import asset
from .component import Component, script
from .indicators import cards
from .topbar import state_words

PAGE = 10
"""Engines of a page: more is not compared by eye."""

UNKNOWN = -math.inf
"""Stands in the order for a figure that is not known."""

NAME, STATE = "name", "state"
"""Columns beside the figures that the lines can be sorted by."""


class EngineTable(Component):
    """The table in the browser.

    `state` has columns (key, label and tip of each), rows, sort, down, count, older, page and
    some (not all are ticked). A row has name, state, word, on, and figures as
    `indicators.cards` makes them, of which one column has one scale.
    """

    _esm = script("engines.js")
    _stylesheets: ClassVar[list[Any]] = [asset("engines.css")]


class EnginesView:
    """A line for each engine that is looked at together with others.

    Parameters
    ----------
    look
        Called with the name of the engine to look at alone.
    add_up
        Called with the names of those to add up; with none for all.

    Attributes
    ----------
    source
        The table; `source.shown["rows"]` are the lines of the page that is shown.
    """

    def __init__(
        self, look: Callable[[str], None], add_up: Callable[[list[str]], None]
    ) -> None:
        self._look, self._add_up = look, add_up
        self._sort, self._down, self._page = NAME, False, 0
        self._snapshot: Snapshot | None = None
        self.source = EngineTable(name="auxconn-engines", sizing_mode="stretch_width")
        self.source.show(columns=[], rows=[])
        self.source.on_message = self.ask
        self.root = pn.Column(
            self.source,
            css_classes=["ac-card", "ac-engines"],
            sizing_mode="stretch_width",
            margin=0,
            visible=False,
        )

    def update(self, snapshot: Snapshot) -> bool:
        """Show the engines; False when nothing has moved, or one is looked at alone."""
        self._snapshot = snapshot
        several = bool(snapshot.parts)
        if self.root.visible != several:
            self.root.visible = several
        return several and self._show()

    def ask(self, said: dict[str, Any]) -> None:
        """Do what the user asks of the table: an engine, a tick, an order, a page."""
        snapshot = self._snapshot
        if snapshot is None or not snapshot.parts:
            return
        names = [part.name for part in snapshot.parts]
        ticked = self._ticked(snapshot)
        if said.get("look") in names:
            self._look(str(said["look"]))
        elif said.get("tick") in names:
            ticked ^= {str(said["tick"])}
            every = len(ticked) == len(names) or not ticked
            self._add_up([] if every else [name for name in names if name in ticked])
        elif said.get("all"):
            self._add_up([])
        elif said.get("sort") in (NAME, STATE, *_keys(snapshot)):
            sort = str(said["sort"])
            # Figures begin with the highest, names with the first.
            self._down = not self._down if sort == self._sort else sort != NAME
            self._sort, self._page = sort, 0
            self._show()
        elif isinstance(page := said.get("page"), int):
            self._page = max(0, min(page, (len(names) - 1) // PAGE))
            self._show()

    def _order(self, part: Snapshot) -> tuple[Any, ...]:
        if self._sort == NAME:
            return (part.engine, part.rank or 0)
        if self._sort == STATE:
            return (part.link.state,)
        amounts = (card["amount"] for card in cards(part) if card["key"] == self._sort)
        found = next(amounts)
        return (UNKNOWN if found is None else float(found),)

    def _ticked(self, snapshot: Snapshot) -> set[str]:
        return {part.name for part in snapshot.parts if part.subject in snapshot.summed}

    def _show(self) -> bool:
        snapshot = self._snapshot
        assert snapshot is not None
        ticked = self._ticked(snapshot)
        parts = sorted(snapshot.parts, key=self._order, reverse=self._down)
        # Whatever the order, what is not known comes last.
        parts.sort(key=lambda part: self._order(part) == (UNKNOWN,))
        first = self._page * PAGE
        shown = [(part, cards(part)) for part in parts[first : first + PAGE]]
        tops = [
            max(map(_top, column))
            for column in zip(*(own for _, own in shown), strict=True)
        ]
        of = words.plural(len(parts), "engine")
        return self.source.show(
            columns=[
                {"key": card["key"], "label": re.split(" /|,", card["label"])[0]}
                for card in shown[0][1]
            ],
            rows=[_line(part, own, tops, ticked) for part, own in shown],
            sort=self._sort,
            down=self._down,
            page=self._page,
            older=first + PAGE < len(parts),
            count=of
            if len(parts) <= PAGE
            else f"{first + 1} to {first + len(shown)} of {of}",
            ticked=f"{len(ticked)} of {len(parts)}",
            some=len(ticked) < len(parts),
        )


def _line(
    part: Snapshot, own: list[dict[str, Any]], tops: list[float], ticked: set[str]
) -> dict[str, Any]:
    word, more = state_words(part.link)
    kept = ("key", "value", "unit", "sub", "tip", "color", "spark", "base")
    return {
        "name": part.name,
        "label": words.plain(part.name, 120),
        "state": part.link.state,
        "word": word,
        "more": more,
        "on": part.name in ticked,
        "figures": [
            {**{name: card[name] for name in kept}, "top": top}
            for card, top in zip(own, tops, strict=True)
        ],
    }


def _top(card: dict[str, Any]) -> float:
    """Highest of what is drawn of a figure."""
    return max(card["top"] or 0, *(value or 0 for value in card["spark"]), 0)


def _keys(snapshot: Snapshot) -> list[str]:
    return [card["key"] for card in cards(snapshot)]
