"""What the connector costs the engine: time on the scheduler's critical path."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from .. import words
from ..derive import METHODS
from ..rollup import Buckets, Values
from ..snapshot import Snapshot
from .band import Band
from .bars import BarPlot, below

_GREYS = ("#3E4C5E", "#5B6B80", "#7B8A9D", "#9AA7B6", "#B7C1CD", "#D0D7DF")
"""Neutral: the data colours mean places of blocks and tokens, and these are methods."""

_SHORT = {
    "build_connector_meta": "build",
    "max_cache_hit": "max hit",
    "cap_external_hit": "cap ext",
    "request_loading": "loading",
    "take_output": "take",
    "request_finished": "finished",
}


class CostPlot(BarPlot):
    """Microseconds of a step in each of the connector's methods, and in the probe."""

    key: ClassVar[str] = "cost"
    title: ClassVar[str] = "Connector's time per step"
    unit: ClassVar[str] = "µs"
    tables: ClassVar[tuple[str, ...]] = ("steps",)
    metrics: ClassVar[tuple[str, ...]] = ("connector_cost", "probe_cost")
    bands: ClassVar[tuple[Band, ...]] = (
        *(
            Band(f"ns_{name}", _SHORT[name], grey, f"Time in {name}.")
            for name, grey in zip(METHODS, _GREYS, strict=True)
        ),
        Band("ns_probe", "probe", "#B7C1CD", "What watching costs.", "hatch"),
    )

    def height_of(self, bars: Buckets, band: Band) -> Values:
        """Means over the steps of a bar, not rates."""
        return bars.sums[band.key] / np.maximum(bars.rows, 1) / 1000

    def more(self) -> str:
        """The steps behind the bar."""
        return below("mean of @rows{0,0} steps")

    def values(self, snapshot: Snapshot) -> dict[str, str]:
        """Means over the window, for the methods that take the most and the probe."""
        table = snapshot.visible("steps")
        steps = float(table.rows.sum())
        return {
            band.key: words.short(float(table.sums[band.key].sum()) / steps / 1000)
            if steps
            else words.DASH
            for band in self.bands
        }

    def note(self, snapshot: Snapshot) -> str:
        """What would fill it."""
        if snapshot.tables["steps"].rows.any():
            return ""
        return "No steps in this stretch. Each step of the engine brings its times."
