"""The tables, described from the schema: `python -m auxconn.tabledoc` prints docs/tables.md.

A description kept beside the schema is wrong soon; this one is made from `records.columns`
and compared with the committed file by a test.
"""

from __future__ import annotations

import inspect
import sys

from auxconn.records import SCHEMA_VERSION, TABLES, Column, columns

_ALL = (
    Column("engine", "category", "", "Name of the engine the row is from."),
    Column("rank", "int32", "", "Rank of the process within that engine, from 0."),
)
_FRAME_DTYPES = {"t": "datetime64[ns, UTC]"}


def markdown() -> str:
    """The text of docs/tables.md."""
    lines = [
        "# Tables",
        "",
        "Made from `auxconn/records.py` by `make docs`; a test compares the two.",
        "",
        f"Schema version {SCHEMA_VERSION}. Each table is a pandas frame of the `FrameStore`: "
        "`store.steps()`, or `store.frame('steps')`.",
        "The types are those of the frame; `since` and `tail` give `t` in seconds and "
        "categories as text.",
        "",
        "## Columns of every table",
        "",
        *_table(_ALL),
    ]
    for table, struct in TABLES.items():
        summary, *rest = inspect.cleandoc(struct.__doc__ or "").split("\n\n")
        lines += ["", f"## {table}", "", _flat(summary)]
        for paragraph in rest:
            lines += ["", _flat(paragraph)]
        lines += ["", *_table(columns(table))]
    return "\n".join(lines) + "\n"


def _table(described: tuple[Column, ...]) -> list[str]:
    lines = ["| column | type | unit | what it is |", "| --- | --- | --- | --- |"]
    for column in described:
        dtype = _FRAME_DTYPES.get(column.name, column.dtype)
        text = column.help
        if column.categories:
            listed = ", ".join(
                f"`{name}`" if name else "empty" for name in column.categories
            )
            text = f"{text} One of: {listed}."
        unit = "" if column.name == "t" else column.unit
        lines.append(f"| `{column.name}` | {dtype} | {unit} | {text} |")
    return lines


def _flat(paragraph: str) -> str:
    return " ".join(paragraph.split())


if __name__ == "__main__":
    sys.stdout.write(markdown())
