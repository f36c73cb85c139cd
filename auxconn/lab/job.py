"""What a lab's child process is told when it starts: one line of JSON on its input.

On the input and not in the arguments or the environment: it can be long, and the pipe that
carries it stays open for as long as the parent lives, which is how the child knows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from auxconn.address import check_connect, check_engine
from auxconn.checks import check_bool
from auxconn.lab.config import LabConfig
from auxconn.lab.pacer import check_speed
from auxconn.lab.workload_specs import WorkloadSpec
from auxconn.texts import shown


@dataclass(frozen=True)
class Job:
    """A lab to run and where to report.

    Attributes
    ----------
    address
        Where the collector listens.
    engine
        Name the lab has there.

    Raises
    ------
    ValueError
        When something cannot be, or the workload's longest request doesn't fit in the pool.
    """

    config: LabConfig
    workload: WorkloadSpec
    address: str
    engine: str = "lab"
    steps_per_s: float | None = None
    paused: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.config, LabConfig):
            raise ValueError(f"config={shown(self.config)} is no LabConfig")
        check_connect(self.address)
        check_engine(self.engine, 0)
        object.__setattr__(self, "steps_per_s", check_speed(self.steps_per_s))
        check_bool("paused", self.paused)
        prompt, output = self.workload.longest
        self.config.check_request(
            prompt, output, f"workload {self.workload.describe()}"
        )

    def to_line(self) -> str:
        """Write the job as one line."""
        return json.dumps(
            {
                "config": self.config.to_dict(),
                "workload": self.workload.to_dict(),
                "address": self.address,
                "engine": self.engine,
                "steps_per_s": self.steps_per_s,
                "paused": self.paused,
            }
        )

    @classmethod
    def from_line(cls, line: str) -> Job:
        """Read what `to_line` wrote.

        Raises
        ------
        ValueError
            When it isn't JSON, something is missing, or the lab cannot be built.
        """
        try:
            data: Mapping[str, Any] = json.loads(line)
            return cls(
                LabConfig.from_dict(data["config"]),
                WorkloadSpec.from_dict(data["workload"]),
                data["address"],
                data["engine"],
                data["steps_per_s"],
                data["paused"],
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"no job for a lab: {error!r} in {line[:200]!r}") from None
