"""A lab in a process of its own, started and stopped from here.

The viewer must not import vLLM and must go on drawing when an engine dies, so its lab runs
in a child that connects out to the viewer's collector like any other engine. Nothing here
waits for the child to be ready: the collector shows how its start comes along.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections import deque
from dataclasses import replace
from types import TracebackType
from typing import IO, TYPE_CHECKING, Self

from auxconn.lab import environment
from auxconn.lab.config import LabConfig
from auxconn.lab.job import Job
from auxconn.lab.workload_specs import WorkloadSpec
from auxconn.texts import shown

if TYPE_CHECKING:
    from auxconn.lab.workloads import Workload

TAIL_LINES = 200
"""Lines of the child's output that are kept for error reports."""

STOP_SECONDS = 8.0
"""How long `stop` waits for an orderly end; the child gives itself less."""


class LabProcess:
    """The child process of a lab.

    Parameters
    ----------
    config, workload_spec
        The lab.
    address
        Collector the child connects to.
    engine
        Name of the lab there.
    steps_per_s
        Speed it starts with; None is as fast as it goes.
    paused
        Start without taking steps.

    Raises
    ------
    ValueError
        When a setting cannot be, or the workload's longest request doesn't fit in the pool.
    """

    def __init__(
        self,
        config: LabConfig,
        workload_spec: WorkloadSpec | Workload,
        address: str,
        engine: str = "lab",
        *,
        steps_per_s: float | None = 50.0,
        paused: bool = False,
    ) -> None:
        spec = _spec(workload_spec)
        self._job = Job(config, spec, address, engine, steps_per_s, paused)
        self._process: subprocess.Popen[str] | None = None
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._reader: threading.Thread | None = None
        self._lock = threading.RLock()

    @property
    def config(self) -> LabConfig:
        """Settings the child was, or will be, started with."""
        return self._job.config

    @property
    def workload_spec(self) -> WorkloadSpec:
        """Workload the child was, or will be, started with."""
        return self._job.workload

    @property
    def alive(self) -> bool:
        """True while the child runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def returncode(self) -> int | None:
        """Exit status of the child; None while it runs, or before it ever did."""
        return None if self._process is None else self._process.poll()

    @property
    def pid(self) -> int | None:
        """Process id of the child; None before it ever ran."""
        return None if self._process is None else self._process.pid

    @property
    def output(self) -> str:
        """End of what the child has written, for error reports. Text from outside."""
        return "\n".join(list(self._tail))

    def start(self) -> Self:
        """Start the child and return at once; does nothing while it runs."""
        with self._lock:
            if self.alive:
                return self
            self._reap()
            self._tail.clear()
            variables = dict(os.environ)
            environment.prepare(variables)
            # vLLM walks sets of request ids here and there.
            variables["PYTHONHASHSEED"] = "0"
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-m", "auxconn.lab.child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env=variables,
                # Ctrl-C in the terminal is for the parent, which ends the child itself.
                start_new_session=True,
            )
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(self._job.to_line() + "\n")
                self._process.stdin.flush()
            self._reader = threading.Thread(
                target=_keep,
                args=(self._process.stdout, self._tail),
                name="auxconn-lab-output",
                daemon=True,
            )
            self._reader.start()
        return self

    def stop(self, timeout: float = STOP_SECONDS) -> int | None:
        """End the child and return its exit status; None when it never ran.

        One that hasn't ended after `timeout` seconds is killed.
        """
        with self._lock:
            process = self._process
            if process is None:
                return None
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(timeout)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
            self._reap()
            return process.returncode

    def restart(
        self,
        config: LabConfig | None = None,
        workload_spec: WorkloadSpec | Workload | None = None,
        *,
        steps_per_s: float | None = None,
    ) -> Self:
        """End the child if it runs and start it again, with other settings where given.

        Raises
        ------
        ValueError
            When the settings don't fit together; the child runs on as it is.
        """
        job = self._job
        if config is not None:
            job = replace(job, config=config)
        if workload_spec is not None:
            job = replace(job, workload=_spec(workload_spec))
        if steps_per_s is not None:
            job = replace(job, steps_per_s=steps_per_s)
        with self._lock:
            self.stop()
            self._job = job
            return self.start()

    def _reap(self) -> None:
        """Close what is left of a child that has ended."""
        process, reader = self._process, self._reader
        if process is None:
            return
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError, OSError):
                process.stdin.close()
        if reader is not None:
            # A grandchild could hold the pipe open; its output is of no interest.
            reader.join(1.0)
        if process.stdout is not None and (reader is None or not reader.is_alive()):
            process.stdout.close()
        self._reader = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def _spec(workload: WorkloadSpec | Workload) -> WorkloadSpec:
    spec = getattr(workload, "spec", workload)
    if not isinstance(spec, WorkloadSpec):
        raise ValueError(
            f"workload_spec={shown(workload)} cannot be sent to another process; give one of "
            "auxconn.lab.workloads, such as workloads.grpo(), or a WorkloadSpec"
        )
    return spec


def _keep(lines: IO[str], tail: deque[str]) -> None:
    for line in lines:
        tail.append(line.rstrip("\n")[:2000])
