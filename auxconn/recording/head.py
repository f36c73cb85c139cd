"""`recording.json`: what a folder is, who wrote it, and whether it ended in order."""

from __future__ import annotations

import importlib.metadata
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from auxconn.recording.layout import FORMAT, Anchor, RecordingError
from auxconn.recording.parts import write_whole
from auxconn.records import SCHEMA_VERSION

HEAD = "recording.json"
"""File that says what the folder is."""


class Head(msgspec.Struct, frozen=True):
    """What `recording.json` says."""

    format: int
    schema: int
    auxconn: str
    """Version of auxconn that wrote it."""
    anchor: Anchor
    started: str
    """The anchor's wall clock, as people read it."""
    flush_s: float
    ended_s: float | None = None
    """Clock of the recording at its end; None when it was cut off or still runs."""


def begin(folder: Path, anchor: Anchor, flush_seconds: float) -> Head:
    """Make the folder a recording's.

    Raises
    ------
    RecordingError
        When it is one already, or no folder.
    OSError
        When it cannot be written to.
    """
    head = Head(
        format=FORMAT,
        schema=SCHEMA_VERSION,
        auxconn=importlib.metadata.version("auxconn"),
        anchor=anchor,
        started=datetime.fromtimestamp(anchor.wall_s, UTC).isoformat(),
        flush_s=flush_seconds,
    )
    if folder.exists() and not folder.is_dir():
        raise RecordingError(f"{folder} is a file: give a folder to record into")
    folder.mkdir(parents=True, exist_ok=True)
    taken = RecordingError(
        f"{folder} holds a recording already: give another folder, or move it away"
    )
    if any(folder.glob("*-*.parquet")):
        raise taken
    try:
        with (folder / HEAD).open("xb") as file:
            file.write(_json(head))
    except FileExistsError:
        raise taken from None
    return head


def end(folder: Path, head: Head, at: float) -> None:
    """Note that the recording ended in order. `OSError` as the disk says it."""
    ended = msgspec.structs.replace(head, ended_s=at)
    write_whole(folder / HEAD, _json(ended))


def read(folder: Path) -> tuple[Head | None, str]:
    """What the file says, and what is wrong with it, in words; empty when nothing is."""
    try:
        head = msgspec.json.decode((folder / HEAD).read_bytes(), type=Head)
    except FileNotFoundError:
        return None, f"{HEAD} is missing; the parts say what is needed"
    except (OSError, ValueError) as problem:
        return None, f"{HEAD} is damaged ({problem}); the parts say what is needed"
    if head.format <= FORMAT:
        return head, ""
    return head, (
        f"a newer auxconn ({head.auxconn}) laid out this folder: what this one knows of it "
        "is read; upgrade auxconn for the rest"
    )


def _json(head: Head) -> bytes:
    return msgspec.json.format(msgspec.json.encode(head), indent=2) + b"\n"
