"""The lab in one object: an engine, a workload, the frames of what happens.

    lab = Lab(LabConfig(num_blocks=1024), workloads.grpo())
    lab.run(requests=500)
    lab.set_capacity(200)
    lab.frames.steps()

A lab outlives its engine: `reconfigure` builds another one and hands it the requests that
had not ended. All methods may be called from any thread; what they change is changed
between two steps, also while `start` runs the lab in the background.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from auxconn import facts as names
from auxconn.lab import commands, environment
from auxconn.lab.config import LabConfig
from auxconn.lab.engine import Engine, StepResult
from auxconn.lab.feeder import Feeder
from auxconn.lab.pacer import Pacer
from auxconn.lab.requests import LabRequest
from auxconn.lab.source import LabSource, config_facts
from auxconn.lab.workload_specs import WorkloadSpec
from auxconn.lab.workloads import Workload, grpo
from auxconn.sink import Sink
from auxconn.wire import Fact

if TYPE_CHECKING:
    from auxconn.frames import FrameStore

IDLE_SECONDS = 0.2
"""How long the background thread waits at most before it looks whether it should stop."""


@dataclass(frozen=True)
class RunSummary:
    """What a `run` has done."""

    requests: int
    """Requests that ended."""
    steps: int
    seconds: float

    def __repr__(self) -> str:
        speed = self.requests / self.seconds if self.seconds else 0.0
        return (
            f"{self.requests} requests in {self.steps} steps, {self.seconds:.2f} s "
            f"({speed:.0f} requests/s)"
        )


class Lab:
    """A real vLLM scheduler, worker connector and store, driven by a workload.

    Parameters
    ----------
    config
        Settings of the engine.
    workload
        Any iterable of `LabRequest`, or a workload's specification; endless `grpo` when
        None.
    concurrency
        Requests kept in the engine at once, in place of the workload's own word.
    frames
        Where the records go; a new `FrameStore` when None and there is no `sink`.
    sink
        Where the records go instead of into frames, a `Channel` for instance.
    name
        Engine name in the frames.
    steps_per_s
        Speed of `start`; None is as fast as it goes.
    paused
        Begin paused, for whoever sends `resume` or `step`.
    progress
        Called with the stage of the start (`import`, `engine`, `workload`, `ready`).

    Raises
    ------
    ValueError
        When the engine cannot be built, or the workload's longest request doesn't fit.
    """

    def __init__(
        self,
        config: LabConfig | None = None,
        workload: Iterable[LabRequest] | WorkloadSpec | None = None,
        *,
        concurrency: int | None = None,
        frames: FrameStore | None = None,
        sink: Sink | None = None,
        name: str = "lab",
        steps_per_s: float | None = None,
        paused: bool = False,
        progress: Callable[[str], None] = lambda stage: None,
    ) -> None:
        self.config = LabConfig() if config is None else config
        self.workload: Iterable[LabRequest] = _stream(
            grpo() if workload is None else workload
        )
        self.name = name
        self.pacer = Pacer(steps_per_s)
        if paused:
            self.pacer.pause()
        _check_fit(self.config, self.workload)
        self._frames = frames
        if sink is None:
            sink = self._store_sink()
        self._source = LabSource(sink)
        self._lock = threading.RLock()
        self._concurrency = concurrency
        self._workloads = 0
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._closed = False
        self.error: BaseException | None = None
        """What ended the engine, or the background thread; None while all is well."""
        progress("import")
        environment.load()
        progress("engine")
        self._engine, self._engine_sink, self._attachment = self._build(self.config)
        progress("workload")
        self._feeder = self._feed()
        self.announce()
        self._source.event("workload", repr(self.workload))
        progress("ready")

    def _store_sink(self) -> Sink:
        from auxconn.frames import FrameStore
        from auxconn.sink import StoreSink

        if self._frames is None:
            self._frames = FrameStore()
        return StoreSink(self._frames, self.name)

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
            )
        except BaseException:
            engine.close()
            raise
        return engine, sink, attachment

    def _feed(self) -> Feeder:
        self._workloads += 1
        # A second workload may bear the first one's ids, which may still be running.
        prefix = f"{self._workloads}:" if self._workloads > 1 else ""
        return Feeder(self.workload, self._concurrency, prefix)

    # -- looking --------------------------------------------------------------------------

    @property
    def frames(self) -> FrameStore:
        """The frames of all that happened, also before a `reconfigure`.

        Raises
        ------
        RuntimeError
            When the lab was given a sink of its own.
        """
        if self._frames is None:
            raise RuntimeError(
                "this lab writes to the sink it was given, not to frames; make it without "
                "sink= to have frames"
            )
        return self._frames

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
    def running(self) -> bool:
        """True while the background thread runs."""
        return self._thread is not None and self._thread.is_alive()

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

    def __repr__(self) -> str:
        return f"Lab({'closed' if self._closed else self.describe()})"

    # -- running --------------------------------------------------------------------------

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
                except ValueError:
                    self._feeder.ended(request.id)
                    raise
            try:
                result = self._engine.step()
            except BaseException as error:
                self._fail(error)
                raise
            self._note(result)
            return result

    def run(
        self,
        requests: int | None = None,
        steps: int | None = None,
        *,
        progress: bool | None = None,
    ) -> RunSummary:
        """Run until so many more requests have ended, or so many steps were taken.

        With neither, a bounded workload runs to its end.

        Parameters
        ----------
        requests, steps
            Whichever is reached first ends the run; so does the end of the workload.
        progress
            Show a progress bar; None shows one when somebody is looking and the run takes
            longer than a second.

        Raises
        ------
        ValueError
            When nothing would end the run, or a number is below 1.
        RuntimeError
            When the lab is closed or runs in the background.
        """
        _check_number("requests", requests)
        _check_number("steps", steps)
        bound = getattr(self.workload, "requests", None)
        if requests is None and steps is None and bound is None:
            raise ValueError(
                "the workload has no end: give requests= or steps=, or a workload with "
                "requests="
            )
        if self.running:
            raise RuntimeError("the lab runs in the background; stop() it first")
        from auxconn.lab.bar import progress_bar

        began, ended, taken = time.perf_counter(), 0, 0
        total = requests if requests is not None else (None if steps else bound)
        with progress_bar(
            total or steps, requests is not None or not steps, progress
        ) as (advance):
            while not self.done:
                finished = len(self.step().finished)
                ended += finished
                taken += 1
                advance(finished, 1)
                if requests is not None and ended >= requests:
                    break
                if steps is not None and taken >= steps:
                    break
        return RunSummary(ended, taken, time.perf_counter() - began)

    def start(self, steps_per_s: float | None = None) -> Self:
        """Run in a background thread until `stop`; `steps_per_s` None keeps the speed.

        For notebooks: the cell returns and the frames fill. Does nothing when it runs.
        """
        with self._lock:
            self._check_open()
            if steps_per_s is not None:
                self.pacer.steps_per_s = steps_per_s
            if self.running:
                return self
            self._stopping.clear()
            self._thread = threading.Thread(
                target=self._background, name=f"auxconn-lab-{self.name}", daemon=True
            )
            self._thread.start()
            self.announce()
        return self

    def stop(self) -> Self:
        """End the background thread; the lab can be stepped or started again.

        Raises
        ------
        RuntimeError
            When the thread had ended by itself, because its engine failed.
        """
        thread, self._thread = self._thread, None
        self._stopping.set()
        self.pacer.wake()
        if thread is not None:
            thread.join()
            if self.error is not None and not self._closed:
                raise RuntimeError(f"the engine failed: {self.error!r}") from self.error
        return self

    def _background(self) -> None:
        while not self._stopping.is_set():
            if not self.pacer.wait(IDLE_SECONDS):
                continue
            try:
                # Whoever else wants the lock gets it: a lock is not fair by itself.
                time.sleep(0)
                if self.done:
                    return
                self.step()
            except Exception:  # noqa: BLE001 - kept in `error`, raised by `stop`
                return

    # -- changing -------------------------------------------------------------------------

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
            before = self._engine.set_capacity(blocks)
            self.config = self.config.replace(capacity=blocks)
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
            self.workload, self._concurrency = stream, concurrency
            self._feeder = self._feed()
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
        """End the lab: its thread, its probes, the store's writer. Safe to call twice."""
        self._stopping.set()
        self.pacer.wake()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._release_engine()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- inside ---------------------------------------------------------------------------

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


def _check_number(name: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}={value!r}; give a whole number of at least 1")


def _vllm_version() -> str:
    import vllm

    return str(vllm.__version__)
