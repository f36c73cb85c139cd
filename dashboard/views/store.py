"""The R3 store: slots of the arena, who holds them, and its total."""

from __future__ import annotations

from typing import ClassVar

from .. import theme, words
from ..snapshot import Snapshot
from .areas import AreaPlot
from .band import Band


class StorePlot(AreaPlot):
    """Slots of the store's arena under the line of its size."""

    key: ClassVar[str] = "store"
    title: ClassVar[str] = "The R3 store's slots"
    unit: ClassVar[str] = "slots"
    tables: ClassVar[tuple[str, ...]] = ("store",)
    metrics: ClassVar[tuple[str, ...]] = (
        "store_referenced",
        "store_unreferenced",
        "store_total",
        "store_bytes",
    )
    bands: ClassVar[tuple[Band, ...]] = (
        Band(
            "slots_referenced",
            "referenced",
            theme.RETAINED,
            "A request or the connector holds them: they cannot be evicted.",
        ),
        Band(
            "slots_unreferenced",
            "unreferenced",
            theme.RETAINED,
            "Kept only until their room is needed.",
            "pale",
        ),
        Band(
            "slots_total",
            "arena",
            "",
            "All slots. It doubles when everything is referenced, and never shrinks.",
            "dash",
        ),
    )

    def values(self, snapshot: Snapshot) -> dict[str, str]:
        """Newest readings."""
        return {
            band.key: words.short(snapshot.level("store", band.key))
            for band in self.bands
        }

    def note(self, snapshot: Snapshot) -> str:
        """What would fill it."""
        if snapshot.level("store", "slots_total") is None:
            return (
                "No worker steps yet. The store appears when a worker with an R3 store is "
                "attached."
            )
        return ""
