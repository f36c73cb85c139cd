"""Writes what a store gets to a folder, while it gets it.

A thread of its own reads the store as any other reader does, by version, and writes what it
read every few seconds. The collector never waits for a disk: when the disk takes nothing,
rows wait in bounded memory, then in the store's ring, and what is overwritten there is
named in the recording as a gap.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from auxconn.recording import head
from auxconn.recording.layout import SOURCES, Anchor, Gap, arrow
from auxconn.recording.told import Changes, store_of
from auxconn.recording.track import Track
from auxconn.records import TABLES

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
        self.store, found = store_of(what)
        self._sources = Changes(sources or found)
        self._clock = clock
        self._flush_seconds = flush_seconds
        self._anchor = Anchor(wall(), clock())
        self._wall = wall
        self.folder = Path(folder)
        self._head = head.begin(self.folder, self._anchor, flush_seconds)
        # Rows that are there already are older than the recording, nobody knows how much.
        self._fresh = not any(self.store.version(table) for table in TABLES)
        earliest = self._anchor.wall_s if self._fresh else float("-inf")
        self._tracks = {table: Track(self.folder, table, earliest) for table in TABLES}
        self._sources_track = Track(self.folder, SOURCES)
        self._versions = dict.fromkeys(TABLES, 0)
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
            self._write(lambda: head.end(self.folder, self._head, self._now()))
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
            told = self._sources.columns(self._now())
            if told:
                self._sources_track.take(told, self._now(), {})

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

    # Inside

    def _now(self) -> float:
        """Clock of the recording: the wall clock of its beginning and what passed since."""
        return self._anchor.wall_s + self._clock() - self._anchor.monotonic_s

    def _clocks(self) -> Anchor:
        return Anchor(self._wall(), self._clock())

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
