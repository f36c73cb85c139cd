"""The table of look-ups: what each request asked for, got, and why it did not get more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import panel as pn
import param
from panel.custom import JSComponent

from .. import words
from ..derive import RUN_ENDS
from ..lookups import KEEP, PAGE, REFUSED, LookupLog, shown
from ..snapshot import Snapshot
from ..theme import asset

if TYPE_CHECKING:
    from auxconn.frames import FrameStore


class LookupTable(JSComponent):
    """The table in the browser: gets one page, says what was asked for."""

    rows = param.List()
    empty = param.String("")
    count = param.String("")
    has_older = param.Boolean(False)
    filter = param.String("")
    reason = param.String("")
    reasons = param.List()
    page_number = param.Integer(0, bounds=(0, KEEP // PAGE))
    selected = param.String("")

    _esm = asset("lookups.js")
    _stylesheets: ClassVar[list[Any]] = [asset("lookups.css")]


class LookupsView:
    """Newest look-ups with the reason of each miss, in words.

    Attributes
    ----------
    source
        The table; `source.rows` is the page that is shown.
    """

    def __init__(self, store: FrameStore) -> None:
        self._store = store
        self._engine: str | None = None
        self.log: LookupLog | None = None
        self.source = LookupTable(
            reasons=[
                ["every end", ""],
                *([words.RUN_END[key], key] for key in RUN_ENDS),
                ["external offer refused", REFUSED],
            ],
            empty="No look-ups yet. Each request that is admitted adds a row.",
            sizing_mode="stretch_width",
        )
        self.source.param.watch(self._asked, ["filter", "reason"])
        self.source.param.watch(self._turned, "page_number")
        self.root = pn.Column(
            self.source,
            css_classes=["ac-card", "ac-lookups"],
            sizing_mode="stretch_width",
            margin=0,
        )

    def update(self, snapshot: Snapshot) -> bool:
        """Show the newest rows; False when there are none since the last update."""
        if self.log is None or snapshot.engine != self._engine:
            self._engine = snapshot.engine
            self.log = LookupLog(self._store, snapshot.engine or None)
            self.log.choose(self.source.filter, self.source.reason)
            self._show()
            return True
        if not self.log.advance():
            return False
        self._show()
        return True

    def _asked(self, *_: Any) -> None:
        if self.log is not None:
            self.log.choose(self.source.filter, self.source.reason)
            self.source.page_number = 0
            self._show()

    def _turned(self, event: Any) -> None:
        if self.log is not None:
            self.log.turn(event.new)
            self._show()

    def _show(self) -> None:
        assert self.log is not None
        rows = [shown(row) for row in self.log.rows()]
        filtered = bool(self.source.filter or self.source.reason)
        empty = ""
        if not rows:
            empty = (
                "No look-up of the newest 20,000 matches. Clear the filter to see all."
                if filtered
                else "No look-ups yet. Each request that is admitted adds a row."
            )
        matching = " that match" if filtered else ""
        first = self.log.page * PAGE + 1
        count = (
            f"{first:,} to {first + len(rows) - 1:,} of {words.whole(self.log.total)}{matching}"
            if rows
            else ""
        )
        self.source.param.update(
            rows=rows, empty=empty, count=count, has_older=self.log.older
        )
