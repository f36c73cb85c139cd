"""R3 rows delivered to requests, by where they were read."""

from __future__ import annotations

from typing import ClassVar

from .. import theme, words
from ..snapshot import Snapshot
from .band import Band
from .bars import BarPlot, below
from .numbers import NUMBER, SIZE

ROWS, BYTES = "rows/s", "bytes/s"


class RowsPlot(BarPlot):
    """Delivered rows: captured in this step, read from the store, read from the tail."""

    key: ClassVar[str] = "rows"
    title: ClassVar[str] = "R3 rows delivered, by source"
    tables: ClassVar[tuple[str, ...]] = ("rows",)
    metrics: ClassVar[tuple[str, ...]] = ("rows_step", "rows_store", "rows_tail")
    options: ClassVar[tuple[str, ...]] = (ROWS, BYTES)
    bands: ClassVar[tuple[Band, ...]] = (
        Band(
            "step",
            "this step",
            theme.COMPUTED,
            "Computed and captured by this very step.",
        ),
        Band(
            "tail",
            "tail",
            theme.COMPUTED,
            "Captured earlier, kept in the request's incomplete last block.",
            "hatch",
        ),
        Band(
            "store",
            "store",
            theme.RETAINED,
            "Read from the store: what a prefix hit did not compute.",
        ),
    )

    def column(self, band: Band) -> str:
        """Rows or bytes, as chosen."""
        return f"{band.key}_{'bytes' if self.option == BYTES else 'rows'}"

    def changed_option(self) -> None:
        """Bytes are counted in binary units, on the axis and in the tooltip."""
        size = self.option == BYTES
        self.axis_of(self.figure, size=size)
        self.tooltip.number.code = SIZE if size else NUMBER

    def more(self) -> str:
        """The worker steps behind the bar."""
        return below("per second, of @rows{0,0} worker steps")

    def values(self, snapshot: Snapshot) -> dict[str, str]:
        """Rates of the last seconds."""
        shown = words.size if self.option == BYTES else words.short
        found = {}
        for band in self.bands:
            rate = snapshot.rate("rows", self.column(band))
            found[band.key] = words.DASH if rate is None else f"{shown(rate)}/s"
        return found

    def note(self, snapshot: Snapshot) -> str:
        """What would fill it."""
        if snapshot.tables["rows"].rows.any():
            return ""
        return (
            "No worker steps in this stretch. Rows come with requests that asked for their "
            "routed experts."
        )
