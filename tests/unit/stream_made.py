"""Records made up for the tests of the stream, and a clock that is turned by hand."""

from __future__ import annotations

import dataclasses

import numpy as np

from auxconn.records import (
    TABLES,
    Blocks,
    Events,
    Lookups,
    Requests,
    Rows,
    Steps,
    Store,
)

T0 = 1_700_000_000.0
"""2023-11-14 22:13:20 UTC."""

PATIENCE = 20.0
"""Seconds a test waits for what must come; a test that is well waits far less."""


def steps(i: int) -> Steps:
    others = len(Steps.__struct_fields__) - 2
    return Steps(T0 + i, i, *range(1000 * i, 1000 * i + others))


def lookups(i: int, request: str | None = None) -> Lookups:
    return Lookups(
        t=T0 + i,
        step=i,
        request=f"request-{i}" if request is None else request,
        query_tokens=100 + i,
        prompt_tokens=90,
        resumed=i % 2 == 1,
        block_size=16,
        retained_hit=64,
        local_hit=48,
        external_offered=16,
        external_accepted=0,
        external_refused=16,
        refusal="not_retained",
        run_end=64,
        run_end_reason="never_seen",
        attempts=1,
    )


def blocks(i: int, size: int, event: str = "released", request: str = "r") -> Blocks:
    numbers = np.arange(size) + 1000 * i
    return Blocks(
        T0 + i,
        i,
        event,  # type: ignore[arg-type]
        request,
        numbers.astype("<u8").tobytes(),
        (numbers + 0.5).astype("<f4").tobytes(),
        (numbers + 0.25).astype("<f4").tobytes(),
        (numbers + 7).astype("<u4").tobytes(),
    )


def rows(i: int) -> Rows:
    return Rows(T0 + i, i, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0.5, float("nan"))


def store(i: int, error: str = "") -> Store:
    return Store(T0 + i, i, 1, 2, 3, 4, 5, 6, 7, 8, 9, error)


def requests(i: int) -> Requests:
    return Requests(
        T0 + i, i, f"request-{i}", T0, float("nan"), 1, 2, 3, 4, 5, 6, "stopped"
    )


def events(i: int, text: str = "a mark") -> Events:
    return Events(T0 + i, i, "mark", text)


MAKERS = {
    "steps": steps,
    "lookups": lookups,
    "blocks": lambda i: blocks(i, 3),
    "rows": rows,
    "store": store,
    "requests": requests,
    "events": events,
}
assert set(MAKERS) == set(TABLES)


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def pass_(self, seconds: float) -> None:
        self.now += seconds


@dataclasses.dataclass
class Source:
    """What is known of an engine, as far as a hub and a recorder ask."""

    engine: str
    state: str = "live"
    rank: int = 0
    role: str = "engine"
    facts: dict = dataclasses.field(default_factory=dict)
    commands: tuple = ()
    last_seen: float = 0.0
    age_s: float = 0.1
    progress: None = None
    error: str = ""
