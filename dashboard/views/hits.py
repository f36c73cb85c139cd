"""Where the tokens of looked-up requests came from.

Every token of every look-up is in exactly one band, so the height is what was asked for
and nothing hides in a ratio.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from .. import theme, words
from ..rollup import Buckets, Values
from ..snapshot import Snapshot
from .band import Band
from .bars import BarPlot, below

PER_SECOND, SHARE = "tokens/s", "share"


class HitsPlot(BarPlot):
    """Tokens looked up, by where they were found."""

    key: ClassVar[str] = "hits"
    title: ClassVar[str] = "Looked-up tokens by source"
    unit: ClassVar[str] = ""
    tables: ClassVar[tuple[str, ...]] = ("lookups",)
    metrics: ClassVar[tuple[str, ...]] = (
        "local_tokens",
        "external_tokens",
        "refused_tokens",
        "rows_only_tokens",
        "missed_tokens",
    )
    options: ClassVar[tuple[str, ...]] = (PER_SECOND, SHARE)
    bands: ClassVar[tuple[Band, ...]] = (
        Band("local_hit", "local hit", theme.LOCAL, "Found in the GPU's prefix cache."),
        Band(
            "external_accepted",
            "external",
            theme.LOADING,
            "Offered by the KV connector and accepted.",
        ),
        Band(
            "refused_not_retained",
            "refused: no rows",
            theme.REFUSED,
            "Offered by the KV connector; refused because the R3 rows are gone.",
        ),
        Band(
            "refused_unaligned",
            "unaligned",
            theme.REFUSED,
            "Offered by the KV connector; refused because it is not whole blocks.",
            "hatch",
        ),
        Band(
            "refused_last_token",
            "last token",
            theme.REFUSED,
            "Offered by the KV connector; refused because it covers the last token.",
            "dots",
        ),
        Band(
            "retained_unused",
            "rows only",
            theme.RETAINED,
            "R3 rows are retained, but the KV has left the GPU and nobody offered it: "
            "computed again.",
        ),
        Band(
            "missed",
            "miss",
            theme.COMPUTED,
            "Neither rows nor KV were there: computed.",
        ),
    )

    def more(self) -> str:
        """The look-ups behind the bar."""
        return below("of the tokens of @rows{0,0} look-ups")

    def scale(self, layers: dict[str, Values], bars: Buckets) -> dict[str, Values]:
        """Per second, or per cent of all tokens looked up."""
        if self.option != SHARE:
            return layers
        whole = bars.sums["query_tokens"] / bars.width
        with np.errstate(invalid="ignore", divide="ignore"):
            return {
                key: np.where(whole > 0, 100 * values / whole, 0.0)
                for key, values in layers.items()
            }

    def highest(self, columns: dict[str, Values]) -> float:
        """A share ends at 100 %."""
        return 92.0 if self.option == SHARE else super().highest(columns)

    def values(self, snapshot: Snapshot) -> dict[str, str]:
        """Share of each band over the window."""
        asked = snapshot.total("lookups", "query_tokens")
        found = {}
        for band in self.bands:
            total = snapshot.total("lookups", band.key)
            # A band that never happened need not take room with a number.
            found[band.key] = "" if not total and asked else words.share(total, asked)
        return found

    def note(self, snapshot: Snapshot) -> str:
        """What would fill it."""
        if snapshot.tables["lookups"].rows.any():
            return ""
        return (
            "No look-ups in this stretch. They come when requests are admitted: "
            "send some to the engine, or let the lab run."
        )
