"""From records to columns.

A batch from an engine is a list of structs, a row each, or many rows each for `Blocks`; a
ring wants arrays. The way there is the dearest part of the stream (a row of `steps` has
two dozen numbers), so it goes column by column through C loops, and it is also where what
cannot be a column's value is found: whoever calls gets all of a batch or a `ValueError`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np

from auxconn.records import TABLES, Column, columns
from auxconn.texts import clip, limit_of

Values = np.ndarray[Any, np.dtype[Any]]


class Field(msgspec.Struct, frozen=True):
    """How one column of a table is kept in a ring."""

    column: Column
    stored: Any
    """The ring's dtype: that of the schema, uint8 codes for a category, object for text."""
    get: Callable[[Any], Any]
    codes: dict[str, int]
    """Number of each category; empty for other columns."""
    text_limit: int
    """Characters kept; 0 for columns that are no text."""


class Layout(msgspec.Struct, frozen=True):
    """How the records of one table become columns."""

    table: str
    struct: Any
    fields: tuple[Field, ...]

    @property
    def wide(self) -> bool:
        """True when a record carries many rows in packed arrays."""
        return any(field.column.packed for field in self.fields)


@cache
def layout(table: str) -> Layout:
    """The layout of `table`. Raises `ValueError` when there is no such table."""
    if table not in TABLES:
        raise ValueError(f"no table {table!r}; the tables are {', '.join(TABLES)}")
    fields = []
    for column in columns(table):
        limit = 0
        if column.dtype == "str":
            limit = limit_of(table, column.name)
        stored = {"category": np.dtype(np.uint8), "str": np.dtype(object)}.get(
            column.dtype
        )
        fields.append(
            Field(
                column,
                stored or np.dtype(column.dtype),
                attrgetter(column.name),
                {name: code for code, name in enumerate(column.categories)},
                limit,
            )
        )
    return Layout(table, TABLES[table], tuple(fields))


def arrays(
    plan: Layout, records: Sequence[Any], *, typed: bool = False
) -> tuple[int, dict[str, Values]]:
    """Turn `records` into one array per column, all of the same length.

    Parameters
    ----------
    typed
        True when the values are known to have their fields' types, as after decoding.
        Otherwise they are looked at, since numpy would turn 1.5 or "1" into 1.

    Returns
    -------
    rows, columns
        How many rows there are and the array of each column, in the ring's dtype.

    Raises
    ------
    ValueError
        When a record is not of the table, or a value does not fit its column.
    """
    strangers = set(map(type, records)) - {plan.struct}
    if strangers:
        found = ", ".join(sorted(kind.__name__ for kind in strangers))
        raise ValueError(
            f"{plan.table} takes records of type {plan.struct.__name__}, not {found}"
        )
    found_columns: dict[str, Values] = {}
    lengths: Values | None = None
    for field in plan.fields:
        name = field.column.name
        try:
            if field.column.packed:
                values, items = _unpack(field, records)
                if lengths is not None and not np.array_equal(items, lengths):
                    raise ValueError(
                        "holds another number of items than the packed columns before it"
                    )
                lengths = items
            else:
                values = _convert(field, records, typed)
        except KeyError as unknown:
            known = ", ".join(map(repr, field.column.categories))
            raise ValueError(
                f"{plan.table}.{name}: {unknown.args[0]!r} is none of {known}"
            ) from None
        except (AttributeError, TypeError, ValueError, OverflowError) as problem:
            raise ValueError(f"{plan.table}.{name}: {problem}") from None
        found_columns[name] = values
    if lengths is None:
        return len(records), found_columns
    for field in plan.fields:
        if not field.column.packed:
            name = field.column.name
            found_columns[name] = np.repeat(found_columns[name], lengths)
    return int(lengths.sum()), found_columns


def _convert(field: Field, records: Sequence[Any], typed: bool) -> Values:
    if typed and not field.codes and not field.text_limit:
        return np.fromiter(map(field.get, records), field.stored, len(records))
    values = list(map(field.get, records))
    if not typed:
        _look_at(field, set(map(type, values)))
    if field.codes:
        values = list(map(field.codes.__getitem__, values))
    elif field.text_limit:
        values = [clip(text, field.text_limit) for text in values]
    return np.fromiter(values, field.stored, len(values))


def _look_at(field: Field, kinds: set[type]) -> None:
    """Raise `TypeError` when a column would hold values of one of `kinds` wrongly."""
    right: tuple[type, ...] = (str,)
    match field.column.dtype:
        case "bool":
            right = (bool, np.bool_)
        case "float64":
            right = (float, int, np.floating, np.integer)
        case "int64":
            right = (int, np.integer)
    wrong = sorted(kind.__name__ for kind in kinds if not issubclass(kind, right))
    if wrong:
        raise TypeError(f"takes {right[0].__name__}, not {', '.join(wrong)}")


def _unpack(field: Field, records: Sequence[Any]) -> tuple[Values, Values]:
    packed = [field.get(record) for record in records]
    size = field.stored.itemsize
    lengths = np.fromiter(map(len, packed), np.int64, len(packed))
    if (lengths % size).any():
        raise ValueError(
            f"holds bytes that are no whole number of {field.stored} items"
        )
    little_endian = field.stored.newbyteorder("<")
    joined = np.frombuffer(b"".join(packed), little_endian)
    return joined.astype(field.stored, copy=False), lengths // size
