"""Rows that wait to be sent, never more than so many.

The engine's threads put records in; the channel's thread takes them out in batches. When
the collector is away or slow the oldest rows make room for the newest, which are what a
live view wants, and each one lost is counted so that the next batch can say so.

A record passes two places. The engine's thread only appends to the `inbox`, a deque, and
pays neither for a lock nor for a look at the record. The channel's thread gathers what is
there at every turn, many times a second, weighs it and keeps the account; what only one
thread touches needs no lock to be exact.

What is bounded is weight: a row weighs 1, and 1 more for every 256 characters of its
texts, since request ids come from outside and can be of any length.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from auxconn.records import TABLES, columns
from auxconn.texts import clip, limit_of

Weigh = Callable[[Any], int]


INBOX_RECORDS = 16_384
"""Records that wait to be gathered at most: some 50 ms of half a million a second."""


class Buffer:
    """Records of one table, oldest first.

    Parameters
    ----------
    table
        Its name, which decides what a record weighs.
    capacity
        Weight that is kept. The newest record stays even if it weighs more by itself: a
        cache reset can release more blocks at once than a buffer holds.
    """

    def __init__(self, table: str, capacity: int) -> None:
        self.capacity = capacity
        self.inbox: deque[Any] = deque()
        """Where any thread appends; `relieve` when it holds more than `inbox_limit`."""
        self.inbox_limit = min(capacity, INBOX_RECORDS)
        self._lost_outside = 0
        self._lost_inside = 0
        self._told = 0
        self._weight = 0
        self._records: deque[tuple[int, Any]] = deque()
        self._weigh = _WEIGHTS[table]
        self._rows_of = _ROWS.get(table)
        self._texts = _TEXTS[table]
        self._counting = threading.Lock()

    def relieve(self) -> None:
        """Drop the oldest of an inbox that nobody gathered; from any thread."""
        with self._counting:
            while len(self.inbox) > self.inbox_limit:
                try:
                    oldest = self.inbox.popleft()
                except IndexError:
                    return
                self._lost_outside += self.rows(oldest)

    @property
    def lost_total(self) -> int:
        """Rows ever lost."""
        return self._lost_outside + self._lost_inside

    def rows(self, record: Any) -> int:
        """Rows that `record` carries; 1 for what is no record."""
        try:
            return 1 if self._rows_of is None else self._rows_of(record)
        except Exception:  # noqa: BLE001 - whatever it is
            return 1

    # For the channel's thread

    def gather(self) -> None:
        """Move what is in the inbox to the account, and drop the oldest of too much."""
        inbox, weigh, records = self.inbox, self._weigh, self._records
        for _ in range(len(inbox)):
            try:
                record = inbox.popleft()
            except IndexError:
                break
            try:
                weight = 1 if weigh is None else weigh(record)
            except Exception:  # noqa: BLE001
                # No record of this table, which shows when it is to be encoded.
                weight = 1
            records.append((weight, record))
            self._weight += weight
        while self._weight > self.capacity and len(records) > 1:
            weight, record = records.popleft()
            self._weight -= weight
            self._lost_inside += self.rows(record)

    def take(self, weight: int) -> tuple[list[Any], int]:
        """Remove the oldest records of about `weight`, at least one if there is any.

        Returns
        -------
        records, lost
            And the rows lost since `take` was called before.
        """
        taken: list[Any] = []
        records = self._records
        while records and weight > 0:
            own, record = records.popleft()
            self._weight -= own
            weight -= own
            taken.append(record)
        lost_total = self.lost_total
        lost, self._told = lost_total - self._told, lost_total
        return taken, lost

    def give_up(self, record: Any) -> int:
        """Count a record that was taken and cannot be sent; return its rows.

        They are told by who took it, not by the next `take`.
        """
        rows = self.rows(record)
        self._lost_inside += rows
        self._told += rows
        return rows

    def __len__(self) -> int:
        return len(self._records) + len(self.inbox)

    def clipped(self, records: list[Any]) -> list[Any]:
        """`records` with their texts cut; copies of those cut, as others may hold them."""
        if not self._texts:
            return records
        return [self._clipped(record) for record in records]

    def _clipped(self, record: Any) -> Any:
        for name, limit in self._texts:
            text = getattr(record, name)
            if len(text) > limit:
                record = replace(record, **{name: clip(text, limit)})
        return record


def _weigh_blocks(record: Any) -> int:
    return 1 + (len(record.hash) >> 3) + (len(record.request) >> 8)


def _rows_of_blocks(record: Any) -> int:
    return len(record.hash) >> 3


def _weigh_texts(names: tuple[str, ...]) -> Weigh | None:
    if not names:
        return None
    if names == ("request",):
        return lambda record: 1 + (len(record.request) >> 8)
    return lambda record: 1 + sum(len(getattr(record, name)) >> 8 for name in names)


_TEXTS = {
    table: tuple(
        (column.name, limit_of(table, column.name))
        for column in columns(table)
        if column.dtype == "str"
    )
    for table in TABLES
}
_WEIGHTS: dict[str, Weigh | None] = {
    table: _weigh_texts(tuple(name for name, _ in texts))
    for table, texts in _TEXTS.items()
} | {"blocks": _weigh_blocks}
_ROWS: dict[str, Weigh] = {"blocks": _rows_of_blocks}
