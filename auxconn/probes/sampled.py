"""Timing a call that is made too often to be watched each time.

`take_output` is called for every running request and step and takes a third of a
microsecond; a hook that does nothing costs as much again. So it is timed in one step of
`EVERY`: the hook is put in front of it for that step and taken away after it, and what the
other steps took is estimated as the newest time of a call, times the calls. Only the time
is sampled so. Nothing is counted here.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns
from typing import Any

from auxconn.probes.hooks import Hooks

EVERY = 16
"""Steps of which the calls of one are timed, beginning with the first."""


class SampledTime:
    """How long the calls of a method of `owner` take in a step.

    Parameters
    ----------
    owner, name
        The method; called with two arguments by their place.
    parameters
        Their names.
    """

    def __init__(self, owner: Any, name: str, parameters: Sequence[str]) -> None:
        self._owner = owner
        self._name = name
        self._parameters = parameters
        self._hooks = Hooks()
        self._hook: Any = None
        """The hook in use; one that had to stay where it was does nothing."""
        self.until_next = 0
        """Steps before one whose calls are timed; 0 in that one."""
        self._calls = self._ns = 0

    def install(self) -> None:
        """Begin with the next step; raises `UnknownConnectorError` if the hook doesn't fit."""
        self._begin()

    def remove(self) -> None:
        """Take the hook away if it is there."""
        self._hook = None
        self._hooks.restore()

    def turn(self) -> tuple[int, int] | None:
        """End a step in which the calls may have been timed, and begin the next.

        Returns
        -------
        Nanoseconds in the method and how often it was called, None when it was not timed.
        """
        if self.until_next:
            self.until_next -= 1
            if not self.until_next:
                self._begin()
            return None
        self.remove()
        spent, timed = self._ns, self._calls
        if timed:
            self.until_next = EVERY - 1
        else:
            self._begin()
        return spent, timed

    def _begin(self) -> None:
        self.until_next = self._calls = self._ns = 0
        self._hooks.wrap(self._owner, self._name, self._timed, self._parameters)
        self._parameters = ()  # looked at once; to do so takes longer than all the rest

    def _timed(self, original: Any) -> Any:
        # Nothing here can fail.
        def timed(first: Any, second: Any) -> Any:
            if self._hook is not timed:
                return original(first, second)
            started = perf_counter_ns()
            result = original(first, second)
            self._ns += perf_counter_ns() - started
            self._calls += 1
            return result

        self._hook = timed
        return timed
