"""The event log: whatever is rare, in words."""

from __future__ import annotations

from typing import Any, ClassVar

import panel as pn

from .. import words
from ..snapshot import Snapshot
from ..theme import asset
from .component import Component, script

SHOWN = 100
"""Events in the log, newest first."""


_EMPTY = (
    "Nothing rare has happened: resets, growth of the store, changed sizes, gaps and errors "
    "would be told here."
)


class Log(Component):
    """The list in the browser; `state` has rows and empty."""

    _esm = script("log.js")
    _stylesheets: ClassVar[list[Any]] = [asset("log.css")]


class EventsView:
    """Newest events of an engine.

    Attributes
    ----------
    source
        The list; `source.shown["rows"]` are the events, newest first.
    """

    def __init__(self) -> None:
        self.source = Log(name="auxconn-events", sizing_mode="stretch_width")
        self.source.show(rows=[], empty=_EMPTY)
        self.root = pn.Column(
            self.source,
            css_classes=["ac-card", "ac-events"],
            sizing_mode="stretch_width",
            margin=0,
        )
        self._seen: Any = None

    def update(self, snapshot: Snapshot) -> bool:
        """Show the newest events; False when none has come."""
        seen = (
            snapshot.name,
            snapshot.summed,
            snapshot.epoch,
            snapshot.versions.get("events"),
            len(snapshot.events),
        )
        if seen == self._seen:
            return False
        self._seen = seen
        rows = [
            {
                "t": event.t,
                "step": event.step,
                "kind": event.kind,
                "label": words.EVENT.get(event.kind, event.kind),
                "text": words.plain(
                    f"{event.source}: {event.text}" if event.source else event.text, 300
                ),
            }
            for event in reversed(snapshot.events[-SHOWN:])
        ]
        return self.source.show(rows=rows, empty="" if rows else _EMPTY)
