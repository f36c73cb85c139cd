"""A recording that plays: rows go into a store when their time has come.

Whoever looks at the store and asks for sources cannot tell it from a collector, so the page
that shows a live cluster shows a recording too. Nobody obeys commands here, and going back
means that the store is filled anew with what there was before.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any

from auxconn.asked import span
from auxconn.commands import failed
from auxconn.frames import FrameStore
from auxconn.packing import Values
from auxconn.recording.opened import Recording
from auxconn.recording.reel import Reel
from auxconn.records import TABLES, Events
from auxconn.source import Source
from auxconn.wire import Ack

SPEEDS = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 100.0)
"""Speeds to choose from; any other from the first to the last may be set."""

TICK_SECONDS = 0.1


class Player:
    """Plays a recording into a store. Any thread may call it.

    Parameters
    ----------
    recording
        What is played.
    store
        Takes the rows; a new one by default.
    speed
        Seconds of the recording per second.
    renewing
        Held while the store is emptied and filled anew: whoever reads it must forget what
        was read before.
    clock
        Monotonic seconds.
    start
        False leaves the moving to `tick`.
    """

    def __init__(
        self,
        recording: Recording,
        store: FrameStore | None = None,
        *,
        speed: float = 1.0,
        renewing: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext,
        clock: Callable[[], float] = time.monotonic,
        start: bool = True,
    ) -> None:
        self.recording = recording
        self.store = FrameStore() if store is None else store
        self.begins, self.ends = recording.begins, recording.ends
        self.renewing = renewing
        self._speed = _checked_speed(speed)
        self._clock = clock
        self._reels = [Reel(recording, table) for table in TABLES]
        self._gaps = sorted(
            (gap.at_s, gap.told(table))
            for table in TABLES
            for gap in recording.gaps_of(table)
        )
        self._gaps_told = 0
        self._lock = threading.RLock()
        self._wanted: float | None = None
        """A place that was asked for and is not reached yet."""
        self._place = self.begins
        self._playing = True
        self._seen = clock()
        self._woken = threading.Event()
        self._closed = False
        self.problem = ""
        """Why the replay stopped, when it could not go on."""
        self._thread = threading.Thread(
            target=self._run, name="auxconn-player", daemon=True
        )
        if start:
            self.start()

    # What it does

    def start(self) -> None:
        """Begin to move."""
        self._seen = self._clock()
        self._thread.start()

    @property
    def place(self) -> float:
        """Clock of the recording at the rows that were played last, in seconds."""
        with self._lock:
            return self._place if self._wanted is None else self._wanted

    @property
    def playing(self) -> bool:
        """False when it was paused, or has come to the end."""
        return self._playing

    @property
    def speed(self) -> float:
        """Seconds of the recording per second."""
        return self._speed

    @speed.setter
    def speed(self, speed: float) -> None:
        with self._lock:
            self._speed = _checked_speed(speed)

    def play(self) -> None:
        """Go on; from the beginning, when it has come to the end."""
        with self._lock:
            if self.place >= self.ends:
                self._wanted = self.begins
            self._seen = self._clock()
            self._playing = True
            self._woken.set()

    def pause(self) -> None:
        """Stand still."""
        with self._lock:
            self._playing = False

    def seek(self, place: float) -> None:
        """Go to a clock of the recording, in seconds; to its ends from beyond them.

        Raises `ValueError` when it is no time.
        """
        wanted = span("place", place)
        with self._lock:
            self._wanted = min(max(float(wanted), self.begins), self.ends)
            self._woken.set()

    def close(self) -> None:
        """Play no more. Safe to call again."""
        self._closed = True
        self._woken.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    def sources(self) -> list[Source]:
        """Every source as it was at the present place."""
        return self.recording.sources_at(self.place)

    def command(
        self, engine: str, name: str, /, *, rank: int | None = None, **args: Any
    ) -> Future[Ack]:
        """Nobody obeys: the future fails with a `CommandError`."""
        return failed(f"{name!r}: this is a recording of engine {engine!r}")

    # How it moves

    def tick(self) -> None:
        """Play what has become due."""
        with self._lock:
            wanted, self._wanted = self._wanted, None
            now = self._clock()
            passed, self._seen = max(0.0, now - self._seen), now
            if wanted is not None:
                self._place = wanted
            elif self._playing:
                self._place = min(self._place + passed * self._speed, self.ends)
            else:
                return
            place = self._place
        if wanted is not None:
            self._refill(place)
            return
        for reel in self._reels:
            for columns in reel.until(place):
                self.store.put(reel.table, columns)
        self._tell_gaps(place)
        with self._lock:
            # Only now: who sees it stopped finds the last rows in the store.
            if place >= self.ends and self._wanted is None:
                self._playing = False

    def _refill(self, place: float) -> None:
        limits = self.store.limits
        found: list[tuple[str, list[dict[str, Values]]]] = [
            (reel.table, reel.seek(place, limits[reel.table])) for reel in self._reels
        ]
        with self.renewing():
            self.store.clear()
            for table, parts in found:
                for columns in parts:
                    self.store.put(table, columns)
            self._gaps_told = 0
            self._tell_gaps(place)

    def _tell_gaps(self, place: float) -> None:
        """Tell what is missing where it is, or a plot would join two ends."""
        while self._gaps_told < len(self._gaps):
            at, text = self._gaps[self._gaps_told]
            if at > place:
                break
            self._gaps_told += 1
            event = Events(at, 0, "gap", f"not in the recording: {text}")
            for engine, rank in self.recording.ranks:
                self.store.append("events", [event], engine, rank)

    def _run(self) -> None:
        while not self._closed:
            self._woken.wait(TICK_SECONDS)
            self._woken.clear()
            try:
                self.tick()
            except Exception as problem:  # noqa: BLE001 - told on the page
                self.problem = f"{type(problem).__name__}: {problem}"
                self._playing = False


def _checked_speed(speed: float) -> float:
    if not SPEEDS[0] <= span("speed", speed) <= SPEEDS[-1]:
        raise ValueError(
            f"speed={speed!r}: give a number from {SPEEDS[0]:g} to {SPEEDS[-1]:g}"
        )
    return float(speed)
