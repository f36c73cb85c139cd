"""One table of a recording, wound forwards and backwards.

A replay hands out rows when their time has come, and jumps. Only one part is in memory at a
time, so a recording of a day replays in the memory of a minute. Not thread-safe.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from auxconn.packing import Values

if TYPE_CHECKING:
    from auxconn.recording.opened import Recording
    from auxconn.recording.parts import Part


class Loaded(msgspec.Struct):
    """A part's rows, and when each is due."""

    columns: dict[str, Values]
    due: Values


class Reel:
    """The rows of one table in recorded order, from a place on.

    Parameters
    ----------
    recording, table
        Whose rows.
    """

    def __init__(self, recording: Recording, table: str) -> None:
        self.table = table
        self._recording = recording
        self._parts = recording.parts(table)
        self._loaded: tuple[int, Loaded] | None = None
        self._part = 0
        """The next row is of this part."""
        self._row = 0

    def until(self, moment: float) -> list[dict[str, Values]]:
        """Columns of the rows from the place on that are due at `moment`; the place moves."""
        found = []
        while self._part < len(self._parts):
            if _start(self._parts[self._part]) > moment:
                break
            loaded = self._load(self._part)
            last = int(np.searchsorted(loaded.due, moment, side="right"))
            if last > self._row:
                found.append(_cut(loaded.columns, self._row, last))
                self._row = last
            if self._row < len(loaded.due):
                break
            self._part, self._row = self._part + 1, 0
        return found

    def seek(self, moment: float, rows: int) -> list[dict[str, Values]]:
        """Go to the rows that are due after `moment`.

        Returns
        -------
        list
            Columns of the newest `rows` rows before them, oldest first.
        """
        part = len(self._parts)
        while part > 0 and _start(self._parts[part - 1]) > moment:
            part -= 1
        self._part, self._row = part, 0
        if part == 0:
            return []
        part -= 1
        loaded = self._load(part)
        last = int(np.searchsorted(loaded.due, moment, side="right"))
        if last < len(loaded.due):
            self._part, self._row = part, last
        found: list[dict[str, Values]] = []
        while True:
            first = max(0, last - rows)
            if last > first:
                found.append(_cut(loaded.columns, first, last))
            rows -= last - first
            if rows <= 0 or part == 0:
                return found[::-1]
            part -= 1
            loaded = self._load(part)
            last = len(loaded.due)

    def _load(self, number: int) -> Loaded:
        if self._loaded is None or self._loaded[0] != number:
            part = self._parts[number]
            columns = self._recording.columns(self.table, part)
            # A damaged part is empty; the recording tells of it.
            due = np.empty(0)
            if columns is not None:
                due = self._recording.due(self.table, part, columns["t"])
            self._loaded = number, Loaded(columns or {}, due)
        return self._loaded[1]


def _start(part: Part) -> float:
    return part.footer.start_s


def _cut(columns: dict[str, Values], first: int, last: int) -> dict[str, Values]:
    return {name: values[first:last] for name, values in columns.items()}
