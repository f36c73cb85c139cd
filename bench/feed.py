"""Rows as an engine would send them, invented, for benchmarks and tests of the page.

Nothing in here runs a scheduler: it is for measuring and testing what the page does with
rows, where they come from does not matter, and full rings are wanted in a second.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

import numpy as np

from auxconn.frames import FrameStore
from auxconn.records import (
    BlockEvent,
    Blocks,
    EventKind,
    Events,
    Lookups,
    Refusal,
    Rows,
    RunEnd,
    Steps,
    Store,
)

BLOCK = 16
ROW_BYTES = 384


class Feed:
    """An invented engine that appends to a store.

    Parameters
    ----------
    start
        Wall clock of the first step.
    rate
        Steps per second, of the rows' own clock.
    """

    def __init__(
        self,
        store: FrameStore,
        *,
        engine: str = "lab",
        rank: int = 0,
        start: float = 1_700_000_000.0,
        rate: float = 50.0,
        capacity: int = 2048,
        kv_tier: bool = True,
        seed: int = 0,
    ) -> None:
        self.store = store
        self.engine, self.rank = engine, rank
        self.t = start
        self.rate = rate
        self.capacity = capacity
        self.kv_tier = kv_tier
        self.step = 0
        self.retained = 1500
        self.slots_total = 4096
        self._random = random.Random(seed)
        self._pending: list[float] = []

    def run(self, steps: int) -> None:
        """Append `steps` steps and what belongs to them."""
        tables: dict[str, list[Any]] = {
            name: [] for name in ("steps", "lookups", "blocks", "rows", "store")
        }
        for _ in range(steps):
            self.t += 1 / self.rate
            self.step += 1
            for table, record in self._one():
                tables[table].append(record)
        for table, records in tables.items():
            self.store.append(table, records, self.engine, self.rank)

    def event(self, kind: EventKind, text: str) -> None:
        """Append an event at the present step."""
        self.store.append(
            "events", [Events(self.t, self.step, kind, text)], self.engine, self.rank
        )

    def _one(self) -> Iterator[tuple[str, object]]:
        draw = self._random
        wave = math.sin(self.step / 400)
        fresh = draw.randrange(0, 12)
        self.retained += fresh
        on_gpu = int(min(self.retained, 900 + 200 * wave))
        released = max(0, min(self.retained - self.capacity, self.retained - on_gpu))
        self.retained -= released
        loading = max(0, int(30 * math.sin(self.step / 60))) if self.kv_tier else 0
        tokens = draw.randrange(200, 900)
        yield (
            "steps",
            Steps(
                self.t, self.step, 1, 24, tokens, 6 + int(4 * wave), 24, 700, 900, 448,
                self.retained, on_gpu, self.capacity, loading, loading // 8,
                draw.randrange(0, 40), 2 * fresh, 2 * released,  # a hybrid pool's hashes
                20_000 + draw.randrange(9_000), 14_000 + draw.randrange(6_000), 1_000, 500,
                3_000, 26_000, 9_000,
            ),
        )  # fmt: skip
        if draw.random() < 0.5:
            yield "lookups", self._lookup()
        counts: dict[BlockEvent, int] = {"retained": fresh, "released": released}
        for event, count in counts.items():
            if count:
                yield "blocks", block_events(self.t, self.step, event, count, draw)
        step_rows = tokens
        store_rows = draw.randrange(0, 1500)
        yield (
            "rows",
            Rows(
                self.t, self.step, 24, tokens, tokens * ROW_BYTES, 0, 20, step_rows,
                store_rows, 40, step_rows * ROW_BYTES, store_rows * ROW_BYTES,
                40 * ROW_BYTES, 0.2, 1.4 + draw.random(),
            ),
        )  # fmt: skip
        used = min(self.slots_total, 2400 + int(600 * wave))
        yield (
            "store",
            Store(
                self.t, self.step, used, used - 500, 500, self.slots_total - used,
                self.slots_total, self.slots_total * BLOCK * ROW_BYTES, 1, 12, 0, "",
            ),
        )  # fmt: skip

    def _lookup(self) -> Lookups:
        draw = self._random
        query = draw.randrange(100, 900)
        blocks = query // BLOCK
        local = draw.randrange(0, blocks + 1) * BLOCK
        left = (query - local) // BLOCK
        offered = draw.randrange(0, left + 1) * BLOCK if self.kv_tier else 0
        refusals: tuple[Refusal, ...] = ("", "", "not_retained", "unaligned")
        refusal: Refusal = draw.choice(refusals) if offered else ""
        accepted = 0 if refusal else offered
        refused = offered - accepted
        ends: tuple[RunEnd, ...] = (
            "whole",
            "never_seen",
            "never_seen",
            "evicted",
            "short",
            "last_token",
        )
        return Lookups(
            self.t, self.step, f"req-{self.step}", query, query, False, BLOCK,
            min(local + accepted, query), local, offered, accepted, refused, refusal,
            min(local + accepted, query), draw.choice(ends), 1,
        )  # fmt: skip


def block_events(
    t: float,
    step: int,
    event: BlockEvent,
    count: int,
    draw: random.Random,
    request: str = "r",
) -> Blocks:
    """One record of `count` events."""
    age = np.full(count, 2.5, np.float32)
    hashes = np.array([draw.getrandbits(63) for _ in range(count)], np.uint64)
    uses = np.ones(count, np.uint32)
    return Blocks(
        t, step, event, request, hashes.tobytes(), age.tobytes(), age.tobytes(),
        uses.tobytes(),
    )  # fmt: skip
