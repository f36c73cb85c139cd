"""What the KV pool holds: usage that drops to nothing although blocks stay cached."""

from __future__ import annotations

from typing import ClassVar

from .. import theme, words
from ..snapshot import Snapshot
from .areas import AreaPlot
from .band import Band


class PoolPlot(AreaPlot):
    """KV blocks of the pool: in use, cached and free, free."""

    key: ClassVar[str] = "pool"
    title: ClassVar[str] = "What the GPU's KV blocks hold"
    unit: ClassVar[str] = "blocks"
    tables: ClassVar[tuple[str, ...]] = ("steps",)
    metrics: ClassVar[tuple[str, ...]] = ("kv_in_use", "kv_cached_free", "kv_free")
    bands: ClassVar[tuple[Band, ...]] = (
        Band("kv_in_use", "in use", theme.LOCAL, "A request refers to them."),
        Band(
            "kv_cached_free",
            "cached, free to evict",
            theme.CACHED,
            "Nobody refers to them, and their content can still be hit.",
        ),
        Band("kv_free", "empty", theme.COMPUTED, "They hold nothing.", "pale"),
    )

    def values(self, snapshot: Snapshot) -> dict[str, str]:
        """Newest readings."""
        return {
            band.key: words.whole(snapshot.level("steps", band.key))
            for band in self.bands
        }

    def note(self, snapshot: Snapshot) -> str:
        """What would fill it."""
        if snapshot.level("steps", "kv_free") is None:
            return "No steps yet. The pool appears with the engine's first step."
        return ""
