"""Plots of levels: stacked areas of the last reading, whiskers where it went in between."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from bokeh.models import Line, VArea

from ..held import held
from ..rollup import Values
from ..snapshot import Snapshot
from ..theme import Theme
from .axis import draw
from .base import POINTER, Plot

PALE = 0.45
"""Opacity of what is there but not used."""


class AreaPlot(Plot):
    """Stacked areas of levels of one table, with dashed lines over them.

    Bands with the look `dash` are lines in the text's colour; the others are stacked in
    their order, on a column of zeros that is NaN where nothing is known: an area that had a
    floor and no top there would be drawn down to its floor.
    """

    ground: ClassVar[tuple[str, ...]] = ("base",)

    def level(self, snapshot: Snapshot, key: str) -> Values:
        """Readings of a band, NaN where there is none."""
        return snapshot.tables[self.tables[0]].last[key]

    def empty(self) -> dict[str, Any]:
        """Columns of the source without rows."""
        extent = ("low", "high") if self.whisker() else ()
        return {
            name: np.zeros(0)
            for name in ("x", "base", *extent, *(b.key for b in self.bands))
        }

    def draw(self) -> None:
        """One area per layer, one line per line, and an invisible line to point at."""
        self.glyphs: dict[str, Any] = {}
        for band in self.bands:
            if band.key in self.layers():
                floor, top = self.stacked(band.key)
                area = VArea(
                    x="x",
                    y1=floor,
                    y2=top,
                    fill_color=band.color,
                    fill_alpha=PALE if band.look == "pale" else 0.92,
                    hatch_alpha=0.6,
                    hatch_scale=6,
                    **band.hatch,
                )
                self.glyphs[band.key] = draw(self.figure, area, self.source, band.key)
        self.whiskers: Any = None
        if self.whisker():
            extent = VArea(x="x", y1="low", y2="high", fill_alpha=0.35)
            self.whiskers = draw(self.figure, extent, self.source, "whiskers")
        for band in self.bands:
            if band.key in self.lines():
                line = Line(
                    x="x",
                    y=band.key,
                    line_color=band.color or "#808a98",
                    line_width=1.6,
                    line_dash=[6, 4] if band.look == "dash" else [],
                )
                self.glyphs[band.key] = draw(self.figure, line, self.source, band.key)
        _, top = self.stacked(POINTER)
        pointer = Line(x="x", y=top, line_alpha=0)
        renderer = draw(self.figure, pointer, self.source, POINTER)
        self._restack()
        self.hover(renderer)

    def restyle(self, theme: Theme) -> None:
        """Lines are drawn in the text's colour."""
        super().restyle(theme)
        if self.whiskers is not None:
            self.whiskers.glyph.fill_color = theme.text
        for band in self.bands:
            glyph = self.glyphs[band.key].glyph
            if band.look == "dash":
                glyph.line_color = theme.text
            elif band.hatch:
                glyph.hatch_color = theme.card

    def whisker(self) -> str | None:
        """Level whose lowest and highest within a bucket are drawn."""
        return None

    def columns(self, snapshot: Snapshot) -> dict[str, Values]:
        """Columns of the source for a snapshot."""
        buckets = snapshot.tables[self.tables[0]]
        found = {
            band.key: held(self.level(snapshot, band.key), snapshot, buckets.start)
            for band in self.bands
        }
        found["base"] = np.sum([found[key] for key in self.layers()], axis=0) * 0
        found["x"] = (buckets.start + buckets.width / 2) * 1000
        name = self.whisker()
        if name is not None:
            whole = all(self.shows(key) for key in self.layers())
            nothing = np.full(len(buckets), np.nan)
            found["low"] = buckets.low[name] if whole else nothing
            found["high"] = buckets.high[name] if whole else nothing
        return found

    def highest(self, columns: dict[str, Values]) -> float:
        """Spikes between two readings are drawn too."""
        spikes = columns.get("high")
        found = super().highest(columns)
        if spikes is None or np.isnan(spikes).all():
            return found
        return max(found, float(np.nanmax(spikes)))
