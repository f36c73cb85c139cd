"""`auxconn record`: a collector that writes what comes, and shows nothing."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

from auxconn.listening import Listening
from auxconn.recording.opened import Recording, RecordingWarning
from auxconn.recording.recorder import Recorder
from auxconn.signalled import Signalled

LOOK_SECONDS = 0.2


def record(
    folder: Path,
    listening: Listening,
    flush_seconds: float,
    echo: Callable[[str], None],
) -> None:
    """Record until a signal ends it, and say what was recorded.

    Raises what `Listening.collector` and `Recorder` raise.
    """
    with Signalled() as ended, listening.collector() as collector:
        recorder = Recorder(collector, folder, flush_seconds=flush_seconds)
        try:
            echo(f"Engines connect to {collector.address}")
            echo(f"Recording into {folder}  (Ctrl-C ends it)")
            _watch(recorder, ended, echo)
        finally:
            # The collector's last words are kept too.
            collector.close()
            recorder.close()
    if recorder.status.problem:
        echo(recorder.status.problem)
    echo(f"{open_quietly(folder)!r}")


def open_quietly(folder: Path) -> Recording:
    """The recording in a folder; its problems are in what it shows, not in warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecordingWarning)
        return Recording(folder)


def _watch(recorder: Recorder, ended: Signalled, echo: Callable[[str], None]) -> None:
    """Wait for the end; say when the disk takes nothing, and when it does again."""
    told = ""
    while not ended.wait(LOOK_SECONDS):
        problem = recorder.status.problem
        if problem != told:
            echo(problem or "writing goes on")
            told = problem
