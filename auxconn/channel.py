"""The engine's end of the stream.

An engine's threads hand over records and go on. This module keeps them in bounded buffers,
numbers them into batches and lets a `Link` carry them to a collector, which may be absent,
asleep, restarted or hostile without the engine noticing: nothing here waits for the network,
and nothing raises into the engine. What could not be kept is counted by table, and the next
batch says so.

The same socket brings commands back. They are not obeyed in the link's thread but kept for
the engine's own, which asks for them at its step, because the scheduler's state is its alone.
"""

from __future__ import annotations

import atexit
import logging
import math
import operator
import os
import threading
import time
import uuid
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sized

import msgspec

from auxconn.address import check_connect, check_engine
from auxconn.encoding import encoder
from auxconn.keys import Keys
from auxconn.link import Link
from auxconn.outbox import Outbox
from auxconn.records import SCHEMA_VERSION
from auxconn.stated import named, stated, text_of
from auxconn.wire import Ack, Command, Fact, Hello, Progress

CAPACITY_ROWS = 65_536
"""Rows of each table that wait for the collector: 30 s of a busy engine, some 50 MB."""

WAITING_COMMANDS = 64
"""Commands the engine has not asked for yet; further ones are refused."""

WAITING_ACKS = 1024
"""Acks that wait for the collector; the oldest make room."""

CLOSE_SECONDS = 1.0
"""How long closing tries to send what is left."""

_log = logging.getLogger("auxconn.channel")


class Channel:
    """A sink that sends what it gets to a collector, from a thread of its own.

    Parameters
    ----------
    address
        Where the collector listens, or will: the order of start does not matter.
    engine, rank, role
        Who speaks. Sources with one `engine` name are shown as one engine.
    on_command
        Called with each `Command` in the channel's thread, instead of keeping it for
        `poll_commands`. What it raises is the text of a refusal.
    capacity_rows
        Rows of each table that wait for the collector at most; the oldest make room.
    keys
        The engine's, from `auxconn.keys.load`, for a collector that has keys.

    Raises
    ------
    ValueError
        When the address cannot be connected to, or a name or number is none.
    """

    def __init__(
        self,
        address: str,
        engine: str,
        rank: int = 0,
        role: str = "engine",
        on_command: Callable[[Command], None] | None = None,
        capacity_rows: int = CAPACITY_ROWS,
        *,
        keys: Keys | None = None,
    ) -> None:
        check_connect(address)
        check_engine(engine, rank, role)
        if isinstance(capacity_rows, bool) or not isinstance(capacity_rows, int):
            raise ValueError(f"capacity_rows={capacity_rows!r} is not a whole number")
        if capacity_rows < 1:
            raise ValueError(f"capacity_rows={capacity_rows}: at least 1 is needed")
        self.incarnation = uuid.uuid4().hex
        self.ignored = 0
        """Records emitted after `close`, or in a forked child, where nothing is sent; and
        those for whose sending `close` had no time."""
        self.errors = 0
        """Records, answers and stages that are none, and what went wrong in the thread."""
        self._hello = Hello(SCHEMA_VERSION, engine, rank, role, self.incarnation)
        self._outbox = Outbox(capacity_rows, self._count_error)
        self._inboxes = self._outbox.inboxes
        self._hurry_at = self._outbox.hurry_at
        self._hurried = False
        self._records_in_hand = 0
        self._on_command = on_command
        self._commands: deque[Command] = deque()
        self._acks: deque[bytes] = deque(maxlen=WAITING_ACKS)
        self._progress: Progress | None = None
        self._progress_due = False
        # Taken itself, not by the condition: see `FrameStore`.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._counting = threading.Lock()
        self._open = False
        self._inert = False
        self._encode = encoder().encode
        name = f"auxconn-{engine}-{rank}-{role}"
        self._link = Link(address, _Side(self), name, keys)
        _channels.add(self)
        self._link.start()

    # For the engine's threads

    def emit(self, table: str, record: msgspec.Struct) -> None:
        """Take one record of `table`: see `Sink`."""
        if self._inert:
            with self._counting:
                self.ignored += 1
            return
        try:
            inbox = self._inboxes[table]
            inbox.append(record)
            if len(inbox) > self._hurry_at:
                self._hurry(table)
        except Exception as problem:  # noqa: BLE001 - never raises into the engine
            self._count_error(problem)

    def hello(self, facts: Mapping[str, Fact], commands: tuple[str, ...] = ()) -> None:
        """Announce the engine's facts and the commands it obeys, in place of the former."""
        if self._inert:
            return
        try:
            self._hello = msgspec.structs.replace(
                self._hello, facts=stated(facts), commands=named(commands)
            )
            self._link.greet()
        except Exception as problem:  # noqa: BLE001 - never raises into the engine
            self._count_error(problem)

    def progress(self, stage: str, fraction: float, text: str = "") -> None:
        """Say how far the start has come, 0 to 1; only the newest is sure to arrive."""
        if self._inert:
            return
        try:
            share = float(fraction)
            if math.isnan(share):
                raise ValueError(
                    f"progress of {fraction!r}: a number from 0 to 1 is due"
                )
            share = min(max(share, 0.0), 1.0)
            self._progress = Progress(text_of(stage), share, text_of(text))
            self._progress_due = True
            self._link.wake()
        except Exception as problem:  # noqa: BLE001 - never raises into the engine
            self._count_error(problem)

    def poll_commands(self, timeout: float = 0.0) -> list[Command]:
        """Take the commands that have come, in their order.

        Parameters
        ----------
        timeout
            Seconds to wait for the first one; an engine that is paused has the time.
        """
        if not self._commands and (timeout <= 0 or self._inert):
            return []
        with self._lock:
            if not self._commands:
                self._changed.wait_for(lambda: self._commands or self._inert, timeout)
            commands = list(self._commands)
            self._commands.clear()
        return commands

    @property
    def orders(self) -> Sized:
        """The commands that have come, to see whether there are any; it stays the same."""
        return self._commands

    def ack(self, command: Command | int, ok: bool, text: str = "") -> None:
        """Answer a command that was carried out (`ok`) or refused, and say how or why."""
        if self._inert:
            return
        try:
            number = command.id if isinstance(command, Command) else command
            answer = Ack(operator.index(number), bool(ok), text_of(text), time.time())
            # At once: what cannot be encoded must not come to light in the link's thread.
            self._acks.append(self._encode(answer))
            self._link.wake()
        except Exception as problem:  # noqa: BLE001 - never raises into the engine
            self._count_error(problem)

    def close(self, reason: str = "closed", timeout: float = CLOSE_SECONDS) -> None:
        """Send what is left and say good-bye, for at most `timeout` seconds.

        What is emitted from now on is counted in `ignored`. Closing again does nothing.
        """
        if self._inert:
            return
        self._inert = True
        with self._lock:
            self._changed.notify_all()
        self._link.close(text_of(reason), timeout)
        with self._counting:
            self.ignored += sum(self._outbox.waiting.values())
            if self._link.unsent:
                self.ignored += self._records_in_hand
        _channels.discard(self)

    # For whoever looks after the channel

    @property
    def address(self) -> str:
        """Where the collector is expected."""
        return self._link.address

    @property
    def engine(self) -> str:
        """Name of the engine."""
        return self._hello.engine

    @property
    def closed(self) -> bool:
        """True after `close`, and in a forked child."""
        return self._inert

    @property
    def connected(self) -> bool:
        """True while a collector takes rows."""
        return self._open

    @property
    def refusal(self) -> str:
        """Why the collector refused this engine; empty when it did not."""
        return self._link.refusal

    @property
    def dropped(self) -> dict[str, int]:
        """Rows ever lost before they could be sent, by table; those without are left out."""
        return self._outbox.dropped

    @property
    def waiting(self) -> dict[str, int]:
        """Records that wait to be sent, by table; tables without are left out."""
        return self._outbox.waiting

    def wait_connected(self, timeout: float) -> bool:
        """Wait until a collector takes rows; False when `timeout` seconds ran out."""
        with self._lock:
            return self._changed.wait_for(lambda: self._open, timeout)

    def _hurry(self, table: str) -> None:
        """An inbox fills faster than the link's thread gathers: wake it, or drop."""
        if not self._hurried:
            self._hurried = True
            self._link.wake()
        self._outbox.relieve(table)

    # For the link's thread

    def _turn(self) -> None:
        self._hurried = False
        self._outbox.gather()

    def _next_message(self) -> bytes | None:
        self._records_in_hand = 0
        if self._progress_due:
            self._progress_due = False
            return self._encode(self._progress)
        if self._acks:
            return self._acks.popleft()
        batch = self._outbox.batch()
        if batch is not None:
            self._records_in_hand = self._outbox.last_records
        return batch

    def _obey(self, command: Command) -> None:
        known = self._hello.commands
        if command.name not in known:
            obeyed = ", ".join(known) or "none"
            self.ack(command, False, f"no command {command.name!r}; obeyed: {obeyed}")
        elif self._on_command is not None:
            try:
                self._on_command(command)
            except Exception as problem:  # noqa: BLE001 - the answer tells of it
                self.ack(command, False, f"{type(problem).__name__}: {problem}")
        elif len(self._commands) >= WAITING_COMMANDS:
            self.ack(
                command,
                False,
                f"{WAITING_COMMANDS} commands wait for the engine already",
            )
        else:
            with self._lock:
                self._commands.append(command)
                self._changed.notify_all()

    def _opened(self, open_: bool) -> None:
        if open_ and self._progress is not None:
            self._progress_due = True
        with self._lock:
            self._open = open_
            self._changed.notify_all()

    def _count_error(self, problem: Exception) -> None:
        with self._counting:
            self.errors += 1
            first = self.errors == 1
        if first:
            _log.warning("auxconn: %s: %s", type(problem).__name__, problem)

    def _fall_silent(self) -> None:
        """In a forked child: the thread is not here, and the socket is the parent's.

        Nor is whoever held a lock at that moment, so there are new ones.
        """
        self._inert = True
        self._open = False
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._counting = threading.Lock()
        self._commands.clear()


class _Side:
    """The face of a channel towards its link, apart from what engines may call."""

    def __init__(self, channel: Channel) -> None:
        self.greeting = lambda: channel._hello
        self.turn = channel._turn
        self.next_message = channel._next_message
        self.obey = channel._obey
        self.opened = channel._opened
        self.failed = channel._count_error


_channels: weakref.WeakSet[Channel] = weakref.WeakSet()


def _after_fork() -> None:
    for channel in list(_channels):
        channel._fall_silent()


def _at_exit() -> None:
    for channel in list(_channels):
        channel.close("the process ended", timeout=0.5)


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
