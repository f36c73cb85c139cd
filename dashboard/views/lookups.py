"""The table of look-ups: what each request asked for, got, and why it did not get more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import panel as pn

from .. import words
from ..derive import RUN_ENDS
from ..lookups import PAGE, REFUSED, LookupLog, shown
from ..snapshot import Snapshot
from ..subjects import Subject
from ..theme import asset
from .component import Component, fixed, script

if TYPE_CHECKING:
    from auxconn.frames import FrameStore


_EMPTY = "No look-ups yet. Each request that is admitted adds a row."


class LookupTable(Component):
    """The table in the browser: gets one page, says what was asked for.

    `fixed` has reasons; `state` has rows, empty, count, older, page, asked and several
    (rows are of more than one engine).
    """

    _esm = script("lookups.js")
    _stylesheets: ClassVar[list[Any]] = [asset("lookups.css")]


class LookupsView:
    """Newest look-ups with the reason of each miss, in words.

    Attributes
    ----------
    source
        The table; `source.shown["rows"]` is the page that is shown.
    """

    def __init__(self, store: FrameStore) -> None:
        self._store = store
        self._of: Any = None
        self._names: dict[Subject, str] = {}
        self._text, self._reason = "", ""
        self.log: LookupLog | None = None
        self.source = LookupTable(
            name="auxconn-lookups",
            fixed=fixed(
                reasons=[
                    ["every end", ""],
                    *([words.RUN_END[key], key] for key in RUN_ENDS),
                    ["external offer refused", REFUSED],
                ]
            ),
            sizing_mode="stretch_width",
        )
        self.source.show(
            rows=[],
            empty=_EMPTY,
            count="",
            older=False,
            page=0,
            asked="",
            several=False,
        )
        self.source.on_message = self.ask
        self.root = pn.Column(
            self.source,
            css_classes=["ac-card", "ac-lookups"],
            sizing_mode="stretch_width",
            margin=0,
        )

    def update(self, snapshot: Snapshot) -> bool:
        """Show the newest rows; False when there are none since the last update."""
        of = (snapshot.name, snapshot.summed, snapshot.epoch)
        if self.log is None or of != self._of:
            self._of = of
            self._names = {part.subject: part.name for part in snapshot.parts}
            self.log = LookupLog(self._store, snapshot.summed or (snapshot.subject,))
            self.log.choose(self._text, self._reason)
            return self._show()
        if not self.log.advance():
            return False
        return self._show()

    def ask(self, said: dict[str, Any]) -> None:
        """Do what the user asks of the table: a filter, a reason, a page."""
        self._text = str(said.get("filter", self._text))[:200]
        self._reason = str(said.get("reason", self._reason))
        if self._reason not in ("", REFUSED, *RUN_ENDS):
            self._reason = ""
        if self.log is not None:
            self.log.choose(self._text, self._reason)
            if isinstance(page := said.get("page"), int):
                self.log.turn(page)
            self._show()

    def _show(self) -> bool:
        assert self.log is not None
        rows = [
            shown(row, self._names.get(Subject(row["engine"], int(row["rank"])), ""))
            for row in self.log.rows()
        ]
        filtered = bool(self._text or self._reason)
        empty = ""
        if not rows:
            empty = (
                "No look-up of the newest 20,000 matches. Clear the filter to see all."
                if filtered
                else _EMPTY
            )
        matching = " that match" if filtered else ""
        first = self.log.page * PAGE + 1
        count = (
            f"{first:,} to {first + len(rows) - 1:,} of {words.whole(self.log.total)}{matching}"
            if rows
            else ""
        )
        return self.source.show(
            rows=rows,
            empty=empty,
            count=count,
            older=self.log.older,
            page=self.log.page,
            asked=f"{self._text}|{self._reason}",
            several=bool(self._names),
        )
