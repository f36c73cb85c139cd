"""`auxconn export`: a collector whose rows go to Prometheus, with no page."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from auxconn.signalled import Signalled

if TYPE_CHECKING:
    from auxconn.listening import Listening


def run(
    listening: Listening, address: str, port: int, tell: Callable[[str], None]
) -> None:
    """Serve the metrics of the engines that connect, until a signal ends it.

    Raises
    ------
    MissingExtraError
        When prometheus-client is not there.
    ValueError, OSError
        When an address is none or is taken, or a key file will not do.
    """
    from auxconn.exporter.server import Exporter

    with (
        Signalled() as ended,
        listening.collector() as collector,
        Exporter(collector.store, collector) as exporter,
    ):
        at = exporter.serve(port, address)
        host = "localhost" if address in ("0.0.0.0", "::") else address
        tell(f"Engines connect to {collector.address}")
        tell(f"Prometheus scrapes http://{host}:{at}/metrics  (Ctrl-C ends it)")
        ended.wait()
