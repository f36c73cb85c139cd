"""What an engine's supervisor is told when it starts: one line of JSON on its input."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from auxconn.address import check_connect, check_engine
from auxconn.checks import check_bool, check_whole
from auxconn.engine.config import EngineConfig
from auxconn.lab.workload_specs import WorkloadSpec
from auxconn.texts import shown


@dataclass(frozen=True)
class Job:
    """An engine to run, where to report, and what to send to it.

    Attributes
    ----------
    address
        Where the collector listens; empty when nobody watches.
    engine
        Name the engine has there.
    port
        Of the HTTP API; 0 takes a free one.
    workload
        What is sent to the API; None sends nothing.
    once
        End the engine when the workload is over.
    answers
        File that gets a line of JSON for each answer; empty for none.

    Raises
    ------
    ValueError
        When something cannot be, or the workload's longest request doesn't fit.
    """

    config: EngineConfig
    address: str = ""
    engine: str = "vllm"
    port: int = 0
    workload: WorkloadSpec | None = None
    once: bool = False
    answers: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.config, EngineConfig):
            raise ValueError(f"config={shown(self.config)} is no EngineConfig")
        if self.address:
            check_connect(self.address)
        check_engine(self.engine, 0)
        object.__setattr__(self, "port", check_whole("port", self.port, 0, 65_535))
        check_bool("once", self.once)
        if self.workload is not None:
            self.config.check_workload(self.workload)
        elif self.once or self.answers:
            raise ValueError(
                "without a workload there is no end and there are no answers"
            )

    def to_line(self) -> str:
        """Write the job as one line."""
        workload = None if self.workload is None else self.workload.to_dict()
        return json.dumps({**asdict(self), "workload": workload})

    @classmethod
    def from_line(cls, line: str) -> Job:
        """Read what `to_line` wrote.

        Raises
        ------
        ValueError
            When it isn't JSON, something is missing, or it cannot be.
        """
        try:
            data: dict[str, Any] = json.loads(line)
            workload = data["workload"]
            return cls(
                **{
                    **data,
                    "config": EngineConfig.from_dict(data["config"]),
                    "workload": workload and WorkloadSpec.from_dict(workload),
                }
            )
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"no job for an engine: {error!r} in {line[:200]!r}"
            ) from None
