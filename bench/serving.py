"""The page's server in a thread of this process, so that its objects can be looked at."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self


class Serving:
    """Runs a server in a thread of its own; a context manager.

    Parameters
    ----------
    make
        Called in the thread; returns a Panel server that was not started.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._ready = threading.Event()
        self._problem: BaseException | None = None
        self.server: Any = None
        self.loop: Any = None
        self.thread = threading.Thread(
            target=self._run, name="page-server", daemon=True
        )

    @property
    def port(self) -> int:
        """Port that the page is served on."""
        return int(self.server.port)

    @property
    def url(self) -> str:
        """Address of the page."""
        return f"http://127.0.0.1:{self.port}/"

    @property
    def sessions(self) -> int:
        """Bokeh sessions that the server holds now."""
        return len(self.server.get_sessions("/"))

    def __enter__(self) -> Self:
        self.thread.start()
        self._ready.wait(30)
        if self._problem is not None:
            raise self._problem
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.loop.call_soon_threadsafe(self._stop)
        self.thread.join(10)

    def _run(self) -> None:
        try:
            self.loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self.loop)
            self.server = self._make()
            self.server.start()
        except BaseException as problem:  # noqa: BLE001 - raised again by who waits
            self._problem = problem
            return
        finally:
            self._ready.set()
        self.loop.run_forever()
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    def _stop(self) -> None:
        self.server.stop(wait=False)
        # What closing sockets leaves on the loop is let run before the loop ends.
        self.loop.call_later(0.3, self.loop.stop)
