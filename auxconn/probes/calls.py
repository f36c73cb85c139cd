"""Seeing and timing each call of a scheduler connector.

A hook calls what it hides exactly once, with what it was given, and passes on the result or
the exception. Between it and the probe stands a `try` that lets nothing out. The time of
each method is summed up until the step's row takes it, that of `take_output` is sampled
(`auxconn.probes.sampled`); what the probe itself takes in the scheduler's thread is summed
up too.
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from time import perf_counter_ns
from typing import Any

from auxconn.probes.guard import Guard
from auxconn.probes.hooks import Hooks
from auxconn.probes.sampled import SampledTime

HIT, CAP, LOADING, FINISHED, PROBE, OTHER = range(6)
"""What nanoseconds are counted for."""

NO_TIME = (0,) * 6

_FOLLOWED: tuple[tuple[str, int, str, tuple[str, ...]], ...] = (
    ("max_cache_hit", HIT, "on_lookup", ("request",)),
    ("request_loading", LOADING, "on_loading", ("request", "num_tokens")),
    ("request_finished", FINISHED, "on_finished", ("request",)),
    ("reset", OTHER, "on_reset", ()),
)
"""Calls of a connector: name, what their time counts for, who is told, parameters."""


class Calls:
    """The hooks of one connector.

    Parameters
    ----------
    follower
        Has the methods that are told of calls, by result and arguments.
    guard
        Where failures go.
    before_step
        Called before metadata are built while there are `orders`.
    orders
        What `before_step` sees to; empty in nearly all steps.
    """

    def __init__(
        self,
        follower: Any,
        guard: Guard,
        before_step: Callable[[], object] | None,
        orders: Sized,
    ) -> None:
        self.ns = [0] * 6
        """Nanoseconds since the last row, by what they count for. Each call that is
        followed adds to those of the probe: while they are 0 there was none."""
        self._follower = follower
        self._failed = guard.failed
        self._before_step = before_step
        self._orders = orders
        self._hooks = Hooks()
        self._capping = False
        self.outputs: Any = None
        """The `SampledTime` of `take_output`, while the hooks are there."""

    def install(self, connector: Any, kv_cache_manager: Any) -> None:
        """Put the hooks in; raises `UnknownConnectorError` when they don't fit."""
        wrap = self._hooks.wrap
        for name, column, follow, parameters in _FOLLOWED:
            wrap(connector, name, self._followed(name, column, follow), parameters)
        wrap(
            connector,
            "cap_external_hit",
            self._cap_external_hit,
            ("request", "num_local", "num_external"),
        )
        self.outputs = SampledTime(connector, "take_output", ("request", "output"))
        self.outputs.install()
        wrap(
            connector,
            "build_connector_meta",
            self._build_connector_meta,
            ("scheduler_output", "requests"),
        )
        wrap(
            kv_cache_manager,
            "record_prefix_cache_stats",
            self._followed("record_prefix_cache_stats", OTHER, "on_admitted"),
            ("request", "num_hits"),
        )

    def remove(self) -> None:
        """Take the hooks away."""
        if self.outputs is not None:
            self.outputs.remove()
            self.outputs = None
        self._hooks.restore()
        self._before_step = None

    def _followed(
        self, name: str, column: int, follow: str
    ) -> Callable[[Any], Callable[..., Any]]:
        ns, failed, follower = self.ns, self._failed, self._follower

        def make(original: Any) -> Callable[..., Any]:
            def hook(*args: Any, **kwargs: Any) -> Any:
                if self._capping:
                    # cap_external_hit looks again: a part of it, and no new look-up.
                    return original(*args, **kwargs)
                started = perf_counter_ns()
                result = original(*args, **kwargs)
                ended = perf_counter_ns()
                try:
                    ns[column] += ended - started
                    getattr(follower, follow)(result, *args, **kwargs)
                    ns[PROBE] += perf_counter_ns() - ended
                except Exception:  # noqa: BLE001 - the engine must not see it
                    failed(name)
                return result

            return hook

        return make

    def _cap_external_hit(self, original: Any) -> Callable[..., Any]:
        ns, failed, follower = self.ns, self._failed, self._follower

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
                follower.on_cap(accepted, *args, **kwargs)
                ns[PROBE] += perf_counter_ns() - ended
            except Exception:  # noqa: BLE001 - the engine must not see it
                failed("cap_external_hit")
            return accepted

        return cap_external_hit

    def _build_connector_meta(self, original: Any) -> Callable[..., Any]:
        failed, follower = self._failed, self._follower

        # Once a step, in the middle of the scheduler, where all of it is cold: every object
        # that is touched costs more than what is done with it.
        def build_connector_meta(scheduler_output: Any, requests: Any) -> Any:
            if self._orders and self._before_step is not None:
                try:
                    self._before_step()
                except Exception:  # noqa: BLE001 - the engine must not see it
                    failed("commands")
            begun = perf_counter_ns()
            metadata = original(scheduler_output, requests)
            ended = perf_counter_ns()
            try:
                follower.on_build(metadata, scheduler_output, begun, ended)
            except Exception:  # noqa: BLE001 - the engine must not see it
                failed("build_connector_meta")
            return metadata

        return build_connector_meta
