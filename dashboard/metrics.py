"""`/metrics` beside the page, for a Prometheus that scrapes what somebody watches anyway.

Nothing is counted until it is asked for: a page that no Prometheus knows pays nothing. The
counters then begin with the rows that the frames still hold.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

from tornado.web import RequestHandler

if TYPE_CHECKING:
    from auxconn.exporter.server import Exporter

    from .hub import Hub

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class OnDemand:
    """The exporter of a hub, made when it is first asked for."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._lock = threading.Lock()
        self._exporter: Exporter | None = None

    def text(self) -> bytes:
        """The metrics; `MissingExtraError` when prometheus-client is not there."""
        from auxconn.exporter.server import Exporter

        with self._lock:
            if self._exporter is None:
                self._exporter = Exporter(self._hub.store, self._hub.engines)
                self._hub.on_close(self._exporter.close)
            exporter = self._exporter
        return exporter.text()


class MetricsHandler(RequestHandler):
    """Answers a scrape; needs no session and makes none."""

    def initialize(self, exporter: OnDemand) -> None:
        """Take what the pattern carries."""
        self._exporter = exporter

    async def get(self) -> None:
        """Write the metrics, made in a thread so that no page waits for them."""
        from auxconn.errors import AuxConnError

        loop = asyncio.get_running_loop()
        try:
            text = await loop.run_in_executor(None, self._exporter.text)
        except AuxConnError as problem:
            self.set_status(501)
            self.set_header("Content-Type", "text/plain; charset=utf-8")
            self.finish(f"{problem}\n")
            return
        self.set_header("Content-Type", CONTENT_TYPE)
        self.finish(text)


def pattern(hub: Hub) -> tuple[str, type[RequestHandler], dict[str, Any]]:
    """The pattern that a server of Tornado takes."""
    return r"/metrics", MetricsHandler, {"exporter": OnDemand(hub)}
