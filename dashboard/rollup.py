"""Rows folded into buckets of time, each row once.

A ring holds a hundred thousand rows and a plot has a few hundred pixels, several times a
second and for every browser. Reading a whole ring for each tick would cost more than all
else together, so rows are folded into buckets as they come: sums for what is counted,
lowest, highest and last for what is a level. A tick then costs what the rows since the
tick before cost, and a spike of one step survives in its bucket's highest, however wide
the bucket.

Buckets are numbered from the epoch (`floor(t / width)`), so that they stand still while the
window moves over them, and two windows of the same width agree.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

Values = np.ndarray[Any, np.dtype[Any]]

ROWS = ""
"""Name of the counter of rows themselves, for `Buckets.rate`."""


@dataclasses.dataclass(frozen=True)
class Buckets:
    """A stretch of consecutive buckets; all arrays have one length. Not to be written to.

    Sums are 0 where no row fell, levels are NaN there.
    """

    width: float
    """Seconds of a bucket."""
    start: Values
    """Wall clock at which each bucket begins, in seconds."""
    rows: Values
    """Rows in each bucket."""
    sums: Mapping[str, Values]
    low: Mapping[str, Values]
    high: Mapping[str, Values]
    last: Mapping[str, Values]
    _coarse: dict[int, Buckets] = dataclasses.field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __len__(self) -> int:
        return len(self.start)

    def coarse(self, factor: int) -> Buckets:
        """Join each `factor` neighbours; the length must be a multiple of it.

        Columns are joined when they are asked for, once for all who ask.
        """
        known = self._coarse.get(factor)
        if known is None:
            known = self._coarse[factor] = Buckets(
                self.width * factor,
                self.start[::factor],
                self.rows.reshape(-1, factor).sum(axis=1),
                _Joined(self.sums, factor, lambda grid: grid.sum(axis=1)),
                _Joined(self.low, factor, lambda grid: np.fmin.reduce(grid, axis=1)),
                _Joined(self.high, factor, lambda grid: np.fmax.reduce(grid, axis=1)),
                _Joined(self.last, factor, _last),
            )
        return known

    def between(self, start: float, end: float, whole: int = 1) -> Buckets:
        """The buckets from `start` to `end`, in groups of `whole` from the first one."""
        first = (
            max(0, int((start - self.start[0]) / self.width + 1e-6)) // whole * whole
        )
        last = min(len(self), int(np.ceil((end - self.start[0]) / self.width - 1e-6)))
        last = max(first, -(-last // whole) * whole)
        if first == 0 and last == len(self):
            return self
        part = slice(first, last)

        def cut(columns: Mapping[str, Values]) -> dict[str, Values]:
            return {name: values[part] for name, values in columns.items()}

        return Buckets(
            self.width,
            self.start[part],
            self.rows[part],
            cut(self.sums),
            cut(self.low),
            cut(self.high),
            cut(self.last),
        )

    def total(self, name: str) -> float | None:
        """Sum of a counter; None when no row fell: not known is not 0."""
        return float(self.sums[name].sum()) if self.rows.any() else None

    def rate(self, name: str, until: float, seconds: float) -> float | None:
        """Counter per second over the `seconds` before `until`, cut to whole buckets.

        None when no row fell into any bucket of the stretch.
        """
        first = int(np.searchsorted(self.start, until - seconds))
        last = int(np.searchsorted(self.start, until))
        if first >= last or not self.rows[first:last].any():
            return None
        elapsed = max(until - float(self.start[first]), self.width)
        counter = self.rows if name == ROWS else self.sums[name]
        return float(counter[first:last].sum()) / elapsed


class Rollup:
    """The buckets of one width over the newest stretch of time, of one engine or of many.

    Not thread-safe: its owner locks.

    Parameters
    ----------
    width
        Seconds of a bucket.
    count
        Buckets kept; older ones are overwritten.
    sums, levels
        Names of the columns to add up, and of those to keep lowest, highest and last of.
    until
        Number of the last bucket that may be filled; later rows are left out. For a
        stretch that is looked at while time goes on.
    many
        Engines whose rows are folded apart; they share the stretch of time.
    """

    def __init__(
        self,
        width: float,
        count: int,
        sums: tuple[str, ...],
        levels: tuple[str, ...],
        *,
        until: int | None = None,
        many: int = 1,
    ) -> None:
        self.width = width
        self.count = count
        self.many = many
        self.sums, self.levels = sums, levels
        self._until = until
        self.clear()

    def clear(self) -> None:
        """Forget every row."""
        self.head = self._until
        """Number of the newest bucket."""
        self._rows, self._sum, self._low, self._high, self._last = self._empty(
            self.many
        )

    def grow(self, many: int) -> None:
        """Have room for so many engines."""
        if many <= self.many:
            return
        new = self._empty(many - self.many)
        kept = (self._rows, self._sum, self._low, self._high, self._last)
        self._rows, self._sum, self._low, self._high, self._last = (
            np.concatenate(both, axis=1) for both in zip(kept, new, strict=True)
        )
        self.many = many

    def _empty(self, many: int) -> tuple[Values, Values, Values, Values, Values]:
        """Buckets of so many engines, one engine's after the other's in each row."""
        length = many * self.count
        levels = (len(self.levels), length)
        return (
            np.zeros((1, length)),
            np.zeros((len(self.sums), length)),
            np.full(levels, np.nan),
            np.full(levels, np.nan),
            np.full(levels, np.nan),
        )

    def fold(
        self, t: Values, columns: Mapping[str, Values], who: Values | None = None
    ) -> None:
        """Add rows; `t` in seconds, nearly in order. Too old rows are left out.

        Parameters
        ----------
        who
            Whose each row is, from 0; all are of the first without it.
        """
        keep = np.isfinite(t)
        number = np.floor(np.where(keep, t, 0.0) / self.width).astype(np.int64)
        if self._until is not None:
            keep &= number <= self._until
        if not keep.any():
            return
        self._advance(int(number[keep].max()))
        assert self.head is not None
        oldest = self.head - self.count
        keep &= number > oldest
        if not keep.any():
            return
        if keep.all():
            chosen: Values | slice = slice(None)
        else:
            chosen = np.flatnonzero(keep)
        number = number[chosen]
        base: Values | int = 0
        if who is not None:
            base = who[chosen] * self.count
            # Engine by engine: a bucket of one is never one of another.
            number = number - oldest - 1 + base
        order: Values | None = None
        if len(number) > 1 and (np.diff(number) < 0).any():
            order = np.argsort(number, kind="stable")
            number = number[order]
        starts = np.flatnonzero(np.concatenate(([True], np.diff(number) > 0)))
        ends = np.append(starts[1:], len(number)) - 1
        slot = number[starts]
        if who is None:
            slot = slot % self.count
        else:
            first = slot // self.count * self.count
            slot = first + (slot - first + oldest + 1) % self.count
        self._rows[0, slot] += ends - starts + 1

        def column(name: str) -> Values:
            values = columns[name][chosen]
            return values if order is None else values[order]

        for row, name in enumerate(self.sums):
            self._sum[row, slot] += np.add.reduceat(
                np.asarray(column(name), float), starts
            )
        for row, name in enumerate(self.levels):
            values = np.asarray(column(name), float)
            low, high = self._low[row], self._high[row]
            low[slot] = np.fmin(low[slot], np.minimum.reduceat(values, starts))
            high[slot] = np.fmax(high[slot], np.maximum.reduceat(values, starts))
            self._last[row, slot] = values[ends]

    def buckets(self, first: int, last: int) -> Buckets:
        """The buckets of the first engine, as `each` has them."""
        return self.each(first, last)[0]

    def each(self, first: int, last: int) -> list[Buckets]:
        """Copies of the buckets `first` to `last`, included; empty where none are kept.

        One of each engine.
        """
        number = np.arange(first, last + 1)
        slot = number % self.count
        head = -1 if self.head is None else self.head
        gone = (number > head) | (number <= head - self.count)

        def read(store: Values, empty: float) -> Values:
            found: Values = self._apart(store)[:, :, slot]
            if gone.any():
                found[:, :, gone] = empty
            found.flags.writeable = False
            return found

        start = number * self.width
        rows = read(self._rows, 0)[0]
        sums = read(self._sum, 0.0)
        low, high, newest = (
            read(store, np.nan) for store in (self._low, self._high, self._last)
        )
        return [
            Buckets(
                self.width,
                start,
                rows[one],
                dict(zip(self.sums, sums[:, one], strict=True)),
                dict(zip(self.levels, low[:, one], strict=True)),
                dict(zip(self.levels, high[:, one], strict=True)),
                dict(zip(self.levels, newest[:, one], strict=True)),
            )
            for one in range(self.many)
        ]

    def _apart(self, store: Values) -> Values:
        """A store as columns x engines x buckets."""
        return store.reshape(len(store), self.many, self.count)

    def _advance(self, number: int) -> None:
        """Make `number` the newest bucket and empty those that time has passed over."""
        if self.head is not None and number <= self.head:
            return
        fresh = self.count if self.head is None else min(number - self.head, self.count)
        slot = np.arange(number - fresh + 1, number + 1) % self.count
        for store in (self._rows, self._sum):
            self._apart(store)[:, :, slot] = 0
        for store in (self._low, self._high, self._last):
            self._apart(store)[:, :, slot] = np.nan
        self.head = number


class _Joined(Mapping[str, Values]):
    """Columns of wider buckets, made from the narrow ones when they are asked for."""

    def __init__(
        self,
        narrow: Mapping[str, Values],
        factor: int,
        join: Callable[[Values], Values],
    ) -> None:
        self._narrow, self._factor, self._join = narrow, factor, join
        self._made: dict[str, Values] = {}

    def __getitem__(self, name: str) -> Values:
        if name not in self._made:
            grid = self._narrow[name].reshape(-1, self._factor)
            self._made[name] = self._join(grid)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._narrow)

    def __len__(self) -> int:
        return len(self._narrow)


def _last(grid: Values) -> Values:
    """Last known value of each row; NaN where there is none."""
    where = grid.shape[1] - 1 - np.argmax(~np.isnan(grid[:, ::-1]), axis=1)
    found: Values = grid[np.arange(len(grid)), where]
    return found
