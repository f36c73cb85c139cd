"""Reading a batch that does not decode: one bad record must not cost its neighbours.

An engine's thread takes records as they are, and some that can be encoded are none: a text
where a number belongs, a category that does not exist. Decoded as a whole, such a batch is
an error and all its rows are gone. So it is read again here, record by record; and so are
the records of a table that decode and still do not fit its columns.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import msgspec

from auxconn.packing import arrays, layout
from auxconn.records import TABLES, Blocks
from auxconn.wire import Batch

_Loose: Any = msgspec.defstruct(
    "_Loose",
    [
        ("seq", int),
        ("dropped", dict[str, int], msgspec.field(default_factory=dict)),
        *(
            (table, list[msgspec.Raw], msgspec.field(default_factory=list))
            for table in Batch.__struct_fields__[2:]
        ),
    ],
    array_like=True,
    tag="batch",
)
"""A `Batch` whose records are not decoded yet."""

_PROBLEMS = (ValueError, RecursionError, OverflowError)
_HASH = Blocks.__struct_fields__.index("hash")

_loose = msgspec.msgpack.Decoder(_Loose).decode
_decoders = {
    table: msgspec.msgpack.Decoder(struct).decode for table, struct in TABLES.items()
}


def salvage(data: bytes) -> tuple[Batch, dict[str, int], str] | None:
    """Read what can be read of the batch in `data`; None when it is no batch.

    Returns
    -------
    batch, lost, problem
        The batch of the good records, the rows of the others by table, and what is wrong
        with one of those.
    """
    try:
        loose = _loose(data)
    except _PROBLEMS:
        return None
    batch = Batch(loose.seq, loose.dropped)
    lost: dict[str, int] = {}
    problem = ""
    for table, decode in _decoders.items():
        good = []
        for raw in getattr(loose, table):
            try:
                good.append(decode(raw))
            except _PROBLEMS as found:
                lost[table] = lost.get(table, 0) + _rows_of_raw(table, raw)
                problem = f"{table}: {found}"
        setattr(batch, table, good)
    return batch, lost, problem


def sort_out(table: str, records: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Divide `records` into those that fit the columns of their table and the others."""
    good, bad = [], []
    for record in records:
        try:
            arrays(layout(table), [record], typed=True)
            good.append(record)
        except ValueError:
            bad.append(record)
    return good, bad


def rows_in(table: str, records: Sequence[Any]) -> int:
    """Rows that `records` carry; for those that are none, at least one each."""
    if table != "blocks":
        return len(records)
    return sum(len(record.hash) // 8 or 1 for record in records)


def _rows_of_raw(table: str, raw: msgspec.Raw) -> int:
    with contextlib.suppress(*_PROBLEMS, LookupError, TypeError):
        packed = msgspec.msgpack.decode(raw)[_HASH] if table == "blocks" else b""
        return len(packed) // 8 or 1
    return 1
