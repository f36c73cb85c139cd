"""One table on its way to the disk: the part that is being filled, and what waits.

A file per flush would be thousands an hour, and a file that is appended to is none until it
is closed. So the newest part is written again as a whole at each flush, with what came
since, until it is full; then the next one is begun. Not thread-safe: the recorder's thread
alone calls it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from auxconn.packing import Values
from auxconn.recording.layout import FORMAT, Anchor, Footer, Gap, to_arrow
from auxconn.recording.parts import write_part
from auxconn.records import SCHEMA_VERSION

PART_ROWS = 100_000
"""A part with so many rows is full."""

PART_SECONDS = 120.0
"""And so is one that was begun so long ago."""

MOST_WAITING = 200_000
"""Rows of a table that wait for a disk that takes none; the store drops the rest, and the
recording says how many."""


class Track:
    """The parts of one table.

    Parameters
    ----------
    folder
        Where they go.
    table
        Name of the table.
    earliest
        Clock of the recording before which no row can have come.
    """

    def __init__(
        self, folder: Path, table: str, earliest: float = float("-inf")
    ) -> None:
        self.table = table
        self.rows = 0
        """Rows taken so far."""
        self.lost = 0
        """Rows that are known to be missing."""
        self.waiting = 0
        """Rows that are not on the disk yet."""
        self.bytes = 0
        """Of all parts, as they were last written."""
        self._folder = folder
        self._earliest = earliest
        self._part = 0
        self._begin(0.0)

    @property
    def takes(self) -> bool:
        """False while too much waits for the disk."""
        return self.waiting < MOST_WAITING

    def _begin(self, at: float) -> None:
        self._part += 1
        self._begun = at
        self._first = self.rows
        self._chunks: list[Any] = []
        self._start: float | None = None
        self._reads: list[tuple[int, float]] = []
        self._gaps: list[Gap] = []
        self._engines: dict[str, int] = {}
        self._ranks: dict[tuple[str, int], None] = {}
        self._written = 0
        self._dirty = False

    def take(
        self,
        columns: Mapping[str, Values],
        at: float,
        numbers: Mapping[str, int],
        gaps: Sequence[Gap] = (),
    ) -> None:
        """Take the rows of one reading of the store.

        Parameters
        ----------
        columns
            As `FrameStore.since` answers them.
        at
            Clock of the recording at the reading.
        numbers
            Number of each engine in the store.
        gaps
            What was missed before these rows.
        """
        full = self.rows - self._first >= PART_ROWS or (
            bool(self._reads) and at - self._begun >= PART_SECONDS
        )
        if full and not self._dirty:
            self._begin(at)
        if gaps:
            self._gaps += gaps
            self.lost += sum(gap.rows or 0 for gap in gaps)
            self._dirty = True
        rows = len(columns["t"]) if columns else 0
        if not rows:
            return
        if not self._reads:
            self._begun = at
        if self._start is None:
            first = float(columns["t"][0])
            first = first if np.isfinite(first) else at
            self._start = min(max(first, self._earliest), at)
        self._earliest = at
        self._chunks.append(to_arrow(self.table, columns))
        self.rows += rows
        self.waiting += rows
        self._reads.append((self.rows - self._first, at))
        pairs = zip(columns["engine"].tolist(), columns["rank"].tolist(), strict=True)
        self._ranks.update(dict.fromkeys(pairs))
        for engine, _ in self._ranks:
            self._engines[engine] = numbers.get(engine, len(numbers))
        self._dirty = True

    def flush(self, anchor: Anchor) -> None:
        """Write what is not on the disk yet. `OSError` leaves it waiting."""
        if not self._dirty:
            return
        written = write_part(
            self._folder,
            Footer(
                format=FORMAT,
                schema=SCHEMA_VERSION,
                table=self.table,
                part=self._part,
                first=self._first,
                rows=self.rows - self._first,
                start_s=anchor.wall_s if self._start is None else self._start,
                reads=self._reads,
                gaps=self._gaps,
                engines=self._engines,
                ranks=list(self._ranks),
                anchor=anchor,
            ),
            self._chunks,
        )
        self.bytes += written - self._written
        self._written = written
        self.waiting = 0
        self._dirty = False
