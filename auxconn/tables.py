"""The rows of one table, and what a reader gets of them.

A ring of numpy columns keeps the newest rows; engines and categories are small numbers in
it. Here these become names again, rows of one engine are picked out, and what a reader
missed is worked out from the version it comes with. Not thread-safe: the store locks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from auxconn.asked import ALL, Whose
from auxconn.packing import Layout, Values, layout
from auxconn.rings import Names, Ring
from auxconn.texts import shown


class Delta(msgspec.Struct, frozen=True):
    """What a reader gets: rows, and what it missed."""

    version: int
    """To be passed to the next `since`."""
    lost: int
    """Rows appended since the version asked for that are not here: overwritten (whoever's
    they were), or more than the limit."""
    cleared: bool
    """True when the table was cleared since: what the reader has is of the past."""
    columns: dict[str, Values]
    """One array per column, oldest row first. Numbers in the schema's dtype, `t` in float64
    seconds, texts, categories and engine names as object arrays of str."""

    @property
    def rows(self) -> int:
        """Rows in the answer."""
        return len(next(iter(self.columns.values()))) if self.columns else 0


class Table:
    """The newest rows of one table, of all engines.

    Parameters
    ----------
    name
        Of the table.
    limit
        Rows kept at most.
    names
        Numbers of the engines, which all tables share.
    """

    def __init__(self, name: str, limit: int, names: Names) -> None:
        self.layout = layout(name)
        self.ring = Ring(_dtypes(self.layout), limit)
        self.columns = (
            "engine",
            "rank",
            *(field.column.name for field in self.layout.fields),
        )
        """Name of every column."""
        self._names = names
        self._cleared = 0

    def clear(self) -> None:
        """Forget the rows; readers are told, even those who had seen them all."""
        self.ring.clear()
        self._cleared = self.ring.total

    def engine_codes(self) -> Values:
        """Number of the engine of each row."""
        return self.ring.read("engine", self.ring.oldest, self.ring.total)

    def since(
        self,
        version: int,
        names: Sequence[str],
        whose: Whose,
        limit: int | None,
        until: int | None = None,
    ) -> Delta:
        """Rows from `version` on; `ValueError` when it was never reached."""
        ring = self.ring
        end = ring.total if until is None else until
        if not 0 <= version <= ring.total:
            raise ValueError(
                f"version {shown(version)} of {self.layout.table!r}: it goes from 0 to "
                f"{ring.total}; pass the version of an earlier answer of this store"
            )
        if not version <= end <= ring.total:
            raise ValueError(
                f"until {shown(until)} of {self.layout.table!r}: it goes from the version "
                f"asked for, {shown(version)}, to {ring.total}"
            )
        first = min(max(version, ring.oldest), end)
        lost = first - max(version, min(self._cleared, first))
        found, left_out = self._read(names, first, end, whose, limit)
        cleared = version < self._cleared
        return Delta(end, lost + left_out, cleared, self._named(found))

    def tail(self, n: int, names: Sequence[str], whose: Whose) -> Delta:
        """The newest `n` rows."""
        return Delta(self.ring.total, 0, False, self._named(self.raw(names, whose, n)))

    def raw(
        self, names: Sequence[str], whose: Whose, last: int | None
    ) -> dict[str, Values]:
        """The rows there are, or the `last` ones, with numbers for engines and categories."""
        first = self.ring.oldest
        if last is not None and whose == ALL:
            first = max(first, self.ring.total - last)
        return self._read(names, first, self.ring.total, whose, last)[0]

    def _read(
        self,
        names: Sequence[str],
        first: int,
        end: int,
        whose: Whose,
        limit: int | None,
    ) -> tuple[dict[str, Values], int]:
        """Copy columns of the rows from version `first` to `end`.

        Returns also how many a limit left out.
        """
        ring = self.ring
        left_out = 0
        if whose == ALL:
            if limit is not None:
                left_out = max(0, end - first - limit)
            start = first + left_out
            return {name: ring.read(name, start, end) for name in names}, left_out
        mine = np.ones(end - first, bool)
        if whose.engine is not None:
            code = self._names.find(whose.engine)
            mine &= ring.read("engine", first, end) == (-1 if code is None else code)
        if whose.rank is not None:
            mine &= ring.read("rank", first, end) == whose.rank
        positions = ring.positions(first, end)[mine]
        if limit is not None:
            left_out = max(0, len(positions) - limit)
        return {name: ring.take(name, positions[left_out:]) for name in names}, left_out

    def _named(self, found: dict[str, Values]) -> dict[str, Values]:
        """Put names in the place of numbers."""
        for field in self.layout.fields:
            name = field.column.name
            if field.codes and name in found:
                texts = np.array(field.column.categories, dtype=object)
                found[name] = texts[found[name]]
        if "engine" in found:
            found["engine"] = self._names.decode(found["engine"])
        return found


def coded(plan: Layout, columns: Mapping[str, Values]) -> dict[str, Values]:
    """Columns as `since` answers them with numbers for the categories, as a ring keeps them.

    Those that are numbers already stay. Raises `ValueError` when a column holds what is no
    category of it.
    """
    found = dict(columns)
    for field in plan.fields:
        name = field.column.name
        if field.codes and name in found and found[name].dtype != field.stored:
            values = found[name]
            try:
                numbers = map(field.codes.__getitem__, values)
                found[name] = np.fromiter(numbers, field.stored, len(values))
            except KeyError as unknown:
                known = ", ".join(map(repr, field.column.categories))
                raise ValueError(
                    f"{plan.table}.{name}: {unknown.args[0]!r} is none of {known}"
                ) from None
    return found


def _dtypes(plan: Layout) -> dict[str, np.dtype[Any]]:
    own = {field.column.name: field.stored for field in plan.fields}
    return {"engine": np.dtype(np.uint16), "rank": np.dtype(np.int32), **own}
