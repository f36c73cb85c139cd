"""Who is a source of the collector, who was, and who may become one.

A source is known by engine, rank and role, and by the connection it speaks over; a process
that was replaced is remembered, so that two of one name do not take turns. All of it is
bounded, whoever knocks. What happens to a source is told elsewhere (`sources`); nothing
here has a clock or an effect but on the lists.
"""

from __future__ import annotations

from collections import OrderedDict

from auxconn.address import check_engine
from auxconn.records import SCHEMA_VERSION
from auxconn.source import Key, Live
from auxconn.stated import FACTS_LIMIT
from auxconn.texts import TEXT_LIMIT, clip
from auxconn.wire import Hello

MOST_SOURCES = 256
"""Sources at one time; a further one is refused unless one of them is gone."""

MOST_PAST = 32
"""Replaced incarnations that are still listed, as gone."""


class Roster:
    """The sources. Not thread-safe: its owner locks.

    Parameters
    ----------
    most
        Sources at one time.
    """

    def __init__(self, most: int) -> None:
        self.live: dict[Key, Live] = {}
        """Every source that is not replaced, by what it is."""
        self.past: list[Live] = []
        """Sources that were replaced lately."""
        self.peers: dict[bytes, Live] = {}
        """Sources by the connection they speak over."""
        self.replaced: OrderedDict[bytes, str] = OrderedDict()
        """Connection and incarnation of those that were replaced."""
        self._most = most

    @property
    def all(self) -> list[Live]:
        """Every source, those replaced lately too, by engine, rank and role."""
        return sorted([*self.past, *self.live.values()], key=lambda one: one.key)

    def objection(self, peer: bytes, hello: Hello) -> str:
        """Why `hello` is refused; empty when it is not."""
        wrong = _wrong_with(hello)
        if wrong:
            return wrong
        key = hello.engine, hello.rank, hello.role
        owner = self.peers.get(peer)
        if owner is not None and owner.key != key:
            return f"this connection is that of engine {owner.hello.engine!r} already"
        live = self.live.get(key)
        if live is None:
            if self.is_full and self.longest_lost() is None:
                return f"{self._most} sources are connected already, which is the limit"
            return ""
        same = live.hello.incarnation == hello.incarnation
        heard = live.state in ("live", "starting")
        if not same and heard and hello.incarnation in self.replaced.values():
            return (
                f"another process is engine {hello.engine!r}, rank {hello.rank}, role "
                f"{hello.role}: give each engine a name of its own"
            )
        return ""

    @property
    def is_full(self) -> bool:
        """Whether a further source needs the place of one that is lost."""
        return len(self.live) >= self._most

    def longest_lost(self) -> Live | None:
        """The source that has been gone or stale for the longest time, if any is."""
        lost = [one for one in self.live.values() if one.state in ("gone", "stale")]
        return min(lost, key=lambda one: one.last_seen, default=None)

    def enter(self, live: Live) -> None:
        """Take a new source in."""
        self.live[live.key] = live
        self.peers[live.peer] = live

    def move(self, live: Live, peer: bytes) -> None:
        """From now on, a source speaks over the connection `peer`."""
        self.peers.pop(live.peer, None)
        self.peers[peer] = live
        live.peer = peer

    def replace(self, live: Live, now: float) -> None:
        """Another process is this source: keep the former as one that was."""
        self.forget(live)
        self.replaced[live.peer] = live.hello.incarnation
        while len(self.replaced) > MOST_SOURCES:
            self.replaced.popitem(last=False)
        live.gone_since = now
        self.past = [*self.past, live][-MOST_PAST:]

    def forget(self, live: Live) -> None:
        """A source is none any more."""
        del self.live[live.key]
        self.peers.pop(live.peer, None)


def _wrong_with(hello: Hello) -> str:
    """What is wrong with a greeting, whoever it comes from; empty when it is right."""
    if hello.schema != SCHEMA_VERSION:
        return (
            f"the engine speaks schema {hello.schema}, the collector "
            f"{SCHEMA_VERSION}: install the same version of auxconn on both sides"
        )
    try:
        check_engine(hello.engine, hello.rank, hello.role)
    except ValueError as problem:
        return clip(str(problem), TEXT_LIMIT)
    if max(len(hello.facts), len(hello.commands)) > FACTS_LIMIT:
        return f"more than {FACTS_LIMIT} facts or commands"
    texts = [*hello.facts, *hello.facts.values(), *hello.commands, hello.incarnation]
    if any(isinstance(text, str) and len(text) > TEXT_LIMIT for text in texts):
        return f"a fact or command of more than {TEXT_LIMIT} characters"
    return ""
