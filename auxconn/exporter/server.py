"""The exporter at work: a thread that keeps up with the rows, and the page of metrics.

Rows are added up once a second and not only when somebody scrapes: Prometheus may come once
a minute, and a ring forgets sooner. Everything is on loopback unless told otherwise.
"""

from __future__ import annotations

import logging
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Self

from auxconn.exporter.account import Account, Sourced
from auxconn.exporter.scrape import Scrape
from auxconn.exporter.web import MetricsServer

if TYPE_CHECKING:
    from auxconn.frames import FrameStore

TURN_SECONDS = 1.0
"""Rows are added up so often."""

LOOPBACK = "127.0.0.1"
PORT = 9599

_log = logging.getLogger("auxconn.exporter")


class Exporter:
    """The metrics of a store; a context manager.

    Parameters
    ----------
    store
        Where the rows are.
    collector
        Who knows the engines; without one, all that have rows count as heard.

    Raises
    ------
    MissingExtraError
        When prometheus-client is not there.
    """

    def __init__(self, store: FrameStore, collector: Sourced | None = None) -> None:
        self.account = Account(store, collector)
        scrape = Scrape(self.account, collector)
        from prometheus_client import CollectorRegistry

        self.registry = CollectorRegistry(auto_describe=False)
        """Of prometheus-client, with these metrics alone."""
        self.registry.register(scrape)
        self.failures = 0
        """Turns that went wrong; the log has the first."""
        self._server: MetricsServer | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="auxconn-exporter", daemon=True
        )
        self._thread.start()

    def serve(self, port: int = PORT, address: str = LOOPBACK) -> int:
        """Serve `/metrics` from a thread; the port it is at, which 0 leaves open.

        Raises
        ------
        OSError
            When the port is taken or the address is not of this machine.
        """
        try:
            self._server = MetricsServer(address, port, self.registry)
        except OSError as problem:
            raise OSError(
                problem.errno,
                f"cannot serve metrics at port {port} of {address}: "
                f"{problem.strerror or problem}; end what uses it, or choose another: "
                f"--port {port + 1}",
            ) from None
        return int(self._server.server_port)

    def text(self) -> bytes:
        """The metrics in Prometheus' text format, for a server of somebody else's."""
        from prometheus_client import generate_latest

        return generate_latest(self.registry)

    def close(self) -> None:
        """Stop both threads. Closing again does nothing."""
        self._stop.set()
        server, self._server = self._server, None
        if server is not None:
            server.close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self) -> None:
        while not self._stop.wait(TURN_SECONDS):
            try:
                self.account.advance()
            except Exception:  # noqa: BLE001 - one bad turn must not end the counting
                self.failures += 1
                if self.failures == 1:
                    _log.exception("the exporter goes on after this")
