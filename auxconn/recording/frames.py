"""The tables of a recording as pandas: what a `FrameStore` would have answered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from auxconn.asked import (
    Moment,
    Whose,
    check_table,
    columns_wanted,
    rows_wanted,
    seconds,
    whose_wanted,
)
from auxconn.by_table import ByTable
from auxconn.packing import Values, layout
from auxconn.recording.layout import dtypes

if TYPE_CHECKING:
    import pandas as pd

    from auxconn.recording.opened import Recording


class RecordedFrames(ByTable):
    """Frames of a recording; each is read from the disk when it is asked for."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    def frame(
        self,
        table: str,
        *,
        engine: str | None = None,
        rank: int | None = None,
        since_t: Moment = None,
        last: int | None = None,
        columns: Sequence[str] | None = None,
    ) -> pd.DataFrame:
        """Rows of a table, oldest first; arguments and columns as `FrameStore.frame`."""
        from auxconn.pandas_out import data_frame

        check_table(table)
        whose = whose_wanted(engine, rank)
        names = columns_wanted(table, tuple(dtypes(table)), columns)
        if last is not None:
            last = rows_wanted(table, last)
        after = seconds(since_t)
        found: list[dict[str, Values]] = []
        rows = 0
        # Backwards, as the newest rows may be all that is wanted.
        for part in self._read(table, {*names, "t", "engine", "rank"}, whose):
            if last is not None and rows + len(part["t"]) >= last:
                found.append(_tail(part, last - rows))
                break
            rows += len(part["t"])
            found.append(part)
        whole = {name: _joined(table, name, found[::-1]) for name in (*names, "t")}
        if after is not None:
            keep = whole["t"] >= after
            whole = {name: values[keep] for name, values in whole.items()}
        whole = {name: whole[name] for name in names}
        engines = self._recording.engines
        if "engine" in whole:
            numbers = {name: number for number, name in enumerate(engines)}
            whole["engine"] = np.fromiter(
                map(numbers.__getitem__, whole["engine"]),
                np.int32,
                len(whole["engine"]),
            )
        return data_frame(layout(table), whole, engines)

    def _read(
        self, table: str, names: set[str], whose: Whose
    ) -> Iterator[dict[str, Values]]:
        """The parts of a table, newest first, categories by number."""
        for part in reversed(self._recording.parts(table)):
            if whose.engine is not None and whose.engine not in part.footer.engines:
                continue
            columns = self._recording.columns(table, part, sorted(names))
            if columns is None:
                continue
            for name, wanted in whose._asdict().items():
                if wanted is not None:
                    mine = columns[name] == wanted
                    columns = {name: values[mine] for name, values in columns.items()}
            yield columns


def _tail(columns: dict[str, Values], rows: int) -> dict[str, Values]:
    first = len(columns["t"]) - rows
    return {name: values[first:] for name, values in columns.items()}


def _joined(table: str, name: str, parts: Sequence[dict[str, Values]]) -> Values:
    if parts:
        return np.concatenate([part[name] for part in parts])
    stored = {field.column.name: field.stored for field in layout(table).fields}
    kinds = {"engine": np.dtype(object), "rank": np.dtype(np.int32), **stored}
    return np.empty(0, kinds[name])
