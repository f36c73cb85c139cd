"""One engine after another under one workload: what a lab is made of.

A session outlives its engine: `reconfigure` builds another one, before it lets go of the one
that runs, and hands it the requests that had not ended. Everything that changes it takes the
same lock as a step, so changes happen between two steps whichever thread they come from.
"""

from __future__ import annotations

import operator
import os
import threading
from collections.abc import Callable, Iterable
from typing import Any

from auxconn import facts as names
from auxconn.channel import Channel
from auxconn.lab import commands, environment
from auxconn.lab.config import LabConfig
from auxconn.lab.engine import Engine, StepResult
from auxconn.lab.feeder import Feeder, check_concurrency
from auxconn.lab.pacer import Pacer
from auxconn.lab.requests import LabRequest
from auxconn.lab.source import LabSource, config_facts
from auxconn.lab.workload_specs import WorkloadSpec
from auxconn.lab.workloads import Workload
from auxconn.sink import Sink
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
        self.config = config
        """Settings of the engine there is now."""
        self.workload = _stream(workload)
        """What it is given."""
        self.name = name
        self.pacer = pacer
        self.error: BaseException | None = None
        """What ended the engine; None while all is well."""
        _check_fit(config, self.workload)
        self._sink = sink
        self._source = LabSource(sink)
        self._lock = threading.RLock()
        self._concurrency = concurrency
        self._workloads = 0
        self._closed = False
        progress("import")
        environment.load()
        progress("engine")
        self._engine, self._engine_sink, self._attachment = self._build(config)
        progress("workload")
        self._feeder = self._feed([])
        self.announce()
        self._source.event("workload", repr(self.workload))
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
        return self._engine

    @property
    def num_steps(self) -> int:
        """Scheduler steps so far, over all engines."""
        return self._source.step

    @property
    def done(self) -> bool:
        """True when the workload is over and the engine has nothing left to do."""
        return self._feeder.done and not self._engine.has_work

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
            f"{self._engine.capacity}{tier}, connector {config.connector}, "
            f"{self.workload!r}"
        )

    # -- running and changing -------------------------------------------------------------

    def step(self) -> StepResult:
        """Take one step and return what it brought.

        Raises
        ------
        ValueError
            When a request of the workload can never run; it is left out, and the lab can
            be stepped on.
        RuntimeError
            When the lab is closed, or its engine has failed before.
        """
        with self._lock:
            self._check_open()
            for request in self._feeder.due():
                try:
                    self._engine.add(request)
                except Exception as error:
                    # vLLM's own refusals are no ValueErrors; whoever waits for the
                    # request's end must not wait for ever.
                    self._feeder.ended(request.id)
                    self._source.event("error", f"left out: {error}")
                    if isinstance(error, ValueError):
                        raise
                    raise ValueError(
                        f"request {request.id!r} was refused: "
                        f"{type(error).__name__}: {error}"
                    ) from error
            try:
                result = self._engine.step()
            except BaseException as error:
                self._fail(error)
                raise
            self._note(result)
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
        ValueError
            When `blocks` isn't a whole number of at least 1.
        """
        with self._lock:
            self._check_open()
            if not isinstance(blocks, bool) and hasattr(blocks, "__index__"):
                blocks = operator.index(blocks)  # numpy's whole numbers are ones too
            # What the settings refuse never reaches the engine.
            config = self.config.replace(capacity=blocks)
            before = self._engine.set_capacity(blocks)
            self.config = config
            # The scheduler's probe sees it with the next step, and writes the event.
            self.announce()
            return before

    def reconfigure(self, **changes: Any) -> LabConfig:
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
            _check_fit(wanted, self.workload)
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
            self._engine, self._engine_sink, self._attachment = fresh
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
            When its longest request doesn't fit in the pool.
        """
        with self._lock:
            self._check_open()
            stream = _stream(workload)
            _check_fit(self.config, stream)
            check_concurrency(concurrency)
            self.workload, self._concurrency = stream, concurrency
            self._feeder = self._feed(self._feeder.active())
            self._source.event("workload", repr(stream))
            self.announce()

    def reset_prefix_cache(self, *, kv_tier: bool = False) -> None:
        """Drop the prefix cache, and the KV tier too if asked; running requests start anew.

        Steps may be taken for it: vLLM cannot reset while a request loads its KV.

        Raises
        ------
        ValueError
            When a load does not land; nothing was dropped then.
        """
        with self._lock:
            self._check_open()
            try:
                result = self._engine.reset_prefix_cache(kv_tier=kv_tier)
            except ValueError:
                raise
            except BaseException as error:
                self._fail(error)
                raise
            self._note(result)

    def abort(self, request_id: str) -> bool:
        """Abort a request; False when there is no such request in the engine."""
        with self._lock:
            self._check_open()
            found = self._engine.abort(request_id)
            if found:
                self._feeder.ended(request_id)
            return found

    def mark(self, text: str) -> None:
        """Write a mark into `events`: where a stretch of an experiment begins."""
        self._source.event("mark", text)

    def close(self) -> None:
        """End the session: its probes, the store's writer. Safe to call twice."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._release_engine()

    # -- inside ---------------------------------------------------------------------------

    def _build(self, config: LabConfig) -> tuple[Engine, Sink, Any]:
        """Build an engine and put the probes on it."""
        from auxconn.attach import attach

        try:
            engine = Engine(config)
        except ValueError:
            raise
        except Exception as error:
            raise ValueError(
                f"vLLM could not build this engine: {type(error).__name__}: {error}"
            ) from error
        sink = self._source.engine_sink()
        try:
            attachment = attach(
                scheduler=engine.scheduler,
                worker=engine.worker,
                to=sink,
                engine=self.name,
                # A channel's reader is elsewhere: rows can be made beside the engine's
                # thread. Frames of this process are complete after each step.
                deferred=isinstance(self._sink, Channel),
            )
        except BaseException:
            engine.close()
            raise
        return engine, sink, attachment

    def _feed(self, running: list[LabRequest]) -> Feeder:
        self._workloads += 1
        # A second workload may bear the first one's ids, which may still be running.
        prefix = f"{self._workloads}:" if self._workloads > 1 else ""
        return Feeder(self.workload, self._concurrency, prefix, running)

    def _release_engine(self) -> None:
        self._attachment.detach()
        try:
            self._engine.close()
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
        workload = self.workload
        self._source.announce(
            self._engine_sink,
            {
                **config_facts(self.config),
                names.VLLM_VERSION: _vllm_version(),
                names.CAPACITY: self._engine.capacity,
                names.WORKLOAD: (
                    repr(workload)
                    if isinstance(workload, Workload)
                    else type(workload).__name__
                ),
                names.STEPS_PER_S: self.pacer.steps_per_s,
                names.PAUSED: self.pacer.paused,
                names.PID: os.getpid(),
            },
            commands.NAMES,
        )


def _stream(workload: Iterable[LabRequest] | WorkloadSpec) -> Iterable[LabRequest]:
    return workload.build() if isinstance(workload, WorkloadSpec) else workload


def _check_fit(config: LabConfig, workload: Iterable[LabRequest]) -> None:
    longest: tuple[int, int] | None = getattr(workload, "longest", None)
    if longest is not None:
        prompt, output = longest
        config.check_request(prompt, output, f"workload {workload!r}")


def _shown(config: LabConfig, name: str) -> object:
    """A setting as it takes effect: None says nothing to who reads the events."""
    if name == "hash_block_size":
        return config.hash_size
    return getattr(config, name)


def _vllm_version() -> str:
    import vllm

    return str(vllm.__version__)
