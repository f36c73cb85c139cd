"""A store as many readers see it: within one look each row is read once for all of them.

Every read takes the store's lock, which the collector's thread wants all the time, and each
wait for it is a turn of the interpreter. Some hundred readers that took it some ten times
each would draw a page in seconds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from .subjects import Subject

if TYPE_CHECKING:
    from auxconn.frames import Delta, FrameStore

Values = np.ndarray[Any, np.dtype[Any]]

NOBODY = np.zeros(0, np.int64)


class SharedRows:
    """What a `Reader` asks of a store. Not thread-safe: its owner locks.

    Parameters
    ----------
    store
        Where the rows are.
    """

    def __init__(self, store: FrameStore) -> None:
        self._store = store
        self._versions: dict[str, int] | None = None
        """Of the tables at this look; None while everyone reads for himself."""
        self._split: dict[Any, tuple[Delta, dict[Subject, Values]]] = {}

    @contextlib.contextmanager
    def one_look(self) -> Iterator[None]:
        """What is asked meanwhile is of one moment, and is read once."""
        self._versions = {}
        try:
            yield
        finally:
            self._versions = None
            self._split.clear()

    def version(self, table: str) -> int:
        """As `FrameStore.version`."""
        if self._versions is None:
            return self._store.version(table)
        if table not in self._versions:
            self._versions[table] = self._store.version(table)
        return self._versions[table]

    def since(
        self,
        table: str,
        version: int,
        *,
        columns: Sequence[str],
        engine: str | None,
        rank: int | None,
        until: int | None = None,
    ) -> Delta:
        """As `FrameStore.since`."""
        if self._versions is None or engine is None or rank is None:
            return self._store.since(
                table, version, columns=columns, engine=engine, rank=rank, until=until
            )
        if until is None:
            until = self.version(table)
        key = (table, version, tuple(columns), until)
        if key not in self._split:
            whole = self._store.since(
                table, version, columns=("engine", "rank", *columns), until=until
            )
            self._split[key] = whole, _split(whole)
        whole, rows_of = self._split[key]
        mine = rows_of.get(Subject(engine, rank), NOBODY)
        return msgspec.structs.replace(
            whole, columns={name: whole.columns[name][mine] for name in columns}
        )


def _split(delta: Delta) -> dict[Subject, Values]:
    """Positions of everybody's rows, in their order."""
    if not delta.rows:
        return {}
    engines = delta.columns["engine"]
    names = {name: code for code, name in enumerate(dict.fromkeys(engines))}
    codes = np.fromiter(map(names.__getitem__, engines), np.int64, len(engines))
    keys = codes << 32 | delta.columns["rank"]
    order = np.argsort(keys, kind="stable")
    starts = np.flatnonzero(np.diff(keys[order], prepend=-1))
    known = list(names)
    found = {}
    for rows in np.split(order, starts[1:]):
        key = int(keys[rows[0]])
        found[Subject(known[key >> 32], key & 0xFFFFFFFF)] = rows
    return found
