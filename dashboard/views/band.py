"""One part of a plot: what it is called, what it looks like."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Band:
    """A layer of a stack, or a line."""

    key: str
    label: str
    color: str
    tip: str = ""
    look: str = ""
    """Of the swatch: hatch, cross, dots, pale, dash, line; empty is plain."""

    @property
    def hatch(self) -> dict[str, Any]:
        """How Bokeh draws the look."""
        pattern = {"hatch": "/", "cross": "x", "dots": "."}.get(self.look)
        return {} if pattern is None else {"hatch_pattern": pattern}

    @property
    def swatch(self) -> str:
        """A sample of it, in HTML."""
        if self.look in ("dash", "line"):
            return (
                "<span style='display:inline-block;width:11px;"
                f"border-top:2px {'dashed' if self.look == 'dash' else 'solid'} currentColor;"
                "vertical-align:middle'></span>"
            )
        fade = ";opacity:.45" if self.look == "pale" else ""
        return (
            "<span style='display:inline-block;width:10px;height:10px;border-radius:3px;"
            f"background:{self.color}{fade}'></span>"
        )
