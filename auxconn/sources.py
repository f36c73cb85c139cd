"""Who speaks to the collector, and how well it is heard.

A cluster's engines come, die without a word, come back under the same name, or send what
was never agreed. This module keeps the account of each: facts, liveness, what was lost and
where. It knows neither sockets nor threads and takes its clocks from outside, so each of
these lives can be played through in a test without waiting.

No hole is silent: a number missing among the batches, rows an engine says it dropped, and
records that are none are added to counters and told (`telling`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from auxconn.batches import rows_in, salvage, sort_out
from auxconn.frames import FrameStore
from auxconn.records import SCHEMA_VERSION, TABLES
from auxconn.roster import MOST_SOURCES, Roster
from auxconn.source import Key, Live, Source
from auxconn.telling import Teller
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

PAST_SECONDS = 10.0
"""A replaced incarnation is listed so long."""

STARTING_STALE_SECONDS = 10.0
"""An engine that is starting may be silent so long: importing vLLM holds the interpreter."""

GONE_SECONDS = 300.0
"""A stale source is given up after so long, and a gone one forgotten."""

MESSAGE_LIMIT = 32 << 20
"""Bytes of a message. A batch has some 2,000 rows a table, and a cache reset can release
a million blocks of 20 bytes in one record."""


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
        # Taken itself, not by the condition: see `FrameStore`.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._store = store
        self._clock = clock
        self._on_ack = on_ack
        self._on_gone = on_gone
        self._roster = Roster(most)
        self._teller = Teller(store, clock, wall)
        self._decode = msgspec.msgpack.Decoder(ToCollector).decode

    def snapshot(self) -> list[Source]:
        """Every source, those gone for a short while too, by engine, rank and role."""
        with self._lock:
            now = self._clock()
            return [live.snapshot(now) for live in self._roster.all]

    def wait_for(
        self, wanted: Callable[[list[Source]], bool], timeout: float
    ) -> tuple[bool, list[Source]]:
        """Wait until the sources are as `wanted`; whether they are, and what they are."""
        with self._lock:
            met = self._changed.wait_for(lambda: wanted(self.snapshot()), timeout)
            return met, self.snapshot()

    def peer_of(self, key: Key, incarnation: str) -> bytes | None:
        """Where to send a message for a source; None when it is gone."""
        with self._lock:
            live = self._roster.live.get(key)
            if live is None or live.gone_since is not None:
                return None
            return live.peer if live.hello.incarnation == incarnation else None

    def receive(self, peer: bytes, data: bytes) -> Welcome | None:
        """Take in one message from the connection `peer`; return what to answer."""
        with self._lock:
            if len(data) > MESSAGE_LIMIT:
                self._bad(
                    peer, f"a message of {len(data)} B; the limit is {MESSAGE_LIMIT}"
                )
                return None
            unusable: dict[str, int] = {}
            try:
                message = self._decode(data)
            except (ValueError, RecursionError, OverflowError) as problem:
                salvaged = salvage(data)
                if salvaged is None:
                    self._bad(peer, f"not a message: {problem}")
                    return None
                message, unusable, wrong = salvaged
                self._bad(peer, f"not a record: {wrong or problem}")
            if isinstance(message, Hello):
                return self._hello(peer, message)
            live = self._roster.peers.get(peer)
            if live is None:
                return self._from_stranger(peer)
            self._heard(live)
            match message:
                case Batch():
                    self._batch(live, message, unusable)
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
        with self._lock:
            self._bad(peer, problem)

    def tick(self) -> None:
        """Look at the clock: who is stale, what is to be told, who can be forgotten."""
        with self._lock:
            now = self._clock()
            for live in list(self._roster.live.values()):
                self._teller.tell(live)
                if live.gone_since is not None:
                    if now - live.gone_since > GONE_SECONDS:
                        self._roster.forget(live)
                        self._moved()
                    continue
                silent = now - live.last_seen
                allowed = STARTING_STALE_SECONDS if live.starting else STALE_SECONDS
                if not live.stale and silent > allowed:
                    live.stale = True
                    self._teller.event(
                        live, "stale", f"nothing heard for {silent:.1f} s"
                    )
                    self._moved()
                elif live.stale and silent > GONE_SECONDS:
                    self._leave(live, f"given up: nothing heard for {silent:.0f} s")
            kept = [
                one
                for one in self._roster.past
                if now - (one.gone_since or now) <= PAST_SECONDS
            ]
            if len(kept) != len(self._roster.past):
                self._roster.past = kept
                self._moved()
            self._teller.tell_of_strangers()

    def close(self) -> None:
        """Tell what is untold; nothing is received any more."""
        with self._lock:
            for live in self._roster.live.values():
                self._teller.tell(live, at_once=True)
            self._teller.tell_of_strangers(at_once=True)

    # Greetings

    def _hello(self, peer: bytes, hello: Hello) -> Welcome:
        roster = self._roster
        refusal = roster.objection(peer, hello)
        if refusal:
            self.refused += 1
            told = f"refused {clip(hello.engine, 80)!r}: {refusal}"
            if peer in roster.peers:
                self._bad(peer, told)
            else:
                self._teller.stranger(told)
            return Welcome(SCHEMA_VERSION, False, refusal)
        key = hello.engine, hello.rank, hello.role
        live = roster.live.get(key)
        if live is not None and live.hello.incarnation != hello.incarnation:
            # Another process says that it is this source: the newest is believed.
            if live.gone_since is None:
                self._leave(live, "replaced by another start of the engine")
            roster.replace(live, self._clock())
            live = None
        if live is None:
            self._make_room()
            roster.enter(Live(peer, hello, self._clock()))
        else:
            if live.peer != peer:
                roster.move(live, peer)
            live.hello = hello
            self._heard(live)
        self._moved()
        return Welcome(SCHEMA_VERSION, True, "welcome")

    def _make_room(self) -> None:
        oldest = self._roster.longest_lost() if self._roster.is_full else None
        if oldest is not None:
            if oldest.gone_since is None:
                self._leave(oldest, "given up to make room for another source")
            self._roster.forget(oldest)

    def _from_stranger(self, peer: bytes) -> Welcome:
        self.strangers += 1
        if peer in self._roster.replaced:
            text = "another process has this engine's name: give each one of its own"
            self._teller.stranger(f"an engine that was replaced still speaks; {text}")
            return Welcome(SCHEMA_VERSION, False, text)
        self._teller.stranger("a message of an engine that did not say hello")
        return Welcome(SCHEMA_VERSION, True, "say hello first")

    # Messages of known sources

    def _heard(self, live: Live) -> None:
        now = self._clock()
        if live.stale or live.gone_since is not None:
            away = now - live.last_seen
            live.stale = False
            live.gone_since = None
            self._teller.event(live, "back", f"heard again after {away:.1f} s")
            self._moved()
        live.last_seen = now

    def _batch(self, live: Live, batch: Batch, unusable: dict[str, int]) -> None:
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
                self._teller.event(
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
            self._lost_rows(live, table, rows, untold.dropped)
        for table, rows in unusable.items():
            self._lost_rows(live, table, rows, untold.unusable)
        if not live.spoke:
            live.spoke = True
            self._moved()
        # Before the rows, which come after the hole.
        self._teller.tell(live)
        for table in TABLES:
            records = getattr(batch, table)
            if records and not self._store_rows(live, table, records):
                self._store_fitting(live, table, records)

    def _store_rows(self, live: Live, table: str, records: list[Any]) -> bool:
        try:
            live.rows += self._store.append(
                table, records, live.hello.engine, live.hello.rank, typed=True
            )
        except ValueError as problem:
            self._bad(live.peer, str(problem))
            return False
        if table == "steps":
            live.step = records[-1].step
        return True

    def _store_fitting(self, live: Live, table: str, records: list[Any]) -> None:
        """Store the records that are not to blame for the refusal of them all."""
        good, bad = sort_out(table, records)
        # If all of them fit, it is the store that takes none of this source.
        if not bad or (good and not self._store_rows(live, table, good)):
            bad = records
        self._lost_rows(live, table, rows_in(table, bad), live.untold.unusable)

    def _lost_rows(
        self, live: Live, table: str, rows: int, untold: dict[str, int]
    ) -> None:
        if rows:
            live.rows_lost[table] = live.rows_lost.get(table, 0) + rows
            untold[table] = untold.get(table, 0) + rows
            self._moved()

    def _leave(self, live: Live, why: str) -> None:
        self._teller.tell(live, at_once=True)
        live.stale = False
        live.gone_since = self._clock()
        self._teller.event(live, "stop", why)
        self._moved()
        self._on_gone(live.key, live.hello.incarnation)

    def _bad(self, peer: bytes, problem: str) -> None:
        self.malformed += 1
        problem = clip(problem, TEXT_LIMIT)
        live = self._roster.peers.get(peer)
        if live is None:
            self._teller.stranger(problem)
            return
        live.errors += 1
        live.error = problem
        live.untold.errors += 1
        live.untold.error = problem
        self._teller.tell(live)
        self._moved()

    def _moved(self) -> None:
        self.version += 1
        self._changed.notify_all()
