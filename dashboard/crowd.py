"""Many engines at once, read in one go, and by a thread when they are many.

An interpreter that also takes in what sixty engines send has little time left, and the page
must answer meanwhile: so it draws what was read last.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from .reader import About, CrowdReader, Reader, Standing
from .snapshot import Link, Snapshot, Window
from .subjects import Subject
from .together import ALL, together

if TYPE_CHECKING:
    from auxconn.frames import FrameStore

FEW = 8
"""So many engines are read at once by whoever draws them."""

SHARE = 0.25
"""Of a core's time that the thread may take; it rests in between."""

MOST_REST = 5.0
"""Seconds that it rests at most."""

MOST_KEPT = 8
"""Choices of engines and stretches of time whose newest snapshot is kept."""

Found = tuple[str, Subject, Any]
"""An engine by its name, with what is to be handed to who knows more of it."""


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
        Returns what is to be said of an engine; given how far it has come.
    """

    def __init__(
        self,
        store: FrameStore,
        clock: Callable[[], float],
        whom: Callable[[], list[Found]],
        about: Callable[[Found, Standing], About],
    ) -> None:
        self._store, self._clock = store, clock
        self._whom, self._about = whom, about
        self._lock = threading.RLock()
        """Held while rows are read."""
        self._reader = CrowdReader(store, clock=clock)
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
        ones = ((self._reader.of(part.subject), part) for part in snapshot.parts)
        return sum(
            one.behind(part)
            for one, part in ones
            if one is not None and part.subject in snapshot.summed
        )

    def standing(self, subject: Subject) -> Standing | None:
        """How far an engine has come, if it was ever read together with others."""
        return self._reader.of(subject)

    def forget(self) -> None:
        """Read everything anew."""
        with self._lock:
            self._reader = CrowdReader(self._store, clock=self._clock)
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
        self, found: Sequence[Found], window: Window, epoch: int
    ) -> list[Snapshot]:
        with self._lock:
            reader = self._reader
            known = [(one, reader.know(one[1], one[0])) for one in found]
            if any(standing is None for _, standing in known):
                # Most of those who are known have gone by now.
                reader = self._reader = CrowdReader(self._store, clock=self._clock)
                known = [(one, reader.know(one[1], one[0])) for one in found]
            reader.advance()
            abouts = {
                one[1]: self._about(one, standing)
                for one, standing in known
                if standing is not None
            }
            parts = reader.snapshots(window, abouts, epoch)
        return parts or [self._nothing(window, epoch, "")]

    def _nothing(self, window: Window, epoch: int, text: str) -> Snapshot:
        """What is shown while nothing is read."""
        reader = Reader(self._store, "", name=ALL, clock=self._clock)
        link = Link("still" if text else "none", text)
        return reader.snapshot(window, About(link, {}, frozenset()), epoch)

    # In the thread

    def _begin(
        self,
        key: Any,
        found: Sequence[Found],
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
        found: Sequence[Found],
        window: Window,
        epoch: int,
    ) -> None:
        # Of the thread: on a crowded machine most of the clock's time is waiting.
        began = time.thread_time()
        snapshot = together(self._read(found, window, epoch), key[0])
        took = time.thread_time() - began
        with self._guard:
            self._newest[key] = snapshot
            self._newest.move_to_end(key)
            while len(self._newest) > MOST_KEPT:
                self._newest.popitem(last=False)
            rest = min(took * (1 / SHARE - 1), MOST_REST)
            self._rested = time.monotonic() + rest

    def _settle(self) -> None:
        """Let go of what has ended; raises what it raised."""
        if self._under_way is not None and self._under_way.done():
            ended, self._under_way = self._under_way, None
            ended.result()
