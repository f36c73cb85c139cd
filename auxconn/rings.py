"""Columns of the newest rows, in memory that does not grow with time.

A dashboard reads the last minutes of a stream that never ends. Appending to a pandas frame
copies it whole each time, and a list of records keeps every string alive, so each table is
a ring instead: one numpy array per column, written in place, of which readers get copies.

Rows are named by their *version*, the count of rows ever pushed before them and of the
times the ring was cleared. It never goes back, so a reader that remembers one number can
ask for what came after it and learn how much was overwritten in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

FIRST_ROOM = 1024
"""Rows a ring has room for at first; it doubles up to its limit as rows come."""

Values = np.ndarray[Any, np.dtype[Any]]


class Ring:
    """The newest `limit` rows of one table. Not thread-safe: its owner locks.

    Parameters
    ----------
    dtypes
        Name and numpy dtype of each column.
    limit
        Rows kept at most.
    """

    def __init__(self, dtypes: Mapping[str, np.dtype[Any]], limit: int) -> None:
        self._dtypes = dict(dtypes)
        self.limit = limit
        self.total = 0
        """Rows ever pushed, and times cleared: the version of the row that comes next."""
        self.kept = 0
        """Rows that can be read now."""
        self._room = min(limit, FIRST_ROOM)
        self._columns = self._allocate(self._room)

    @property
    def oldest(self) -> int:
        """Version of the oldest row that can be read."""
        return self.total - self.kept

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays; what the strings of object columns take is not in it."""
        return sum(column.nbytes for column in self._columns.values())

    def push(
        self, rows: int, columns: Mapping[str, Values], constants: Mapping[str, Any]
    ) -> None:
        """Append `rows` rows; the oldest make room.

        Parameters
        ----------
        columns
            For each column not in `constants`, an array of length `rows`.
        constants
            Columns that have one value in all the new rows.
        """
        fresh = min(rows, self.limit)
        if self.kept + fresh > self._room < self.limit:
            self._lay_out(min(self.limit, max(2 * self._room, self.kept + fresh)))
        start = (self.total + rows - fresh) % self._room
        before_end = min(fresh, self._room - start)
        wrapped = fresh - before_end
        for name, values in columns.items():
            target = self._columns[name]
            newest = values[rows - fresh :]
            target[start : start + before_end] = newest[:before_end]
            if wrapped:
                target[:wrapped] = newest[before_end:]
        for name, value in constants.items():
            target = self._columns[name]
            target[start : start + before_end] = value
            if wrapped:
                target[:wrapped] = value
        self.total += rows
        self.kept = min(self.kept + rows, self._room)

    def positions(self, first: int, last: int) -> Values:
        """Where the rows of versions `first` to `last` (not included) lie."""
        return np.arange(first, last) % self._room

    def read(self, name: str, first: int, last: int) -> Values:
        """Copy one column of the rows of versions `first` to `last` (not included)."""
        column = self._columns[name]
        start, rows = first % self._room, last - first
        if start + rows <= self._room:
            return column[start : start + rows].copy()
        return np.concatenate([column[start:], column[: start + rows - self._room]])

    def take(self, name: str, positions: Values) -> Values:
        """Copy one column at `positions`."""
        return self._columns[name][positions]

    def resize(self, limit: int) -> None:
        """Keep at most `limit` rows from now on; the newest stay."""
        self.limit = limit
        self.kept = min(self.kept, limit)
        self._lay_out(min(limit, max(self.kept, FIRST_ROOM)))

    def clear(self) -> None:
        """Forget all rows, their strings too.

        Versions go on, one further: a reader who had seen every row must learn of it too.
        """
        self.total += 1
        self.kept = 0
        self._lay_out(min(self.limit, FIRST_ROOM))

    def _allocate(self, room: int) -> dict[str, Values]:
        return {name: np.empty(room, dtype) for name, dtype in self._dtypes.items()}

    def _lay_out(self, room: int) -> None:
        """Move the rows kept to arrays of `room` rows, each to its version modulo `room`."""
        columns = self._allocate(room)
        start = self.oldest % room
        before_end = min(self.kept, room - start)
        for name, column in columns.items():
            rows = self.read(name, self.oldest, self.total)
            column[start : start + before_end] = rows[:before_end]
            column[: self.kept - before_end] = rows[before_end:]
        self._columns, self._room = columns, room


class Names:
    """Small numbers for the names of engines, so that a row carries two bytes.

    Bounded: when all numbers are given out, those that no ring refers to any more are
    given again. Not thread-safe.
    """

    LIMIT = 4096
    """Names at one time."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}
        self._names: list[str] = []
        self._free: list[int] = []

    def code(self, name: str, used: Iterable[Values]) -> int:
        """Number of `name`; `used` yields the numbers in use, should room be needed.

        Raises `ValueError` when every number is in use.
        """
        known = self._codes.get(name)
        if known is not None:
            return known
        if len(self._names) < self.LIMIT:
            self._names.append(name)
            self._codes[name] = len(self._names) - 1
            return self._codes[name]
        if not self._free:
            self._reclaim(used)
        if not self._free:
            raise ValueError(
                f"engine {name!r}: the rows kept are of {self.LIMIT} engines already, "
                "which is the limit; keep fewer rows or clear the store"
            )
        code = self._free.pop()
        self._names[code] = name
        self._codes[name] = code
        return code

    def find(self, name: str) -> int | None:
        """Number of `name`, or None when no row kept bears it."""
        return self._codes.get(name)

    def decode(self, codes: Values) -> Values:
        """Names of `codes`, as an array of objects."""
        return np.array([*self._names, ""], dtype=object)[codes]

    def all(self) -> list[str]:
        """Name of each number, from 0."""
        return list(self._names)

    def _reclaim(self, used: Iterable[Values]) -> None:
        held = {int(code) for codes in used for code in np.unique(codes)}
        self._free = [code for code in range(self.LIMIT) if code not in held]
        for code in self._free:
            del self._codes[self._names[code]]
