"""Writes what a store gets to a folder, while it gets it.

A thread of its own reads the store as any other reader does, by version, and writes what it
read every few seconds. The collector never waits for a disk: when the disk takes nothing,
rows wait in bounded memory, then in the store's ring, and what is overwritten there is
named in the recording as a gap.
"""

from __future__ import annotations

import functools
import importlib.metadata
import logging
import threading
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np

from auxconn.recording.layout import (
    FORMAT,
    HEAD,
    SOURCES,
    Anchor,
    Gap,
    Head,
    RecordingError,
    arrow,
)
from auxconn.recording.parts import write_whole
from auxconn.recording.track import Track
from auxconn.records import SCHEMA_VERSION, TABLES

FLUSH_SECONDS = 5.0
"""What is lost at most when the process is killed."""

READ_SECONDS = 0.5
"""The store is read so often: a ring that turns over between two flushes loses nothing."""

SHORTEST_FLUSH, LONGEST_FLUSH = 0.1, 3600.0

_log = logging.getLogger("auxconn.recording")


class Status(msgspec.Struct, frozen=True):
    """How a recording stands."""

    folder: Path
    running: bool
    seconds: float
    """Since it began."""
    rows: int
    """On the disk, of all tables."""
    waiting: int
    """Rows that are not on the disk yet."""
    lost: int
    """Rows that are known to be missing."""
    bytes: int
    problem: str
    """Why nothing can be written now, in words; empty when all is well."""


class Recorder:
    """Records from when it is made until `close`; a context manager.

    Parameters
    ----------
    what
        A `Collector`, a `Lab`, or a `FrameStore`; rows that it has already are recorded too.
    folder
        Made if it is not there; must not hold a recording.
    flush_seconds
        Between two writings.
    sources
        Says who sends the rows, for a store alone; `Collector.sources` by default.
    clock, wall
        Monotonic seconds, and seconds of the wall clock.
    start
        False leaves the reading and writing to `read` and `flush`.

    Raises
    ------
    MissingError
        When pyarrow is not installed.
    RecordingError
        When the folder holds a recording, or is none.
    ValueError
        When the flush interval is no time that makes sense.
    OSError
        When the folder cannot be written to.
    """

    def __init__(
        self,
        what: Any,
        folder: str | Path,
        *,
        flush_seconds: float = FLUSH_SECONDS,
        sources: Callable[[], Iterable[Any]] | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        start: bool = True,
    ) -> None:
        arrow()
        if not SHORTEST_FLUSH <= flush_seconds <= LONGEST_FLUSH:
            raise ValueError(
                f"flush_seconds={flush_seconds!r}: give {SHORTEST_FLUSH:g} to "
                f"{LONGEST_FLUSH:g} seconds"
            )
        self.store, found = _store_of(what)
        self._sources = sources or found
        self._clock = clock
        self._flush_seconds = flush_seconds
        self._anchor = Anchor(wall(), clock())
        self._wall = wall
        self.folder = Path(folder)
        self._head = Head(
            format=FORMAT,
            schema=SCHEMA_VERSION,
            auxconn=importlib.metadata.version("auxconn"),
            anchor=self._anchor,
            started=datetime.fromtimestamp(self._anchor.wall_s, UTC).isoformat(),
            flush_s=flush_seconds,
        )
        self._claim()
        # Rows that are there already are older than the recording, nobody knows how much.
        self._fresh = not any(self.store.version(table) for table in TABLES)
        earliest = self._anchor.wall_s if self._fresh else float("-inf")
        self._tracks = {table: Track(self.folder, table, earliest) for table in TABLES}
        self._sources_track = Track(self.folder, SOURCES)
        self._versions = dict.fromkeys(TABLES, 0)
        self._known: dict[tuple[Any, ...], Any] = {}
        self._lock = threading.Lock()
        self._problems = {"read": "", "write": ""}
        self._closing = threading.Event()
        self._ending = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(
            target=self._run, name="auxconn-recorder", daemon=True
        )
        if start:
            self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def status(self) -> Status:
        """How it stands now."""
        tracks = [*self._tracks.values(), self._sources_track]
        rows = sum(track.rows for track in self._tracks.values())
        waiting = sum(track.waiting for track in self._tracks.values())
        return Status(
            self.folder,
            not self._closed,
            self._clock() - self._anchor.monotonic_s,
            rows - waiting,
            waiting,
            sum(track.lost for track in tracks),
            sum(track.bytes for track in tracks),
            "; ".join(filter(None, self._problems.values())),
        )

    def close(self) -> None:
        """Write what is left and end. Closing again does nothing but wait for it."""
        self._closing.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()
        with self._ending:
            if self._closed:
                return
            self._read_safely()
            self.flush()
            ended = msgspec.structs.replace(self._head, ended_s=self._now())
            self._write(lambda: write_whole(self.folder / HEAD, _json(ended)))
            self._closed = True

    # Reading and writing

    def read(self) -> None:
        """Take in what the store has got since the last time."""
        with self._lock:
            for table, track in self._tracks.items():
                if (
                    not track.takes
                    or self.store.version(table) == self._versions[table]
                ):
                    continue
                delta = self.store.since(table, self._versions[table])
                numbers = {name: i for i, name in enumerate(self.store.engines)}
                at = self._now()
                gaps = self._gaps(track, delta, at)
                self._versions[table] = delta.version
                track.take(delta.columns, at, numbers, gaps)
            self._read_sources()

    def flush(self) -> None:
        """Write what is not on the disk yet; what cannot be written stays for the next time."""
        with self._lock:
            for track in (*self._tracks.values(), self._sources_track):
                if not self._write(functools.partial(track.flush, self._clocks())):
                    return
            self._tell("write", "")

    def _gaps(self, track: Track, delta: Any, at: float) -> list[Gap]:
        """What is missing before the rows of an answer."""
        found = []
        seen = self._versions[track.table]
        if delta.lost:
            why = "overwritten in the store before they could be written"
            if not seen:
                why = "overwritten in the store before the recording began"
            found.append(Gap(at, track.rows, delta.lost, why))
        if delta.cleared and (seen or self._fresh):
            found.append(Gap(at, track.rows, None, "the store was cleared"))
        return found

    def _read_sources(self) -> None:
        """Note what sources say of themselves, when it has changed."""
        if self._sources is None:
            return
        changed = []
        for source in self._sources():
            told = _told(source)
            key = told["engine"], told["rank"], told["role"], told["incarnation"]
            shown = {name: value for name, value in told.items() if name != "rows"}
            if self._known.get(key) != shown:
                self._known.pop(key, None)
                self._known[key] = shown
                changed.append(told)
        while len(self._known) > MOST_KNOWN:
            del self._known[next(iter(self._known))]
        if changed:
            at = self._now()
            columns = {
                name: np.array([one[name] for one in changed], dtype=object)
                for name in changed[0]
            }
            columns["t"] = np.full(len(changed), at)
            self._sources_track.take(columns, at, {})

    # Inside

    def _now(self) -> float:
        """Clock of the recording: the wall clock of its beginning and what passed since."""
        return self._anchor.wall_s + self._clock() - self._anchor.monotonic_s

    def _clocks(self) -> Anchor:
        return Anchor(self._wall(), self._clock())

    def _claim(self) -> None:
        """Make the folder ours, or say why it cannot be."""
        if self.folder.exists() and not self.folder.is_dir():
            raise RecordingError(
                f"{self.folder} is a file: give a folder to record into"
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        taken = RecordingError(
            f"{self.folder} holds a recording already: give another folder, or move it away"
        )
        if any(self.folder.glob("*-*.parquet")):
            raise taken
        try:
            with (self.folder / HEAD).open("xb") as file:
                file.write(_json(self._head))
        except FileExistsError:
            raise taken from None

    def _run(self) -> None:
        flushed = self._clock()
        while not self._closing.wait(min(READ_SECONDS, self._flush_seconds)):
            self._read_safely()
            now = self._clock()
            full = any(not track.takes for track in self._tracks.values())
            # In good time: what is lost is what came since the last one had begun.
            due = now - flushed >= self._flush_seconds - READ_SECONDS
            if due or (full and not self._problems["write"]):
                flushed = now
                self.flush()

    def _read_safely(self) -> None:
        """Whatever is wrong with what is read, what was read before is still written."""
        try:
            self.read()
        except Exception as problem:  # noqa: BLE001 - told, and tried again
            self._tell("read", f"cannot be read: {type(problem).__name__}: {problem}")
        else:
            self._tell("read", "")

    def _write(self, write: Callable[[], object]) -> bool:
        """Do it, or tell why it cannot be done; False then."""
        try:
            write()
        except Exception as problem:  # noqa: BLE001 - told, and tried again
            why = (
                getattr(problem, "strerror", None)
                or f"{type(problem).__name__}: {problem}"
            )
            self._tell(
                "write",
                f"cannot write: {why}; it is tried again, and rows wait in memory until "
                "there is no room",
            )
            return False
        return True

    def _tell(self, doing: str, problem: str) -> None:
        """Note what is wrong with the reading or the writing, and log it once."""
        if problem != self._problems[doing]:
            if problem:
                _log.error("the recording in %s: %s", self.folder, problem)
            else:
                _log.warning("the recording in %s goes on", self.folder)
        self._problems[doing] = problem


MOST_KNOWN = 4096
"""Sources whose newest words are remembered."""


def _json(head: Head) -> bytes:
    return msgspec.json.format(msgspec.json.encode(head), indent=2) + b"\n"


def _store_of(what: Any) -> tuple[Any, Callable[[], Iterable[Any]] | None]:
    """The store of what is recorded, and who says of its sources."""
    if hasattr(what, "since") and hasattr(what, "tail"):
        return what, None
    if hasattr(what, "store") and hasattr(what, "sources"):
        return what.store, what.sources
    if hasattr(what, "frames") and hasattr(what, "facts"):
        return what.frames, lambda: [_Lab(what.name, dict(what.facts))]
    raise TypeError(
        f"a {type(what).__name__} cannot be recorded; give a Collector, a Lab or a FrameStore"
    )


class _Lab(msgspec.Struct):
    """A lab of this process, as the source that it is."""

    engine: str
    facts: dict[str, Any]


def _told(source: Any) -> dict[str, Any]:
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
