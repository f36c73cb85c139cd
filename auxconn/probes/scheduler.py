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
from collections.abc import Callable
from time import perf_counter, perf_counter_ns
from typing import Any

from auxconn.probes.access import ConnectorView
from auxconn.probes.clock import StepClock
from auxconn.probes.guard import Guard
from auxconn.probes.hooks import Hooks
from auxconn.probes.lives import LifeLog
from auxconn.probes.lookups import LookupLog
from auxconn.probes.notes import Load, Note, Snapshot
from auxconn.probes.pool import PoolProbe
from auxconn.probes.scribe import Scribe
from auxconn.records import EventKind, Events, Steps
from auxconn.sink import Sink

BUILD, HIT, CAP, LOADING, OUTPUT, FINISHED, PROBE, OTHER = range(8)
"""What nanoseconds are counted for, in the order of the columns of `steps`."""

_CALLS: tuple[tuple[str, int, str, tuple[str, ...]], ...] = (
    ("max_cache_hit", HIT, "on_lookup", ("request",)),
    ("request_loading", LOADING, "on_loading", ("request", "num_tokens")),
    ("request_finished", FINISHED, "on_finished", ("request",)),
    ("reset", OTHER, "on_reset", ()),
)
"""Calls of a connector: name, what their time counts for, who follows them, parameters."""


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
    before_step
        Called in the scheduler's thread before each metadata is built.
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
        self._before_step = before_step
        self._deferred = deferred
        self._hooks = Hooks()
        self._ns = [0] * 8
        self._capping = False
        self._pool = PoolProbe(view, self.guard)
        self._lookups = LookupLog(view.block_size, view.step, view.has_rows)
        self._lives = LifeLog()
        self._loading: dict[str, None] = {}
        self._loads: list[Load] = []
        self._capacity = view.capacity
        self.scribe: Scribe | None = None

    # -- hooks ----------------------------------------------------------------------------

    def attach(self) -> None:
        """Put the hooks in, all or none.

        Raises
        ------
        UnknownConnectorError
            When one of them does not fit.
        """
        view = self.view
        connector, wrap = view.connector, self._hooks.wrap
        try:
            for name, column, follow, parameters in _CALLS:
                wrap(connector, name, self._follow(name, column, follow), parameters)
            wrap(
                connector,
                "cap_external_hit",
                self._cap_external_hit,
                ("request", "num_local", "num_external"),
            )
            wrap(connector, "take_output", self._take_output, ("request", "output"))
            wrap(
                connector,
                "build_connector_meta",
                self._build_connector_meta,
                ("scheduler_output", "requests"),
            )
            wrap(
                self._scheduler.kv_cache_manager,
                "record_prefix_cache_stats",
                self._follow("record_prefix_cache_stats", OTHER, "on_admitted"),
                ("request", "num_hits"),
            )
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
        self._hooks.restore()
        for name in (
            *(call[2] for call in _CALLS),
            "on_cap",
            "on_admitted",
            "on_build",
        ):
            setattr(self, name, _nothing)
        self._before_step = None

    def flush(self) -> None:
        """Make the rows of what was noted so far, from any thread."""
        if self.scribe is not None:
            self.scribe.flush()

    def tell(self, kind: EventKind, text: str) -> None:
        """Write an event."""
        self._sink.emit("events", Events(time.time(), self.step, kind, text))

    def _follow(self, name: str, column: int, follow: str) -> Callable[[Any], Any]:
        """Make a hook that times a call and then tells the method `follow` of it."""
        ns, failed = self._ns, self.guard.failed

        def make(original: Any) -> Any:
            def hook(*args: Any, **kwargs: Any) -> Any:
                if self._capping:
                    # cap_external_hit looks again: a part of it, and no new look-up.
                    return original(*args, **kwargs)
                started = perf_counter_ns()
                result = original(*args, **kwargs)
                ended = perf_counter_ns()
                try:
                    ns[column] += ended - started
                    getattr(self, follow)(result, *args, **kwargs)
                    ns[PROBE] += perf_counter_ns() - ended
                except Exception:  # noqa: BLE001 - the engine must not see it
                    failed(name)
                return result

            return hook

        return make

    def _cap_external_hit(self, original: Any) -> Any:
        ns, failed = self._ns, self.guard.failed

        def cap_external_hit(*args: Any, **kwargs: Any) -> Any:
            self._capping = True
            started = perf_counter_ns()
            try:
                accepted = original(*args, **kwargs)
            finally:
                ended = perf_counter_ns()
                self._capping = False
            try:
                ns[CAP] += ended - started
                self.on_cap(accepted, *args, **kwargs)
                ns[PROBE] += perf_counter_ns() - ended
            except Exception:  # noqa: BLE001 - the engine must not see it
                failed("cap_external_hit")
            return accepted

        return cap_external_hit

    def _take_output(self, original: Any) -> Any:
        ns = self._ns

        # Called for every request and step, and only timed: nothing here can fail.
        def take_output(request: Any, output: Any) -> Any:
            started = perf_counter_ns()
            rows = original(request, output)
            ns[OUTPUT] += perf_counter_ns() - started
            return rows

        return take_output

    def _build_connector_meta(self, original: Any) -> Any:
        ns, failed = self._ns, self.guard.failed

        def build_connector_meta(*args: Any, **kwargs: Any) -> Any:
            started = perf_counter_ns()
            if self._before_step is not None:
                try:
                    self._before_step()
                except Exception:  # noqa: BLE001 - the engine must not see it
                    failed("commands")
            begun = perf_counter_ns()
            metadata = original(*args, **kwargs)
            ended = perf_counter_ns()
            try:
                ns[BUILD] += ended - begun
                ns[PROBE] += begun - started
                self.on_build(metadata, *args, **kwargs)
                # The row has left: what this took belongs to the next one.
                ns[PROBE] += perf_counter_ns() - ended
            except Exception:  # noqa: BLE001 - the engine must not see it
                failed("build_connector_meta")
            return metadata

        return build_connector_meta

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
        one = self._lookups.admitted(request, num_hits)
        external = 0 if one is None else one.accepted
        self._lives.admitted(request.request_id, num_hits, external)

    def on_loading(self, _: object, request: Any, num_tokens: int) -> None:
        """Follow `request_loading`."""
        keys = self._keys(request, num_tokens)
        self._loading[request.request_id] = None
        self._loads.append((request.request_id, keys))
        self._lives.loading(request.request_id)

    def on_finished(self, _: object, request: Any) -> None:
        """Follow `request_finished`, which also comes with a preemption."""
        request_id = request.request_id
        if request_id in self._loading:
            self._loading_ended(request_id)
        if request.is_finished():
            self._lookups.forget(request_id)
            self._sink.emit(
                "requests", self._lives.ended(request, time.time(), self.step)
            )

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

    def on_build(self, metadata: Any, scheduler_output: Any, requests: Any) -> None:
        """Note the step of `metadata` and what came before it."""
        self.step = step = self.step + 1
        if self._clock is not None:
            self._clock.note(metadata, step)
        t = time.time()
        scheduled = scheduler_output.num_scheduled_tokens
        if scheduler_output.scheduled_new_reqs:
            self._lives.scheduled(scheduler_output.scheduled_new_reqs, t)
        if self._loading:
            for request_id in [one for one in self._loading if one in scheduled]:
                self._loading_ended(request_id)
        scribe, view, pool, ns = self.scribe, self.view, self._pool, self._ns
        if scribe is None:
            return
        loads, self._loads = self._loads, []
        admissions, log = self._lookups.take(), pool.take()
        if not scribe.has_room():
            return
        capacity = view.capacity
        if capacity != self._capacity:
            self.tell(
                "capacity",
                f"capacity changed from {self._capacity} to {capacity} blocks",
            )
            self._capacity = capacity
        free, empty = pool.free, pool.unhashed_free
        running, waiting = self._scheduler.get_request_counts()
        row = Steps(
            t,
            step,
            metadata.generation,
            len(scheduled),
            scheduler_output.total_num_scheduled_tokens,
            waiting,
            running,
            # vLLM takes one block off the queue for good, its null block.
            pool.size - 1 - free,
            free - empty,
            empty,
            view.retained(),
            0,
            capacity,
            0,
            0,
            0,
            0,
            0,
            ns[BUILD],
            ns[HIT],
            ns[CAP],
            ns[LOADING],
            ns[OUTPUT],
            ns[FINISHED],
            ns[PROBE],
        )
        ns[:] = (0,) * len(ns)
        note = Note(row, metadata, perf_counter(), admissions, loads, log, None)
        if scribe.wants_snapshot:
            note.snapshot = self._snapshot(loads)
            missed, scribe.missed = scribe.missed, 0
            scribe.wants_snapshot = False
            if missed:
                self.tell(
                    "gap",
                    f"{missed} steps are without rows: whoever makes them got no turn",
                )
        scribe.put(note)

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
