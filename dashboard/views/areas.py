"""Plots of levels: stacked areas of the last reading, whiskers where it went in between."""

from __future__ import annotations

from typing import Any

import numpy as np
from bokeh.models import Line, VArea

from ..snapshot import Snapshot
from ..theme import Theme
from .axis import draw
from .base import Plot, held, stack

PALE = 0.45
"""Opacity of what is there but not used."""


class AreaPlot(Plot):
    """Stacked areas of levels of one table, with dashed lines over them.

    Bands with the look `dash` are lines in the text's colour; the others are stacked in
    their order.
    """

    def layers(self) -> list[str]:
        """Keys of the bands that are stacked."""
        return [band.key for band in self.bands if band.look not in ("dash", "line")]

    def lines(self) -> list[str]:
        """Keys of the bands that are lines."""
        return [band.key for band in self.bands if band.look in ("dash", "line")]

    def level(self, snapshot: Snapshot, key: str) -> Any:
        """Readings of a band, NaN where there is none."""
        return snapshot.tables[self.tables[0]].last[key]

    def empty(self) -> dict[str, Any]:
        """Columns of the source without rows."""
        names = ["x", "top", "low", "high"]
        for key in self.layers():
            names += [f"b_{key}", f"t_{key}"]
        names += [f"n_{band.key}" for band in self.bands]
        return {name: np.zeros(0) for name in names}

    def draw(self) -> None:
        """One area per layer, one line per line, and an invisible line to point at."""
        self.glyphs: dict[str, Any] = {}
        for band in self.bands:
            if band.key in self.layers():
                area = VArea(
                    x="x",
                    y1=f"b_{band.key}",
                    y2=f"t_{band.key}",
                    fill_color=band.color,
                    fill_alpha=PALE if band.look == "pale" else 0.92,
                    hatch_alpha=0.6,
                    hatch_scale=6,
                    **band.hatch,
                )
                self.glyphs[band.key] = draw(self.figure, area, self.source, band.key)
        self.whiskers = draw(
            self.figure,
            VArea(x="x", y1="low", y2="high", fill_alpha=0.35),
            self.source,
            "whiskers",
        )
        for band in self.bands:
            if band.key in self.lines():
                line = Line(
                    x="x",
                    y=f"n_{band.key}",
                    line_color=band.color or "#808a98",
                    line_width=1.6,
                    line_dash=[6, 4] if band.look == "dash" else [],
                )
                self.glyphs[band.key] = draw(self.figure, line, self.source, band.key)
        pointer = draw(
            self.figure, Line(x="x", y="top", line_alpha=0), self.source, "pointer"
        )
        self.hover(
            pointer,
            [(band, f"@n_{band.key}{{0,0}}") for band in reversed(self.bands)],
            self.more(),
        )

    def more(self) -> str:
        """HTML at the end of the tooltip."""
        return ""

    def restyle(self, theme: Theme) -> None:
        """Lines are drawn in the text's colour."""
        super().restyle(theme)
        self.whiskers.glyph.fill_color = theme.text
        for band in self.bands:
            glyph = self.glyphs[band.key].glyph
            if band.look == "dash":
                glyph.line_color = theme.text
            elif band.look in ("hatch", "cross", "dots"):
                glyph.hatch_color = theme.card

    def whisker(self) -> str | None:
        """Level whose lowest and highest within a bucket are drawn."""
        return None

    def columns(self, snapshot: Snapshot) -> dict[str, Any]:
        """Columns of the source for a snapshot."""
        buckets = snapshot.tables[self.tables[0]]
        readings = {
            band.key: held(self.level(snapshot, band.key), snapshot, buckets.start)
            for band in self.bands
        }
        found: dict[str, Any] = stack(
            [(key, readings[key]) for key in self.layers()],
            [key for key in self.layers() if self.shows(key)],
        )
        for key, values in readings.items():
            hide = key in self.lines() and not self.shows(key)
            found[f"n_{key}"] = np.full(len(values), np.nan) if hide else values
        found["x"] = (buckets.start + buckets.width / 2) * 1000
        found["top"] = found[f"t_{self.layers()[-1]}"]
        name = self.whisker()
        nothing = np.full(len(buckets), np.nan)
        found["low"] = nothing if name is None else buckets.low[name]
        found["high"] = nothing if name is None else buckets.high[name]
        return found

    def highest(self, columns: dict[str, Any]) -> float:
        """Highest point of the stack and the lines."""
        drawn = [columns["top"], columns["high"], *(columns[f"n_{key}"] for key in self.lines())]
        tops = [float(np.nanmax(values)) for values in drawn if not np.isnan(values).all()]
        return max(tops, default=0.0)
