"""One engine after another under one workload: what a lab is made of.

A session outlives its engine: `reconfigure` builds another one, before it lets go of the one
that runs, and hands it the requests that had not ended. Everything that changes it takes the
same lock as a step, so changes happen between two steps whichever thread they come from.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from typing import Any

from auxconn import facts as names
from auxconn.channel import Channel
from auxconn.checks import check_bool, check_capacity
from auxconn.lab import commands, environment
from auxconn.lab.config import LabConfig
from auxconn.lab.engine import Engine, StepResult
from auxconn.lab.feeder import Feeder
from auxconn.lab.pacer import Pacer
from auxconn.lab.requests import LabRequest, name_of
from auxconn.lab.source import LabSource, config_facts
from auxconn.lab.streams import as_stream, check_fit, describe
from auxconn.lab.watched import Watched
from auxconn.lab.workload_specs import WorkloadSpec
from auxconn.sink import Sink
from auxconn.texts import shown
from auxconn.wire import Fact


class Session:
    """An engine with probes on it, its workload, and the changes it can go through.

    See `Lab` for the parameters.
    """

    def __init__(
        self,
        config: LabConfig,
        workload: Iterable[LabRequest] | WorkloadSpec,
        sink: Sink,
        name: str,
        pacer: Pacer,
        concurrency: int | None,
        progress: Callable[[str], None],
    ) -> None:
        if not isinstance(config, LabConfig):
            raise ValueError(f"config={shown(config)} is no LabConfig")
        self.config = config
        """Settings of the engine there is now."""
        self.workload = as_stream(workload)
        """What it is given."""
        self.name = name
        self.pacer = pacer
        self.error: BaseException | None = None
        """What ended the engine; None while all is well."""
        check_fit(config, self.workload)
        self._sink = sink
        self._source = LabSource(sink)
        self._lock = threading.RLock()
        self._workloads = 1
        self._closed = False
        self._feeder = Feeder(self.workload, concurrency)
        progress("import")
        environment.load()
        progress("engine")
        self._watched = self._build(config)
        progress("workload")
        self.announce()
        self._source.event("workload", describe(self.workload))
        progress("ready")

    # -- looking --------------------------------------------------------------------------

    @property
    def facts(self) -> dict[str, Fact]:
        """What holds of the lab now; names in `auxconn.facts`."""
        return dict(self._source.facts)

    @property
    def commands(self) -> tuple[str, ...]:
        """Names that `command` takes."""
        return commands.NAMES

    @property
    def engine(self) -> Engine:
        """The engine there is now; another one after `reconfigure`."""
        return self._watched.engine

    @property
    def num_steps(self) -> int:
        """Scheduler steps so far, over all engines."""
        return self._source.step

    @property
    def done(self) -> bool:
        """True when the workload is over and the engine has nothing left to do."""
        return self._feeder.done and not self.engine.has_work

    def describe(self) -> str:
        """The lab in a line."""
        config = self.config
        tier = (
            f", KV tier of {config.kv_tier_blocks} blocks"
            if config.kv_tier_blocks
            else ""
        )
        hashed = f" hashed by {config.hash_size}" if config.is_hybrid else ""
        return (
            f"{config.num_blocks} blocks of {config.block_size} tokens{hashed}, capacity "
            f"{self.engine.capacity}{tier}, connector {config.connector}, "
            f"{describe(self.workload)}"
        )

    # -- running and changing -------------------------------------------------------------

    def step(self) -> StepResult:
        """Take one step and return what it brought.

        Raises
        ------
        ValueError
            When a request of the workload can never run; it is left out, and the lab can
            be stepped on. Also when requests keep each other from running for ever; one
            of them is aborted then.
        RuntimeError
            When the lab is closed, or its engine has failed before.
        """
        with self._lock:
            self._check_open()
            try:
                for request in self._feeder.due():
                    self._add(request)
            except ValueError as error:
                self._source.event("error", f"left out: {error}")
                raise
            try:
                result = self.engine.step()
            except BaseException as error:
                self._fail(error)
                raise
            self._note(result)
            if self.engine.stuck:
                self._give_up()
            return result

    def command(self, name: str, /, **args: Any) -> str:
        """Obey a command of the viewer between two steps; returns what was done, in words.

        Raises
        ------
        ValueError
            When the command or its arguments are refused; nothing has changed then.
        """
        with self._lock:
            self._check_open()
            return commands.apply(self, name, args)

    def set_capacity(self, blocks: int) -> int:
        """Set how many KV blocks the connector retains; returns what it was.

        What is over a lowered capacity and may be released is, with the next step.

        Raises
        ------
        CapacityError
            When `blocks` isn't a whole number of at least 1.
        """
        with self._lock:
            self._check_open()
            # What the settings refuse never reaches the engine.
            config = self.config.replace(capacity=check_capacity(blocks))
            before = self.engine.set_capacity(blocks)
            self.config = config
            # The scheduler's probe sees it with the next step, and writes the event.
            self.announce()
            return before

    def reconfigure(self, /, **changes: Any) -> LabConfig:
        """Build the engine anew with other settings, on the same workload.

        The requests that had not ended start again in the new engine; the pool, the KV
        tier and the store are empty. A change of the capacity alone needs no new engine.

        Parameters
        ----------
        changes
            Settings of `LabConfig`.

        Raises
        ------
        ValueError
            When a setting is unknown, the engine cannot be built or the workload doesn't
            fit in it; the engine that runs stays as it is.
        """
        with self._lock:
            self._check_open()
            wanted = self.config.replace(**changes)
            check_fit(wanted, self.workload)
            for request in self._feeder.active():
                wanted.check_request(
                    len(request.prompt), request.max_tokens, f"request {request.id!r}"
                )
            differing = [
                name
                for name, value in wanted.to_dict().items()
                if value != getattr(self.config, name)
            ]
            if not differing:
                return self.config
            if differing == ["capacity"]:
                self.set_capacity(
                    wanted.default_capacity
                    if wanted.capacity is None
                    else wanted.capacity
                )
                self.config = wanted
                return self.config
            words = ", ".join(
                f"{name} {_shown(self.config, name)} -> {_shown(wanted, name)}"
                for name in differing
            )
            fresh = self._build(wanted)
            self._release_engine()
            self._watched = fresh
            self.config = wanted
            again = self._feeder.num_active
            self._feeder.restart_active()
            self._source.event(
                "reconfigured",
                f"{words}; new engine, {again} requests start again",
            )
            self.announce()
            return self.config

    def set_workload(
        self,
        workload: Iterable[LabRequest] | WorkloadSpec,
        concurrency: int | None = None,
    ) -> None:
        """Feed another workload from the next step on; what runs is run to its end.

        Raises
        ------
        ValueError
            When it is no workload, or its longest request doesn't fit in the pool; the
            one there is goes on.
        """
        with self._lock:
            self._check_open()
            stream = as_stream(workload)
            check_fit(self.config, stream)
            number = self._workloads + 1
            # It may bear the ids of a former workload, which may still be running.
            self._feeder = Feeder(
                stream, concurrency, f"{number}:", self._feeder.active()
            )
            self.workload, self._workloads = stream, number
            self._source.event("workload", describe(stream))
            self.announce()

    def reset_prefix_cache(self, *, kv_tier: bool = False) -> None:
        """Drop the prefix cache, and the KV tier too if asked; running requests start anew.

        Steps may be taken for it: vLLM cannot reset while a request loads its KV.

        Raises
        ------
        ValueError
            When a load does not land; nothing was dropped then.
        """
        check_bool("kv_tier", kv_tier)
        with self._lock:
            self._check_open()
            try:
                result = self.engine.reset_prefix_cache(kv_tier=kv_tier)
            except ValueError:
                raise
            except BaseException as error:
                self._fail(error)
                raise
            self._note(result)

    def abort(self, request_id: str) -> bool:
        """Abort a request; False when there is no such request in the engine."""
        request_id = name_of("request", request_id)
        with self._lock:
            self._check_open()
            found = self.engine.abort(request_id)
            if found:
                self._feeder.ended(request_id)
            return found

    def mark(self, text: str) -> None:
        """Write a mark into `events`: where a stretch of an experiment begins."""
        self._source.event("mark", str(text))

    def close(self) -> None:
        """End the session: its probes, the store's writer. Safe to call twice."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._release_engine()

    # -- inside ---------------------------------------------------------------------------

    def _build(self, config: LabConfig) -> Watched:
        # A channel's reader is elsewhere: rows can be made beside the engine's thread.
        # Frames of this process are complete after each step.
        deferred = isinstance(self._sink, Channel)
        return Watched(config, self._source.engine_sink(), self.name, deferred=deferred)

    def _add(self, request: LabRequest) -> None:
        try:
            self.engine.add(request)
        except Exception as error:
            # Whoever waits for the request's end must not wait for ever.
            self._feeder.ended(request.id)
            if isinstance(error, ValueError):
                raise
            # vLLM's own refusals.
            raise ValueError(
                f"request {shown(request.id)} was refused: {type(error).__name__}: {error}"
            ) from error

    def _give_up(self) -> None:
        request_id = self.engine.give_up()
        self._feeder.ended(request_id)
        text = (
            f"request {shown(request_id)} was aborted: the requests whose KV has been loaded "
            f"hold the {self.config.num_blocks} blocks of the pool, and none of them can "
            "run with those it has; raise num_blocks, or lower the concurrency"
        )
        self._source.event("error", text)
        raise ValueError(text)

    def _release_engine(self) -> None:
        try:
            self._watched.close()
        except Exception:
            # A store that had failed says so again when it is closed.
            if self.error is None:
                raise

    def _note(self, result: StepResult) -> None:
        for request_id in result.finished:
            self._feeder.ended(request_id)

    def _fail(self, error: BaseException) -> None:
        self.error = error
        self._source.event("error", f"{type(error).__name__}: {error}")

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the lab is closed; make another one")
        if self.error is not None:
            raise RuntimeError(
                f"the engine failed: {self.error!r}; make another lab"
            ) from self.error

    def announce(self) -> None:
        """Announce the facts, as far as they have changed."""
        self._source.announce(
            self._watched.sink,
            {
                **config_facts(self.config),
                names.VLLM_VERSION: _vllm_version(),
                names.CAPACITY: self.engine.capacity,
                names.WORKLOAD: describe(self.workload),
                names.STEPS_PER_S: self.pacer.steps_per_s,
                names.PAUSED: self.pacer.paused,
                names.PID: os.getpid(),
            },
            commands.NAMES,
        )


def _shown(config: LabConfig, name: str) -> object:
    """A setting as it takes effect: None says nothing to who reads the events."""
    if name == "hash_block_size":
        return config.hash_size
    return getattr(config, name)


def _vllm_version() -> str:
    import vllm

    return str(vllm.__version__)
