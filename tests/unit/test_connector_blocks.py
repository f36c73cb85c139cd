"""The fast block keeper's parts: chains, the watch on the pool, long prompts."""

from __future__ import annotations

import gc
import random
from typing import Any

import pytest

from auxconn.chains import ChainTable
from auxconn.errors import ContractError
from auxconn.residency import HUB, GpuWatch
from auxconn.scanned import ScannedBlocks
from auxconn.traced import TracedBlocks
from tests.unit.connector_fakes import FakePool, prompt_hashes


class Forbidden(dict):  # type: ignore[type-arg]
    """A cache nobody may look into."""

    def __contains__(self, key: object) -> bool:
        raise AssertionError("a held block was looked up")


# -- work that does not grow --------------------------------------------------------------


def test_releasing_nothing_looks_at_no_held_block() -> None:
    pool = FakePool()
    kept = TracedBlocks(pool, 0, 1)
    hashes = prompt_hashes([1] * 500)
    for one in hashes:
        pool.put(one)
    kept.retain(hashes, 500)
    assert len(kept) == 500
    kept._watch.cache = pool.cached_block_hash_to_block._cache = Forbidden(
        pool.cached_block_hash_to_block._cache
    )
    kept.release(1)
    assert len(kept) == 500
    assert kept.hit(prompt_hashes([1] * 500)) == 500


def test_a_look_up_bisects() -> None:
    pool = FakePool()
    kept = TracedBlocks(pool, 0, 1)
    hashes = prompt_hashes([1] * 4000)
    for one in hashes[:3000]:
        pool.put(one)
    kept.retain(hashes, 4000)
    asked = CountingList(hashes)
    assert kept.hit(asked) == 3000
    assert asked.reads < 20


class CountingList(list):  # type: ignore[type-arg]
    reads = 0

    def __getitem__(self, key: Any) -> Any:
        self.reads += 1
        return super().__getitem__(key)


@pytest.mark.parametrize("step", [1, 2, 4])
@pytest.mark.parametrize("seed", range(4))
def test_long_prompts_as_the_plain_keeper_has_them(seed: int, step: int) -> None:
    draw = random.Random(seed)
    pools = [FakePool(), FakePool()]
    keepers: list[Any] = [
        ScannedBlocks(pools[0], 0, step),
        TracedBlocks(pools[1], 0, step),
    ]
    prompts = [[draw.randrange(9) for _ in range(1500)]]
    for _ in range(5):
        shared = prompts[draw.randrange(len(prompts))][: draw.randrange(1500)]
        prompts.append(shared + [draw.randrange(9) for _ in range(1500 - len(shared))])
    chains = [prompt_hashes(prompt) for prompt in prompts]
    for number in range(60):
        hashes = draw.choice(chains)[: draw.randrange(1, 1501)]
        first, end = sorted(draw.randrange(len(hashes) + 1) for _ in range(2))
        kind = draw.randrange(6)
        results = []
        for pool, kept in zip(pools, keepers, strict=True):
            result = None
            if kind < 2:
                for one in hashes[first if kind else 0 : end]:
                    pool.put(one)
            elif kind == 2:
                for one in reversed(hashes[first:]):
                    pool.evict(one)
            elif kind == 3:
                kept.retain(hashes, len(hashes))
            elif kind == 4:
                kept.load(f"r{number % 3}", hashes, len(hashes) // step)
            else:
                kept.release(end)
            result = kept.hit(hashes) if number % 2 else None
            results.append((result, len(kept), kept.held(), kept.take()[:2]))
        assert results[0] == results[1]
    assert len(keepers[1]) > 0


# -- chains -------------------------------------------------------------------------------


def grow(table: ChainTable, hashes: list[bytes]) -> None:
    links, known = table.path(hashes, len(hashes))
    keys = table.keys(hashes, known, len(hashes))
    if keys:
        table.add(links, hashes, keys, b"\1" * len(keys), 0)


def shape(table: ChainTable) -> list[tuple[int, int, int]]:
    """Number, base and length of each chain."""
    return [(chain.number, chain.base, len(chain.flags)) for chain in table]


def test_prompts_that_share_a_prefix_share_its_chain() -> None:
    table = ChainTable(b"\0\0\0\0", 1)
    grow(table, prompt_hashes([1, 2, 3]))
    grow(table, prompt_hashes([1, 2, 3, 4]))  # goes on: the same chain
    grow(table, prompt_hashes([1, 2, 9, 9]))  # parts after two blocks
    grow(table, prompt_hashes([5]))
    assert shape(table) == [(0, 0, 4), (1, 2, 2), (2, 0, 1)]
    links, known = table.path(prompt_hashes([1, 2, 9, 7]), 4)
    assert known == 3
    assert [(chain.number, used) for chain, used in links] == [(0, 2), (1, 1)]


def test_what_others_branch_off_stays_until_they_are_gone() -> None:
    table = ChainTable(b"\0\0\0\0", 1)
    grow(table, prompt_hashes([1, 2, 3]))
    grow(table, prompt_hashes([1, 2, 9]))
    trunk, branch = table
    trunk.flags[:] = b"\0\0\0"
    table.trim([trunk])
    assert shape(table) == [(0, 0, 2), (1, 2, 1)]
    branch.flags[:] = b"\0"
    table.trim([branch])
    assert shape(table) == []
    assert table.index == {}
    grow(table, prompt_hashes([4]))
    assert shape(table) == [(0, 0, 1)] or shape(table) == [(1, 0, 1)]


def test_hashes_that_do_not_name_their_prefix_are_refused() -> None:
    pool = FakePool()
    kept = TracedBlocks(pool, 0, 1)
    a, b, c = b"aaaaaaaa", b"bbbbbbbb", b"cccccccc"
    for one in (a, b, c):
        pool.put(one)
    kept.retain([a, b], 2)
    with pytest.raises(ContractError, match="must name their whole prefix"):
        kept.hit([b])
    with pytest.raises(ContractError, match="must name their whole prefix"):
        kept.hit([c, b])


def test_hashes_of_another_length_are_refused() -> None:
    pool = FakePool()
    kept = TracedBlocks(pool, 0, 1)
    pool.put(b"12345678")
    pool.put(b"123456789")
    kept.retain([b"12345678"], 1)
    with pytest.raises(ContractError, match=r"of 8 bytes .* have 9 bytes together"):
        kept.retain([b"123456789"], 1)


# -- the watch ----------------------------------------------------------------------------

KEYS = {b"a" + bytes(4): 1, b"b" + bytes(4): 2}


def hide(blocks: Any) -> list[bytes]:
    """Somebody else's wrapper on top; returns what it has seen."""
    seen: list[bytes] = []
    original = blocks.pop

    def pop(key: bytes, block_id: int) -> Any:
        seen.append(key)
        return original(key, block_id)

    blocks.pop = pop
    return seen


def test_known_blocks_that_leave_are_told_once() -> None:
    pool = FakePool()
    watch = GpuWatch(pool, KEYS)
    for one in (b"a", b"c"):
        pool.put(one)
        pool.evict(one)
    assert watch.settle() == {b"a" + bytes(4)}
    assert not watch.settle()


def test_one_hook_serves_all_watches_of_a_map() -> None:
    pool = FakePool()
    blocks = pool.cached_block_hash_to_block
    plain = blocks.pop
    first = GpuWatch(pool, KEYS)
    hook = blocks.pop
    second = GpuWatch(pool, KEYS)
    assert blocks.pop is hook
    pool.evict(b"a")
    assert first.settle() == second.settle() == {b"a" + bytes(4)}
    # The last one takes the hook with it, and nothing of it stays.
    del first
    gc.collect()
    assert blocks.pop is hook
    del second
    gc.collect()
    assert blocks.pop == plain
    assert list(vars(blocks)) == ["_cache"]


def test_a_watch_that_is_gone_is_told_nothing() -> None:
    pool = FakePool()
    watch = GpuWatch(pool, KEYS)
    blocks = pool.cached_block_hash_to_block
    hide(blocks)  # so that the hook has to stay where it is
    hub = vars(blocks)[HUB]
    del watch
    gc.collect()
    assert hub.listeners == ()
    pool.put(b"a")
    pool.evict(b"a")


def test_wrappers_below_and_above_are_left_alone() -> None:
    pool = FakePool()
    blocks = pool.cached_block_hash_to_block
    below = hide(blocks)
    watch = GpuWatch(pool, KEYS)
    above = hide(blocks)
    pool.evict(b"a")
    assert watch.settle() == {b"a" + bytes(4)}
    # Popping nothing, to see whether the hook is still there, goes through all of them.
    assert below == above == [b"a" + bytes(4), b""]


def test_a_hook_that_was_taken_away_is_noticed_and_put_back() -> None:
    pool = FakePool()
    blocks = pool.cached_block_hash_to_block
    plain = blocks.pop
    hide(blocks)
    watch = GpuWatch(pool, KEYS)
    blocks.pop = plain  # restored blindly by whoever wrapped it before us
    pool.evict(b"a")
    assert watch.settle() is None
    pool.evict(b"b")
    assert watch.settle() == {b"b" + bytes(4)}


def test_a_reset_of_the_pool_is_noticed() -> None:
    pool = FakePool()
    watch = GpuWatch(pool, KEYS)
    pool.reset()
    pool.evict(b"a")
    assert watch.settle() is None
    pool.evict(b"b")
    assert watch.settle() == {b"b" + bytes(4)}
    assert watch.cache is pool.cached_block_hash_to_block._cache


def test_the_fast_keeper_is_free_of_blocks_it_let_go() -> None:
    """Nothing grows from one generation of blocks to the next."""
    pool = FakePool()
    kept = TracedBlocks(pool, 0, 2)
    sizes = []
    for number in range(6):
        hashes = prompt_hashes([number] * 40)
        for one in hashes:
            pool.put(one)
        kept.retain(hashes, 20)
        for one in hashes:
            pool.evict(one)
        kept.release(5)
        kept.take()
        sizes.append((len(kept._table.index), len(list(kept._table)), len(kept._loose)))
    assert sizes[1:] == [sizes[1]] * 5
