"""The loading set: blocks that must not be released because a KV load needs them."""

from __future__ import annotations

from typing import ClassVar

from .. import theme, words
from ..rollup import Values
from ..snapshot import Snapshot
from .areas import AreaPlot
from .band import Band
from .indicators import peak


class LoadingPlot(AreaPlot):
    """Blocks and requests whose KV load is under way; the highest of each moment."""

    key: ClassVar[str] = "loading"
    title: ClassVar[str] = "Loading from the KV tier"
    unit: ClassVar[str] = "blocks"
    tables: ClassVar[tuple[str, ...]] = ("steps",)
    metrics: ClassVar[tuple[str, ...]] = ("loading_blocks", "loading_requests")
    bands: ClassVar[tuple[Band, ...]] = (
        Band(
            "loading_blocks",
            "loading blocks",
            theme.LOADING,
            "Protected from release until their KV has arrived.",
        ),
        Band("loading_requests", "requests waiting for it", "", "", "dash"),
    )

    def level(self, snapshot: Snapshot, key: str) -> Values:
        """A load lasts a few steps: its peak must not fall between two readings."""
        return snapshot.tables["steps"].high[key]

    def values(self, snapshot: Snapshot) -> dict[str, str]:
        """Highest of the last moments."""
        return {band.key: words.whole(peak(snapshot, band.key)) for band in self.bands}

    def note(self, snapshot: Snapshot) -> str:
        """What would fill it."""
        loading = snapshot.tables["steps"].high["loading_blocks"]
        if (loading > 0).any():
            return ""
        tier = snapshot.fact("kv_tier_blocks")
        if tier is None:
            return (
                "No loads in this stretch. Blocks are here while a KV connector brings their "
                "KV back to the GPU."
            )
        if not tier:
            return (
                "No KV tier, so nothing is loaded. Switch it on at the left, or start vLLM "
                "with a KV connector."
            )
        return (
            "No loads in this stretch: no prompt found KV in the tier that had left the GPU. "
            "A smaller pool makes it happen sooner."
        )
