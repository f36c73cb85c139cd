"""One source: what is known of it, and what of that is yet to be told.

`Source` is what viewers get, a snapshot that does not change. `Live` is the same as it
changes, in the hands of `Sources` alone.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from auxconn.facts import sound
from auxconn.wire import Fact, Hello, Progress

State = Literal["starting", "live", "stale", "gone"]

Key = tuple[str, int, str]


class Source(msgspec.Struct, frozen=True):
    """What is known of one source at one moment."""

    engine: str
    rank: int
    role: str
    incarnation: str
    facts: dict[str, Fact]
    commands: tuple[str, ...]
    state: State
    last_seen: float
    """Monotonic clock of the collector, in seconds."""
    age_s: float
    """Seconds since then."""
    progress: Progress | None
    rows: int
    """Rows received."""
    rows_lost: dict[str, int]
    """Rows lost, by table: dropped by the engine, or refused by the store."""
    batches_lost: int
    """Batches lost on the way since the first one that came."""
    batches_before: int
    """Batches numbered before the first one that came: they went to another collector or
    were lost before this one listened."""
    errors: int
    """Messages that could not be used."""
    error: str
    """The newest of those, in words; empty when there was none."""


class Untold:
    """Losses and errors of one source that no event has told yet."""

    def __init__(self) -> None:
        self.batches = 0
        self.first = self.last = 0
        self.dropped: dict[str, int] = {}
        """Rows that the engine says it dropped."""
        self.unusable: dict[str, int] = {}
        """Rows of records that are none."""
        self.errors = 0
        self.error = ""
        self.gap_told = self.error_told = float("-inf")

    @property
    def has_gap(self) -> bool:
        """Whether anything is lost that was not told."""
        return bool(self.batches or self.dropped or self.unusable)

    def forget_gap(self, now: float) -> None:
        """All is told at `now`."""
        self.batches, self.dropped, self.unusable = 0, {}, {}
        self.gap_told = now

    def gap_text(self) -> str:
        """What was lost, in words."""
        parts = []
        if self.batches:
            span = (
                f"{self.first}"
                if self.first == self.last
                else f"{self.first} to {self.last}"
            )
            between = self.last - self.first + 1 > self.batches
            parts.append(
                f"{self.batches} batches lost on the way"
                f" ({'between ' if between else ''}{span})"
            )
        for cause, rows in (
            (
                "rows lost, the collector was away or slow, or they were no records",
                self.dropped,
            ),
            ("rows lost, they could not be used", self.unusable),
        ):
            if rows:
                listed = ", ".join(f"{table} {lost}" for table, lost in rows.items())
                parts.append(f"{cause}: {listed}")
        return "; ".join(parts)

    def error_text(self) -> str:
        """What could not be used, in words."""
        if self.errors == 1:
            return self.error
        return f"{self.errors} messages could not be used, the last one: {self.error}"


class Live:
    """A source as it changes."""

    def __init__(self, peer: bytes, hello: Hello, now: float) -> None:
        self.peer = peer
        self.hello = hello
        self.last_seen = now
        self.stale = False
        self.gone_since: float | None = None
        self.spoke = False
        """True once it sent a batch."""
        self.progress: Progress | None = None
        self.expected: int | None = None
        """Number of the next batch; None before the first."""
        self.step = 0
        self.rows = 0
        self.rows_lost: dict[str, int] = {}
        self.batches_lost = 0
        self.batches_before = 0
        self.errors = 0
        self.error = ""
        self.untold = Untold()

    @property
    def key(self) -> Key:
        """Engine, rank and role."""
        return self.hello.engine, self.hello.rank, self.hello.role

    @property
    def starting(self) -> bool:
        """Whether it says so, or has said nothing of use yet."""
        if self.progress is not None:
            return self.progress.fraction < 1.0
        return not self.spoke and not self.hello.facts

    @property
    def state(self) -> State:
        """As people see it."""
        if self.gone_since is not None:
            return "gone"
        if self.stale:
            return "stale"
        return "starting" if self.starting else "live"

    def snapshot(self, now: float) -> Source:
        """What is known at the monotonic time `now`."""
        return Source(
            *self.key,
            self.hello.incarnation,
            sound(self.hello.facts),
            self.hello.commands,
            self.state,
            self.last_seen,
            max(0.0, now - self.last_seen),
            self.progress,
            self.rows,
            dict(self.rows_lost),
            self.batches_lost,
            self.batches_before,
            self.errors,
            self.error,
        )
