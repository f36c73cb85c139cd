"""`/metrics` over HTTP, and nothing else.

Always the plain text format. In the other one, OpenMetrics, prometheus-client 0.26 writes
`auxconn:steps` as `auxconn_steps`, so that the names would depend on who asks.
"""

from __future__ import annotations

import socket
import socketserver
import threading
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

if TYPE_CHECKING:
    from collections.abc import Iterable
    from wsgiref.types import StartResponse, WSGIEnvironment

CLIENT_SECONDS = 30.0
"""A client that says nothing for so long is cut off."""


class MetricsServer(socketserver.ThreadingMixIn, WSGIServer):
    """Serves a registry of prometheus-client from threads of its own.

    Parameters
    ----------
    address, port
        Where to listen; port 0 takes a free one.
    registry
        What is asked at each scrape.

    Raises
    ------
    OSError
        When the port is taken or the address is not of this machine.
    """

    daemon_threads = True

    def __init__(self, address: str, port: int, registry: Any) -> None:
        from prometheus_client import make_wsgi_app

        if ":" in address:
            self.address_family = socket.AF_INET6
        super().__init__((address, port), _Handler)
        self._metrics = make_wsgi_app(registry)
        self.set_app(self._answer)
        self._thread = threading.Thread(
            target=self.serve_forever, name="auxconn-metrics", daemon=True
        )
        self._thread.start()

    def server_bind(self) -> None:
        """Bind without asking a name server what this machine is called."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]
        self.setup_environ()

    def close(self) -> None:
        """Stop listening."""
        self.shutdown()
        self._thread.join()
        self.server_close()

    def _answer(
        self, environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        if environ.get("PATH_INFO") != "/metrics":
            start_response("404 Not Found", [("Content-Type", "text/plain")])
            return [b"The metrics are at /metrics\n"]
        environ.pop("HTTP_ACCEPT", None)
        return self._metrics(environ, start_response)


class _Handler(WSGIRequestHandler):
    timeout = CLIENT_SECONDS

    def log_message(self, format: str, *args: object) -> None:
        """Write nothing: a line for each scrape would bury what is worth reading."""
