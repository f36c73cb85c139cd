"""Plots of what is counted: stacked bars of a rate, the newest bar still filling."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from bokeh.models import VBar

from ..rollup import Buckets
from ..snapshot import COARSE, Snapshot
from ..theme import Theme
from .axis import draw
from .base import Band, Plot, stack

RECENT_SECONDS = 5.0
"""The legend's numbers are means over the last so many seconds."""


class BarPlot(Plot):
    """Stacked bars per second of columns of one table."""

    number: ClassVar[str] = "{0,0}"
    """Format of a number in the tooltip."""

    def column(self, band: Band) -> str:
        """Column of the table that a band shows."""
        return band.key

    def empty(self) -> dict[str, Any]:
        """Columns of the source without rows."""
        names = ["x", "width", "top", "rows"]
        for band in self.bands:
            names += [f"b_{band.key}", f"t_{band.key}", f"n_{band.key}"]
        return {name: np.zeros(0) for name in names}

    def draw(self) -> None:
        """One bar glyph per band, and one over all of them to point at."""
        self.glyphs: dict[str, Any] = {}
        for band in self.bands:
            bar = VBar(
                x="x",
                width="width",
                bottom=f"b_{band.key}",
                top=f"t_{band.key}",
                fill_color=band.color,
                line_color=None,
                hatch_alpha=0.75,
                hatch_scale=6,
                **band.hatch,
            )
            self.glyphs[band.key] = draw(self.figure, bar, self.source, band.key)
        whole = draw(
            self.figure,
            VBar(x="x", width="width", bottom=0, top="top", fill_alpha=0, line_alpha=0),
            self.source,
            "pointer",
        )
        self.hover(
            whole, [(band, f"@n_{band.key}{self.number}") for band in self.bands], self.more()
        )

    def more(self) -> str:
        """HTML at the end of the tooltip."""
        return ""

    def restyle(self, theme: Theme) -> None:
        """Hatches are drawn in the card's colour, so that they look cut out."""
        super().restyle(theme)
        for band in self.bands:
            if band.hatch:
                self.glyphs[band.key].glyph.hatch_color = theme.card

    def bars(self, snapshot: Snapshot) -> Buckets:
        """The buckets that bars are made of."""
        return snapshot.tables[self.tables[0]].coarse(COARSE)

    def columns(self, snapshot: Snapshot) -> dict[str, Any]:
        """Columns of the source for a snapshot."""
        bars = self.bars(snapshot)
        layers = [
            (band.key, bars.sums[self.column(band)] / bars.width) for band in self.bands
        ]
        layers = self.scale(layers)
        found: dict[str, Any] = stack(
            layers, [band.key for band in self.bands if self.shows(band.key)]
        )
        for band in self.bands:
            found[f"n_{band.key}"] = bars.sums[self.column(band)]
        found["x"] = (bars.start + bars.width / 2) * 1000
        found["width"] = np.full(len(bars), bars.width * 1000 * 0.86)
        found["top"] = found[f"t_{self.bands[-1].key}"]
        found["rows"] = bars.rows
        return found

    def scale(self, layers: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
        """Change the unit of the layers, as chosen in the head."""
        return layers

    def highest(self, columns: dict[str, Any]) -> float:
        """Highest bar."""
        return float(columns["top"].max()) if len(columns["top"]) else 0.0

    def recent(self, snapshot: Snapshot, column: str) -> float | None:
        """Mean rate of the last seconds; None when no row came in them."""
        fine = snapshot.tables[self.tables[0]]
        seconds = max(RECENT_SECONDS, 4 * fine.width)
        return fine.rate(column, snapshot.end, seconds)
