"""A workload as it is given to a lab: anything that can be iterated over, or its data."""

from __future__ import annotations

from collections.abc import Iterable, Sized
from typing import Any

from auxconn.lab.config import LabConfig
from auxconn.lab.requests import LabRequest
from auxconn.lab.workload_specs import WorkloadSpec
from auxconn.lab.workloads import Workload
from auxconn.texts import shown


def as_stream(workload: Any) -> Iterable[LabRequest]:
    """Return what can be iterated over.

    Raises
    ------
    ValueError
        When it is nothing that requests can come from.
    """
    if isinstance(workload, WorkloadSpec):
        return workload.build()
    if isinstance(workload, str | bytes) or not isinstance(workload, Iterable):
        raise ValueError(
            f"workload={shown(workload)} is no workload; give one of auxconn.lab.workloads, "
            "such as workloads.grpo(), or a list of LabRequest"
        )
    return workload


def describe(workload: Iterable[LabRequest]) -> str:
    """A workload in a few words, however long it is."""
    if isinstance(workload, Workload):
        return repr(workload)
    kind = type(workload).__name__
    if isinstance(workload, Sized):
        return f"{kind} of {len(workload)} request{'' if len(workload) == 1 else 's'}"
    return kind


def number_of(workload: Iterable[LabRequest]) -> int | None:
    """How many requests it has; None when that is not known, or it has no end."""
    if isinstance(workload, Workload):
        return workload.requests
    return len(workload) if isinstance(workload, Sized) else None


def check_fit(config: LabConfig, workload: Iterable[LabRequest]) -> None:
    """Refuse a workload whose longest request does not fit in the pool.

    One that does not say its longest is refused request by request.

    Raises
    ------
    ValueError
        When it doesn't fit.
    """
    if isinstance(workload, Workload):
        prompt, output = workload.longest
        config.check_request(prompt, output, f"workload {workload!r}")
