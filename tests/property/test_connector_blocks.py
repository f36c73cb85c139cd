"""The fast block keeper decides what the plain one does, whatever happens to the pool.

The differential test goes where a scheduler goes. Here the pool is free to do anything it
could do in principle: lose the middle of a prompt, hold copies, come back, be reset behind
the connector's back, be wrapped by somebody else.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from auxconn.scanned import ScannedBlocks
from auxconn.traced import FIRST, GPU, HELD, PARKED, QUEUED, TracedBlocks
from tests.unit.connector_fakes import HASH_SIZE, FakePool, prompt_hashes

PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=9)
"""Few tokens, so that prompts share prefixes and part in the middle."""

STEP = ("step", [0], 0, 0)
"""The metadata are built: what was retained and released leaves."""

ACTIONS = st.one_of(
    st.just(STEP),
    st.tuples(st.just("put"), PROMPTS, st.integers(0, 9), st.integers(0, 1)),
    st.tuples(st.just("put all"), PROMPTS, st.just(0), st.integers(0, 1)),
    st.tuples(st.just("evict"), PROMPTS, st.integers(0, 9), st.integers(0, 1)),
    st.tuples(st.just("evict all"), PROMPTS, st.integers(0, 9), st.integers(0, 1)),
    st.tuples(st.just("come and go"), PROMPTS, st.just(0), st.just(0)),
    st.tuples(st.just("hit"), PROMPTS, st.just(0), st.just(0)),
    st.tuples(st.just("retain"), PROMPTS, st.integers(0, 10), st.just(0)),
    st.tuples(st.just("retain"), PROMPTS, st.just(10), st.just(0)),
    st.tuples(st.just("release"), st.just([0]), st.integers(0, 6), st.just(0)),
    st.tuples(st.just("load"), PROMPTS, st.integers(0, 9), st.integers(0, 2)),
    st.tuples(st.just("loaded"), st.just([0]), st.just(0), st.integers(0, 2)),
    st.tuples(st.just("clear"), st.just([0]), st.just(0), st.just(0)),
    st.tuples(st.just("reset"), st.just([0]), st.just(0), st.just(0)),
    st.tuples(st.just("wrap"), st.just([0]), st.just(0), st.just(0)),
    st.tuples(st.just("unhook"), st.just([0]), st.just(0), st.just(0)),
)


def wrapper(original: Any) -> Any:
    """Somebody else's wrapper of the map's `pop`."""

    def pop(key: bytes, block_id: int) -> Any:
        return original(key, block_id)

    return pop


def act(name: str, tokens: list[int], number: int, small: int, pool: FakePool) -> None:
    """What happens to the pool."""
    hashes = prompt_hashes(tokens)
    blocks = pool.cached_block_hash_to_block
    if name == "put":
        pool.put(hashes[number % len(hashes)], small)
    elif name == "put all":
        for one in hashes:
            pool.put(one, small)
    elif name == "evict":
        pool.evict(hashes[number % len(hashes)], small)
    elif name == "evict all":
        for one in hashes[number % len(hashes) :][::-1]:
            pool.evict(one, small)
    elif name == "reset":
        pool.reset()
    elif name == "wrap":
        blocks.pop = wrapper(blocks.pop)
    elif name == "unhook":
        vars(blocks).pop("pop", None)


def decide(
    name: str, tokens: list[int], number: int, small: int, kept: Any, pool: FakePool
) -> int | None:
    """What is asked of the keeper."""
    hashes = prompt_hashes(tokens)
    if name == "come and go":
        # A request runs, ends and loses its blocks: what there is to release.
        for one in hashes:
            pool.put(one)
        kept.retain(hashes, len(hashes))
        for one in reversed(hashes):
            pool.evict(one)
    if name == "hit":
        return kept.hit(hashes)
    if name == "retain":
        kept.retain(hashes, number)
    elif name == "release":
        kept.release(number)
    elif name == "load":
        kept.load(f"r{small}", hashes, number)
    elif name == "loaded":
        kept.loaded(f"r{small}")
    elif name == "clear":
        kept.clear()
    return None


def check(traced: TracedBlocks, pool: FakePool) -> None:
    """What must be true of the fast keeper between any two actions."""
    table = traced._table
    index = table.index
    known = {}
    for chain in table:
        assert len(chain.flags) == len(chain.stamps)
        assert len(chain.hashes) == len(chain.flags) * traced._step * HASH_SIZE
        # A chain has a reason to be there: its last block, or a chain that branches off.
        assert chain.flags
        assert chain.flags[-1] or max(chain.branches or (0,)) == len(chain.flags)
        for at in range(len(chain.flags)):
            key = table.key(chain, at)
            assert table.at(index[key]) == (chain, at)
            known[key] = chain.flags[at]
        if chain.parent is not None:
            assert 0 < chain.base - chain.parent.base <= len(chain.parent.flags)
    assert known.keys() == index.keys()
    loose = {HELD | QUEUED, HELD | QUEUED | FIRST, HELD | PARKED}
    assert set(known.values()) <= {0, HELD | GPU, GPU} | loose
    assert sum(flag & HELD for flag in known.values()) == len(traced)
    # What is believed on the GPU is, and each loose block is in the heap once.
    cache = pool.cached_block_hash_to_block._cache
    assert all(key in cache for key, flag in known.items() if flag & GPU)
    # A run of loose blocks begins with a first one, and that is in the heap once.
    firsts = sum(bool(flag & FIRST) for flag in known.values())
    assert firsts == len(traced._loose) == len(set(traced._loose))
    for chain in table:
        for before, flag in zip(b"\0" + chain.flags, chain.flags, strict=False):
            assert flag != HELD | QUEUED or before & QUEUED


@given(st.integers(1, 3), st.lists(ACTIONS, min_size=20, max_size=60))
@settings(max_examples=300)
def test_fast_and_plain_decide_the_same(step: int, actions: list[Any]) -> None:
    pools = [FakePool(), FakePool()]
    plain = ScannedBlocks(pools[0], 0, step)
    fast = TracedBlocks(pools[1], 0, step)
    for action in [*actions, STEP]:
        for pool in pools:
            act(*action, pool)
        assert decide(*action, plain, pools[0]) == decide(*action, fast, pools[1])
        assert len(plain) == len(fast)
        assert plain.held() == fast.held()
        assert plain.loading() == fast.loading()
        if action == STEP:
            retained, released, size = plain.take()
            assert fast.take()[:2] == (retained, released)
            assert not (retained or released) or size == HASH_SIZE
            check(fast, pools[1])
    fast.clear()
    fast.take()
    check(fast, pools[1])
    assert fast._table.index == {}


@given(st.lists(ACTIONS, min_size=10, max_size=40))
def test_what_is_neither_held_nor_on_the_gpu_is_forgotten(actions: list[Any]) -> None:
    """Memory follows what is held: nothing stays known once nobody needs it."""
    pool = FakePool()
    fast = TracedBlocks(pool, 0, 1)
    for action in actions:
        act(*action, pool)
        decide(*action, fast, pool)
    for request_id in ("r0", "r1", "r2"):
        fast.loaded(request_id)
    cache = pool.cached_block_hash_to_block
    for key in list(cache._cache):
        for block_id in (0, 1):
            cache.pop(key, block_id)
    fast.release(0)
    fast.take()
    assert len(fast) == 0
    assert list(fast._table) == []
    assert fast._table.index == {}
    assert fast._loose == []
    assert fast._loads == {}
