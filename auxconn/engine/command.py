"""What `auxconn engine` and `auxconn demo --engine vllm` do: from words to a running engine."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable
from typing import Any

from auxconn.engine.config import DEMO_WORKLOAD, EngineConfig
from auxconn.engine.job import Job
from auxconn.engine.process import EngineProcess
from auxconn.lab.workload_specs import KINDS, WorkloadSpec

OWN = "auxconn: "
"""What a line of the supervisor itself begins with."""

LAST_LINES = 30
"""Lines of vLLM's that are shown when it did not end as it should."""


def demo_job(workload: str | None, **settings: Any) -> Job:
    """A job for a page: the demo's engine with what is given in place of its settings.

    Parameters
    ----------
    workload
        Name of one; None is the demo's.
    settings
        Of `EngineConfig`; None is the default.

    Raises
    ------
    ValueError
        When a setting cannot be, or a capacity is given.
    """
    if settings.pop("capacity", None) is not None:
        raise ValueError(
            "--capacity is the lab's: vLLM starts with its connector's own; set it on the "
            "page once it runs"
        )
    return Job(config_of(settings), workload=workload_of(workload, ()))


def config_of(settings: dict[str, Any]) -> EngineConfig:
    """Settings by name, None for the default.

    Raises
    ------
    ValueError
        When one of them cannot be.
    """
    return EngineConfig(
        **{name: value for name, value in settings.items() if value is not None}
    )


def workload_of(name: str | None, params: tuple[str, ...]) -> WorkloadSpec:
    """A workload by name, sized for the toy, with parameters such as `prompts=12`.

    Raises
    ------
    ValueError
        When there is no such workload or parameter.
    """
    name = DEMO_WORKLOAD.name if name is None else name
    chosen: dict[str, Any] = {}
    if name in KINDS:
        chosen = {
            key: value for key, value in _SMALL.items() if key in KINDS[name].defaults
        }
    if name == DEMO_WORKLOAD.name:
        chosen = dict(DEMO_WORKLOAD.params)
    for param in params:
        key, equals, text = param.partition("=")
        if not equals:
            raise ValueError(f"{param!r} is no parameter; give one as name=value")
        chosen[key] = _number(text, param)
    return WorkloadSpec(name, chosen)


_SMALL: dict[str, Any] = {
    "concurrency": 4,
    "output_tokens": 16,
    "prompt_tokens": 256,
    "prefix_tokens": 256,
    "suffix_tokens": 48,
    "system_tokens": 64,
    "user_tokens": 64,
    "turns": 4,
    "sessions": 6,
    "prefixes": 12,
    "documents": 16,
}
"""Parameters of workloads for an engine that computes a hundred tokens in a second."""


def _number(text: str, param: str) -> int | float | None:
    if text == "None":
        return None
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{param!r}: {text!r} is no number") from None


def run(job: Job, echo: Callable[[str], None], *, verbose: bool = False) -> int:
    """Run an engine until it ends, the load is over, or Ctrl-C; returns the exit status.

    Parameters
    ----------
    echo
        Takes the lines to show.
    verbose
        Show vLLM's own lines too.
    """
    last: collections.deque[str] = collections.deque(maxlen=LAST_LINES)

    def hear(line: str) -> None:
        own = line.startswith(OWN)
        if own or verbose:
            echo(line)
        if not own:
            last.append(line)

    ended = threading.Event()
    process = EngineProcess(job, hear)
    try:
        process.start()
        while process.alive:
            ended.wait(0.2)
    except KeyboardInterrupt:
        echo(f"{OWN}ending vLLM")
        process.stop()
        return 130
    finally:
        process.stop()
    status = process.returncode or 0
    if status < 0:
        echo(f"{OWN}ended: the supervisor was killed by signal {-status}")
        status = 1
    if status and not verbose:
        echo("--- the end of vLLM's output ---")
        for line in last:
            echo(line)
    return status
