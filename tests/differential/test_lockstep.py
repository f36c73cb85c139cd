"""Our connector decides what vLLM's decides, at every step of seeded random workloads.

300 seeds of 300 steps, in chunks that can run side by side. A chunk goes three times
through all settings and must have met every case, so that an edit of the workload which
stops meeting one fails here instead of testing less.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from auxconn.residency import GpuWatch
from auxconn.scanned import ScannedBlocks
from tests.differential.lockstep import STEPS, Lockstep, Parted
from tests.differential.mutants import MUTANTS
from tests.differential.workload import SETTINGS

CHUNKS = 10
SEEDS_PER_CHUNK = 30

CASES = (
    "aborts",
    "aborts while loading",
    "blocks evicted by a failed load",
    "blocks released",
    "blocks released by a reset",
    "blocks spared because they are on the GPU",
    "blocks spared because they load",
    "capacity lowered",
    "capacity raised",
    "chunks of a prompt",
    "connectors replaced while running",
    "hashes of a request that was not scheduled",
    "loads",
    "loads of a block that another loads",
    "lookups that hit",
    "lookups that reordered",
    "offers accepted",
    "over capacity after a finish",
    "preemptions",
    "prompt starts inside the prompt",
    "prompt starts past the prompt",
    "refused: last token",
    "refused: not retained",
    "refused: unaligned",
    "releases with nothing to release",
    "requests finished",
    "resets",
    "resets of the pool alone",
    "resets with a step in flight",
    "resets with requests running",
    "rows delivered",
    "terminal events",
)
"""Each must be met in each chunk."""


# About seven seconds each, on a core of its own.
@pytest.mark.timeout(180)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_same_decisions(chunk: int) -> None:
    met: Counter = Counter()
    for seed in range(chunk * SEEDS_PER_CHUNK, (chunk + 1) * SEEDS_PER_CHUNK):
        Lockstep(seed, met).run()
    print(f"\nmet in {SEEDS_PER_CHUNK} seeds of {STEPS} steps:")
    for case, count in sorted(met.items()):
        print(f"{count:9d} {case}")
    assert met["steps"] == SEEDS_PER_CHUNK * STEPS
    assert [case for case in CASES if not met[case]] == []


def test_seeds_meet_what_the_issue_lists() -> None:
    """The settings, once through all of them, hold every size and mode asked for."""
    settings = SETTINGS
    assert {one.block_size for one in settings} == {8, 16, 32}
    ratios = {
        one.block_size // (one.hash_block_size or one.block_size) for one in settings
    }
    assert ratios == {1, 2, 4}
    assert {one.overlapped for one in settings} == {False, True}
    assert {one.overlapped for one in settings if one.tier} == {False, True}
    assert {one.quarter for one in settings} == {False, True}
    tiers = {(one.tier > 2, one.load_steps > 2) for one in settings if one.tier}
    assert tiers == {(False, False), (False, True), (True, False), (True, True)}
    assert any(one.scarce and one.overlapped for one in settings)
    assert CHUNKS * SEEDS_PER_CHUNK >= 100
    assert SEEDS_PER_CHUNK % len(SETTINGS) == 0


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_mutant_is_caught(mutant: type) -> None:
    """By the schedule, the metadata or the rows, without a look into the connector."""
    for seed in range(SEEDS_PER_CHUNK):
        try:
            Lockstep(seed, make=mutant, compare_state=False).run()
        except Parted as difference:
            print(f"\n{mutant.__name__}: {difference}")
            return
    pytest.fail(f"{mutant.__name__} decided as vLLM does in {SEEDS_PER_CHUNK} seeds")


def test_the_plain_keeper_decides_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """What serves a pool that cannot be watched is held to vLLM too."""
    monkeypatch.setattr(GpuWatch, "fits", staticmethod(lambda pool: False))
    for seed in range(len(SETTINGS)):
        run = Lockstep(seed)
        assert isinstance(run.sides[1].connector._blocks, ScannedBlocks)
        run.run()


class Meddled(Lockstep):
    """Somebody else wraps and unwraps what the connector watches, rightly and wrongly."""

    def act(self) -> None:
        super().act()
        pool = self.sides[1].scheduler.kv_cache_manager.block_pool
        blocks = pool.cached_block_hash_to_block
        kind = self.workload.draw.random()
        if kind < 0.1:
            original = blocks.pop

            def pop(key: bytes, block_id: int) -> Any:
                return original(key, block_id)

            blocks.pop = pop
            self.met["wrapped"] += 1
        elif kind < 0.2:
            self.met["unwrapped, our hook too"] += "pop" in vars(blocks)
            vars(blocks).pop("pop", None)


def test_wrappers_of_others_change_nothing() -> None:
    met: Counter = Counter()
    for seed in range(2 * len(SETTINGS)):
        Meddled(seed, met).run()
    assert met["wrapped"] > 100
    assert met["unwrapped, our hook too"] > 100
