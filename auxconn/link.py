"""The socket of a channel and the thread that owns it.

One DEALER connects out to a collector and stays: it waits for a collector that is not there
yet, and finds again one that went away. What goes over it follows a handshake. On every new
connection the engine says `Hello` and sends rows only after the collector's `Welcome`, so
rows are never poured into a connection behind which nobody listens, and a collector that was
restarted knows whose rows it gets. Until then rows wait in the channel's buffers, which drop
and count.

ZeroMQ sockets belong to one thread. Everything others want of the socket goes through
`wake`, a byte in a socket pair on which the thread also waits.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import Protocol

import msgspec
import zmq
from zmq.utils.monitor import recv_monitor_message

from auxconn.address import is_ipv6
from auxconn.encoding import encoder
from auxconn.keys import Keys, speak
from auxconn.waking import Waker
from auxconn.wire import BEAT_SECONDS, Beat, Bye, Command, Hello, ToEngine, Welcome

FLUSH_SECONDS = 0.05
"""Rows wait at most so long before they are sent."""

QUEUED_MESSAGES = 8
"""Messages in ZeroMQ's own queue; more would only be lost with the connection."""

LINGER_MS = 500
"""How long closing waits for the kernel to take what is queued."""

GRACE_SECONDS = 0.25
"""How long closing waits for a handshake that is under way."""

REFUSED_SECONDS = 30.0
"""After a refusal, the engine asks again so much later."""

ASKED_SECONDS = 1.0
"""A collector that asks who this is gets an answer at most so often."""

MESSAGES_A_TURN = 16
"""Messages sent before the thread looks at what came in."""

_log = logging.getLogger("auxconn.channel")


class Engine(Protocol):
    """What the link asks of the channel; all of it is called in the link's thread."""

    def greeting(self) -> Hello:
        """The `Hello` of this moment."""

    def turn(self) -> None:
        """Told at every turn, many times a second, connected or not."""

    def next_message(self) -> bytes | None:
        """Take the next message, encoded; None when there is nothing to say."""

    def obey(self, command: Command) -> None:
        """Take in a command."""

    def opened(self, open_: bool) -> None:
        """Told when rows may flow, or may no more."""

    def failed(self, problem: Exception) -> None:
        """Told of what went wrong inside the thread; it goes on."""


SHUT_OUT = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
"""The connection came about, and the keys of the two ends do not fit."""


class Link:
    """Carries a channel's messages in a thread of its own.

    Parameters
    ----------
    address
        Where the collector listens; checked already.
    engine
        Whose messages they are.
    name
        Of the thread.
    keys
        The engine's, for a collector that has keys.
    """

    def __init__(
        self, address: str, engine: Engine, name: str, keys: Keys | None = None
    ) -> None:
        self.address = address
        self._keys = keys
        self.refusal = ""
        """Why the collector refused this engine; empty when it did not."""
        self._engine = engine
        self._encode = encoder().encode
        self._decode = msgspec.msgpack.Decoder(ToEngine).decode
        self._connected = False
        self._open = False
        self._facts_changed = False
        self._greet_at: float | None = None
        self._greeted_at = float("-inf")
        self._unanswered = 0
        """Greetings that no `Welcome` has answered yet on this connection."""
        self._hand: bytes | None = None
        """A message that the socket did not take; it goes first."""
        self._blocked = False
        self._drained = False
        self._last_sent = time.monotonic()
        self._closing = False
        self._close_by = self._grace_by = 0.0
        self._bye = ""
        self._waker = Waker()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def unsent(self) -> bool:
        """Whether a message was taken from the engine that the socket did not take."""
        return self._hand is not None

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """Make the thread look now; from any thread, never blocks."""
        self._waker.wake()

    def close(self, reason: str, timeout: float) -> None:
        """Send what is left and `Bye`, for at most `timeout` seconds, and end the thread."""
        now = time.monotonic()
        self._bye = reason
        self._close_by = now + timeout
        self._grace_by = now + min(timeout, GRACE_SECONDS)
        self._closing = True
        self.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout + LINGER_MS / 1000 + 1.0)

    def greet(self) -> None:
        """Say `Hello` again, since the facts changed; from any thread."""
        self._facts_changed = True
        self.wake()

    # The thread

    def _run(self) -> None:
        context = zmq.Context()
        try:
            over = False
            while not over:
                dealer = context.socket(zmq.DEALER)
                try:
                    self._serve(dealer)
                    over = True
                except Exception as problem:  # noqa: BLE001 - the rows' way must not end
                    self._engine.failed(problem)
                    self._lost_connection()
                    over = self._closing and time.monotonic() >= self._close_by
                    time.sleep(FLUSH_SECONDS)
                finally:
                    dealer.close(LINGER_MS)
        finally:
            self._lost_connection()
            context.term()
            self._waker.close()

    def _serve(self, dealer: zmq.Socket[bytes]) -> None:
        """Set the socket up and work it to the end, or until something breaks."""
        # Queue for a connection that exists only: what is queued for none would be
        # delivered before the `Hello`.
        dealer.setsockopt(zmq.IMMEDIATE, 1)
        dealer.setsockopt(zmq.SNDHWM, QUEUED_MESSAGES)
        dealer.setsockopt(zmq.RCVHWM, 256)
        dealer.setsockopt(zmq.MAXMSGSIZE, 1 << 20)
        dealer.setsockopt(zmq.RECONNECT_IVL, 100)
        dealer.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        dealer.setsockopt(zmq.TCP_KEEPALIVE, 1)
        dealer.setsockopt(zmq.TCP_KEEPALIVE_IDLE, 15)
        dealer.setsockopt(zmq.IPV6, is_ipv6(self.address))
        if self._keys is not None:
            speak(dealer, self._keys)
        monitor = dealer.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | SHUT_OUT
        )
        try:
            self._work(dealer, monitor)
        finally:
            dealer.disable_monitor()
            monitor.close(0)

    def _work(self, dealer: zmq.Socket[bytes], monitor: zmq.Socket[bytes]) -> None:
        poller = zmq.Poller()
        poller.register(monitor, zmq.POLLIN)
        poller.register(self._waker.socket, zmq.POLLIN)
        dealer.connect(self.address)
        over = False
        while not over:
            wanted = zmq.POLLIN | (zmq.POLLOUT if self._blocked else 0)
            poller.register(dealer, wanted)
            poller.poll(int(FLUSH_SECONDS * 1000))
            self._waker.drain()
            # Before the rows are gathered: those emitted before `close` still go.
            closing = self._closing
            self._engine.turn()
            self._watch(monitor)
            self._listen(dealer)
            self._speak(dealer, monitor)
            over = closing and self._is_over()
        if self._open:
            with contextlib.suppress(zmq.Again):
                dealer.send(self._encode(Bye(self._bye)), zmq.NOBLOCK)

    def _is_over(self) -> bool:
        """Whether all is sent, or the time to do so has run out."""
        now = time.monotonic()
        if now >= self._close_by or (not self._open and now >= self._grace_by):
            return True
        return self._open and self._drained

    def _watch(self, monitor: zmq.Socket[bytes]) -> None:
        """Follow the connection's state."""
        while monitor.poll(0):
            event = recv_monitor_message(monitor)["event"]
            self._lost_connection()
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._connected = True
                self._greet_at = 0.0
            elif event & SHUT_OUT:
                self._refused(
                    "it does not know this engine's key"
                    if self._keys is not None
                    else "it wants a key, or is no collector"
                )

    def _lost_connection(self) -> None:
        self._connected = self._blocked = False
        self._unanswered = 0
        self._set_open(False)

    def _set_open(self, open_: bool) -> None:
        if open_ != self._open:
            self._open = open_
            self._engine.opened(open_)

    def _listen(self, dealer: zmq.Socket[bytes]) -> None:
        while True:
            try:
                parts = dealer.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                message: Command | Welcome = self._decode(parts[-1])
            except (ValueError, RecursionError) as problem:
                self._engine.failed(problem)
                continue
            if isinstance(message, Command):
                self._engine.obey(message)
            else:
                self._welcome(message)

    def _welcome(self, message: Welcome) -> None:
        now = time.monotonic()
        if not message.accepted:
            self._unanswered = max(0, self._unanswered - 1)
            self._set_open(False)
            self._greet_at = now + REFUSED_SECONDS
            self._refused(message.text)
        elif self._unanswered:
            self._unanswered -= 1
            self.refusal = ""
            self._set_open(True)
        else:
            # Nobody asked: it does not know this engine (any more) and wants to.
            lately = now - self._greeted_at < ASKED_SECONDS
            self._greet_at = now + ASKED_SECONDS if lately else now

    def _refused(self, why: str) -> None:
        """Say so once, however often it is tried."""
        if why != self.refusal:
            self.refusal = why
            _log.warning("collector %s refused: %r", self.address, why)

    def _speak(self, dealer: zmq.Socket[bytes], monitor: zmq.Socket[bytes]) -> None:
        """Send what there is until the socket takes no more."""
        self._blocked = self._drained = False
        if not self._connected:
            return
        try:
            self._greet(dealer)
            if self._open:
                self._send_messages(dealer, monitor)
        except zmq.Again:
            self._blocked = True

    def _greet(self, dealer: zmq.Socket[bytes]) -> None:
        now = time.monotonic()
        due = self._greet_at is not None and now >= self._greet_at
        if not due and not self._facts_changed:
            return
        # Before the facts are read: a change after that must greet again.
        self._facts_changed = False
        try:
            dealer.send(self._encode(self._engine.greeting()), zmq.NOBLOCK)
        except zmq.Again:
            self._facts_changed = True
            raise
        if due:
            self._greet_at = None
        self._unanswered += 1
        self._greeted_at = self._last_sent = now

    def _send_messages(
        self, dealer: zmq.Socket[bytes], monitor: zmq.Socket[bytes]
    ) -> None:
        for _ in range(MESSAGES_A_TURN):
            if self._hand is None:
                self._hand = self._engine.next_message()
            if self._hand is None:
                self._drained = True
                break
            # On a new connection the greeting goes first, and encoding took its time.
            self._watch(monitor)
            if not self._open:
                return
            dealer.send(self._hand, zmq.NOBLOCK)
            self._hand = None
            self._last_sent = time.monotonic()
        else:
            # There may be more: back at once, after a look at what came in.
            self.wake()
        if time.monotonic() - self._last_sent >= BEAT_SECONDS:
            dealer.send(self._encode(Beat(time.time())), zmq.NOBLOCK)
            self._last_sent = time.monotonic()
