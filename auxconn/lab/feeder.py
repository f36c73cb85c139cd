"""When the requests of a workload go into the engine.

Either as many as `concurrency` are kept in the engine, or each arrives at its step. In both
a request that follows another (a turn of a conversation) waits until that one has ended,
and those behind it go first meanwhile. Whatever the workload, what is held here is bounded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from auxconn.checks import check_whole
from auxconn.lab.requests import LabRequest
from auxconn.texts import shown

DEFAULT_CONCURRENCY = 32
"""For a workload that doesn't say."""

MOST_IN_ENGINE = 4096
"""Requests in the engine when they arrive by themselves; more wait where they come from."""


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

    Raises
    ------
    ValueError
        When a concurrency is no whole number of at least 1: others would keep the engine
        idle for ever.
    """

    def __init__(
        self,
        workload: Iterable[LabRequest],
        concurrency: int | None = None,
        prefix: str = "",
        running: Iterable[LabRequest] = (),
    ) -> None:
        if concurrency is None:
            concurrency = getattr(workload, "concurrency", DEFAULT_CONCURRENCY)
        self.concurrency: int | None = (
            None
            if concurrency is None
            else check_whole(
                "concurrency", concurrency, 1, default="the workload's own"
            )
        )
        """Requests kept in the engine; None when they arrive at their steps."""
        self._stream: Iterator[LabRequest] = iter(workload)
        self._prefix = prefix
        self._exhausted = False
        self._next: LabRequest | ValueError | None = None
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

        Raises
        ------
        ValueError
            When the workload brings something that is no request, or fails; it was left
            out, and the next call goes on behind it.
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
            if isinstance(request, ValueError):
                self._next = None
                raise request
            if request.id in self._open:
                self._next = None
                raise ValueError(
                    f"request id {shown(request.id)} is that of a request which has not "
                    "ended; give each request an id of its own"
                )
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

    def _peek(self) -> LabRequest | ValueError | None:
        """The next of the workload, or what is wrong with it; None at the end."""
        if self._next is None and not self._exhausted:
            self._next = self._read()
        return self._next

    def _read(self) -> LabRequest | ValueError | None:
        try:
            request: Any = next(self._stream)
        except StopIteration:
            self._exhausted = True
            return None
        except Exception as error:  # noqa: BLE001 - the workload is somebody else's code
            self._exhausted = True
            failed = ValueError(f"the workload failed: {type(error).__name__}: {error}")
            failed.__cause__ = error
            return failed
        if not isinstance(request, LabRequest):
            return ValueError(
                f"the workload brought {shown(request)}, which is no LabRequest"
            )
        if self._prefix:
            request = replace(
                request,
                id=self._prefix + request.id,
                after=self._prefix + request.after if request.after else "",
            )
        return request
