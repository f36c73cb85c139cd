"""The viewer's end of the stream.

One ROUTER socket takes what all engines of a cluster send, in a thread of its own, and puts
it into a `FrameStore`. Who they are and how well they are heard is in `sources`; this
module is the socket, the thread, and the way of a command to the engine that obeys it.

Nothing from outside ends the thread: what cannot be decoded is counted and told in the
table of events.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self

import zmq

from auxconn.address import check_bind, check_local, is_ipv6
from auxconn.commands import CommandError, Commands, Waiting, failed
from auxconn.encoding import encoder
from auxconn.frames import FrameStore
from auxconn.keys import Door, Keys
from auxconn.roster import MOST_SOURCES
from auxconn.source import Key, Source
from auxconn.sources import MESSAGE_LIMIT, Sources
from auxconn.waking import Waker
from auxconn.wire import Ack

__all__ = ["Collector", "CommandError", "Source"]

TICK_SECONDS = 0.1
"""The thread looks at the clock at least so often."""

MESSAGES_A_TURN = 256
"""Messages taken in before the thread sends and looks at the clock."""

QUEUED_MESSAGES = 64
"""Messages that ZeroMQ holds for one engine; the rest wait at the engine."""

COMMAND_SECONDS = 10.0
"""An engine has so long to answer a command, unless told otherwise."""

_log = logging.getLogger("auxconn.collector")


class Collector:
    """Listens for engines, from when it is made until `close`; a context manager.

    Parameters
    ----------
    bind
        Where to listen. The default is any free port that only this machine can reach.
        Beyond this machine it takes `keys`, as whoever can reach it could send rows.
    store
        Takes the rows; a new one by default.
    clock, wall
        Monotonic seconds for liveness, and seconds of the wall clock for events.
    most_sources
        Sources at one time; further ones are refused.
    keys
        The collector's, from `auxconn.keys.load`: only engines that have theirs get in.
    insecure
        True listens beyond this machine without keys.

    Raises
    ------
    ValueError
        When the address is none.
    OSError
        When it is taken or not of this machine.
    """

    def __init__(
        self,
        bind: str = "tcp://127.0.0.1:*",
        store: FrameStore | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        most_sources: int = MOST_SOURCES,
        keys: Keys | None = None,
        insecure: bool = False,
    ) -> None:
        check_bind(bind)
        if keys is None and not insecure:
            check_local(bind)
        self._keys = keys
        self._door: Door | None = None
        self.store = FrameStore() if store is None else store
        self.failures = 0
        """What went wrong in the thread itself; the log has the first."""
        self._commands = Commands(clock)
        self._sources = Sources(
            self.store,
            clock=clock,
            wall=wall,
            most=most_sources,
            on_ack=lambda *answer: self._acks.append(answer),
            on_gone=lambda *source: self._gone.append(source),
        )
        # Futures are settled with no lock held: their callbacks are other people's.
        self._acks: deque[tuple[Ack, Key, str]] = deque()
        self._gone: deque[tuple[Key, str]] = deque()
        self._outgoing: deque[Waiting] = deque()
        self._encode = encoder().encode
        self._closing = False
        self._context = zmq.Context()
        try:
            self._router = self._listen(bind)
        except BaseException:
            self._end_context()
            raise
        self.address = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        """Where it listens, with the port in use."""
        self._waker = Waker()
        self._thread = threading.Thread(
            target=self._run, name="auxconn-collector", daemon=True
        )
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def version(self) -> int:
        """Rises whenever `sources` would answer something else than another age."""
        return self._sources.version

    @property
    def malformed(self) -> int:
        """Messages that were none, or too long."""
        return self._sources.malformed

    @property
    def foreign(self) -> int:
        """Connections refused because their key is not that of an engine."""
        return 0 if self._door is None else self._door.foreign

    @property
    def refused(self) -> int:
        """Greetings refused: another schema, a wrong name, or no room."""
        return self._sources.refused

    def sources(self) -> list[Source]:
        """Every source as it is now, by engine, rank and role."""
        return self._sources.snapshot()

    def wait(
        self, wanted: Callable[[list[Source]], bool], timeout: float
    ) -> list[Source]:
        """Wait until the sources are as `wanted`, and return them.

        Raises
        ------
        TimeoutError
            When they were not within `timeout` seconds; the text has what they were.
        """
        met, sources = self._sources.wait_for(wanted, timeout)
        if met:
            return sources
        raise TimeoutError(f"after {timeout:g} s the sources are {sources}")

    def command(
        self,
        engine: str,
        name: str,
        /,
        *,
        rank: int | None = None,
        timeout: float = COMMAND_SECONDS,
        **args: Any,
    ) -> Future[Ack]:
        """Ask an engine to do something.

        Parameters
        ----------
        engine, name
            Which engine, and one of the commands it says it obeys.
        rank
            Of the source that is meant; by default the lowest that obeys the command.
        timeout
            Seconds until the future fails.
        **args
            Arguments of the command.

        Returns
        -------
        Future
            Of the engine's `Ack`, which may be a refusal (`ok` is False). It fails with a
            `CommandError` when nobody can take the command or nobody answers.
        """
        if self._closing:
            return failed(f"{name!r}: the collector is closed")
        mine = [
            source
            for source in self.sources()
            if source.engine == engine and source.state != "gone"
        ]
        if not mine:
            return failed(f"{name!r}: engine {engine!r} is not there")
        able = [
            source
            for source in mine
            if name in source.commands and rank in (None, source.rank)
        ]
        if not able:
            known = sorted({command for source in mine for command in source.commands})
            where = "" if rank is None else f", rank {rank},"
            obeyed = ", ".join(known) or "nothing"
            return failed(
                f"{name!r}: engine {engine!r}{where} does not obey it; it obeys {obeyed}"
            )
        chosen = able[0]
        key = chosen.engine, chosen.rank, chosen.role
        try:
            self._encode(args)
            waiting = self._commands.add(key, chosen.incarnation, name, args, timeout)
        except (CommandError, TypeError, ValueError, OverflowError) as problem:
            return failed(f"{name!r} cannot be sent: {problem}")
        self._outgoing.append(waiting)
        self._waker.wake()
        return waiting.future

    def close(self) -> None:
        """Stop listening; commands without an answer fail. Closing again does nothing."""
        if self._closing:
            return
        self._closing = True
        self._waker.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join()
            # Those that were added while the thread ended.
            self._commands.fail_all("the collector was closed")

    def _listen(self, bind: str) -> zmq.Socket[bytes]:
        router = self._context.socket(zmq.ROUTER)
        try:
            router.setsockopt(zmq.LINGER, 200)
            router.setsockopt(zmq.ROUTER_MANDATORY, 1)
            router.setsockopt(zmq.RCVHWM, QUEUED_MESSAGES)
            router.setsockopt(zmq.SNDHWM, 256)
            # Beyond twice the limit the connection is cut before the memory is taken;
            # between the two, the message is refused by us, and told.
            router.setsockopt(zmq.MAXMSGSIZE, 2 * MESSAGE_LIMIT)
            router.setsockopt(zmq.TCP_KEEPALIVE, 1)
            router.setsockopt(zmq.IPV6, is_ipv6(bind))
            if self._keys is not None:
                self._door = Door(self._context, self._keys, "engine")
                self._door.guard(router)
            router.bind(bind)
        except zmq.ZMQError as problem:
            router.close(0)
            if problem.errno == errno.EADDRINUSE:
                why = "it is taken: stop what listens there, or choose another port"
            else:
                why = f"{problem.strerror or problem}"
            raise OSError(problem.errno, f"cannot listen at {bind}: {why}") from None
        return router

    def _end_context(self) -> None:
        if self._door is not None:
            self._door.close()
        self._context.term()

    # The thread

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._router, zmq.POLLIN)
        poller.register(self._waker.socket, zmq.POLLIN)
        try:
            while not self._closing:
                try:
                    poller.poll(int(TICK_SECONDS * 1000))
                    self._waker.drain()
                    self._take_in()
                    self._send_commands()
                    self._sources.tick()
                    self._settle()
                except Exception:  # noqa: BLE001 - one bad turn must not end the stream
                    self.failures += 1
                    if self.failures == 1:
                        _log.exception("the collector goes on after this")
                    time.sleep(TICK_SECONDS)
        finally:
            self._router.close()
            self._end_context()
            self._waker.close()
            self._sources.close()
            self._settle()
            self._commands.fail_all("the collector was closed")

    def _take_in(self) -> None:
        for _ in range(MESSAGES_A_TURN):
            try:
                peer, *parts = self._router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if len(parts) != 1:
                self._sources.malformed_from(peer, f"a message of {len(parts)} parts")
                continue
            answer = self._sources.receive(peer, parts[0])
            if answer is not None:
                self._send(peer, self._encode(answer))
        # There may be more: come back at once.
        self._waker.wake()

    def _send_commands(self) -> None:
        while self._outgoing:
            waiting = self._outgoing.popleft()
            peer = self._sources.peer_of(waiting.key, waiting.incarnation)
            message = self._encode(waiting.command)
            if peer is None or not self._send(peer, message):
                self._commands.fail(
                    waiting,
                    f"{waiting.command.name!r}: engine {waiting.key[0]!r} is not connected",
                )

    def _settle(self) -> None:
        while self._acks:
            self._commands.answer(*self._acks.popleft())
        while self._gone:
            self._commands.source_gone(*self._gone.popleft())
        self._commands.expire()

    def _send(self, peer: bytes, message: bytes) -> bool:
        try:
            self._router.send_multipart([peer, message], zmq.NOBLOCK)
        except zmq.ZMQError:
            # Gone, or it takes nothing in: an answer is of no use to it any more.
            return False
        return True
