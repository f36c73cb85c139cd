"""The event log: whatever is rare, in words."""

from __future__ import annotations

from typing import Any, ClassVar

import panel as pn
import param
from panel.custom import JSComponent

from .. import words
from ..snapshot import Snapshot
from ..theme import asset

SHOWN = 100
"""Events in the log, newest first."""


class Log(JSComponent):
    """The list in the browser."""

    rows = param.List()
    empty = param.String("")

    _esm = asset("log.js")
    _stylesheets: ClassVar[list[Any]] = [asset("log.css")]


class EventsView:
    """Newest events of an engine."""

    def __init__(self) -> None:
        self.source = Log(
            empty="Nothing rare has happened: resets, growth of the store, changed sizes, "
            "gaps and errors would be told here.",
            sizing_mode="stretch_width",
        )
        self.root = pn.Column(
            self.source,
            css_classes=["ac-card", "ac-events"],
            sizing_mode="stretch_width",
            margin=0,
        )
        self._empty = self.source.empty
        self._seen: Any = None

    def update(self, snapshot: Snapshot) -> bool:
        """Show the newest events; False when none has come."""
        seen = (snapshot.engine, snapshot.versions.get("events"), len(snapshot.events))
        if seen == self._seen:
            return False
        self._seen = seen
        rows = [
            {
                "t": event.t,
                "step": event.step,
                "kind": event.kind,
                "label": words.EVENT.get(event.kind, event.kind),
                "text": words.plain(event.text, 300),
            }
            for event in reversed(snapshot.events[-SHOWN:])
        ]
        self.source.param.update(rows=rows, empty="" if rows else self._empty)
        return True
