"""The what-if lab: vLLM's real scheduler, worker connector and store, with no model.

Names are resolved when they are asked for: the viewer's side imports settings and workloads
from here and must not load vLLM.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from auxconn.lab import workloads
    from auxconn.lab.config import LabConfig
    from auxconn.lab.lab import Lab
    from auxconn.lab.process import LabProcess
    from auxconn.lab.requests import LabRequest
    from auxconn.lab.workload_specs import WorkloadSpec

__all__ = ["Lab", "LabConfig", "LabProcess", "LabRequest", "WorkloadSpec", "workloads"]

_HOMES = {
    "Lab": "auxconn.lab.lab",
    "LabConfig": "auxconn.lab.config",
    "LabProcess": "auxconn.lab.process",
    "LabRequest": "auxconn.lab.requests",
    "WorkloadSpec": "auxconn.lab.workload_specs",
}


def __getattr__(name: str) -> Any:
    if name == "workloads":
        return import_module("auxconn.lab.workloads")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(_HOMES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
