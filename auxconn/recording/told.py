"""What sources say of themselves: as rows of `sources`, and back.

Facts change seldom and are looked at with every figure: a capacity that was in force, a
model's name. So they are a table of their own, with a row for each change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
import numpy as np

from auxconn.facts import sound
from auxconn.packing import Values
from auxconn.source import Source

MOST_KNOWN = 4096
"""Sources whose newest words are remembered."""


class Lab(msgspec.Struct):
    """A lab of this process, as the source that it is."""

    engine: str
    facts: dict[str, Any]


class Changes:
    """Finds out what has changed since the sources were looked at before.

    Parameters
    ----------
    sources
        Says what they are now; None when nobody knows.
    """

    def __init__(self, sources: Callable[[], Iterable[Any]] | None) -> None:
        self._sources = sources
        self._known: dict[tuple[Any, ...], dict[str, Any]] = {}

    def columns(self, at: float) -> dict[str, Values]:
        """Columns of `sources`, a row for each that has changed; empty when none has.

        A count of rows that goes on is no change.
        """
        changed = []
        for source in () if self._sources is None else self._sources():
            told = row_of(source)
            key = told["engine"], told["rank"], told["role"], told["incarnation"]
            shown = {name: value for name, value in told.items() if name != "rows"}
            if self._known.get(key) != shown:
                self._known.pop(key, None)
                self._known[key] = shown
                changed.append(told)
        while len(self._known) > MOST_KNOWN:
            del self._known[next(iter(self._known))]
        if not changed:
            return {}
        columns = {
            name: np.array([one[name] for one in changed], dtype=object)
            for name in changed[0]
        }
        return {**columns, "t": np.full(len(changed), at)}


def store_of(what: Any) -> tuple[Any, Callable[[], Iterable[Any]] | None]:
    """The store of what is recorded, and who says of its sources."""
    if hasattr(what, "since") and hasattr(what, "tail"):
        return what, None
    if hasattr(what, "store") and hasattr(what, "sources"):
        return what.store, what.sources
    if hasattr(what, "frames") and hasattr(what, "facts"):
        return what.frames, lambda: [Lab(what.name, dict(what.facts))]
    raise TypeError(
        f"a {type(what).__name__} cannot be recorded; give a Collector, a Lab or a FrameStore"
    )


def row_of(source: Any) -> dict[str, Any]:
    """What a source says of itself, as a row of `sources`."""

    def of(name: str, default: Any) -> Any:
        return getattr(source, name, default)

    return {
        "t": 0.0,
        "engine": source.engine,
        "rank": int(of("rank", 0)),
        "role": of("role", "engine"),
        "incarnation": of("incarnation", ""),
        "state": of("state", "live"),
        "rows": int(of("rows", 0)),
        "rows_lost": msgspec.json.encode(of("rows_lost", {})).decode(),
        "batches_lost": int(of("batches_lost", 0)),
        "batches_before": int(of("batches_before", 0)),
        "errors": int(of("errors", 0)),
        "error": of("error", ""),
        "facts": msgspec.json.encode(dict(source.facts)).decode(),
    }


_SILENT = {
    "role": "engine", "incarnation": "", "state": "live", "facts": "{}", "rows": 0,
    "rows_lost": "{}", "batches_lost": 0, "batches_before": 0, "errors": 0, "error": "",
}  # fmt: skip
"""What is said of a source that has rows and said nothing of itself."""


def source_of(row: Mapping[str, Any]) -> Source:
    """A source from a row of `sources`."""
    told: dict[str, Any] = {**_SILENT, **row}
    json = {name: msgspec.json.decode(told[name]) for name in ("facts", "rows_lost")}
    return msgspec.convert(
        {
            **told,
            "facts": sound(json["facts"]),
            "rows_lost": json["rows_lost"],
            "commands": (),
            "last_seen": 0.0,
            "age_s": 0.0,
            "progress": None,
        },
        Source,
        strict=False,
    )
