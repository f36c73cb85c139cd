"""The lab in one object: an engine, a workload, the frames of what happens.

    lab = Lab(LabConfig(num_blocks=1024), workloads.grpo())
    lab.run(requests=500)
    lab.set_capacity(200)
    lab.frames.steps()

All methods may be called from any thread; what they change is changed between two steps,
also while `start` runs the lab in the background.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

from auxconn.checks import check_bool, check_whole
from auxconn.lab.config import LabConfig
from auxconn.lab.pacer import Pacer
from auxconn.lab.requests import LabRequest
from auxconn.lab.session import Session
from auxconn.lab.streams import describe, number_of
from auxconn.lab.workload_specs import WorkloadSpec
from auxconn.lab.workloads import grpo
from auxconn.sink import Sink
from auxconn.texts import shown

if TYPE_CHECKING:
    from auxconn.frames import FrameStore

IDLE_SECONDS = 0.2
"""How long the background thread waits at most before it looks whether it should stop."""

DONE_SECONDS = 0.05
"""How often it looks for work when its workload is over."""


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


class Lab(Session):
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
        if frames is not None and sink is not None:
            raise ValueError("the records go to frames= or to sink=; give one of them")
        self._frames = frames
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        pacer = Pacer(steps_per_s)
        if check_bool("paused", paused):
            pacer.pause()
        super().__init__(
            LabConfig() if config is None else config,
            grpo() if workload is None else workload,
            self._store_sink(name) if sink is None else _check_sink(sink),
            name,
            pacer,
            concurrency,
            progress,
        )

    def _store_sink(self, name: str) -> Sink:
        from auxconn.frames import FrameStore
        from auxconn.sink import StoreSink

        if self._frames is None:
            self._frames = FrameStore()
        if not isinstance(self._frames, FrameStore):
            raise ValueError(f"frames={shown(self._frames)} is no FrameStore")
        return StoreSink(self._frames, name)

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
    def running(self) -> bool:
        """True while the background thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def __repr__(self) -> str:
        return f"Lab({'closed' if self._closed else self.describe()})"

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
            When nothing would end the run, a number is below 1, or a request of the
            workload can never run: it is left out, and the lab can be run on.
        RuntimeError
            When the lab is closed or runs in the background.
        """
        if requests is not None:
            requests = check_whole("requests", requests, 1)
        if steps is not None:
            steps = check_whole("steps", steps, 1)
        bound = number_of(self.workload)
        if requests is None and steps is None and bound is None:
            raise ValueError(
                f"nothing would end the run of {describe(self.workload)}: give requests= "
                "or steps=, or a workload that says how many requests it has (requests=, "
                "or a list)"
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
                    # Another workload may come.
                    self._stopping.wait(DONE_SECONDS)
                else:
                    self.step()
            except ValueError:
                # A request that cannot run was left out, and an event says so.
                continue
            except Exception:  # noqa: BLE001 - kept in `error`, raised by `stop`
                return

    def close(self) -> None:
        """End the lab: its thread, its probes, the store's writer. Safe to call twice."""
        self._stopping.set()
        self.pacer.wake()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        super().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _check_sink(sink: Sink) -> Sink:
    if not isinstance(sink, Sink):
        raise ValueError(
            f"sink={shown(sink)} is no sink, which has emit and hello; a Channel is one"
        )
    return sink
