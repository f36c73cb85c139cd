"""A lab in a process of its own, started and stopped from here.

The viewer must not import vLLM and must go on drawing when an engine dies, so its lab runs
in a child that connects out to the viewer's collector like any other engine. Nothing here
waits for the child to be ready: the collector shows how its start comes along.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from auxconn.children import Child
from auxconn.lab import environment
from auxconn.lab.config import LabConfig
from auxconn.lab.job import Job
from auxconn.lab.workload_specs import WorkloadSpec
from auxconn.texts import shown

if TYPE_CHECKING:
    from auxconn.lab.workloads import Workload


class LabProcess(Child):
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
        super().__init__("auxconn.lab.child")
        spec = _spec(workload_spec)
        self._job = Job(config, spec, address, engine, steps_per_s, paused)

    @property
    def config(self) -> LabConfig:
        """Settings the child was, or will be, started with."""
        return self._job.config

    @property
    def workload_spec(self) -> WorkloadSpec:
        """Workload the child was, or will be, started with."""
        return self._job.workload

    def _line(self) -> str:
        return self._job.to_line()

    def _variables(self) -> dict[str, str]:
        variables = dict(os.environ)
        environment.prepare(variables)
        # vLLM walks sets of request ids here and there.
        variables["PYTHONHASHSEED"] = "0"
        return variables

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


def _spec(workload: WorkloadSpec | Workload) -> WorkloadSpec:
    spec = getattr(workload, "spec", workload)
    if not isinstance(spec, WorkloadSpec):
        raise ValueError(
            f"workload_spec={shown(workload)} cannot be sent to another process; give one of "
            "auxconn.lab.workloads, such as workloads.grpo(), or a WorkloadSpec"
        )
    return spec
