"""Who speaks to the collector, and how well it is heard.

A cluster's engines come, die without a word, come back under the same name, or send what
was never agreed. This module keeps the account of each: facts, liveness, what was lost and
where. It knows neither sockets nor threads and takes its clocks from outside, so each of
these lives can be played through in a test without waiting.

No hole is silent: a number missing among the batches, or rows an engine says it dropped,
is added to counters and told as a `gap` event. Counters are exact at once; events of a kind
are told at most once a second for each source, with the exact sum, or an overloaded engine
would push everything else out of the table of events.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec

from auxconn.address import check_engine
from auxconn.frames import FrameStore
from auxconn.records import SCHEMA_VERSION, TABLES, EventKind, Events
from auxconn.source import Key, Live, Source, Untold
from auxconn.texts import TEXT_LIMIT, clip
from auxconn.wire import (
    STALE_SECONDS,
    Ack,
    Batch,
    Bye,
    Hello,
    Progress,
    ToCollector,
    Welcome,
)

__all__ = ["OWN_ENGINE", "Source", "Sources"]

MOST_SOURCES = 256
"""Sources at one time; a further one is refused unless one of them is gone."""

MOST_PAST = 32
"""Replaced incarnations that are still listed, as gone."""

PAST_SECONDS = 10.0
"""A replaced incarnation is listed so long."""

STARTING_STALE_SECONDS = 10.0
"""An engine that is starting may be silent so long: importing vLLM holds the interpreter."""

GONE_SECONDS = 300.0
"""A stale source is given up after so long, and a gone one forgotten."""

TELL_SECONDS = 1.0
"""Gaps and errors of a source are told at most so often."""

MESSAGE_LIMIT = 32 << 20
"""Bytes of a message. A batch has some 2,000 rows a table, and a cache reset can release
a million blocks of 20 bytes in one record."""

HELLO_LIMIT = 256
"""Facts, and commands, that a `Hello` may name."""

OWN_ENGINE = "collector"
"""Engine of the events that belong to no source."""


class Sources:
    """The account of every source; any thread may read it, one receives.

    Parameters
    ----------
    store
        Takes the rows and the events.
    clock, wall
        Monotonic seconds for liveness, and seconds of the wall clock for events.
    most
        Sources at one time.
    on_ack, on_gone
        Called with an `Ack` and the key and incarnation of who sent it; and with those of
        a source that is gone, by its good-bye, replaced, or given up.
    """

    def __init__(
        self,
        store: FrameStore,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        most: int = MOST_SOURCES,
        on_ack: Callable[[Ack, Key, str], None] = lambda *_: None,
        on_gone: Callable[[Key, str], None] = lambda *_: None,
    ) -> None:
        self.version = 0
        """Rises with every change of a source but its age and its count of rows."""
        self.malformed = 0
        """Messages that are none, or too long, of whoever they were."""
        self.strangers = 0
        """Messages of those who had not said hello."""
        self.refused = 0
        """Greetings refused."""
        self.changed = threading.Condition(threading.RLock())
        self._store = store
        self._clock = clock
        self._wall = wall
        self._most = most
        self._on_ack = on_ack
        self._on_gone = on_gone
        self._live: dict[Key, Live] = {}
        self._past: list[Live] = []
        self._peers: dict[bytes, Live] = {}
        self._replaced: OrderedDict[bytes, str] = OrderedDict()
        self._stranger = Untold()
        self._decode = msgspec.msgpack.Decoder(ToCollector).decode

    def snapshot(self) -> list[Source]:
        """Every source, those gone for a short while too, by engine, rank and role."""
        with self.changed:
            now = self._clock()
            all_ = [*self._past, *self._live.values()]
            return [
                live.snapshot(now) for live in sorted(all_, key=lambda one: one.key)
            ]

    def peer_of(self, key: Key, incarnation: str) -> bytes | None:
        """Where to send a message for a source; None when it is gone."""
        with self.changed:
            live = self._live.get(key)
            if live is None or live.gone_since is not None:
                return None
            return live.peer if live.hello.incarnation == incarnation else None

    def receive(self, peer: bytes, data: bytes) -> Welcome | None:
        """Take in one message from the connection `peer`; return what to answer."""
        with self.changed:
            if len(data) > MESSAGE_LIMIT:
                self._bad(
                    peer, f"a message of {len(data)} B; the limit is {MESSAGE_LIMIT}"
                )
                return None
            try:
                message = self._decode(data)
            except (ValueError, RecursionError, OverflowError) as problem:
                self._bad(peer, f"not a message: {problem}")
                return None
            if isinstance(message, Hello):
                return self._hello(peer, message)
            live = self._peers.get(peer)
            if live is None:
                return self._from_stranger(peer)
            self._heard(live)
            match message:
                case Batch():
                    self._batch(live, message)
                case Progress():
                    if message != live.progress:
                        live.progress = message
                        self._moved()
                case Ack():
                    self._on_ack(message, live.key, live.hello.incarnation)
                case Bye():
                    self._leave(live, f"ended: {message.reason}")
            return None

    def malformed_from(self, peer: bytes, problem: str) -> None:
        """Count a message that did not even have the right form."""
        with self.changed:
            self._bad(peer, problem)

    def tick(self) -> None:
        """Look at the clock: who is stale, what is to be told, who can be forgotten."""
        with self.changed:
            now = self._clock()
            for live in list(self._live.values()):
                self._tell(live)
                if live.gone_since is not None:
                    if now - live.gone_since > GONE_SECONDS:
                        self._forget(live)
                    continue
                silent = now - live.last_seen
                allowed = STARTING_STALE_SECONDS if live.starting else STALE_SECONDS
                if not live.stale and silent > allowed:
                    live.stale = True
                    self._event(live, "stale", f"nothing heard for {silent:.1f} s")
                    self._moved()
                elif live.stale and silent > GONE_SECONDS:
                    self._leave(live, f"given up: nothing heard for {silent:.0f} s")
            kept = [
                one
                for one in self._past
                if now - (one.gone_since or now) <= PAST_SECONDS
            ]
            if len(kept) != len(self._past):
                self._past = kept
                self._moved()
            self._tell_of_strangers()

    def close(self) -> None:
        """Tell what is untold; nothing is received any more."""
        with self.changed:
            for live in self._live.values():
                self._tell(live, at_once=True)
            self._tell_of_strangers(at_once=True)

    # Greetings

    def _hello(self, peer: bytes, hello: Hello) -> Welcome:
        refusal = self._objection(peer, hello)
        if refusal:
            self.refused += 1
            told = f"refused {clip(hello.engine, 80)!r}: {refusal}"
            if peer in self._peers:
                self._bad(peer, told)
            else:
                self._note_stranger(told)
            return Welcome(SCHEMA_VERSION, False, refusal)
        key = hello.engine, hello.rank, hello.role
        live = self._live.get(key)
        if live is not None and live.hello.incarnation != hello.incarnation:
            self._replace(live)
            live = None
        if live is None:
            live = self._live[key] = Live(peer, hello, self._clock())
            self._peers[peer] = live
        else:
            if live.peer != peer:
                self._peers.pop(live.peer, None)
                self._peers[peer] = live
                live.peer = peer
            live.hello = hello
            self._heard(live)
        self._moved()
        return Welcome(SCHEMA_VERSION, True, "welcome")

    def _objection(self, peer: bytes, hello: Hello) -> str:
        """Why `hello` is refused; empty when it is not."""
        if hello.schema != SCHEMA_VERSION:
            return (
                f"the engine speaks schema {hello.schema}, the collector "
                f"{SCHEMA_VERSION}: install the same version of auxconn on both sides"
            )
        try:
            check_engine(hello.engine, hello.rank, hello.role)
        except ValueError as problem:
            return clip(str(problem), TEXT_LIMIT)
        if max(len(hello.facts), len(hello.commands)) > HELLO_LIMIT:
            return f"more than {HELLO_LIMIT} facts or commands"
        texts = [
            *hello.facts,
            *hello.facts.values(),
            *hello.commands,
            hello.incarnation,
        ]
        if any(isinstance(text, str) and len(text) > TEXT_LIMIT for text in texts):
            return f"a fact or command of more than {TEXT_LIMIT} characters"
        key = hello.engine, hello.rank, hello.role
        owner = self._peers.get(peer)
        if owner is not None and owner.key != key:
            return f"this connection is that of engine {owner.hello.engine!r} already"
        live = self._live.get(key)
        if live is None:
            return self._no_room()
        same = live.hello.incarnation == hello.incarnation
        heard = live.state in ("live", "starting")
        if not same and heard and hello.incarnation in self._replaced.values():
            return self._taken(live)
        return ""

    def _no_room(self) -> str:
        if len(self._live) < self._most:
            return ""
        lost = [one for one in self._live.values() if one.state in ("gone", "stale")]
        if not lost:
            return f"{self._most} sources are connected already, which is the limit"
        oldest = min(lost, key=lambda one: one.last_seen)
        if oldest.gone_since is None:
            self._leave(oldest, "given up to make room for another source")
        self._forget(oldest)
        return ""

    def _replace(self, live: Live) -> None:
        """Another process says that it is this source: the newest is believed."""
        if live.gone_since is None:
            self._leave(live, "replaced by another start of the engine")
        self._peers.pop(live.peer, None)
        self._replaced[live.peer] = live.hello.incarnation
        while len(self._replaced) > MOST_SOURCES:
            self._replaced.popitem(last=False)
        live.gone_since = self._clock()
        self._past = [*self._past, live][-MOST_PAST:]
        del self._live[live.key]

    @staticmethod
    def _taken(live: Live) -> str:
        engine, rank, role = live.key
        return (
            f"another process is engine {engine!r}, rank {rank}, role {role}: give each "
            "engine a name of its own"
        )

    def _from_stranger(self, peer: bytes) -> Welcome:
        self.strangers += 1
        if peer in self._replaced:
            text = "another process has this engine's name: give each one of its own"
            self._note_stranger(f"an engine that was replaced still speaks; {text}")
            return Welcome(SCHEMA_VERSION, False, text)
        self._note_stranger("a message of an engine that did not say hello")
        return Welcome(SCHEMA_VERSION, True, "say hello first")

    # Messages of known sources

    def _heard(self, live: Live) -> None:
        now = self._clock()
        if live.stale or live.gone_since is not None:
            away = now - live.last_seen
            live.stale = False
            live.gone_since = None
            self._event(live, "back", f"heard again after {away:.1f} s")
            self._moved()
        live.last_seen = now

    def _batch(self, live: Live, batch: Batch) -> None:
        if batch.seq < (live.expected or 1):
            self._bad(
                live.peer, f"batch {batch.seq} when {live.expected or 1} is the next"
            )
            return
        for table, rows in batch.dropped.items():
            if table not in TABLES or rows < 0:
                self._bad(
                    live.peer, f"batch {batch.seq} drops {rows} rows of {table!r}"
                )
                return
        untold = live.untold
        if live.expected is None:
            live.batches_before = batch.seq - 1
            if live.batches_before:
                self._event(
                    live,
                    "gap",
                    f"the first batch here is {batch.seq}: those before it went to another "
                    "collector or were lost",
                )
        elif batch.seq > live.expected:
            missing = batch.seq - live.expected
            live.batches_lost += missing
            untold.first = untold.first if untold.batches else live.expected
            untold.last = batch.seq - 1
            untold.batches += missing
            self._moved()
        live.expected = batch.seq + 1
        for table, rows in batch.dropped.items():
            self._lost_rows(live, table, rows)
        if not live.spoke:
            live.spoke = True
            self._moved()
        if batch.steps:
            live.step = batch.steps[-1].step
        # Before the rows, which come after the hole.
        self._tell(live)
        for table in TABLES:
            records = getattr(batch, table)
            if not records:
                continue
            try:
                live.rows += self._store.append(
                    table, records, live.hello.engine, live.hello.rank, typed=True
                )
            except ValueError as problem:
                self._lost_rows(live, table, _rows_in(table, records))
                self._bad(live.peer, str(problem))

    def _lost_rows(self, live: Live, table: str, rows: int) -> None:
        if rows:
            live.rows_lost[table] = live.rows_lost.get(table, 0) + rows
            untold = live.untold.rows
            untold[table] = untold.get(table, 0) + rows
            self._moved()

    def _leave(self, live: Live, why: str) -> None:
        self._tell(live, at_once=True)
        live.stale = False
        live.gone_since = self._clock()
        self._event(live, "stop", why)
        self._moved()
        self._on_gone(live.key, live.hello.incarnation)

    def _forget(self, live: Live) -> None:
        del self._live[live.key]
        self._peers.pop(live.peer, None)
        self._moved()

    # Telling

    def _bad(self, peer: bytes, problem: str) -> None:
        self.malformed += 1
        problem = clip(problem, TEXT_LIMIT)
        live = self._peers.get(peer)
        if live is None:
            self._note_stranger(problem)
            return
        live.errors += 1
        live.error = problem
        live.untold.errors += 1
        live.untold.error = problem
        self._tell(live)
        self._moved()

    def _note_stranger(self, problem: str) -> None:
        self._stranger.errors += 1
        self._stranger.error = problem
        self._tell_of_strangers()

    def _tell(self, live: Live, at_once: bool = False) -> None:
        untold, now = live.untold, self._clock()
        due = at_once or now - untold.gap_told >= TELL_SECONDS
        if due and (untold.batches or untold.rows):
            self._event(live, "gap", untold.gap_text())
            untold.batches, untold.rows, untold.gap_told = 0, {}, now
        due = at_once or now - untold.error_told >= TELL_SECONDS
        if due and untold.errors:
            self._event(live, "error", untold.error_text())
            untold.errors, untold.error_told = 0, now

    def _tell_of_strangers(self, at_once: bool = False) -> None:
        untold, now = self._stranger, self._clock()
        due = at_once or now - untold.error_told >= TELL_SECONDS
        if due and untold.errors:
            self._write("error", untold.error_text(), OWN_ENGINE, 0, 0)
            untold.errors, untold.error_told = 0, now

    def _event(self, live: Live, kind: str, text: str) -> None:
        self._write(kind, text, live.hello.engine, live.hello.rank, live.step)

    def _write(self, kind: str, text: str, engine: str, rank: int, step: int) -> None:
        event = Events(self._wall(), step, cast(EventKind, kind), text)
        # A store that can name no further engine may still know ours; if not, the counters
        # have it all the same.
        for name in (engine, OWN_ENGINE):
            with contextlib.suppress(ValueError):
                self._store.append("events", [event], name, rank)
                return

    def _moved(self) -> None:
        self.version += 1
        self.changed.notify_all()


def _rows_in(table: str, records: Sequence[Any]) -> int:
    """Rows that `records` carry, as the engine counts them when it drops some."""
    if table != "blocks":
        return len(records)
    return sum(len(record.hash) // 8 for record in records)
