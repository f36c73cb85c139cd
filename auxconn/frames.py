"""The viewer's memory: what the engines said lately, as numpy and as pandas.

One `FrameStore` holds the newest rows of every table of every engine. Many read it (each
view of each browser session, a notebook, an exporter) and each at its own pace, so it keeps
no reader's state: a reader remembers a *version*, the number of rows it has seen appended,
and asks `since(table, version)` for the rest. The answer says how many rows were overwritten
before the reader came, so that it can show a hole instead of joining two ends.

Everything handed out is a copy. One lock guards the rings and is held for a copy at most;
whoever must not wait (a probe in the engine's thread) uses `offer`, which does not.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from auxconn.packing import Layout, Values, arrays, layout
from auxconn.records import TABLES, Events
from auxconn.rings import Names, Ring

if TYPE_CHECKING:
    import pandas as pd

DEFAULT_ROWS = 100_000
"""Rows of each table that are kept unless told otherwise."""

MOST_ROWS = 50_000_000
"""Rows of a table that can be asked for: some 9 GB of `steps`."""

INBOX_RECORDS = 65_536
"""Records offered and not yet taken in; beyond it, offers are dropped and counted."""

TAKE_IN_AT = 256
"""Offered records at which the offering thread takes them in itself, if it can."""


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


class FrameStore:
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
        self._lock = threading.Condition(threading.Lock())
        self._waiting = 0
        self._names = Names()
        self._layouts = {table: layout(table) for table in TABLES}
        self._cleared = dict.fromkeys(TABLES, 0)
        self._rejected = dict.fromkeys(TABLES, 0)
        self._inbox: deque[tuple[str, Any, str, int]] = deque()
        limits = dict.fromkeys(TABLES, DEFAULT_ROWS) | self._limits(rows)
        self._rings = {
            table: Ring(_ring_dtypes(self._layouts[table]), limit)
            for table, limit in limits.items()
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
            When a record does not fit the table, naming the column and what is wrong.
        """
        plan = self._layout(table)
        if not records:
            return 0
        rows, columns = arrays(plan, records, typed=typed)
        with self._lock:
            self._take_in()
            self._push(table, rows, columns, engine, rank)
        return rows

    def offer(self, table: str, record: msgspec.Struct, engine: str, rank: int) -> bool:
        """Append one record soon, without ever waiting; False when it was dropped.

        The record is taken in by whoever holds the lock next, in the order of the offers.
        One that does not fit its table is counted in `rejected` and told in `events`.
        """
        inbox = self._inbox
        if len(inbox) >= INBOX_RECORDS:
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
        """Rows of `table` ever appended."""
        self._layout(table)
        with self._lock:
            self._take_in()
            return self._rings[table].total

    def kept(self, table: str) -> int:
        """Rows of `table` that can be read now."""
        self._layout(table)
        with self._lock:
            self._take_in()
            return self._rings[table].kept

    @property
    def limits(self) -> dict[str, int]:
        """Rows that are kept of each table at most."""
        with self._lock:
            return {table: ring.limit for table, ring in self._rings.items()}

    @property
    def rejected(self) -> dict[str, int]:
        """Records offered for each table that did not fit it."""
        with self._lock:
            self._take_in()
            return dict(self._rejected)

    @property
    def nbytes(self) -> int:
        """Bytes of all the arrays, texts not counted."""
        with self._lock:
            return sum(ring.nbytes for ring in self._rings.values())

    def since(
        self,
        table: str,
        version: int,
        *,
        columns: Sequence[str] | None = None,
        engine: str | None = None,
        limit: int | None = None,
    ) -> Delta:
        """Rows appended after `version`.

        Parameters
        ----------
        version
            0, or the `version` of an earlier answer.
        columns
            Those wanted, of `engine`, `rank` and the schema's; all by default.
        engine
            Rows of this engine only.
        limit
            The newest rows only, at most so many; those left out count as lost.

        Raises
        ------
        ValueError
            When there is no such table or column, or the version was never reached.
        """
        names = self._wanted(table, columns)
        if limit is not None:
            _not_negative(table, limit)
        with self._lock:
            self._take_in()
            ring = self._rings[table]
            if not 0 <= version <= ring.total:
                raise ValueError(
                    f"version {version} of {table!r}: it goes from 0 to {ring.total}; "
                    "pass the version of an earlier answer of this store"
                )
            cleared = self._cleared[table]
            first = max(version, ring.oldest)
            lost = first - max(version, min(cleared, first))
            found = self._read(table, names, first, engine, limit)
            return Delta(ring.total, lost + found[1], version < cleared, found[0])

    def tail(
        self,
        table: str,
        n: int,
        *,
        columns: Sequence[str] | None = None,
        engine: str | None = None,
    ) -> Delta:
        """The newest `n` rows (of `engine`); `lost` is 0. Otherwise as `since`."""
        names = self._wanted(table, columns)
        if n < 0:
            raise ValueError(
                f"{n} rows of {table!r} were asked for: it takes 0 or more"
            )
        with self._lock:
            self._take_in()
            ring = self._rings[table]
            first = (
                ring.oldest if engine is not None else max(ring.oldest, ring.total - n)
            )
            found, _ = self._read(table, names, first, engine, n)
            return Delta(ring.total, 0, False, found)

    def frame(
        self,
        table: str,
        *,
        engine: str | None = None,
        since_t: float | datetime | None = None,
        last: int | None = None,
        columns: Sequence[str] | None = None,
    ) -> pd.DataFrame:
        """Rows of a table as pandas, oldest first.

        `engine` and the schema's categories are categoricals, `t` is a UTC timestamp with
        the microseconds its clock has, texts are `str`, the other columns have the
        schema's dtype.

        Parameters
        ----------
        since_t
            Rows made at this time or later: seconds of the wall clock, or a datetime that
            has a time zone.
        last
            The newest rows only, at most so many.
        """
        from auxconn.pandas_out import data_frame

        names = self._wanted(table, columns)
        if last is not None:
            _not_negative(table, last)
        after = _seconds(since_t)
        read = names if after is None or "t" in names else (*names, "t")
        # Codes stay codes on this way: pandas takes them as they are.
        with self._lock:
            self._take_in()
            ring = self._rings[table]
            first = ring.oldest
            if last is not None and engine is None:
                first = max(first, ring.total - last)
            raw, _ = self._read(table, read, first, engine, last, decode=False)
            engines = self._names.all()
        if after is not None:
            keep = raw["t"] >= after
            raw = {name: raw[name][keep] for name in names}
        return data_frame(self._layouts[table], raw, engines)

    def steps(self, **how: Any) -> pd.DataFrame:
        """The table `steps`; arguments as for `frame`."""
        return self.frame("steps", **how)

    def lookups(self, **how: Any) -> pd.DataFrame:
        """The table `lookups`; arguments as for `frame`."""
        return self.frame("lookups", **how)

    def blocks(self, **how: Any) -> pd.DataFrame:
        """The table `blocks`; arguments as for `frame`."""
        return self.frame("blocks", **how)

    def rows(self, **how: Any) -> pd.DataFrame:
        """The table `rows`; arguments as for `frame`."""
        return self.frame("rows", **how)

    def store(self, **how: Any) -> pd.DataFrame:
        """The table `store`; arguments as for `frame`."""
        return self.frame("store", **how)

    def requests(self, **how: Any) -> pd.DataFrame:
        """The table `requests`; arguments as for `frame`."""
        return self.frame("requests", **how)

    def events(self, **how: Any) -> pd.DataFrame:
        """The table `events`; arguments as for `frame`."""
        return self.frame("events", **how)

    def wait(self, table: str, version: int, timeout: float) -> bool:
        """Wait until `version` rows were appended; False when `timeout` seconds ran out."""
        self._layout(table)
        end = time.monotonic() + timeout
        with self._lock:
            self._waiting += 1
            try:
                self._take_in()
                while self._rings[table].total < version:
                    left = end - time.monotonic()
                    if left <= 0:
                        return False
                    # Not for as long as may be: an offer that met the lock held was
                    # left in the inbox, and nobody else might come to take it in.
                    self._lock.wait(min(left, 0.05))
                    self._take_in()
                return True
            finally:
                self._waiting -= 1

    # Keeping

    def resize(self, rows: int | Mapping[str, int]) -> None:
        """Change how many rows are kept; of those there are, the newest stay."""
        limits = self._limits(rows)
        with self._lock:
            self._take_in()
            for table, limit in limits.items():
                if limit != self._rings[table].limit:
                    self._rings[table].resize(limit)

    def clear(self, table: str | None = None) -> None:
        """Forget the rows of `table`, or of all; versions go on from where they are."""
        if table is not None:
            self._layout(table)
        with self._lock:
            self._take_in()
            for name in TABLES if table is None else (table,):
                self._rings[name].clear()
                self._cleared[name] = self._rings[name].total

    # Inside; the lock is held from here on, save in the three that look at arguments.

    def _push(
        self, table: str, rows: int, columns: dict[str, Values], engine: str, rank: int
    ) -> None:
        code = self._names.code(engine, self._codes_in_use())
        self._rings[table].push(rows, columns, {"engine": code, "rank": rank})
        if self._waiting:
            self._lock.notify_all()

    def _codes_in_use(self) -> Iterator[Values]:
        for ring in self._rings.values():
            yield ring.read("engine", ring.oldest, ring.total)

    def _take_in(self) -> None:
        """Append what was offered, in runs of one table and source."""
        inbox = self._inbox
        while inbox:
            run: list[Any] = []
            table, record, engine, rank = inbox.popleft()
            run.append(record)
            while inbox:
                head = inbox[0]
                if head[0] != table or head[2] != engine or head[3] != rank:
                    break
                run.append(inbox.popleft()[1])
            self._take_in_run(table, run, engine, rank)

    def _take_in_run(self, table: str, run: list[Any], engine: str, rank: int) -> None:
        try:
            rows, columns = arrays(self._layout(table), run)
            self._push(table, rows, columns, engine, rank)
        except ValueError as problem:
            if len(run) > 1:
                for record in run:
                    self._take_in_run(table, [record], engine, rank)
                return
            if table in TABLES:
                self._rejected[table] += 1
            told = Events(time.time(), 0, "error", f"a record was rejected: {problem}")
            # No room for another engine's name is the one reason why this fails as well.
            with contextlib.suppress(ValueError):
                rows, columns = arrays(self._layout("events"), [told])
                self._push("events", rows, columns, engine, rank)

    def _read(
        self,
        table: str,
        names: Sequence[str],
        first: int,
        engine: str | None,
        limit: int | None,
        decode: bool = True,
    ) -> tuple[dict[str, Values], int]:
        """Copy columns of the rows from version `first` on; and how many a limit left out."""
        ring = self._rings[table]
        left_out = 0
        found: dict[str, Values] = {}
        if engine is None:
            if limit is not None:
                left_out = max(0, ring.total - first - limit)
            for name in names:
                found[name] = ring.read(name, first + left_out, ring.total)
        else:
            code = self._names.find(engine)
            mine = ring.read("engine", first, ring.total) == (
                -1 if code is None else code
            )
            positions = ring.positions(first, ring.total)[mine]
            if limit is not None:
                left_out = max(0, len(positions) - limit)
            for name in names:
                found[name] = ring.take(name, positions[left_out:])
        if decode:
            for field in self._layouts[table].fields:
                name = field.column.name
                if field.codes and name in found:
                    texts = np.array(field.column.categories, dtype=object)
                    found[name] = texts[found[name]]
            if "engine" in found:
                found["engine"] = self._names.decode(found["engine"])
        return found, left_out

    def _layout(self, table: str) -> Layout:
        known = self._layouts.get(table)
        return known if known is not None else layout(table)

    def _wanted(self, table: str, columns: Sequence[str] | None) -> Sequence[str]:
        plan = self._layout(table)
        every = ("engine", "rank", *(field.column.name for field in plan.fields))
        if columns is None:
            return every
        for name in columns:
            if name not in every:
                raise ValueError(
                    f"no column {name!r} in {table!r}; it has {', '.join(every)}"
                )
        return columns

    def _limits(self, rows: int | Mapping[str, int]) -> dict[str, int]:
        limits = rows if isinstance(rows, Mapping) else dict.fromkeys(TABLES, rows)
        for table, limit in limits.items():
            self._layout(table)
            if isinstance(limit, bool) or not isinstance(limit, int):
                raise ValueError(f"rows of {table!r}: {limit!r} is not a whole number")
            if not 1 <= limit <= MOST_ROWS:
                raise ValueError(
                    f"rows of {table!r}: {limit} is not between 1 and {MOST_ROWS}"
                )
        return dict(limits)


def _ring_dtypes(plan: Layout) -> dict[str, np.dtype[Any]]:
    own = {field.column.name: field.stored for field in plan.fields}
    return {"engine": np.dtype(np.uint16), "rank": np.dtype(np.int32), **own}


def _not_negative(table: str, rows: int) -> None:
    if rows < 0:
        raise ValueError(f"{rows} rows of {table!r} were asked for: it takes 0 or more")


def _seconds(moment: float | datetime | None) -> float | None:
    if moment is None or not isinstance(moment, datetime):
        return moment
    if moment.tzinfo is None:
        raise ValueError(
            f"since_t: {moment} has no time zone; give it one, such as UTC"
        )
    return moment.timestamp()
