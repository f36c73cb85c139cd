"""`auxconn export`: a collector whose rows go to Prometheus, with no page."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable


def run(bind: str, address: str, port: int, tell: Callable[[str], None]) -> None:
    """Serve the metrics of the engines that connect to `bind`, until a signal ends it.

    Raises
    ------
    MissingExtraError
        When prometheus-client is not there.
    ValueError, OSError
        When an address is none or is taken.
    """
    from auxconn.collector import Collector
    from auxconn.exporter.server import Exporter

    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    with Collector(bind) as collector, Exporter(collector.store, collector) as exporter:
        at = exporter.serve(port, address)
        host = "localhost" if address in ("0.0.0.0", "::") else address
        tell(f"Engines connect to {collector.address}")
        tell(f"Prometheus scrapes http://{host}:{at}/metrics  (Ctrl-C ends it)")
        ended.wait()
