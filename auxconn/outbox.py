"""What an engine has to say: rows of all tables, made into numbered batches.

The engine's threads put records into the inboxes; the channel's thread gathers them and
takes one encoded batch after the other. Each batch names the rows lost since the one before,
and its number shows when a batch itself was lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from auxconn.buffers import INBOX_RECORDS, Buffer
from auxconn.encoding import encoder
from auxconn.records import TABLES
from auxconn.wire import Batch

BATCH_WEIGHT = 2048
"""Rows of a table in one batch. Encoding holds the interpreter, so a batch must be short
enough (about 1 ms) not to be felt by the engine's thread."""

Records = dict[str, list[Any]]


class Outbox:
    """Buffers of all tables and the batches made from them.

    Parameters
    ----------
    capacity
        Rows of each table that are kept at most.
    failed
        Told of records that cannot be sent.
    """

    def __init__(self, capacity: int, failed: Callable[[Exception], None]) -> None:
        self._buffers = {table: Buffer(table, capacity) for table in TABLES}
        self._failed = failed
        self._encode = encoder().encode
        self._seq = 0
        self.inboxes: dict[str, deque[msgspec.Struct]] = {
            table: buffer.inbox for table, buffer in self._buffers.items()
        }
        """Where any thread appends records, by table."""
        self.hurry_at = min(capacity, INBOX_RECORDS) // 2
        """Records in an inbox at which the channel's thread should not wait any longer."""
        self.last_records = 0
        """Records in the newest batch."""

    def relieve(self, table: str) -> None:
        """Drop the oldest of an inbox that is too full; from any thread."""
        buffer = self._buffers[table]
        if len(buffer.inbox) > buffer.inbox_limit:
            buffer.relieve()

    @property
    def dropped(self) -> dict[str, int]:
        """Rows ever lost, by table; tables without are left out."""
        lost = {table: buffer.lost_total for table, buffer in self._buffers.items()}
        return {table: rows for table, rows in lost.items() if rows}

    @property
    def waiting(self) -> dict[str, int]:
        """Records not taken yet, by table; tables without are left out."""
        found = {table: len(buffer) for table, buffer in self._buffers.items()}
        return {table: records for table, records in found.items() if records}

    # For the channel's thread

    def gather(self) -> None:
        """Take over what is in the inboxes."""
        for buffer in self._buffers.values():
            if buffer.inbox:
                buffer.gather()

    def batch(self) -> bytes | None:
        """Take the next batch, encoded; None when there is nothing to tell."""
        taken: Records = {}
        dropped: dict[str, int] = {}
        for table, buffer in self._buffers.items():
            records, lost = buffer.take(BATCH_WEIGHT)
            if records:
                taken[table] = records
            if lost:
                dropped[table] = lost
        if not taken and not dropped:
            return None
        try:
            for table, records in taken.items():
                if set(map(type, records)) != {TABLES[table]}:
                    # It would be encoded, and then cost the collector the whole batch.
                    raise TypeError(f"what is no record was emitted to {table}")
                taken[table] = self._buffers[table].clipped(records)
            message = self._encode(Batch(self._seq + 1, dropped, **taken))
        except Exception as problem:  # noqa: BLE001 - one bad record must not stop the rest
            self._failed(problem)
            taken = self._without_bad(taken, dropped)
            message = self._encode(Batch(self._seq + 1, dropped, **taken))
        self._seq += 1
        self.last_records = sum(map(len, taken.values()))
        return message

    def _without_bad(self, taken: Records, dropped: dict[str, int]) -> Records:
        """Leave out the records that cannot be encoded; add them to `dropped`."""
        good: Records = {}
        for table, records in taken.items():
            buffer = self._buffers[table]
            good[table] = []
            for record in records:
                try:
                    if type(record) is not TABLES[table]:
                        raise TypeError(f"no record of {table}")
                    kept = buffer.clipped([record])
                    self._encode(kept)
                    good[table] += kept
                except Exception:  # noqa: BLE001 - counted, and told by the caller
                    rows = buffer.give_up(record)
                    dropped[table] = dropped.get(table, 0) + rows
        return good
