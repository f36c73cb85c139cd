"""Tables kept on disk: written while an engine runs, opened and replayed afterwards.

What went wrong is mostly looked for after the run, when the ring that a dashboard reads has
long been overwritten. A recording is a folder of Parquet files, so that pandas, DuckDB and
`Recording` can all read it; `docs/adr/0010-recording.md` says how it is laid out and why.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from auxconn.recording.opened import Recording
    from auxconn.recording.player import Player
    from auxconn.recording.recorder import Recorder

__all__ = ["Player", "Recorder", "Recording"]

_HOMES = {"Player": "player", "Recorder": "recorder", "Recording": "opened"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
