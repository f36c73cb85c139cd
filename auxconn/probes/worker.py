"""Watching the worker's side: the rows it captures and delivers, and its store.

What a step captured and delivered is counted (`auxconn.probes.deliveries`) when it has been
consumed, together with how long that took, how long its copy from the GPU took to put on
its way, and how the store stands. The engine's threads only note the numbers; rows are made
of them by `flush`.

`process_output` may run in another thread than the rest, never twice at a time; steps are
consumed in order.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from functools import partial
from time import perf_counter_ns
from typing import Any

import numpy as np

from auxconn.probes.clock import StepClock
from auxconn.probes.deliveries import Deliveries, Noted
from auxconn.probes.guard import Guard
from auxconn.probes.hooks import Hooks
from auxconn.probes.sampled import EVERY
from auxconn.probes.store import StoreNumbers, StoreProbe
from auxconn.records import Events, Rows, Store
from auxconn.sink import Sink

NOTES = 1024
"""Steps noted at which the engine's thread makes rows of them itself."""

MARK = "_auxconn_step"
"""Attribute of a step whose output is pending: its number, the churn, ms of its copy."""


class WorkerProbe:
    """Fills `rows`, `store` and `events` from one worker connector and its store.

    Only the first tensor-parallel rank owns rows; on the others there is nothing to watch,
    and an event says so.

    Parameters
    ----------
    worker
        vLLM's `AuxOutputWorkerConnector`.
    sink
        Where the records go.
    clock
        Shared with the scheduler's probe when both are of one process.
    deferred
        True leaves making rows to whoever calls `flush`, False makes them at each step.
    """

    def __init__(
        self,
        worker: Any,
        sink: Sink,
        clock: StepClock | None = None,
        *,
        deferred: bool = False,
    ) -> None:
        self.step = 0
        """Number of the newest step that has begun."""
        self.guard = Guard("the worker's probe", sink, lambda: self.step, self.detach)
        self._worker = worker
        self._sink = sink
        self._clock = clock
        self._hooks = Hooks()
        self._buffer = worker._buffer
        self._store: StoreProbe | None = None
        if worker._store is not None:
            self._store = StoreProbe(worker._store, sink, self.guard, lambda: self.step)
        self.row_bytes = 0
        self.shape_per_token: tuple[int, ...] = ()
        if self._buffer is not None:
            self.shape_per_token = tuple(self._buffer.shape_per_token)
            dtype = np.dtype(self._buffer.dtype)
            self.row_bytes = int(np.prod(self.shape_per_token)) * dtype.itemsize
        self._notes: deque[tuple[int, tuple[Any, ...]]] = deque()
        """Notes by their number, from 1; a hole is a step that was left out."""
        self._noted, self._next = 0, 1
        self._flush_at = NOTES if deferred else 1
        self._flushing = threading.RLock()
        self._deliveries = Deliveries()
        self._until_timed = 1
        """Steps until the copy of one is timed."""
        self._generation = -1
        self._churn = 0
        """Metadata begun so far in which a request ended or a generation began."""

    # -- hooks ----------------------------------------------------------------------------

    def attach(self) -> None:
        """Put the hooks in, all or none.

        Raises
        ------
        UnknownConnectorError
            When one of them does not fit.
        """
        if self._buffer is None or self._store is None:
            self.tell("start", "this rank owns no R3 rows: nothing to watch")
            return
        worker, wrap = self._worker, self._hooks.wrap
        try:
            wrap(worker, "begin_step", self._begin_step, ("metadata",))
            wrap(worker, "prepare_output", self._prepare_output, ("input_batch",))
            wrap(worker, "process_output", self._process_output, ("pending",))
            wrap(
                self._buffer,
                "read",
                self._read,
                ("request_id", "token_start", "token_end"),
            )
            wrap(worker._store, "get_concatenated", self._get_concatenated, ("keys",))
            self._store.install()
        except Exception:
            self.detach()
            raise
        shape = " x ".join(map(str, self.shape_per_token))
        self.tell(
            "start",
            f"watching the worker's connector: rows of {shape} "
            f"{np.dtype(self._buffer.dtype).name}, {self.row_bytes} B each, hash blocks of "
            f"{self._buffer.block_size} tokens",
        )

    def detach(self) -> None:
        """Take the hooks away; one that has to stay does nothing from now on."""
        if self._store is not None:
            self._store.remove()
        self._hooks.restore()
        for name in ("on_begin", "on_prepared", "on_processed", "on_read"):
            setattr(self, name, _nothing)

    def tell(self, kind: Any, text: str) -> None:
        """Write an event."""
        self._sink.emit("events", Events(time.time(), self.step, kind, text))

    def _begin_step(self, original: Any) -> Any:
        failed = self.guard.failed

        def begin_step(metadata: Any) -> Any:
            try:
                if metadata is not None:
                    self.on_begin(metadata)
            except Exception:  # noqa: BLE001 - the engine must not see it
                failed("begin_step")
            return original(metadata)

        return begin_step

    def _prepare_output(self, original: Any) -> Any:
        failed = self.guard.failed

        def prepare_output(input_batch: Any) -> Any:
            pending = original(input_batch)
            try:
                if pending is not None:
                    self.on_prepared(pending)
            except Exception:  # noqa: BLE001 - the engine must not see it
                failed("prepare_output")
            return pending

        return prepare_output

    def _process_output(self, original: Any) -> Any:
        failed = self.guard.failed

        def process_output(pending: Any) -> Any:
            started = perf_counter_ns()
            outputs = original(pending)
            ended = perf_counter_ns()
            try:
                self.on_processed(pending, outputs, ended - started)
            except Exception:  # noqa: BLE001 - the engine must not see it
                failed("process_output")
            return outputs

        return process_output

    def _read(self, original: Any) -> Any:
        failed = self.guard.failed

        def read(request_id: Any, token_start: int, token_end: int) -> Any:
            rows = original(request_id, token_start, token_end)
            try:
                self.on_read(token_end - token_start)
            except Exception:  # noqa: BLE001 - the engine must not see it
                failed("read")
            return rows

        return read

    def _get_concatenated(self, original: Any) -> Any:
        failed = self.guard.failed

        def get_concatenated(keys: Any) -> Any:
            payload = original(keys)
            try:
                self.on_read(0)
            except Exception:  # noqa: BLE001 - the engine must not see it
                failed("get_concatenated")
            return payload

        return get_concatenated

    # -- what they see --------------------------------------------------------------------

    def on_begin(self, metadata: Any) -> None:
        """A step begins with `metadata`."""
        step = self.step + 1
        if self._clock is not None:
            step = self._clock.step_of(metadata, step)
        self.step = step
        if metadata.finished_requests or metadata.generation != self._generation:
            self._generation = metadata.generation
            self._churn += 1

    def on_prepared(self, pending: Any) -> None:
        """The step's snapshot is taken; see now and then how long its copy takes."""
        # On the step itself, which knows then when it is consumed which one it is.
        pending._auxconn_step = self.step, self._churn, math.nan
        self._until_timed -= 1
        if not self._until_timed:
            self._until_timed = EVERY
            pending.enqueue_cpu_copy = partial(
                _timed_copy, pending, pending.enqueue_cpu_copy
            )

    def on_read(self, tail_rows: int) -> None:
        """Rows are read from the store, or `tail_rows` of them from a tail."""
        self._deliveries.read(tail_rows)

    def on_processed(
        self, pending: Any, outputs: dict[str, Any], nanoseconds: int
    ) -> None:
        """A step was consumed: note what its rows are made of."""
        # One that was prepared before the probe was attached has no mark.
        step, churn, ms_copy = getattr(pending, MARK, None) or (self.step, -2, math.nan)
        noted = self._deliveries.note(pending, outputs, churn)
        store = self._store
        look = store and store.look()
        self._noted += 1
        note = time.time(), step, noted, ms_copy, nanoseconds, look
        self._notes.append((self._noted, note))
        if len(self._notes) >= self._flush_at:
            self._try_flush()

    # -- rows -----------------------------------------------------------------------------

    def flush(self) -> None:
        """Make the rows of what was noted so far, from any thread."""
        with self._flushing:
            self._flush()

    def _try_flush(self) -> None:
        # If somebody else is at it, he will come to the newest note too.
        if self._flushing.acquire(blocking=False):
            try:
                self._flush()
            finally:
                self._flushing.release()
        elif len(self._notes) >= 2 * NOTES:
            self._notes.popleft()

    def _flush(self) -> None:
        notes = self._notes
        while notes:
            number, note = notes.popleft()
            try:
                missed, self._next = number - self._next, number + 1
                if missed:
                    self._deliveries.forget()
                    self.tell(
                        "gap",
                        f"{missed} worker steps are without rows: whoever makes them got "
                        "no turn",
                    )
                self.write(*note)
            except Exception:  # noqa: BLE001 - never raises into the engine
                self.guard.failed("a worker step's rows")

    def write(
        self,
        t: float,
        step: int,
        noted: Noted,
        ms_copy: float,
        nanoseconds: int,
        store: StoreNumbers | None,
    ) -> None:
        """Write the rows of one step."""
        counts = self._deliveries.count(noted)
        requests, captured, rejected, receivers, from_step, stored, tail = counts
        size = self.row_bytes
        self._sink.emit(
            "rows",
            Rows(
                t,
                step,
                requests,
                captured,
                captured * size,
                rejected,
                receivers,
                from_step,
                stored,
                tail,
                from_step * size,
                stored * size,
                tail * size,
                ms_copy,
                nanoseconds * 1e-6,
            ),
        )
        if store is not None:
            numbers, backlog, error = store
            self._sink.emit("store", Store(t, step, *numbers, backlog, error))


def _timed_copy(pending: Any, original: Any, *args: Any, **kwargs: Any) -> Any:
    # Gone with its first call, or the step would hold itself. Another attachment may have
    # taken it away already.
    vars(pending).pop("enqueue_cpu_copy", None)
    started = perf_counter_ns()
    result = original(*args, **kwargs)
    spent = (perf_counter_ns() - started) * 1e-6
    step, churn, _ = getattr(pending, MARK)
    setattr(pending, MARK, (step, churn, spent))
    return result


def _nothing(*_args: Any, **_kwargs: Any) -> None:
    """Take the place of a method of a probe that was detached."""
