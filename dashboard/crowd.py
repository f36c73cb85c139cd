"""Many engines at once: a reader for each, read in one go, and by a thread when they are many.

Drawing sixty engines takes a tenth of a second of an idle interpreter and a whole one of an
interpreter that also takes in what they send, since each of some thousand numpy loops gives
it away. The page must answer meanwhile, so it draws what was read last.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from .shared import SharedRows
from .snapshot import Link, Reader, Snapshot, Window
from .subjects import Subject
from .together import ALL, together

if TYPE_CHECKING:
    from auxconn.frames import FrameStore
    from auxconn.wire import Fact

FEW = 8
"""So many engines are read at once by whoever draws them."""

SHARE = 0.25
"""Of the time that the thread may read; it rests in between."""

MOST_REST = 5.0
"""Seconds that it rests at most."""

MOST_KEPT = 8
"""Choices of engines and stretches of time whose newest snapshot is kept."""

About = tuple[Link, Mapping[str, "Fact"], frozenset[str]]
"""What is to be said of an engine beside its rows: its link, facts and commands."""


class Crowd:
    """Snapshots of all engines of a hub. Any thread may call it.

    Parameters
    ----------
    store
        Where the rows are.
    clock
        Wall clock of what is read.
    whom
        Returns the engines there are, by name, with what is to be handed to `about`.
    about
        Returns what is to be said of an engine; given its reader.
    """

    def __init__(
        self,
        store: FrameStore,
        clock: Callable[[], float],
        whom: Callable[[], list[tuple[str, Subject, Any]]],
        about: Callable[[tuple[str, Subject, Any], Reader], About],
    ) -> None:
        self._store, self._clock = store, clock
        self._whom, self._about = whom, about
        self._rows = SharedRows(store)
        self._lock = threading.RLock()
        """Held while rows are read."""
        self._readers: dict[str, Reader] = {}
        self._guard = threading.Lock()
        """Held for a moment: over what the thread does."""
        self._thread: ThreadPoolExecutor | None = None
        self._closed = False
        self._newest: OrderedDict[Any, Snapshot] = OrderedDict()
        self._under_way: Future[None] | None = None
        self._rested = 0.0
        """Monotonic time from which on the thread may read again."""

    def look(
        self, only: Collection[str], window: Window, epoch: int, *, wait: bool = True
    ) -> Snapshot:
        """The engines one beside the other, and those of `only` added up.

        Parameters
        ----------
        only
            Names of those to add up; all when there is none among them.
        wait
            False takes what was read last when they are many, and has it read anew.
        """
        found = self._whom()
        if wait or len(found) <= FEW:
            return together(self._read(found, window, epoch), only)
        key = tuple(only), window, epoch
        with self._guard:
            self._settle()
            if self._under_way is None and time.monotonic() >= self._rested:
                self._begin(key, found, window, epoch)
            if key in self._newest:
                return self._newest[key]
            same = [
                snapshot
                for (_, *of), snapshot in self._newest.items()
                if of == [window, epoch]
            ]
        if same:
            # Others are ticked: what was read is there, and is added up at once.
            return together(same[-1].parts, only)
        return self._nothing(window, epoch, f"reading {len(found)} engines")

    def behind(self, snapshot: Snapshot) -> int:
        """Steps that were read since a snapshot of the engines was taken."""
        return sum(
            self._readers[part.name].behind(part)
            for part in snapshot.parts
            if part.subject in snapshot.summed and part.name in self._readers
        )

    def steps(self, name: str) -> Reader | None:
        """The reader of an engine, if there is one."""
        return self._readers.get(name)

    def forget(self) -> None:
        """Read everything anew."""
        with self._lock:
            self._readers = {}
        with self._guard:
            self._newest.clear()

    def close(self) -> None:
        """End the thread, if there is one."""
        with self._guard:
            self._closed = True
            thread = self._thread
        if thread is not None:
            # Not under the guard, which it wants for what it has read.
            thread.shutdown(cancel_futures=True)

    def _read(
        self, found: Sequence[tuple[str, Subject, Any]], window: Window, epoch: int
    ) -> list[Snapshot]:
        with self._lock, self._rows.one_look():
            kept = {name for name, _, _ in found}
            self._readers = {
                name: reader for name, reader in self._readers.items() if name in kept
            }
            parts = []
            for one in found:
                name, subject, _ = one
                reader = self._readers.get(name)
                if reader is None:
                    reader = Reader(self._rows, *subject, name, clock=self._clock)
                    self._readers[name] = reader
                reader.advance()
                parts.append(reader.snapshot(window, *self._about(one, reader), epoch))
        return parts or [self._nothing(window, epoch, "")]

    def _nothing(self, window: Window, epoch: int, text: str) -> Snapshot:
        """What is shown while nothing is read."""
        reader = Reader(self._store, "", name=ALL, clock=self._clock)
        link = Link("still" if text else "none", text)
        return reader.snapshot(window, link, {}, frozenset(), epoch)

    # In the thread

    def _begin(
        self,
        key: Any,
        found: Sequence[tuple[str, Subject, Any]],
        window: Window,
        epoch: int,
    ) -> None:
        if self._closed:
            return
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="auxconn-crowd")
        self._under_way = self._thread.submit(self._run, key, found, window, epoch)

    def _run(
        self,
        key: Any,
        found: Sequence[tuple[str, Subject, Any]],
        window: Window,
        epoch: int,
    ) -> None:
        began = time.monotonic()
        snapshot = together(self._read(found, window, epoch), key[0])
        ended = time.monotonic()
        with self._guard:
            self._newest[key] = snapshot
            self._newest.move_to_end(key)
            while len(self._newest) > MOST_KEPT:
                self._newest.popitem(last=False)
            rest = (ended - began) * (1 / SHARE - 1)
            self._rested = ended + min(rest, MOST_REST)

    def _settle(self) -> None:
        """Let go of what has ended; raises what it raised."""
        if self._under_way is not None and self._under_way.done():
            ended, self._under_way = self._under_way, None
            ended.result()
