"""Waiting for the signal that ends a command, and going on in order when it has come.

Python runs a handler wherever the main thread happens to be. One that raises leaves behind
whatever was half done there; one that sets an `Event` hangs when the thread was just looking
at that event. This one notes it and sends a byte.
"""

from __future__ import annotations

import select
import signal
from types import TracebackType
from typing import Any, Self

from auxconn.waking import Waker

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Signalled:
    """From its `with` on, signals to end are noted; made in the main thread.

    Attributes
    ----------
    number
        Of the first signal that came; None until then.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self._waker = Waker()
        self._before: dict[int, Any] = {}

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the signal, at most so long; True when it has come."""
        if self.number is None:
            select.select([self._waker.socket], [], [], seconds)
        return self.number is not None

    def _note(self, number: int, _: object) -> None:
        if self.number is None:
            self.number = number
        self._waker.wake()

    def __enter__(self) -> Self:
        for number in SIGNALS:
            self._before[number] = signal.signal(number, self._note) or signal.SIG_DFL
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._waker.close()
