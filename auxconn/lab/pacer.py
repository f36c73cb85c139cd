"""When the next step may be taken: speed and pause, settable while it runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from auxconn.checks import number
from auxconn.texts import shown

FASTEST = 100_000.0
"""Steps per second that may be asked for; None is as fast as it goes."""

_LAG_SECONDS = 0.1
"""A loop that has fallen behind by more doesn't hurry to make up for it."""


class Pacer:
    """Lets a loop through at a set speed, or not at all.

    Parameters
    ----------
    steps_per_s
        Speed; None is as fast as it goes.
    clock
        Seconds that only grow; for tests.
    """

    def __init__(
        self,
        steps_per_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        # Taken itself, not by the condition: see `FrameStore`.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._speed = check_speed(steps_per_s)
        self._paused = False
        self._due = clock()

    @property
    def steps_per_s(self) -> float | None:
        """Speed the loop is held to; None is as fast as it goes."""
        return self._speed

    @steps_per_s.setter
    def steps_per_s(self, speed: float | None) -> None:
        checked = check_speed(speed)
        with self._lock:
            self._speed = checked
            self._due = self._clock()
            self._changed.notify_all()

    @property
    def paused(self) -> bool:
        """True while no step is let through."""
        return self._paused

    def pause(self) -> None:
        """Let no step through until `resume`."""
        with self._lock:
            self._paused = True
            self._changed.notify_all()

    def resume(self) -> None:
        """Let steps through again."""
        with self._lock:
            self._paused = False
            self._due = self._clock()
            self._changed.notify_all()

    def wake(self) -> None:
        """Make a `wait` under way look again."""
        with self._lock:
            self._changed.notify_all()

    def wait(self, at_most: float) -> bool:
        """Wait until a step may be taken, `at_most` seconds; False when it may not yet."""
        with self._lock:
            if not self._open():
                left = at_most
                if not self._paused:
                    left = min(left, self._due - self._clock())
                if left > 0:
                    self._changed.wait(left)
            if not self._open():
                return False
            if self._speed is not None:
                now = self._clock()
                self._due = max(self._due, now - _LAG_SECONDS) + 1 / self._speed
            return True

    def _open(self) -> bool:
        if self._paused:
            return False
        return self._speed is None or self._clock() >= self._due


def check_speed(speed: float | None) -> float | None:
    """Return a speed in steps per second, None for as fast as it goes.

    Raises
    ------
    ValueError
        When it is neither None nor a number above 0 and up to `FASTEST`.
    """
    if speed is None:
        return None
    checked = number(speed)
    # A NaN is in no range.
    if checked is None or not 0 < checked <= FASTEST:
        what = "no number" if checked is None else "out of range"
        raise ValueError(
            f"steps_per_s={shown(speed)} is {what}; give steps per second above 0 and up "
            f"to {FASTEST:g}, or None for as fast as it goes (pause stops the engine)"
        )
    return checked
