"""Why look-ups ended where they did, and why offers were refused, over the window."""

from __future__ import annotations

from typing import Any, ClassVar

import panel as pn

from .. import theme, words
from ..derive import REFUSALS, RUN_ENDS
from ..snapshot import Snapshot
from ..theme import asset
from .component import Component, script

_COLORS = {
    "whole": theme.LOCAL,
    "never_seen": theme.COMPUTED,
    "evicted": theme.RELEASED,
    "short": theme.COMPUTED,
    "last_token": theme.LOCAL,
}


_EMPTY = "No look-ups in this stretch. Each one ends for one of five reasons."

_LOOKS = {"unaligned": "hatch", "not_retained": "", "last_token": "dots"}


class Bars(Component):
    """The lines in the browser; `state` has rows and empty."""

    _esm = script("reasons.js")
    _stylesheets: ClassVar[list[Any]] = [asset("reasons.css")]


class ReasonsView:
    """Counts by reason over the window, with the tokens they cost.

    Attributes
    ----------
    source
        The lines; `source.shown["rows"]` are the reasons.
    """

    tables: ClassVar[tuple[str, ...]] = ("lookups",)

    def __init__(self) -> None:
        self.source = Bars(name="auxconn-reasons", sizing_mode="stretch_width")
        self.source.show(rows=_rows(None), empty=_EMPTY)
        self.root = pn.Column(
            self.source,
            css_classes=["ac-card", "ac-reasons"],
            sizing_mode="stretch_width",
            margin=0,
        )
        self._seen: Any = None

    def update(self, snapshot: Snapshot) -> bool:
        """Count anew; False when nothing has moved."""
        moved = snapshot.moved(self.tables)
        if moved == self._seen:
            return False
        self._seen = moved
        empty = ""
        if not snapshot.visible("lookups").rows.any():
            empty = _EMPTY
        return self.source.show(rows=_rows(snapshot), empty=empty)


def _rows(snapshot: Snapshot | None) -> list[dict[str, Any]]:
    table = None if snapshot is None else snapshot.visible("lookups")

    def total(name: str) -> float | None:
        return None if table is None else table.total(name)

    lookups = None if table is None else float(table.rows.sum())
    offered = total("external_offered")
    found = []
    for reason in RUN_ENDS:
        count = total(f"ended_{reason}")
        missed = total(f"missed_{reason}")
        found.append(
            {
                "label": words.RUN_END[reason],
                "tip": f"{words.RUN_END_LONG[reason]} {words.whole(missed)} tokens lay behind "
                "the ends of these look-ups.",
                "color": _COLORS[reason],
                "part": (count or 0) / lookups if lookups else 0.0,
                "share": words.share(count, lookups),
                "count": words.short(count),
            }
        )
    for reason in REFUSALS:
        refused = total(f"refused_{reason}")
        found.append(
            {
                "group": "External offers refused, share of offered tokens"
                if reason == REFUSALS[0]
                else "",
                "label": words.REFUSAL[reason],
                "tip": f"{words.whole(refused)} of {words.whole(offered)} offered tokens",
                "color": theme.REFUSED,
                "look": _LOOKS[reason],
                "part": (refused or 0) / offered if offered else 0.0,
                "share": words.share(refused, offered),
                "count": words.short(refused) if offered else words.DASH,
            }
        )
    return found
