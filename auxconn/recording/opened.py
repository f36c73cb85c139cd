"""A recording as a notebook has it: the same frames as a live store, and what is missing.

Opened is what can be opened. A part that is damaged or of a newer auxconn is named in
`problems`, in a warning and in `gaps`, and all the others are read; rows are numbered
through, so that how many are missing is mostly known to the row.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from auxconn.packing import Values, layout
from auxconn.recording import head
from auxconn.recording.frames import RecordedFrames
from auxconn.recording.layout import (
    EVERY,
    SOURCES,
    Gap,
    RecordingError,
    arrow,
    dtypes,
    to_columns,
)
from auxconn.recording.parts import Part, PartError, look_at, number_of, read_part
from auxconn.recording.told import source_of
from auxconn.records import TABLES
from auxconn.source import Source
from auxconn.tables import coded

if TYPE_CHECKING:
    import pandas as pd


class RecordingWarning(UserWarning):
    """Something of a recording cannot be read; the rest can."""


class Recording:
    """A folder that a `Recorder` wrote, or is writing.

    Parameters
    ----------
    folder
        The folder. What is in it now is what is seen; open it anew for what comes later.

    Attributes
    ----------
    frames
        `frames.steps()`, `frames.lookups()` ... as of a `FrameStore`.
    problems
        What cannot be read and why, in words.

    Raises
    ------
    MissingError
        When pyarrow is not installed.
    RecordingError
        When there is no recording.
    """

    def __init__(self, folder: str | Path) -> None:
        arrow()
        self.folder = Path(folder)
        self._problems: list[str] = []
        self._told = 0
        self._sources_then: tuple[int, list[Source]] = -1, []
        self._damaged: dict[str, dict[int, str]] = {table: {} for table in EVERY}
        if not self.folder.is_dir():
            raise RecordingError(f"no folder {self.folder}: nothing was recorded there")
        files = {
            table: sorted(
                (
                    path
                    for path in self.folder.glob(f"{table}-*.parquet")
                    if number_of(path)
                ),
                key=number_of,
            )
            for table in EVERY
        }
        self.head, problem = head.read(self.folder)
        if self.head is None and not any(files.values()):
            raise RecordingError(
                f"no recording in {self.folder}: {head.HEAD} and parts are missing"
            )
        if problem:
            self._problems.append(problem)
        self._parts = {
            table: self._look(table, found) for table, found in files.items()
        }
        self.frames = RecordedFrames(self)
        self._warn()

    # What there is

    @property
    def problems(self) -> tuple[str, ...]:
        """What cannot be read and why, in words; empty when all is well."""
        return tuple(self._problems)

    @property
    def complete(self) -> bool:
        """True when the recorder ended in order: it was not cut off and runs no more."""
        return self.head is not None and self.head.ended_s is not None

    @functools.cached_property
    def engines(self) -> list[str]:
        """Engines with rows, in the order in which they were first heard."""
        numbers: dict[str, int] = {}
        for table in TABLES:
            for part in self._parts[table]:
                numbers |= part.footer.engines
        return sorted(numbers, key=lambda name: (numbers[name], name))

    @functools.cached_property
    def ranks(self) -> list[tuple[str, int]]:
        """Every engine and rank with rows."""
        found = {
            pair
            for table in TABLES
            for part in self._parts[table]
            for pair in part.footer.ranks
        }
        return sorted(found)

    @property
    def sources(self) -> list[Source]:
        """Every source as it was last known."""
        return self.sources_at(float("inf"))

    def sources_at(self, moment: float) -> list[Source]:
        """Every source as it was at a clock of the recording, in seconds."""
        times, history = self._source_history
        until = int(np.searchsorted(times, moment, side="right"))
        # A page asks several times a second, and changes are few.
        if self._sources_then[0] != until:
            found = {(one.engine, one.rank, one.role): one for one in history[:until]}
            told = {(engine, rank) for engine, rank, _ in found}
            for engine, rank in self.ranks:
                if (engine, rank) not in told:
                    silent = source_of({"engine": engine, "rank": rank})
                    found[engine, rank, silent.role] = silent
            self._sources_then = until, [found[key] for key in sorted(found)]
        return list(self._sources_then[1])

    def facts(self, engine: str | None = None) -> dict[str, Any]:
        """Facts of an engine as they were last known; of the first one by default."""
        known: dict[str, Any] = {}
        for source in self.sources:
            if engine in (None, source.engine):
                engine = source.engine
                known |= source.facts
        return known

    @property
    def gaps(self) -> pd.DataFrame:
        """What is missing: the table, when, how many rows (NA when not known), and why.

        What an engine or the network lost before it came to the recorder is told in
        `events`, kind "gap", as it is on the page.
        """
        import pandas as pd

        from auxconn.pandas_out import timestamps

        found = [(table, gap) for table in EVERY for gap in self.gaps_of(table)]
        found.sort(key=lambda one: one[1].at_s)
        return pd.DataFrame(
            {
                "table": pd.array([table for table, _ in found], dtype="str"),
                "t": timestamps(np.array([gap.at_s for _, gap in found], float)),
                "rows": pd.array([gap.rows for _, gap in found], dtype="Int64"),
                "why": pd.array([gap.why for _, gap in found], dtype="str"),
            }
        )

    def gaps_of(self, table: str) -> list[Gap]:
        """The gaps of one table, in the order of its rows."""
        found: list[Gap] = []
        known, at = 0, self.begins
        damaged = dict(self._damaged[table])
        for part in self._parts[table]:
            footer = part.footer
            before = [damaged.pop(n) for n in sorted(damaged) if n < footer.part]
            if footer.first > known or before:
                why = "; ".join(before) or "a part of the recording is not there"
                found.append(Gap(at, known, footer.first - known, why))
            found += footer.gaps
            known = footer.first + footer.rows
            at = footer.reads[-1][1] if footer.reads else at
        if damaged:
            found.append(Gap(at, known, None, "; ".join(damaged.values())))
        return found

    @property
    def begins(self) -> float:
        """Clock of the recording at its first row, in seconds from 1970."""
        starts = [
            part.footer.start_s
            for table in TABLES
            for part in self._parts[table][:1]
            if part.footer.rows
        ]
        if starts:
            return min(starts)
        return self.head.anchor.wall_s if self.head is not None else 0.0

    @property
    def ends(self) -> float:
        """Clock of the recording when its last row had come, in seconds from 1970."""
        ends = [
            part.footer.reads[-1][1]
            for table in TABLES
            for part in self._parts[table][-1:]
            if part.footer.reads
        ]
        return max([self.begins, *ends])

    @property
    def start(self) -> pd.Timestamp:
        """When it begins."""
        return _timestamp(self.begins)

    @property
    def end(self) -> pd.Timestamp:
        """When it ends."""
        return _timestamp(self.ends)

    def rows(self, table: str) -> int:
        """Rows of a table that can be read, as far as is known without reading them."""
        return sum(part.footer.rows for part in self._parts[table])

    def __repr__(self) -> str:
        seconds = self.ends - self.begins
        lines = [
            f"Recording({str(self.folder)!r}): {seconds:,.1f} s from "
            f"{self.start:%Y-%m-%d %H:%M:%S} UTC"
            + ("" if self.complete else ", cut off or still being written"),
            f"  engines: {', '.join(self.engines) or 'none'}",
            "  rows: " + ", ".join(f"{table} {self.rows(table):,}" for table in TABLES),
        ]
        missing = [gap for table in TABLES for gap in self.gaps_of(table)]
        if missing:
            rows = sum(gap.rows or 0 for gap in missing)
            lines.append(f"  gaps: {len(missing)}, at least {rows:,} rows; see .gaps")
        return "\n".join([*lines, *(f"  ! {text}" for text in self._problems)])

    # Reading

    def parts(self, table: str) -> tuple[Part, ...]:
        """The parts of a table that can be read, in order."""
        return tuple(self._parts[table])

    def columns(
        self, table: str, part: Part, names: Sequence[str] | None = None
    ) -> dict[str, Values] | None:
        """Columns of a part, categories as numbers; None when they cannot be read."""
        try:
            found = read_part(part, tuple(dtypes(table)) if names is None else names)
            columns = to_columns(table, found)
            return columns if table == SOURCES else coded(layout(table), columns)
        except PartError as problem:
            self._drop(table, part, str(problem))
        except ValueError as problem:
            self._drop(table, part, f"{part.path.name} cannot be read: {problem}")
        return None

    def due(self, table: str, part: Part, t: Values) -> Values:
        """When each row of a part was heard, by the clock of the recording.

        A row's own clock says it, held to the time between the two readings of the store in
        which it came: an engine's clock may be wrong, or be set while it runs.
        """
        due = np.where(np.isfinite(t), t, -np.inf)
        before = [
            one for one in self._parts[table] if one.footer.part < part.footer.part
        ]
        earlier = [one.footer.reads[-1][1] for one in before if one.footer.reads]
        low = earlier[-1] if earlier else part.footer.start_s
        first = 0
        for rows, at in part.footer.reads:
            due[first:rows] = np.clip(due[first:rows], low, at)
            first, low = rows, at
        return np.maximum.accumulate(due)

    @functools.cached_property
    def _source_history(self) -> tuple[Values, list[Source]]:
        """Every change of a source, and when it was noticed."""
        times: list[float] = []
        found: list[Source] = []
        for part in self.parts(SOURCES):
            columns = self.columns(SOURCES, part)
            if columns is None:
                continue
            names = list(columns)
            lists = [values.tolist() for values in columns.values()]
            try:
                rows = [
                    dict(zip(names, row, strict=True))
                    for row in zip(*lists, strict=True)
                ]
                found += [source_of(row) for row in rows]
                times += columns["t"].tolist()
            except ValueError as problem:
                self._drop(SOURCES, part, f"{part.path.name} cannot be read: {problem}")
        return np.array(times), found

    def _look(self, table: str, files: Sequence[Path]) -> list[Part]:
        found = []
        for path in files:
            try:
                part = look_at(path, table)
            except PartError as problem:
                self._damaged[table][number_of(path)] = str(problem)
                self._problems.append(str(problem))
                continue
            if part.note:
                self._problems.append(f"{path.name}: {part.note}")
            found.append(part)
        return found

    def _drop(self, table: str, part: Part, problem: str) -> None:
        """A part turned out to be damaged when its rows were read."""
        if part.footer.part not in self._damaged[table]:
            self._damaged[table][part.footer.part] = problem
            self._problems.append(problem)
        self._parts[table] = [one for one in self._parts[table] if one is not part]
        self._warn()

    def _warn(self) -> None:
        new, self._told = self._problems[self._told :], len(self._problems)
        if new:
            more = f" (and {len(new) - 3} more, see .problems)" if len(new) > 3 else ""
            told = "; ".join(new[:3])
            warnings.warn(
                f"{self.folder}: {told}{more}. The rest can be read.",
                RecordingWarning,
                stacklevel=3,
            )


def _timestamp(seconds: float) -> pd.Timestamp:
    from auxconn.pandas_out import timestamps

    return timestamps(np.array([seconds]))[0]
