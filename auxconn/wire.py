"""What an engine and a collector say to each other.

One socket, two directions: messages of an engine (`ToCollector`) and messages to it
(`ToEngine`), each a tagged msgpack array, decoded with its type, so nothing from the wire
is ever evaluated. An engine speaks first (`Hello`) and again whenever its facts change; it
says `Beat` when it has nothing else to say, so that silence means trouble.

Every `Batch` is numbered. What had to be dropped because the collector was away or slow is
named in the next batch that leaves (`dropped`), so a hole in the data is never silent.
"""

from __future__ import annotations

from typing import Any

import msgspec

from auxconn.records import (
    Blocks,
    Events,
    Lookups,
    Requests,
    Rows,
    Steps,
    Store,
)

BEAT_SECONDS = 0.5
"""An engine that has said nothing for so long says `Beat`."""

STALE_SECONDS = 2.0
"""An engine unheard for so long is shown as stale."""

Fact = str | int | float | bool | None


class Hello(msgspec.Struct, array_like=True, tag="hello", frozen=True):
    """Who is speaking, and what it is."""

    schema: int
    engine: str
    """Name people see; one engine has a scheduler and its workers under one name."""
    rank: int
    role: str
    """One of `auxconn.address.ROLES`; `engine` is scheduler and worker in one channel."""
    incarnation: str
    """New for every start of the process, so that a restart is told from a reconnect."""
    facts: dict[str, Fact] = {}
    """Names in `auxconn.facts`."""
    commands: tuple[str, ...] = ()
    """Commands it obeys; a control for any other is disabled."""


class Batch(msgspec.Struct, array_like=True, tag="batch", omit_defaults=True):
    """Rows of some tables; the fields after `dropped` bear the tables' names."""

    seq: int
    """From 1 for each incarnation, without holes."""
    dropped: dict[str, int] = {}
    """Rows lost since the batch before, by table."""
    steps: list[Steps] = []
    lookups: list[Lookups] = []
    blocks: list[Blocks] = []
    rows: list[Rows] = []
    store: list[Store] = []
    requests: list[Requests] = []
    events: list[Events] = []


class Beat(msgspec.Struct, array_like=True, tag="beat", frozen=True):
    """Still here, with nothing to say."""

    t: float


class Progress(msgspec.Struct, array_like=True, tag="progress", frozen=True):
    """How far the engine's start has come."""

    stage: str
    fraction: float
    """0 to 1, over the whole start."""
    text: str


class Ack(msgspec.Struct, array_like=True, tag="ack", frozen=True):
    """The answer to a `Command`, once it has been carried out or refused."""

    id: int
    ok: bool
    text: str
    """What was done, or why it was refused."""
    t: float


class Bye(msgspec.Struct, array_like=True, tag="bye", frozen=True):
    """An orderly end."""

    reason: str


class Command(msgspec.Struct, array_like=True, tag="command", frozen=True):
    """Something an engine is asked to do; every one is answered by an `Ack`."""

    id: int
    name: str
    args: dict[str, Any] = {}


class Welcome(msgspec.Struct, array_like=True, tag="welcome", frozen=True):
    """The collector's answer to a `Hello`; refuses an engine of another schema."""

    schema: int
    accepted: bool
    text: str


ToCollector = Hello | Batch | Beat | Progress | Ack | Bye
ToEngine = Command | Welcome
