"""Plots of what is counted: stacked bars of a rate, the newest bar still filling."""

from __future__ import annotations

from typing import Any

import numpy as np
from bokeh.models import Line, VBar

from ..rollup import Buckets, Values
from ..snapshot import COARSE, Snapshot
from ..theme import Theme
from .axis import draw
from .band import Band
from .base import POINTER, Plot

FILL = 1.0
"""Share of its time that a bar is wide."""


class BarPlot(Plot):
    """Stacked bars per second of columns of one table."""

    def column(self, band: Band) -> str:
        """Column of the table that a band shows."""
        return band.key

    def empty(self) -> dict[str, Any]:
        """Columns of the source without rows."""
        names = ("x", "rows", *self.layers(), *self.lines())
        return {name: np.zeros(0) for name in names}

    def draw(self) -> None:
        """One bar glyph per band, and one over all of them to point at."""
        self.glyphs: dict[str, Any] = {}
        self._width = 1.0
        for band in self.bands:
            if band.key in self.lines():
                line = Line(x="x", y=band.key, line_width=1.6)
                self.glyphs[band.key] = draw(self.figure, line, self.source, band.key)
                continue
            floor, top = self.stacked(band.key)
            bar = VBar(
                x="x",
                bottom=floor,
                top=top,
                fill_color=band.color,
                line_color=None,
                hatch_alpha=0.75,
                hatch_scale=6,
                **band.hatch,
            )
            self.glyphs[band.key] = draw(self.figure, bar, self.source, band.key)
        _, top = self.stacked(POINTER)
        bar = VBar(x="x", bottom=0, top=top, fill_alpha=0, line_alpha=0)
        self.glyphs[POINTER] = draw(self.figure, bar, self.source, POINTER)
        self._restack()
        self.hover(self.glyphs[POINTER], self.more())

    def more(self) -> str:
        """HTML at the end of the tooltip."""
        return ""

    def restyle(self, theme: Theme) -> None:
        """Hatches are drawn in the card's colour, as if cut out, lines in the text's."""
        super().restyle(theme)
        for band in self.bands:
            if band.key in self.lines():
                self.glyphs[band.key].glyph.line_color = theme.text
            elif band.hatch:
                self.glyphs[band.key].glyph.hatch_color = theme.card

    def bars(self, snapshot: Snapshot) -> Buckets:
        """The buckets that bars are made of."""
        return snapshot.tables[self.tables[0]].coarse(COARSE)

    def columns(self, snapshot: Snapshot) -> dict[str, Values]:
        """Columns of the source for a snapshot."""
        bars = self.bars(snapshot)
        found = {band.key: self.height_of(bars, band) for band in self.bands}
        found = self.scale(found, bars)
        found["x"] = (bars.start + bars.width / 2) * 1000
        found["rows"] = bars.rows
        if bars.width != self._width:
            self._width = bars.width
            for key, renderer in self.glyphs.items():
                # What is pointed at has no gaps between the bars.
                share = 1.0 if key == POINTER else FILL
                if isinstance(renderer.glyph, VBar):
                    renderer.glyph.width = bars.width * 1000 * share
        return found

    def height_of(self, bars: Buckets, band: Band) -> Values:
        """Height of a band in each bar: its rate."""
        return bars.sums[self.column(band)] / bars.width

    def scale(self, layers: dict[str, Values], bars: Buckets) -> dict[str, Values]:
        """Change the unit of the layers, as chosen in the head."""
        return layers


def below(text: str) -> str:
    """A line under the numbers of a tooltip."""
    return f"<div style='opacity:.75;padding-top:3px'>{text}</div>"
