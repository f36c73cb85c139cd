"""Rows that wait to be sent, never more than so many.

The engine's threads put records in; the channel's thread takes them out in batches. When
the collector is away or slow the oldest rows make room for the newest, which are what a
live view wants, and each one lost is counted so that the next batch can say so.

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
        self.lost_total = 0
        """Rows ever lost."""
        self._lost = 0
        self._weight = 0
        self._records: deque[Any] = deque()
        self._weigh = _WEIGHTS[table]
        self._rows_of = _ROWS.get(table)
        self._texts = _TEXTS[table]
        # Re-entrant, since a finalizer that emits may run inside `put` itself. It is held
        # for a few list operations, never while something is sent.
        self._lock = threading.RLock()

    def put(self, record: Any) -> bool:
        """Keep `record`; True when this filled the buffer to the half, a reason to hurry."""
        weigh = self._weigh
        weight = 1 if weigh is None else weigh(record)
        with self._lock:
            self._records.append(record)
            before = self._weight
            self._weight = after = before + weight
            if after > self.capacity:
                self._shed()
                return False
            half = self.capacity >> 1
            return before < half <= after

    def take(self, weight: int) -> tuple[list[Any], int]:
        """Remove the oldest records of about `weight`, at least one.

        Returns
        -------
        records, lost
            And the rows lost since `take` was called before.
        """
        with self._lock:
            lost, self._lost = self._lost, 0
            if self._weight <= weight:
                records = list(self._records)
                self._records.clear()
                self._weight = 0
            else:
                records = []
                while self._records and weight > 0:
                    record = self._records.popleft()
                    weight -= self._forget(record)
                    records.append(record)
        if self._texts:
            records = [self._clipped(record) for record in records]
        return records, lost

    def rows(self, record: Any) -> int:
        """Rows that `record` carries."""
        return 1 if self._rows_of is None else self._rows_of(record)

    def __len__(self) -> int:
        return len(self._records)

    def _clipped(self, record: Any) -> Any:
        """`record`, or a copy of it with its texts cut: others may hold it as well."""
        for name, limit in self._texts:
            text = getattr(record, name)
            if len(text) > limit:
                record = replace(record, **{name: clip(text, limit)})
        return record

    def _forget(self, record: Any) -> int:
        weight = 1 if self._weigh is None else self._weigh(record)
        # An empty buffer weighs nothing, even if somebody changed a record inside it.
        self._weight = self._weight - weight if self._records else 0
        return weight

    def _shed(self) -> None:
        lost = 0
        while self._weight > self.capacity and len(self._records) > 1:
            oldest = self._records.popleft()
            self._forget(oldest)
            lost += self.rows(oldest)
        self._lost += lost
        self.lost_total += lost


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
