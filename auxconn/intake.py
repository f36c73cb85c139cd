"""What a probe of the same process offers a store, until somebody takes it in.

The probe must not wait for a reader that holds the store's lock, so it leaves its records
here and goes on; whoever has the lock next takes them in. What is wrong with one of them is
found then, in the turn of a reader who has nothing to do with it: it costs that record and
nothing else, is counted, and told in the table of events.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from auxconn.records import TABLES, Events

INBOX_RECORDS = 65_536
"""Records offered and not yet taken in; beyond it, offers are dropped and counted."""

UNNAMED = "unnamed"
"""Engine of the event that tells of a record whose engine cannot be named."""

Append = Callable[[str, list[Any], str, int], object]
"""Puts records of a table, engine and rank into the store, all or none, or raises."""


class Intake:
    """Records on their way into a store. All but `inbox` is for who holds its lock."""

    def __init__(self) -> None:
        self.inbox: deque[tuple[str, Any, str, int]] = deque()
        """Where any thread appends table, record, engine and rank."""
        self.rejected: Counter[str] = Counter()
        """Records that did not fit, by table."""

    def take_in(self, append: Append) -> None:
        """Append what was offered, each table's in order, in runs of one source.

        A step leaves a record or two in each table. Taken one by one in the order of the
        offers, each would pay for the making of all its columns.
        """
        inbox = self.inbox
        while inbox:
            runs: list[tuple[str, list[Any], str, int]] = []
            newest: dict[str, tuple[str, list[Any], str, int]] = {}
            for _ in range(len(inbox)):
                table, record, engine, rank = inbox.popleft()
                run = newest.get(table)
                if run is None or run[2] != engine or run[3] != rank:
                    run = newest[table] = (table, [], engine, rank)
                    runs.append(run)
                run[1].append(record)
            for run in runs:
                self._run(append, *run)

    def _run(
        self, append: Append, table: str, run: list[Any], engine: str, rank: int
    ) -> None:
        try:
            append(table, run, engine, rank)
        except Exception as problem:  # noqa: BLE001 - the reader is not to blame
            if len(run) > 1:
                for record in run:
                    self._run(append, table, [record], engine, rank)
                return
            if table in TABLES:
                self.rejected[table] += 1
            _tell(append, problem, engine, rank)


def _tell(append: Append, problem: Exception, engine: str, rank: int) -> None:
    text = f"a record was rejected: {type(problem).__name__}"
    with contextlib.suppress(Exception):
        text = f"a record was rejected: {problem}"
    told: list[Any] = [Events(time.time(), 0, "error", text)]
    for name, number in ((engine, rank), (UNNAMED, 0)):
        # Both fail when there is no room for another engine's name.
        with contextlib.suppress(ValueError):
            append("events", told, name, number)
            return
