"""Rows added up as they come, for each engine and rank.

The ring keeps the newest rows and a counter must never fall, so what was read once is added
to a sum and not looked at again. A turn costs what the rows since the last one cost,
whatever the ring holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from auxconn.exporter.families import Family
from auxconn.texts import clip

Values = np.ndarray[Any, np.dtype[Any]]

Key = tuple[str, int]
"""Engine and rank."""

MOST_LABELS = 16
"""Values of a label that comes from outside; further ones are counted as `OTHER`."""

LABEL_LIMIT = 128
"""Characters of a label's value."""

OTHER = "other"


class Spread:
    """One histogram: how many values fell into each bucket, and their sum."""

    def __init__(self, buckets: int) -> None:
        self.counts = np.zeros(buckets, dtype=np.int64)
        """Values in each bucket; the last one is of those beyond all bounds."""
        self.sum = 0.0


class Numbers:
    """What one table says of one engine and rank, by the family's metric."""

    def __init__(self) -> None:
        self.sums: dict[str, dict[str, float]] = {}
        """Counters, by the value of their label; an empty one where there is none."""
        self.levels: dict[str, float] = {}
        self.spreads: dict[str, Spread] = {}


class Tally:
    """The families of one table.

    Parameters
    ----------
    families
        All of one table.
    """

    def __init__(self, families: Sequence[Family]) -> None:
        self._families = tuple(families)
        wanted = [name for family in families for name in family.columns]
        self.columns = tuple(dict.fromkeys(["engine", "rank", *wanted]))
        """Columns to read."""
        self.numbers: dict[Key, Numbers] = {}

    def keep(self, keys: set[Key]) -> None:
        """Forget all but these."""
        self.numbers = {key: one for key, one in self.numbers.items() if key in keys}

    def add(self, columns: Mapping[str, Values]) -> None:
        """Add new rows, oldest first."""
        if not len(columns["engine"]):
            return
        keys, group = _grouped(columns["engine"], columns["rank"])
        numbers = [self.numbers.setdefault(key, Numbers()) for key in keys]
        for family in self._families:
            values = family.formula.values(columns) * family.scale
            chosen = family.formula.chosen(columns)
            if family.kind == "gauge" or family.counted_by_engine:
                _set(family, numbers, group, values)
            elif family.kind == "counter":
                labels = columns[family.label] if family.label else None
                _count(family, numbers, group, values, chosen, labels)
            else:
                _spread(family, numbers, group, values, chosen)


def _grouped(engines: Values, ranks: Values) -> tuple[list[Key], Values]:
    """Who the rows are from, each once, and for each row the number of its source."""
    codes, names = pd.factorize(engines)
    pairs = codes.astype(np.int64) << 32 | ranks.astype(np.int64)
    group, found = pd.factorize(pairs)
    keys = [(str(names[pair >> 32]), int(pair & 0xFFFFFFFF)) for pair in found]
    return keys, group


def _set(
    family: Family, numbers: Sequence[Numbers], group: Values, values: Values
) -> None:
    newest = np.zeros(len(numbers), dtype=np.int64)
    np.maximum.at(newest, group, np.arange(len(group)))
    for one, place in zip(numbers, newest, strict=True):
        value = float(values[place])
        if family.kind == "counter":
            one.sums[family.metric] = {"": max(0.0, value)}
        else:
            one.levels[family.metric] = value


def _count(
    family: Family,
    numbers: Sequence[Numbers],
    group: Values,
    values: Values,
    chosen: Values | None,
    labels: Values | None,
) -> None:
    # A counter that falls is read as a restart: a number that cannot be adds nothing.
    values = np.where(values > 0, values, 0.0)
    if chosen is not None:
        values = np.where(chosen, values, 0.0)
    if labels is None:
        added = np.bincount(group, values, len(numbers))
        for one, more in zip(numbers, added, strict=True):
            cell = one.sums.setdefault(family.metric, {"": 0.0})
            cell[""] += float(more)
        return
    codes, names = pd.factorize(labels)
    grid = np.bincount(
        group * len(names) + codes, values, len(numbers) * len(names)
    ).reshape(len(numbers), len(names))
    for one, added in zip(numbers, grid, strict=True):
        start = dict.fromkeys(family.label_values, 0.0)
        cell = one.sums.setdefault(family.metric, start)
        for name, more in zip(names, added, strict=True):
            if name and more:
                label = _bounded(name, cell, family)
                cell[label] = cell.get(label, 0.0) + float(more)


def _bounded(name: str, cell: Mapping[str, float], family: Family) -> str:
    """The value of a label, of which no engine can make ever new ones."""
    name = clip(name, LABEL_LIMIT)
    if name in cell or name in family.label_values or len(cell) < MOST_LABELS:
        return name
    return OTHER


def _spread(
    family: Family,
    numbers: Sequence[Numbers],
    group: Values,
    values: Values,
    chosen: Values | None,
) -> None:
    known = np.isfinite(values)
    if chosen is not None:
        known &= chosen
    group, values = group[known], values[known]
    width = len(family.buckets) + 1
    bucket = np.searchsorted(family.buckets, values, side="left")
    grid = np.bincount(group * width + bucket, minlength=len(numbers) * width)
    sums = np.bincount(group, values, len(numbers))
    counts = grid.reshape(len(numbers), width)
    for one, added, more in zip(numbers, counts, sums, strict=True):
        if not added.any() and family.metric not in one.spreads:
            continue
        cell = one.spreads.setdefault(family.metric, Spread(width))
        cell.counts += added
        cell.sum += float(more)
