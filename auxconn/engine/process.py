"""A real engine in processes of its own, started and stopped from here.

The child is a supervisor that starts `vllm serve`, says how its start comes along and ends
all of its processes (`auxconn.engine.child`). Nothing here imports vLLM or waits for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Self

from auxconn.children import Child
from auxconn.engine.config import EngineConfig
from auxconn.engine.ending import END_SECONDS
from auxconn.engine.job import Job
from auxconn.lab.workload_specs import WorkloadSpec


class EngineProcess(Child):
    """The processes of a real engine on a CPU.

    Parameters
    ----------
    job
        What to run.
    on_line
        Called with each line that the supervisor and vLLM write, in a thread. Text from
        outside.
    """

    def __init__(
        self, job: Job, on_line: Callable[[str], None] = lambda _: None
    ) -> None:
        super().__init__("auxconn.engine.child")
        self._job = job
        self._on_line = on_line

    @property
    def config(self) -> EngineConfig:
        """Settings the engine was, or will be, started with."""
        return self._job.config

    @property
    def workload_spec(self) -> WorkloadSpec | None:
        """What is sent to its API."""
        return self._job.workload

    @property
    def engine(self) -> str:
        """Its name at the collector."""
        return self._job.engine

    def _line(self) -> str:
        return self._job.to_line()

    def _variables(self) -> dict[str, str]:
        return dict(os.environ)

    def _heard(self, line: str) -> None:
        super()._heard(line)
        self._on_line(line)

    def stop(self, timeout: float = END_SECONDS + 2.0) -> int | None:
        """End the engine and return the supervisor's exit status, as `Child.stop`."""
        return super().stop(timeout)

    def restart(
        self,
        config: EngineConfig | None = None,
        workload_spec: WorkloadSpec | None = None,
    ) -> Self:
        """End the engine if it runs and start it again, with other settings where given.

        Raises
        ------
        ValueError
            When the settings don't fit together; the engine runs on as it is.
        """
        job = self._job
        if config is not None:
            job = replace(job, config=config)
        if workload_spec is not None:
            job = replace(job, workload=workload_spec)
        with self._lock:
            self.stop()
            self._job = job
            return self.start()
