"""The web server of the page: what `auxconn demo` and `auxconn serve` run.

Bound to loopback unless told otherwise, because the page steers an engine. `/liveness`
answers without making a session, so a probe costs the engine and the hub nothing; `/metrics`
neither.
"""

from __future__ import annotations

import logging
import signal
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .hub import Hub

LOOPBACK = "127.0.0.1"
PORT = 5006

UNUSED_SESSION_MS = 15_000
"""A page whose browser never opened its socket (a curl, a prefetch) is dropped after it."""

KEEP_SESSION_MS = 60_000
"""A session is kept so long after its browser went away, so that it can reconnect."""

SWITCH_SECONDS = 0.0005
"""How long one thread of the server keeps the interpreter from another; Python's is 5 ms."""

TELL_SECONDS = 60.0
"""Lost messages of closed browsers are told at most so often."""


class PortTakenError(OSError):
    """Somebody else listens on the port."""


def serve(
    hub: Hub,
    port: int = PORT,
    show: bool = True,
    *,
    address: str = LOOPBACK,
    origins: tuple[str, ...] = (),
    start: bool = True,
) -> Any:
    """Serve the page of `hub`; blocks until the server is stopped, unless told otherwise.

    Parameters
    ----------
    port
        0 takes a free one.
    show
        Open a browser on it.
    address
        Address to bind to.
    origins
        Further host:port pairs that browsers may come from, behind a proxy for instance.
    start
        False returns the server without starting it.

    Raises
    ------
    PortTakenError
        When the port is taken; the text says what to do.
    """
    check_port(address, port)
    port = port or _free_port(address)
    import panel as pn

    _quieten()

    from .app import page
    from .metrics import pattern
    from .session import HUB_KEY

    # `page` finds it there, as it finds that of `panel serve`.
    pn.state.cache.pop((HUB_KEY,), None)
    pn.state.as_cached(HUB_KEY, lambda: hub)
    server = pn.serve(
        {"/": page},
        port=port,
        address=address,
        websocket_origin=_origins(address, port, origins),
        show=show,
        start=False,
        title="auxconn",
        liveness=True,
        admin=False,
        extra_patterns=[pattern(hub)],
        unused_session_lifetime_milliseconds=UNUSED_SESSION_MS,
        check_unused_sessions_milliseconds=5_000,
        keep_alive_milliseconds=10_000,
        verbose=False,
    )
    if start:
        # Numpy gives the interpreter away in each of its loops. A collector that is busy takes
        # it for this long then, some thousand times in the drawing of many engines.
        sys.setswitchinterval(SWITCH_SECONDS)
        server.start()
        host = "localhost" if address in ("0.0.0.0", "::") else address
        told = f"auxconn is at http://{host}:{port}/  (Ctrl-C ends it)"
        # Told by the loop itself: who reads it finds the page there.
        server.io_loop.add_callback(print, told, flush=True)
        run_until_signal(server.io_loop)
    return server


def run_until_signal(loop: Any) -> None:
    """Run tornado's loop until it is stopped, or a signal asks the process to end.

    The signal is taken between two callbacks. Python would raise it in the middle of one,
    where it could leave a lock taken that the collector's thread waits for: the process
    would never end.

    Raises
    ------
    KeyboardInterrupt, SystemExit
        For SIGINT and SIGTERM, when the loop has stopped.
    """
    got: list[int] = []

    def end(number: int) -> None:
        got.append(number)
        loop.stop()

    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.getsignal(number) or signal.SIG_DFL
            loop.asyncio_loop.add_signal_handler(number, end, number)
    try:
        loop.start()
    finally:
        for number, handler in before.items():
            loop.asyncio_loop.remove_signal_handler(number)
            signal.signal(number, handler)
    if got and got[0] == signal.SIGINT:
        raise KeyboardInterrupt
    if got:
        raise SystemExit(128 + got[0])


def check_port(address: str, port: int) -> None:
    """Raise `PortTakenError` when nobody could listen on the port now."""
    if port == 0:
        return
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as problem:
            raise PortTakenError(
                problem.errno,
                f"port {port} of {address} is taken ({problem.strerror}); end what uses it, "
                f"or choose another: --port {port + 1}",
            ) from problem


class _Closed(logging.Filter):
    """Says once in a while, and not for each message, that a browser did not get some."""

    def __init__(self) -> None:
        super().__init__()
        self.lost = 0
        self._told = float("-inf")

    def filter(self, record: logging.LogRecord) -> bool:
        """Let one line in `TELL_SECONDS` pass, with the number of messages."""
        if "connection was closed" not in record.getMessage():
            return True
        self.lost += 1
        now = time.monotonic()
        if now - self._told < TELL_SECONDS:
            return False
        self._told = now
        record.msg = (
            "a browser was closed while it was sent something (%d messages lost so far)"
        )
        record.args = (self.lost,)
        return True


def _quieten() -> None:
    """A browser that is closed while it is being sent something is nobody's error.

    Panel writes a line for each part of each message that was under way then. Tornado leaves
    a task behind whose exception nobody fetches, and asyncio prints a traceback of it.
    """
    from tornado.websocket import WebSocketClosedError

    def worth_telling(record: logging.LogRecord) -> bool:
        problem = record.exc_info[1] if record.exc_info else None
        return not isinstance(problem, WebSocketClosedError)

    logging.getLogger("asyncio").addFilter(worth_telling)
    for name in ("panel.io.document", "bokeh.server.views.ws"):
        logging.getLogger(name).addFilter(_Closed())


def _free_port(address: str) -> int:
    """A port nobody listens on; known before the server is, which must name its origins."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def _origins(address: str, port: int, more: tuple[str, ...]) -> list[str]:
    """Hosts a browser may come from."""
    hosts = {address, LOOPBACK, "localhost"} - {"0.0.0.0", "::"}
    return [*(f"{host}:{port}" for host in sorted(hosts)), *more]
