"""The viewer's memory: what the engines said lately, as numpy and as pandas.

One `FrameStore` holds the newest rows of every table of every engine. Many read it (each
view of each browser session, a notebook, an exporter) and each at its own pace, so it keeps
no reader's state: a reader remembers a *version*, a number that each row appended raises by
one, and asks `since(table, version)` for the rest. The answer says how many rows were
overwritten before the reader came, so that it can show a hole instead of joining two ends.

Everything handed out is a copy. One lock guards the rings and is held for a copy at most;
whoever must not wait (a probe in the engine's thread) uses `offer`, which does not.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from auxconn.address import check_engine
from auxconn.asked import (
    DEFAULT_ROWS,
    MOST_ROWS,
    Moment,
    Whose,
    check_table,
    columns_wanted,
    limits,
    rows_wanted,
    seconds,
    span,
    whole,
    whose_wanted,
)
from auxconn.by_table import ByTable
from auxconn.intake import INBOX_RECORDS, Intake
from auxconn.packing import Values, arrays
from auxconn.records import TABLES
from auxconn.rings import Names
from auxconn.tables import Delta, Table, coded
from auxconn.texts import shown

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["DEFAULT_ROWS", "MOST_ROWS", "Delta", "FrameStore"]

TAKE_IN_AT = 256
"""Offered records at which the offering thread takes them in itself, if it can."""


class FrameStore(ByTable):
    """The newest rows of each table, of all engines; any thread may write and read.

    Parameters
    ----------
    rows
        Rows kept per table: a number for all, or a number for some (the others keep
        `DEFAULT_ROWS`).

    Raises
    ------
    ValueError
        When a number of rows is not a whole number from 1 to `MOST_ROWS`, or a table does
        not exist.
    """

    def __init__(self, rows: int | Mapping[str, int] = DEFAULT_ROWS) -> None:
        # Not re-entrant: a finalizer that offers a record may run inside `append` itself, and
        # must find the lock taken.
        # Taken itself, not by the condition: that does it in Python, where Ctrl-C in a
        # notebook could come between the lock and the `with` that gives it back.
        self._lock = threading.Lock()
        self._grown = threading.Condition(self._lock)
        self._waiting = 0
        self._names = Names()
        self._intake = Intake()
        self._inbox = self._intake.inbox
        kept = dict.fromkeys(TABLES, DEFAULT_ROWS) | limits(rows)
        self._tables = {
            table: Table(table, limit, self._names) for table, limit in kept.items()
        }

    # Writing

    def append(
        self,
        table: str,
        records: Sequence[msgspec.Struct],
        engine: str,
        rank: int = 0,
        *,
        typed: bool = False,
    ) -> int:
        """Append the rows of `records`, all or none.

        Parameters
        ----------
        typed
            True when the records were decoded with their types, which saves a look at each.

        Returns
        -------
        int
            Rows appended: the number of records, save for `blocks`.

        Raises
        ------
        ValueError
            When a record does not fit the table, naming the column and what is wrong, or
            engine and rank cannot name a source.
        """
        plan = self._table(table).layout
        check_engine(engine, rank)
        if isinstance(records, msgspec.Struct) or not hasattr(records, "__iter__"):
            raise ValueError(f"{table}: give a list of records, not {shown(records)}")
        records = records if isinstance(records, list | tuple) else list(records)
        if not records:
            return 0
        rows, columns = arrays(plan, records, typed=typed)
        with self._lock:
            self._take_in()
            self._push(table, rows, columns, engine, rank)
        return rows

    def put(self, table: str, columns: Mapping[str, Values]) -> int:
        """Append rows that are columns already, as `since` answers them all.

        Returns
        -------
        int
            Rows appended.

        Raises
        ------
        ValueError
            When a column is missing, has another length, or holds no category of it.
        """
        found = self._table(table)
        missing = [name for name in found.columns if name not in columns]
        if missing:
            raise ValueError(f"{table}: the columns lack {', '.join(missing)}")
        raw = coded(found.layout, {name: columns[name] for name in found.columns})
        rows = len(raw["engine"])
        if any(len(values) != rows for values in raw.values()):
            raise ValueError(f"{table}: the columns are not of one length")
        names, places = np.unique(raw["engine"].astype(str), return_inverse=True)
        with self._lock:
            self._take_in()
            numbers = [self._number(str(name)) for name in names]
            raw["engine"] = np.array(numbers, np.uint16)[places]
            found.ring.push(rows, raw, {})
            if self._waiting:
                self._grown.notify_all()
        return rows

    def offer(self, table: str, record: msgspec.Struct, engine: str, rank: int) -> bool:
        """Append one record soon, without ever waiting; False when it was dropped.

        The record is taken in by whoever holds the lock next, in its table's order.
        One that does not fit its table is counted in `rejected` and told in `events`.
        """
        inbox = self._inbox
        if len(inbox) >= INBOX_RECORDS or not isinstance(table, str):
            return False
        inbox.append((table, record, engine, rank))
        if (self._waiting or len(inbox) >= TAKE_IN_AT) and self._lock.acquire(
            blocking=False
        ):
            try:
                self._take_in()
            finally:
                self._lock.release()
        return True

    # Reading

    def version(self, table: str) -> int:
        """Rows of `table` ever appended, and 1 for each time it was cleared."""
        found = self._table(table)
        with self._lock:
            self._take_in()
            return found.ring.total

    def kept(self, table: str) -> int:
        """Rows of `table` that can be read now."""
        found = self._table(table)
        with self._lock:
            self._take_in()
            return found.ring.kept

    @property
    def limits(self) -> dict[str, int]:
        """Rows that are kept of each table at most."""
        with self._lock:
            return {name: table.ring.limit for name, table in self._tables.items()}

    @property
    def engines(self) -> list[str]:
        """Engines that have sent rows, by their number: in the order they were first heard."""
        with self._lock:
            self._take_in()
            return self._names.all()

    @property
    def rejected(self) -> dict[str, int]:
        """Records offered for each table that did not fit it."""
        with self._lock:
            self._take_in()
            return {table: self._intake.rejected[table] for table in TABLES}

    @property
    def nbytes(self) -> int:
        """Bytes of all the arrays, texts not counted."""
        with self._lock:
            return sum(table.ring.nbytes for table in self._tables.values())

    def since(
        self,
        table: str,
        version: int,
        *,
        columns: Sequence[str] | None = None,
        engine: str | None = None,
        rank: int | None = None,
        limit: int | None = None,
        until: int | None = None,
    ) -> Delta:
        """Rows appended after `version`.

        Parameters
        ----------
        version
            0, or the `version` of an earlier answer.
        columns
            Those wanted, of `engine`, `rank` and the schema's; all by default.
        engine, rank
            Rows of this engine only, of this rank only.
        limit
            The newest rows only, at most so many; those left out count as lost.
        until
            The `version` of another answer: nothing that came after it.

        Raises
        ------
        ValueError
            When there is no such table or column, or the version was never reached.
        """
        found, names, whose = self._asked(table, columns, engine, rank)
        version = whole(f"version of {table!r}", version)
        if limit is not None:
            limit = rows_wanted(table, limit)
        if until is not None:
            until = whole(f"until of {table!r}", until)
        with self._lock:
            self._take_in()
            return found.since(version, names, whose, limit, until)

    def tail(
        self,
        table: str,
        n: int,
        *,
        columns: Sequence[str] | None = None,
        engine: str | None = None,
        rank: int | None = None,
    ) -> Delta:
        """The newest `n` rows (of `engine` and `rank`); `lost` is 0. Otherwise as `since`."""
        found, names, whose = self._asked(table, columns, engine, rank)
        n = rows_wanted(table, n)
        with self._lock:
            self._take_in()
            return found.tail(n, names, whose)

    def frame(
        self,
        table: str,
        *,
        engine: str | None = None,
        rank: int | None = None,
        since_t: Moment = None,
        last: int | None = None,
        columns: Sequence[str] | None = None,
    ) -> pd.DataFrame:
        """Rows of a table as pandas, oldest first.

        `engine` and the schema's categories are categoricals, `t` is a UTC timestamp with
        the microseconds its clock has, texts are `str`, the other columns have the
        schema's dtype.

        Parameters
        ----------
        engine, rank
            Rows of this engine only, of this rank only.
        since_t
            Rows made at this time or later: seconds of the wall clock, a datetime that has
            a time zone, or a text such as "2026-12-01 14:00", which is of UTC as `t` is.
        last
            The newest rows only, at most so many.
        """
        from auxconn.pandas_out import data_frame

        found, names, whose = self._asked(table, columns, engine, rank)
        if last is not None:
            last = rows_wanted(table, last)
        after = seconds(since_t)
        keep = None
        with self._lock:
            self._take_in()
            if after is not None:
                # Most of what is too old is never read: it is at the beginning, though
                # the clocks of several engines need not agree.
                keep = found.raw(("t",), whose, last)["t"] >= after
                keep = keep[int(keep.argmax()) if keep.any() else len(keep) :]
                last = len(keep)
            # Codes stay codes on this way: pandas takes them as they are.
            raw = found.raw(names, whose, last)
            engines = self._names.all()
        if keep is not None and not keep.all():
            raw = {name: raw[name][keep] for name in names}
        return data_frame(found.layout, raw, engines)

    def wait(self, table: str, version: int, timeout: float) -> bool:
        """Wait until the version is `version`; False when `timeout` seconds ran out."""
        ring = self._table(table).ring
        version = whole(f"version of {table!r}", version)
        timeout = span("timeout", timeout)
        end = time.monotonic() + timeout
        with self._lock:
            self._waiting += 1
            try:
                self._take_in()
                while ring.total < version:
                    left = end - time.monotonic()
                    if left <= 0:
                        return False
                    # Not for as long as may be: an offer that met the lock held was
                    # left in the inbox, and nobody else might come to take it in.
                    self._grown.wait(min(left, 0.05))
                    self._take_in()
                return True
            finally:
                self._waiting -= 1

    # Keeping

    def resize(self, rows: int | Mapping[str, int]) -> None:
        """Change how many rows are kept; of those there are, the newest stay."""
        asked = limits(rows)
        with self._lock:
            self._take_in()
            for table, limit in asked.items():
                ring = self._tables[table].ring
                if limit != ring.limit:
                    ring.resize(limit)

    def clear(self, table: str | None = None) -> None:
        """Forget the rows of `table`, or of all; versions go on from where they are."""
        cleared = [*self._tables.values()] if table is None else [self._table(table)]
        with self._lock:
            self._take_in()
            for one in cleared:
                one.clear()

    # Inside

    def _table(self, table: str) -> Table:
        check_table(table)
        return self._tables[table]

    def _asked(
        self, table: str, columns: Sequence[str] | None, engine: Any, rank: Any
    ) -> tuple[Table, Sequence[str], Whose]:
        found = self._table(table)
        whose = whose_wanted(engine, rank)
        return found, columns_wanted(table, found.columns, columns), whose

    # The lock is held from here on.

    def _push(
        self, table: str, rows: int, columns: dict[str, Values], engine: str, rank: int
    ) -> None:
        code = self._number(engine)
        self._tables[table].ring.push(rows, columns, {"engine": code, "rank": rank})
        if self._waiting:
            self._grown.notify_all()

    def _number(self, engine: str) -> int:
        return self._names.code(
            engine, (one.engine_codes() for one in self._tables.values())
        )

    def _take_in(self) -> None:
        self._intake.take_in(self._append)

    def _append(self, table: str, run: list[Any], engine: str, rank: int) -> None:
        check_engine(engine, rank)
        rows, columns = arrays(self._table(table).layout, run)
        self._push(table, rows, columns, engine, rank)
