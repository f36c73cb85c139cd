"""How a table lies in a Parquet file, and what else each file says of itself.

A file must be of use alone: the one before it may be damaged, and the process that wrote it
may have been killed. So each part carries the schema's version, the numbers of its rows, the
holes before and in them, and the clocks, as JSON in its footer.

pyarrow is an extra, and imported when a recording is made or opened, not before.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec
import numpy as np

from auxconn.errors import AuxConnError
from auxconn.packing import Values, layout
from auxconn.records import TABLES

FORMAT = 1
"""Raised whenever the folder or a footer is laid out otherwise."""

FOOTER = b"auxconn"
"""Key of our JSON in a Parquet file's footer."""

SOURCES = "sources"
"""Table of who sent the rows: what each source said of itself, when it changed."""

EVERY = (*TABLES, SOURCES)
"""Tables of a recording."""


class RecordingError(AuxConnError, ValueError):
    """A folder that cannot be recorded into, or that holds no recording."""


class MissingError(AuxConnError, ImportError):
    """pyarrow is not installed."""


class Anchor(msgspec.Struct, frozen=True):
    """Two clocks read at one moment: the first may be set, the second only runs."""

    wall_s: float
    monotonic_s: float


class Gap(msgspec.Struct, frozen=True):
    """Rows that are not in the recording."""

    at_s: float
    """Clock of the recording when it was noticed."""
    after: int
    """Rows of the table recorded before it."""
    rows: int | None
    """None when nobody can know."""
    why: str

    def told(self, table: str) -> str:
        """The gap in words."""
        rows = "rows" if self.rows is None else f"{self.rows:,} rows"
        return f"{rows} of {table}, {self.why}"


class Footer(msgspec.Struct):
    """What a part says of itself."""

    format: int
    schema: int
    table: str
    part: int
    first: int
    """Rows of the table in the parts before it."""
    rows: int
    start_s: float
    """Clock of the recording at its first row."""
    reads: list[tuple[int, float]]
    """Rows of this part after each time the store was read, and the clock then."""
    gaps: list[Gap]
    engines: dict[str, int]
    """Engines of its rows, and their numbers in the store, which order them."""
    ranks: list[tuple[str, int]]
    """Engine and rank of its rows."""
    anchor: Anchor
    """When it was written."""


def arrow() -> tuple[Any, Any]:
    """`pyarrow` and `pyarrow.parquet`; `MissingError` when they are not there."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as problem:
        raise MissingError(
            "recordings need pyarrow, which is not installed: "
            f"pip install 'auxconn[recording]' ({problem})"
        ) from None
    return pyarrow, pyarrow.parquet


SOURCE_COLUMNS: dict[str, str] = {
    "t": "float64", "engine": "str", "rank": "int32", "role": "str", "incarnation": "str",
    "state": "str", "rows": "int64", "rows_lost": "str", "batches_lost": "int64",
    "batches_before": "int64", "errors": "int64", "error": "str", "facts": "str",
}  # fmt: skip
"""Columns of `sources`; facts and rows_lost are JSON."""


@cache
def dtypes(table: str) -> dict[str, str]:
    """Columns of a table in a file and their numpy dtype; `str` for all that is text."""
    if table == SOURCES:
        return SOURCE_COLUMNS
    own = {
        field.column.name: "str"
        if field.codes or field.text_limit
        else str(field.stored)
        for field in layout(table).fields
    }
    return {"engine": "str", "rank": "int32", **own}


@cache
def schema_of(table: str) -> Any:
    """The Arrow schema of a table."""
    pa, _ = arrow()
    return pa.schema(
        [
            pa.field(
                name,
                pa.string() if dtype == "str" else pa.from_numpy_dtype(np.dtype(dtype)),
                nullable=False,
            )
            for name, dtype in dtypes(table).items()
        ]
    )


def to_arrow(table: str, columns: Mapping[str, Values]) -> Any:
    """An Arrow table of columns as `FrameStore.since` answers them."""
    pa, _ = arrow()
    schema = schema_of(table)
    arrays = [
        pa.array(columns[field.name], type=field.type, from_pandas=False)
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def to_columns(table: str, found: Any) -> dict[str, Values]:
    """The columns of an Arrow table, as `FrameStore.since` answers them."""
    kinds = dtypes(table)
    columns: dict[str, Values] = {}
    for name in found.column_names:
        values = found.column(name).to_numpy()
        columns[name] = values.astype(object if kinds[name] == "str" else kinds[name])
    return columns
