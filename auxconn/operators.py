"""Where those who steer engines ask the collector to, from other processes.

Rows come in at one socket and orders at another, so that an engine's key is no way to
steer another engine, and a collector that is only watched has no such socket at all. Each
question gets one answer; an order is answered when the engine has obeyed or refused.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import threading
from collections import deque
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Protocol, Self

import msgspec
import zmq

from auxconn.address import check_bind, check_connect, check_local, is_ipv6
from auxconn.encoding import encoder
from auxconn.errors import AuxConnError
from auxconn.keys import Door, Keys, speak
from auxconn.source import Source
from auxconn.waking import Waker
from auxconn.wire import Ack

DEFAULT_BIND = "tcp://127.0.0.1:5598"

QUESTION_LIMIT = 64 * 1024
"""Bytes of a question: a name, and a few numbers."""

ANSWER_SECONDS = 30.0
"""How long one who asks waits at most; an engine that is idle obeys at its next step."""

_log = logging.getLogger("auxconn.operators")


class Ask(msgspec.Struct, array_like=True, tag="ask", frozen=True):
    """Asks who is there."""


class Order(msgspec.Struct, array_like=True, tag="order", frozen=True):
    """Have an engine do something."""

    engine: str
    name: str
    rank: int | None = None
    args: dict[str, Any] = {}


class Engine(msgspec.Struct, array_like=True, frozen=True):
    """A source, as one who steers needs to know it."""

    engine: str
    rank: int
    role: str
    state: str
    commands: tuple[str, ...]
    capacity: int | None


class Answer(msgspec.Struct, array_like=True, frozen=True):
    """What came of a question."""

    ok: bool
    text: str
    engines: tuple[Engine, ...] = ()


class NoAnswerError(AuxConnError):
    """The collector did not answer, or nobody is there."""


class Engines(Protocol):
    """What is needed of a collector."""

    def sources(self) -> list[Source]:
        """Every source as it is now."""

    def command(
        self, engine: str, name: str, /, *, rank: int | None = None, **args: Any
    ) -> Future[Ack]:
        """Ask an engine to do something."""


class Operators:
    """Listens for those who steer, from when it is made until `close`; a context manager.

    Parameters
    ----------
    engines
        The collector.
    bind
        Where to listen.
    keys, insecure
        As for `Collector`; with keys, the operator's are needed to get in.

    Raises
    ------
    ValueError, OSError
        As `Collector`.
    """

    def __init__(
        self,
        engines: Engines,
        bind: str = DEFAULT_BIND,
        *,
        keys: Keys | None = None,
        insecure: bool = False,
    ) -> None:
        check_bind(bind)
        if keys is None and not insecure:
            check_local(bind)
        self._engines = engines
        self._answers: deque[tuple[list[bytes], Answer]] = deque()
        self._encode = encoder().encode
        self._decode = msgspec.msgpack.Decoder(Ask | Order).decode
        self._closing = False
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._door = None if keys is None else Door(self._context, keys, "operator")
        self._router = self._context.socket(zmq.ROUTER)
        try:
            self._router.setsockopt(zmq.LINGER, 200)
            self._router.setsockopt(zmq.MAXMSGSIZE, QUESTION_LIMIT)
            self._router.setsockopt(zmq.IPV6, is_ipv6(bind))
            if self._door is not None:
                self._door.guard(self._router)
            self._router.bind(bind)
        except zmq.ZMQError as problem:
            self._end()
            taken = problem.errno == errno.EADDRINUSE
            why = "it is taken" if taken else problem.strerror or problem
            raise OSError(problem.errno, f"cannot listen at {bind}: {why}") from None
        self.address = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        """Where it listens, with the port in use."""
        self._waker = Waker()
        self._thread = threading.Thread(
            target=self._run, name="auxconn-operators", daemon=True
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

    def close(self) -> None:
        """Stop listening; closing again does nothing."""
        if not self._closing:
            self._closing = True
            self._waker.wake()
            self._thread.join()

    def _end(self) -> None:
        self._router.close()
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
                poller.poll()
                self._waker.drain()
                try:
                    self._turn()
                except Exception:  # noqa: BLE001 - one bad question must not end it
                    _log.exception("the operators' socket goes on after this")
        finally:
            self._end()
            self._waker.close()

    def _turn(self) -> None:
        with contextlib.suppress(zmq.Again):
            *envelope, data = self._router.recv_multipart(zmq.NOBLOCK)
            self._take(envelope, data)
            self._waker.wake()  # there may be more
        while self._answers:
            envelope, answer = self._answers.popleft()
            with contextlib.suppress(zmq.ZMQError):  # one who has gone
                self._router.send_multipart(
                    [*envelope, self._encode(answer)], zmq.NOBLOCK
                )

    def _take(self, envelope: list[bytes], data: bytes) -> None:
        try:
            question = self._decode(data)
        except (ValueError, RecursionError) as problem:
            self._answers.append((envelope, Answer(False, f"no question: {problem}")))
            return
        if isinstance(question, Ask):
            self._answers.append((envelope, Answer(True, "", self._known())))
            return
        try:
            obeyed = self._engines.command(
                question.engine, question.name, rank=question.rank, **question.args
            )
        except (TypeError, ValueError) as problem:
            self._answers.append((envelope, Answer(False, str(problem))))
            return
        obeyed.add_done_callback(lambda done: self._answer(envelope, done))

    def _answer(self, envelope: list[bytes], done: Future[Ack]) -> None:
        problem = done.exception()
        answer = (
            Answer(False, str(problem))
            if problem is not None
            else Answer(done.result().ok, done.result().text)
        )
        self._answers.append((envelope, answer))
        self._waker.wake()

    def _known(self) -> tuple[Engine, ...]:
        found = []
        for one in self._engines.sources():
            capacity = one.facts.get("capacity")
            found.append(
                Engine(
                    one.engine,
                    one.rank,
                    one.role,
                    one.state,
                    one.commands,
                    capacity if isinstance(capacity, int) else None,
                )
            )
        return tuple(found)


def ask(
    question: Ask | Order,
    address: str = DEFAULT_BIND,
    *,
    keys: Keys | None = None,
    timeout: float = ANSWER_SECONDS,
) -> Answer:
    """Ask a collector, and wait for its answer.

    Raises
    ------
    ValueError
        When the address is none.
    NoAnswerError
        When nobody answered within `timeout` seconds.
    """
    check_connect(address)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    asking = context.socket(zmq.REQ)
    try:
        asking.setsockopt(zmq.LINGER, 0)
        asking.setsockopt(zmq.IPV6, is_ipv6(address))
        if keys is not None:
            speak(asking, keys)
        asking.connect(address)
        asking.send(encoder().encode(question))
        if not asking.poll(int(timeout * 1000)):
            raise NoAnswerError(
                f"nobody answered at {address} within {timeout:g} s: is a collector there "
                "that may be steered (`auxconn serve --allow-control`), and does it want "
                "the operator's key?"
            )
        return msgspec.msgpack.decode(asking.recv(), type=Answer)
    finally:
        asking.close()
        context.term()
