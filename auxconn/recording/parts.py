"""One file of a recording: written whole or not at all, and looked at before it is believed.

A recorder is killed, a disk fills up, a cable is pulled: a file that is written in place is
then neither the old one nor the new. So a part is made in memory, written beside its place,
forced to the disk, and renamed; whoever opens the folder sees only whole files.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from auxconn.recording.layout import FOOTER, FORMAT, Footer, arrow, schema_of
from auxconn.records import SCHEMA_VERSION

_decode = msgspec.json.Decoder(Footer).decode
_encode = msgspec.json.Encoder().encode


class PartError(Exception):
    """A part that cannot be used; the text says why, in words for the user."""


class Part(msgspec.Struct, frozen=True):
    """A part that can be read."""

    path: Path
    footer: Footer
    note: str = ""
    """What of it is left out, in words; empty when nothing is."""


def name_of(table: str, number: int) -> str:
    """Name of the file of a part."""
    return f"{table}-{number:06d}.parquet"


def number_of(path: Path) -> int:
    """Number of a part by its name; 0 for a file that is none."""
    text = path.stem.rpartition("-")[2]
    return int(text) if text.isascii() and text.isdigit() else 0


def write_whole(path: Path, data: Any) -> None:
    """Put `data` at `path`, whole, or raise `OSError` and leave what was there."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise


def write_part(folder: Path, footer: Footer, chunks: Sequence[Any]) -> int:
    """Write a part; return its bytes. `OSError` as the disk says it."""
    pa, pq = arrow()
    schema = schema_of(footer.table)
    table = pa.concat_tables(chunks) if chunks else schema.empty_table()
    table = table.replace_schema_metadata({FOOTER: _encode(footer)})
    sink = pa.BufferOutputStream()
    # Checksums: a bit that fell over on the disk must not be read as a number.
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    data = sink.getvalue()
    write_whole(folder / name_of(footer.table, footer.part), memoryview(data))
    return int(data.size)


def look_at(path: Path, table: str) -> Part:
    """Read a part's footer, and see whether its rows can be read.

    Raises
    ------
    PartError
        When it is damaged, or of a newer auxconn and lacks what this one needs.
    """
    _, pq = arrow()
    newer = ""
    try:
        found = pq.read_metadata(path)
        text = (found.metadata or {})[FOOTER]
        newer = _newer(msgspec.json.decode(text, type=_Version))
        footer = _decode(text)
    except KeyError:
        raise PartError(f"{path.name} is no part of a recording of auxconn") from None
    except (OSError, ValueError, TypeError) as problem:
        if isinstance(problem, msgspec.ValidationError) and newer:
            raise PartError(f"{path.name} cannot be read: {newer}") from None
        raise PartError(f"{path.name} is damaged: {_short(problem)}") from None
    if footer.table != table or footer.rows > found.num_rows:
        raise PartError(f"{path.name} is damaged: its footer is of another file")
    here = {field.name: field.type for field in found.schema.to_arrow_schema()}
    wanted = {field.name: field.type for field in schema_of(table)}
    missing = [name for name, kind in wanted.items() if here.get(name) != kind]
    if missing:
        why = (
            newer
            or f"it is of schema {footer.schema}, this auxconn reads {SCHEMA_VERSION}"
        )
        raise PartError(
            f"{path.name} cannot be read: {why}; it lacks {', '.join(missing)}"
        )
    more = [name for name in here if name not in wanted]
    note = f"{newer}; left out: {', '.join(more)}" if more else ""
    return Part(path, footer, note)


def read_part(part: Part, columns: Sequence[str]) -> Any:
    """Read columns of a part as an Arrow table: the rows that its footer named.

    A recording that is still being written puts a longer part in its place, whose first rows
    are the same. Raises `PartError` when they cannot be read.
    """
    _, pq = arrow()
    try:
        # `ParquetFile` reads this one file; `read_table` would look for others around it.
        with pq.ParquetFile(part.path, page_checksum_verification=True) as file:
            return file.read(columns=list(columns)).slice(0, part.footer.rows)
    except (OSError, ValueError) as problem:
        raise PartError(f"{part.path.name} is damaged: {_short(problem)}") from None


class _Version(msgspec.Struct):
    format: int
    schema: int


def _newer(written: _Version) -> str:
    """In words, that a newer auxconn wrote it; empty when none did."""
    if written.format <= FORMAT and written.schema <= SCHEMA_VERSION:
        return ""
    return (
        f"a newer auxconn wrote it (schema {written.schema}, format {written.format}; this "
        f"one reads {SCHEMA_VERSION} and {FORMAT}): upgrade auxconn"
    )


def _short(problem: Exception) -> str:
    text = str(problem).splitlines()
    return text[0][:160] if text else type(problem).__name__
