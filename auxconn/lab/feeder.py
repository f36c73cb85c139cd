"""When the requests of a workload go into the engine.

Either as many as `concurrency` are kept in the engine, or each arrives at its step. In both
a request that follows another (a turn of a conversation) waits until that one has ended,
and those behind it go first meanwhile. Whatever the workload, what is held here is bounded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace

from auxconn.lab.requests import LabRequest

DEFAULT_CONCURRENCY = 32
"""For a workload that doesn't say."""

MOST_IN_ENGINE = 4096
"""Requests in the engine when they arrive by themselves; more wait where they come from."""


def check_concurrency(concurrency: object) -> None:
    """Refuse a number of requests that would keep the engine idle for ever.

    Raises
    ------
    ValueError
        When it is neither None nor a whole number of at least 1.
    """
    if concurrency is not None and (
        isinstance(concurrency, bool)
        or not isinstance(concurrency, int)
        or concurrency < 1
    ):
        raise ValueError(
            f"concurrency={concurrency!r}: give a whole number of at least 1, or None for "
            "the workload's own"
        )


class Feeder:
    """Hands out the requests that are due.

    Parameters
    ----------
    workload
        Any iterable of `LabRequest`; a `Workload` says its concurrency itself.
    concurrency
        Requests to keep in the engine, in place of the workload's own word.
    prefix
        Put before each id, so that a workload that runs a second time has ids of its own.
    running
        Requests of a workload before this one that the engine still has.
    """

    def __init__(
        self,
        workload: Iterable[LabRequest],
        concurrency: int | None = None,
        prefix: str = "",
        running: Iterable[LabRequest] = (),
    ) -> None:
        check_concurrency(concurrency)
        own = getattr(workload, "concurrency", DEFAULT_CONCURRENCY)
        self.concurrency: int | None = own if concurrency is None else concurrency
        """Requests kept in the engine; None when they arrive at their steps."""
        self._stream: Iterator[LabRequest] = iter(workload)
        self._prefix = prefix
        self._exhausted = False
        self._next: LabRequest | None = None
        self._again: deque[LabRequest] = deque()
        self._active = {one.id: one for one in running}
        self._open = set(self._active)  # handed out or parked, and not ended
        self._parked: dict[str, list[LabRequest]] = {}
        self._num_parked = 0
        self._step = 0

    @property
    def num_active(self) -> int:
        """Requests handed out that have not ended."""
        return len(self._active)

    def active(self) -> list[LabRequest]:
        """Requests handed out that have not ended, in their order."""
        return list(self._active.values())

    @property
    def done(self) -> bool:
        """True when the workload is over and all its requests have ended."""
        if self._active or self._again or self._num_parked or self._next is not None:
            return False
        return self._exhausted or self._peek() is None

    def due(self) -> Iterator[LabRequest]:
        """Hand out the requests for the step that is about to be taken, one at a time.

        Call it once for each step.
        """
        now = self._step
        self._step += 1
        limit = MOST_IN_ENGINE if self.concurrency is None else self.concurrency
        while self.num_active < limit:
            request = self._take(now)
            if request is None:
                return
            self._active[request.id] = request
            yield request

    def ended(self, request_id: str) -> None:
        """Note that a request has ended, in whatever way."""
        if self._active.pop(request_id, None) is None:
            return
        self._open.discard(request_id)
        followers = self._parked.pop(request_id, [])
        self._num_parked -= len(followers)
        self._again.extend(followers)

    def restart_active(self) -> None:
        """Hand out once more, first and in their order, what had not ended.

        For an engine that was built anew.
        """
        self._again.extendleft(reversed(self._active.values()))
        self._active = {}

    def _take(self, now: int) -> LabRequest | None:
        if self._again:
            return self._again.popleft()
        # Looking past requests that have to wait is bounded, or an endless workload of
        # followers would be read without end.
        limit = 2 * (self.concurrency or MOST_IN_ENGINE)
        while (request := self._peek()) is not None:
            if self.concurrency is None and request.arrival_step > now:
                return None
            if request.after not in self._open:
                self._next = None
                self._open.add(request.id)
                return request
            if self._num_parked >= limit:
                return None
            self._next = None
            self._open.add(request.id)
            self._parked.setdefault(request.after, []).append(request)
            self._num_parked += 1
        return None

    def _peek(self) -> LabRequest | None:
        if self._next is None and not self._exhausted:
            request = next(self._stream, None)
            if request is None:
                self._exhausted = True
            elif self._prefix:
                self._next = replace(
                    request,
                    id=self._prefix + request.id,
                    after=self._prefix + request.after if request.after else "",
                )
            else:
                self._next = request
        return self._next
