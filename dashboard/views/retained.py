"""Retained blocks against the capacity, and what was released to keep to it."""

from __future__ import annotations

from typing import ClassVar

from .. import theme, words
from ..snapshot import Snapshot
from .areas import AreaPlot
from .band import Band
from .bars import BarPlot


class RetainedPlot(AreaPlot):
    """Retained blocks, on the GPU and off it, under the line of the capacity."""

    key: ClassVar[str] = "retained"
    title: ClassVar[str] = "Retained blocks against capacity"
    unit: ClassVar[str] = "blocks"
    tables: ClassVar[tuple[str, ...]] = ("steps",)
    metrics: ClassVar[tuple[str, ...]] = (
        "retained_on_gpu",
        "retained_off_gpu",
        "capacity",
        "over_capacity",
    )
    bands: ClassVar[tuple[Band, ...]] = (
        Band(
            "retained_on_gpu",
            "still on the GPU",
            theme.CACHED,
            "Retained, and the KV is still on the GPU: never released.",
        ),
        Band(
            "retained_off_gpu",
            "off the GPU",
            theme.RETAINED,
            "Retained, and the KV has left the GPU: released when room is needed.",
        ),
        Band(
            "capacity",
            "capacity",
            "",
            "What the connector keeps before it releases.",
            "dash",
        ),
    )

    def whisker(self) -> str | None:
        """Both layers together are what went up and down."""
        return "retained"

    def values(self, snapshot: Snapshot) -> dict[str, str]:
        """Newest readings."""
        on_gpu = snapshot.level("steps", "retained_on_gpu")
        retained = snapshot.level("steps", "retained")
        off = None if retained is None or on_gpu is None else retained - on_gpu
        return {
            "retained_on_gpu": words.whole(on_gpu),
            "retained_off_gpu": words.whole(off),
            "capacity": words.whole(snapshot.level("steps", "capacity")),
        }

    def note(self, snapshot: Snapshot) -> str:
        """What would fill it."""
        if snapshot.level("steps", "retained") is None:
            return "No steps yet. Retained blocks appear when the first requests have ended."
        return ""


class ReleasedPlot(BarPlot):
    """Blocks released, and those that were wanted again afterwards."""

    key: ClassVar[str] = "released"
    title: ClassVar[str] = "Blocks released, and wanted again"
    unit: ClassVar[str] = "blocks/s"
    tables: ClassVar[tuple[str, ...]] = ("blocks",)
    metrics: ClassVar[tuple[str, ...]] = ("block_events", "released_rate")
    bands: ClassVar[tuple[Band, ...]] = (
        Band(
            "released",
            "released",
            theme.RELEASED,
            "Lost their R3 rows because the connector was over capacity.",
        ),
        Band(
            "wanted_again",
            "wanted again",
            "var(--ac-text)",
            "Looked up after they were released: the price of too small a capacity.",
            "line",
        ),
    )

    def values(self, snapshot: Snapshot) -> dict[str, str]:
        """Counts over the window."""
        known = snapshot.level("steps", "retained") is not None
        return {
            band.key: words.whole(
                snapshot.total("blocks", band.key) or (0 if known else None)
            )
            for band in self.bands
        }

    def note(self, snapshot: Snapshot) -> str:
        """What would fill it."""
        counts = (snapshot.total("blocks", band.key) for band in self.bands)
        if any(counts):
            return ""
        if snapshot.level("steps", "retained") is None:
            return "Nothing retained yet, so nothing to release."
        return (
            "Nothing was released in this stretch: what is off the GPU fits the capacity. "
            "Lower the capacity at the left to see releases."
        )
