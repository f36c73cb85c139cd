"""Commands on their way and the answers they wait for.

A control in a browser must not hang on an engine that died meanwhile: every command ends,
by the engine's answer, by its time limit, or by the engine's end, whichever comes first.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any

import msgspec

from auxconn.errors import AuxConnError
from auxconn.wire import Ack, Command

MOST_COMMANDS = 1024
"""Commands that wait for an answer at one time."""


class CommandError(AuxConnError):
    """A command that got no answer: nobody took it, nobody answered, or in vain."""


class Waiting(msgspec.Struct, frozen=True):
    """A command and who is to answer it."""

    command: Command
    key: tuple[str, int, str]
    incarnation: str
    deadline: float
    timeout: float
    future: Future[Ack]


class Commands:
    """Commands that wait for their answer, by number; any thread.

    Parameters
    ----------
    clock
        Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: dict[int, Waiting] = {}
        # From a random number on, so that the answer to a command of a collector that
        # died is not taken for one to ours.
        self._next = secrets.randbits(48)

    def __len__(self) -> int:
        return len(self._waiting)

    def add(
        self,
        key: tuple[str, int, str],
        incarnation: str,
        name: str,
        args: dict[str, Any],
        timeout: float,
    ) -> Waiting:
        """Number a command for a source; its future fails after `timeout` seconds.

        Raises
        ------
        CommandError
            When too many wait already.
        """
        with self._lock:
            if len(self._waiting) >= MOST_COMMANDS:
                raise CommandError(
                    f"{name!r}: {MOST_COMMANDS} commands wait for an answer already"
                )
            self._next += 1
            waiting = Waiting(
                Command(self._next, name, args),
                key,
                incarnation,
                self._clock() + timeout,
                timeout,
                Future(),
            )
            self._waiting[self._next] = waiting
            return waiting

    def answer(self, ack: Ack, key: tuple[str, int, str], incarnation: str) -> bool:
        """Resolve the command that `ack` answers; False when that source had none."""
        with self._lock:
            waiting = self._waiting.get(ack.id)
            if waiting is None or (waiting.key, waiting.incarnation) != (
                key,
                incarnation,
            ):
                return False
            del self._waiting[ack.id]
        _settle(waiting.future, ack)
        return True

    def fail(self, waiting: Waiting, why: str) -> None:
        """End one command without an answer."""
        with self._lock:
            self._waiting.pop(waiting.command.id, None)
        _settle(waiting.future, CommandError(why))

    def source_gone(self, key: tuple[str, int, str], incarnation: str) -> None:
        """End what a source that is gone will not answer."""
        for waiting in self._matching(
            lambda one: (one.key, one.incarnation) == (key, incarnation)
        ):
            name = waiting.command.name
            self.fail(waiting, f"{name!r}: engine {key[0]!r} ended before it answered")

    def expire(self) -> None:
        """End those whose time is up."""
        now = self._clock()
        for waiting in self._matching(lambda one: one.deadline <= now):
            self.fail(
                waiting,
                f"{waiting.command.name!r}: engine {waiting.key[0]!r} did not answer within "
                f"{waiting.timeout:g} s",
            )

    def fail_all(self, why: str) -> None:
        """End all."""
        for waiting in self._matching(lambda one: True):
            self.fail(waiting, f"{waiting.command.name!r}: {why}")

    def _matching(self, wanted: Callable[[Waiting], bool]) -> list[Waiting]:
        with self._lock:
            return [one for one in self._waiting.values() if wanted(one)]


def failed(why: str) -> Future[Ack]:
    """A future that has failed with a `CommandError`."""
    future: Future[Ack] = Future()
    future.set_exception(CommandError(why))
    return future


def _settle(future: Future[Ack], outcome: Ack | CommandError) -> None:
    """Set what a future was waiting for, unless its owner cancelled it."""
    try:
        if isinstance(outcome, CommandError):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
    except InvalidStateError:
        pass
