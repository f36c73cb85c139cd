"""Watching the scheduler's side: its connector, its pool, its admissions.

The connector is told everything and says little: each of its calls is seen here, with the
time it took, and once a step, when it has built its metadata, all that happened since the
step before is left in a note for the scribe, who makes the rows. The metadata are the truth
about what was retained and released; look-ups and requests are followed by the modules
named after them; the pool says what left the GPU.

Everything runs in the scheduler's thread, after the call that is watched. No call is added,
left out or changed; `max_cache_hit` above all is never called to measure, since looking
moves what it touches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence, Sized
from time import perf_counter_ns
from typing import Any

from auxconn.probes.access import ConnectorView
from auxconn.probes.calls import NO_TIME, PROBE, Calls
from auxconn.probes.clock import StepClock
from auxconn.probes.guard import Guard
from auxconn.probes.lookups import LookupLog
from auxconn.probes.notes import Load, Note, Snapshot
from auxconn.probes.pool import PoolProbe
from auxconn.probes.scribe import Scribe
from auxconn.records import EventKind, Events
from auxconn.sink import Sink

_FOLLOWERS = (
    "on_admitted",
    "on_build",
    "on_cap",
    "on_finished",
    "on_loading",
    "on_lookup",
    "on_reset",
)
"""Methods that hooks call; those of a probe that was detached do nothing."""

_NOTHING: list[Any] = []
"""What most steps bring of nearly everything; never changed."""


class SchedulerProbe:
    """Fills `steps`, `lookups`, `blocks`, `requests` and `events` from one scheduler.

    Parameters
    ----------
    scheduler
        vLLM's, with either connector.
    sink
        Where the records go.
    clock
        Shared with the worker's probe when both are of one process.
    before_step, orders
        Called in the scheduler's thread before metadata are built while there are orders.
    deferred
        True leaves making rows to whoever calls `flush`, False makes them at each step.

    Raises
    ------
    UnknownConnectorError
        When there is no connector, or it cannot be read.
    """

    def __init__(
        self,
        scheduler: Any,
        sink: Sink,
        clock: StepClock | None = None,
        before_step: Callable[[], object] | None = None,
        orders: Sized = (),
        *,
        deferred: bool = False,
    ) -> None:
        self.view = view = ConnectorView(scheduler)
        self.step = 0
        """Number of the newest step."""
        self.guard = Guard(
            "the scheduler's probe", sink, lambda: self.step, self.detach
        )
        self._scheduler = scheduler
        self._sink = sink
        self._clock = clock
        self._deferred = deferred
        self._connector = view.connector
        self._retained = view.retained
        self._calls = Calls(self, self.guard, before_step, orders)
        self._pool = PoolProbe(view, self.guard)
        self._lookups = LookupLog(view.block_size, view.has_rows)
        self._loading: dict[str, None] = {}
        self._loads: list[Load] = []
        self._capacity = view.capacity
        self.scribe: Scribe | None = None
        self._own_ns = 0
        """What noting the step before took."""

    # -- hooks ----------------------------------------------------------------------------

    def attach(self) -> None:
        """Put the hooks in, all or none.

        Raises
        ------
        UnknownConnectorError
            When one of them does not fit.
        """
        view = self.view
        try:
            self._calls.install(self.view.connector, self._scheduler.kv_cache_manager)
            self._pool.install()
        except Exception:
            self.detach()
            raise
        self._loading.update(dict.fromkeys(view.loading()))
        self.scribe = Scribe(view, self._sink, self.guard, self._deferred)
        self.tell(
            "start",
            f"watching {view.kind}'s connector: {view.num_blocks} KV blocks of "
            f"{view.block_size} tokens, capacity {self._capacity} blocks, "
            f"{view.retained()} retained",
        )

    def detach(self) -> None:
        """Take the hooks away; one that has to stay does nothing from now on."""
        self._pool.remove()
        self._calls.remove()
        for name in _FOLLOWERS:
            setattr(self, name, _nothing)

    def flush(self) -> None:
        """Make the rows of what was noted so far, from any thread."""
        if self.scribe is not None:
            self.scribe.flush()

    def tell(self, kind: EventKind, text: str) -> None:
        """Write an event."""
        self._sink.emit("events", Events(time.time(), self.step, kind, text))

    # -- what happens between two steps ---------------------------------------------------

    def on_lookup(self, hit: int, request: Any) -> None:
        """Follow `max_cache_hit`."""
        self._lookups.looked(hit, request)

    def on_cap(
        self, accepted: int, request: Any, num_local: int, num_external: int
    ) -> None:
        """Follow `cap_external_hit`."""
        self._lookups.capped(accepted, request, num_local, num_external)

    def on_admitted(self, _: object, request: Any, num_hits: int) -> None:
        """Follow vLLM's record of an admission."""
        self._lookups.admitted(request, num_hits)

    def on_loading(self, _: object, request: Any, num_tokens: int) -> None:
        """Follow `request_loading`."""
        keys = self._keys(request, num_tokens)
        self._loading[request.request_id] = None
        self._loads.append((request.request_id, keys))

    def on_finished(self, _: object, request: Any) -> None:
        """Follow `request_finished`, which also comes with a preemption."""
        request_id = request.request_id
        if request_id in self._loading:
            self._loading_ended(request_id)
        if request.is_finished():
            self._lookups.forget(request_id)
            if self.scribe is not None:
                self.scribe.end(request, time.time(), self.step)

    def on_reset(self, _: object) -> None:
        """Follow `reset`."""
        self.tell(
            "reset",
            f"prefix cache reset: generation {self.view.generation} begins, all that "
            "was retained is released",
        )

    def _keys(self, request: Any, num_tokens: int) -> list[bytes]:
        """Keys of the full KV blocks among the first `num_tokens` of a request."""
        step = self.view.step
        end = num_tokens // self.view.block_size * step
        keys: list[bytes] = request.block_hashes[step - 1 : end : step]
        return keys

    def _loading_ended(self, request_id: str) -> None:
        del self._loading[request_id]
        self._loads.append((request_id, None))

    # -- once a step ----------------------------------------------------------------------

    def on_build(
        self, metadata: Any, scheduler_output: Any, begun: int, ended: int
    ) -> None:
        """Note the step of `metadata`, which took from `begun` to `ended` (ns) to build.

        In most steps nothing else has happened, and nothing else is touched.
        """
        self.step = step = self.step + 1
        if self._clock is not None:
            self._clock.note(metadata, step)
        if self._loading:
            self._end_loads(scheduler_output.num_scheduled_tokens)
        scribe, pool, calls = self.scribe, self._pool, self._calls
        if scribe is None:
            return
        loads, looked, log = self._loads, _NOTHING, _NOTHING
        if loads:
            self._loads = []
        if self._lookups.admitted_now:
            looked = self._lookups.take()
        if pool.left or pool.log:
            log = pool.take()
        if not scribe.has_room():
            return
        capacity = self._connector._capacity
        if capacity != self._capacity:
            self.tell(
                "capacity",
                f"capacity changed from {self._capacity} to {capacity} blocks",
            )
            self._capacity = capacity
        ns: Sequence[int] = NO_TIME
        if calls.ns[PROBE]:
            ns = calls.ns[:]
            calls.ns[:] = NO_TIME
        outputs, taken = calls.outputs, None
        if outputs.until_next > 1:
            outputs.until_next -= 1
        else:
            taken = outputs.turn()
        running, waiting = self._scheduler.get_request_counts()
        note = Note(
            time.time(),
            ended * 1e-9,
            step,
            metadata,
            scheduler_output,
            running,
            waiting,
            pool.queue.num_free_blocks,
            pool.unhashed_free,
            self._retained(),
            capacity,
            ended - begun,
            ns,
            self._own_ns,
            taken,
            pool.emptied,
            looked,
            loads or _NOTHING,
            log,
        )
        if scribe.wants_snapshot:
            self._begin_again(scribe, note)
        scribe.put(note)
        self._own_ns = perf_counter_ns() - ended

    def _end_loads(self, scheduled: Any) -> None:
        for request_id in [one for one in self._loading if one in scheduled]:
            self._loading_ended(request_id)

    def _begin_again(self, scribe: Scribe, note: Note) -> None:
        """Give the note a snapshot, and tell of what was left out before it."""
        note.snapshot = self._snapshot(note.loads)
        steps, scribe.missed = scribe.missed, 0
        requests, scribe.missed_requests = scribe.missed_requests, 0
        scribe.wants_snapshot = False
        if steps or requests:
            self.tell(
                "gap",
                f"{steps} steps and {requests} requests that ended are without rows: "
                "whoever makes them got no turn",
            )

    def _snapshot(self, loads: list[Load]) -> Snapshot:
        """Look at all that the connector holds; `loads` are those of this step."""
        view = self.view
        held = view.held()
        begun = {request_id for request_id, keys in loads if keys is not None}
        loading: list[Load] = []
        for request_id in self._loading:
            request = self._scheduler.requests.get(request_id)
            if request is not None and request_id not in begun:
                # vLLM has set its computed tokens to those that it loads.
                keys = self._keys(request, request.num_computed_tokens)
                loading.append((request_id, keys))
        return Snapshot(held, [key for key in held if not view.on_gpu(key)], loading)


def _nothing(*_args: Any, **_kwargs: Any) -> None:
    """Take the place of a method of a probe that was detached."""
