"""Counting a step's rows: captured, rejected, and delivered by source.

A request's rows have three sources. Those of the tokens this very step computed are slices
of the step's snapshot; those of earlier tokens, of a prefix-cache hit for example, are read
from the store in whole blocks; what has not filled a block yet is read from the buffer's
tail. vLLM's `process_output` joins them and says nothing about it, but each way leaves a
mark: reading a tail is a call that names its range, and an array that is a view of the
step's snapshot shares its memory. What is neither came from the store, so the three always
add up to what was delivered.

A step in which 64 requests decode takes half a millisecond here, so the engine's thread may
spend a few microseconds on it. When each request computed one token and nothing was read,
all there is to count is in the outputs, which are small then: they are kept, and counted by
whoever makes the rows. Most such steps are like the one before, the same requests, each of
which got all its rows; then every row that was captured was delivered at once, and nothing
has to be counted by request.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

Counts = tuple[int, int, int, int, int, int, int]
"""Requests, captured and rejected rows, receivers, rows from step, store and tail."""

Noted = tuple[list[str], int, dict[str, Any] | None, Counts | None]
"""Requests of a step, its churn, and either its outputs or what was counted of them."""


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

    def note(self, pending: Any, outputs: dict[str, Any], churn: int) -> Noted:
        """Note the step of `pending`, which has brought `outputs`, in the engine's thread.

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
        if (
            len(outputs) == len(request_ids) == len(pending.routed_experts)
            and not self._reads
        ):
            # With one token each there was no draft to reject.
            return request_ids, churn, outputs, None
        return request_ids, churn, None, self._count(pending, outputs)

    def count(self, noted: Noted) -> Counts:
        """Count what was noted; each step once, in order, from any thread."""
        request_ids, churn, outputs, counts = noted
        requests = len(request_ids)
        if counts is None:
            if self._settled == (request_ids, churn):
                # Each request had all its rows up to this step, and got this step's.
                return requests, requests, 0, requests, requests, 0, 0
            assert outputs is not None
            lengths = [len(one.rows) for one in outputs.values()]
            receivers = len(lengths) - lengths.count(0)
            counts = requests, requests, 0, receivers, sum(lengths), 0, 0
        self._settled = (request_ids, churn) if counts[3] == requests else ([], -1)
        return counts

    def forget(self) -> None:
        """A step was left out: nothing is known of the one before."""
        self._settled = ([], -1)

    def _count(self, pending: Any, outputs: dict[str, Any]) -> Counts:
        reads, tail = self._reads, self._tail_rows
        self._reads = self._tail_rows = 0
        snapshot = pending.routed_experts
        # A list of numbers is summed sooner than numpy has found out what to do.
        rejected = sum(pending.num_rejected.tolist())
        lengths = [len(one.rows) for one in outputs.values()]
        delivered = from_step = sum(lengths)
        if reads:
            base = snapshot[:0].base
            # What had to be read is put behind the slices of the step, and each of it took
            # a read at least: no need to look at the others.
            for one in islice(reversed(outputs.values()), reads):
                if one.rows.base is not base:
                    from_step -= len(one.rows)
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
