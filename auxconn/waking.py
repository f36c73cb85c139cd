"""Waking a thread that waits on its sockets.

A ZeroMQ socket belongs to one thread. Whoever wants something of it from another thread
leaves that somewhere and sends a byte through a pair of sockets, on which the thread waits
beside its own.
"""

from __future__ import annotations

import contextlib
import socket


class Waker:
    """A pair of sockets; `socket` is what the thread waits on."""

    def __init__(self) -> None:
        self.socket, self._other = socket.socketpair()
        self.socket.setblocking(False)
        self._other.setblocking(False)

    def wake(self) -> None:
        """Make the thread look now; from any thread, never blocks."""
        # A full pair of sockets has woken the thread already; a closed one needs nothing.
        with contextlib.suppress(OSError):
            self._other.send(b"w")

    def drain(self) -> None:
        """Take what woke the thread, before it looks."""
        with contextlib.suppress(BlockingIOError):
            self.socket.recv(4096)

    def close(self) -> None:
        """Close both ends."""
        self._other.close()
        self.socket.close()
