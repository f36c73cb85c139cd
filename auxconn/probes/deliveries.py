"""Counting a step's rows: captured, rejected, and delivered by source.

A request's rows have three sources. Those of the tokens this very step computed are slices
of the step's snapshot; those of earlier tokens, of a prefix-cache hit for example, are read
from the store in whole blocks; what has not filled a block yet is read from the buffer's
tail. vLLM's `process_output` joins them and says nothing about it, but each way leaves a
mark: reading a tail is a call that names its range, and an array that is a view of the
step's snapshot shares its memory. What is neither came from the store, so the three always
add up to what was delivered.

A step in which 64 requests decode takes half a millisecond here, so counting it may cost a
few microseconds. Most steps are like the one before: the same requests, each of which got
all its rows. Then every row that was captured was delivered at once, and nothing has to be
counted by request.
"""

from __future__ import annotations

from typing import Any

Counts = tuple[int, int, int, int, int, int, int]
"""Requests, captured and rejected rows, receivers, rows from step, store and tail."""


class Deliveries:
    """Counts steps as they are consumed, one after the other."""

    def __init__(self) -> None:
        self._reads = 0
        self._tail_rows = 0
        self._settled: tuple[list[str], int] = ([], -1)
        """Requests of the last step if each of them got all its rows, and its churn."""

    def read(self, tail_rows: int) -> None:
        """Rows are read from the store, or `tail_rows` of them from a tail."""
        self._reads += 1
        self._tail_rows += tail_rows

    def count(self, pending: Any, outputs: dict[str, Any], churn: int) -> Counts:
        """Count the step of `pending`, which has brought `outputs`.

        Parameters
        ----------
        churn
            Changes whenever a request may have lost its state: then one that bears the
            same id may be another.

        Raises
        ------
        ValueError
            When the sources do not add up.
        """
        request_ids = pending.request_ids
        requests = len(request_ids)
        captured = len(pending.routed_experts)
        complete = len(outputs) == requests
        rejected = 0
        if not complete or captured != requests:
            # With one token each there was no draft to reject. A list of numbers is summed
            # sooner than numpy has found out what to do.
            rejected = sum(pending.num_rejected.tolist())
        if (
            complete
            and not self._reads
            and not rejected
            and self._settled == (request_ids, churn)
        ):
            # Each request had all its rows up to this step, and got this step's.
            return requests, captured, 0, requests, captured, 0, 0
        self._settled = (request_ids, churn) if complete else ([], -1)
        return self._count_each(pending, outputs, rejected)

    def _count_each(
        self, pending: Any, outputs: dict[str, Any], rejected: int
    ) -> Counts:
        reads, tail = self._reads, self._tail_rows
        self._reads = self._tail_rows = 0
        snapshot = pending.routed_experts
        lengths = [len(one.rows) for one in outputs.values()]
        delivered = from_step = sum(lengths)
        if reads:
            base = snapshot[:0].base
            from_step = sum(
                len(one.rows) for one in outputs.values() if one.rows.base is base
            )
        stored = delivered - from_step - tail
        if stored < 0:
            raise ValueError(
                f"{delivered} rows were delivered, {from_step} of the step and {tail} "
                "of tails"
            )
        return (
            len(pending.request_ids),
            len(snapshot) - rejected,
            rejected,
            len(lengths) - lengths.count(0),
            from_step,
            stored,
            tail,
        )
