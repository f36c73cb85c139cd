"""What readers of a store ask for, looked at before it is looked up.

A wrong number of rows or a date with a slip in it is a person's typing. numpy and pandas
would answer from deep inside, or worse, take it; here it is refused by its name and value.
"""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any, NamedTuple

import numpy as np

from auxconn.records import TABLES
from auxconn.texts import shown

DEFAULT_ROWS = 100_000
"""Rows of each table that are kept unless told otherwise."""

MOST_ROWS = 50_000_000
"""Rows of a table that can be asked for: some 9 GB of `steps`."""

Moment = float | str | date | np.datetime64 | None
"""What `since_t` may be; a `datetime` is a date."""


def check_table(table: object) -> None:
    """Raise `ValueError` unless there is a table of this name."""
    if not isinstance(table, str) or table not in TABLES:
        raise ValueError(f"no table {shown(table)}; the tables are {', '.join(TABLES)}")


def whole(what: str, value: Any) -> int:
    """`value` as an int; `ValueError` when it is no whole number."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise ValueError(f"{what}: {shown(value)} is not a whole number") from None


def span(what: str, value: Any) -> float:
    """`value` as a number of seconds; `ValueError` when it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise ValueError(f"{what}={shown(value)}: give a number of seconds")
    return value


def rows_wanted(table: str, rows: Any) -> int:
    """A number of rows to be read, 0 or more."""
    number = whole(f"rows of {table!r}", rows)
    if number < 0:
        raise ValueError(
            f"{shown(rows)} rows of {table!r} were asked for: it takes 0 or more"
        )
    return number


def limits(rows: int | Mapping[str, int]) -> dict[str, int]:
    """Rows to be kept of the tables in `rows`, or of all."""
    asked = rows if isinstance(rows, Mapping) else dict.fromkeys(TABLES, rows)
    found = {}
    for table, limit in asked.items():
        check_table(table)
        found[table] = whole(f"rows of {table!r}", limit)
        if not 1 <= found[table] <= MOST_ROWS:
            raise ValueError(
                f"rows of {table!r}: {shown(limit)} is not between 1 and {MOST_ROWS}"
            )
    return found


def columns_wanted(
    table: str, every: Sequence[str], columns: Sequence[str] | None
) -> Sequence[str]:
    """The columns to be read, of `every` one there is."""
    if columns is None:
        return every
    if isinstance(columns, str) or not hasattr(columns, "__iter__"):
        raise ValueError(
            f"columns={shown(columns)}: give a list of names, such as ['step']"
        )
    names = tuple(columns)
    for name in names:
        if name not in every:
            raise ValueError(
                f"no column {name!r} in {table!r}; it has {', '.join(every)}"
            )
    return names


class Whose(NamedTuple):
    """Whose rows are meant; None leaves it open."""

    engine: str | None = None
    rank: int | None = None


ALL = Whose()
"""Everybody's rows."""


def whose_wanted(engine: Any, rank: Any) -> Whose:
    """Whose rows are to be read; `ValueError` when there can be none."""
    if engine is not None and not isinstance(engine, str):
        raise ValueError(f"engine={shown(engine)}: give the name of an engine, or None")
    return Whose(engine, None if rank is None else whole("rank", rank))


def seconds(moment: Moment) -> float | None:
    """`moment` in seconds of the wall clock; a date or text without a zone is of UTC.

    A datetime must have its zone: Python's are of the place they were made at. Texts are
    those that pandas compares times with.
    """
    if moment is None:
        return None
    problem = (
        "give seconds, a datetime with a time zone, or a text like '2026-12-01 14:00'"
    )
    if isinstance(moment, datetime) and moment.tzinfo is None:
        problem = "it has no time zone; give it one, such as UTC"
    elif isinstance(moment, str | date | np.datetime64):
        import pandas as pd

        try:
            found = float(pd.to_datetime(moment, utc=True).timestamp())
        except (ValueError, OverflowError) as error:
            raise ValueError(f"since_t={shown(moment)}: {error}; {problem}") from None
        if math.isfinite(found):
            return found
    elif not isinstance(moment, bool) and isinstance(moment, float | int | np.number):
        with contextlib.suppress(OverflowError):
            found = float(moment)
            if not math.isnan(found):
                return found
    raise ValueError(f"since_t={shown(moment)}: {problem}")
