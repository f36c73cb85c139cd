"""The connector's protocol: what it says, what it refuses, what can be read of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from auxconn.connector import AuxOutputSchedulerConnector
from auxconn.errors import AuxConnError, CapacityError, ContractError
from auxconn.scanned import ScannedBlocks
from auxconn.traced import TracedBlocks
from tests.unit.connector_fakes import HASH_SIZE, FakePool, manager, prompt_hashes

BLOCK = 4
"""Tokens of a KV block and of a hash block, unless a test says otherwise."""


@pytest.fixture
def pool() -> FakePool:
    return FakePool(hash_block_size=BLOCK)


@pytest.fixture
def connector(pool: FakePool) -> AuxOutputSchedulerConnector:
    return AuxOutputSchedulerConnector(manager(pool, BLOCK))


@pytest.fixture(autouse=True)
def raw_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashes as they are, so that a test can compare them."""
    monkeypatch.setenv("VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES", "0")


class FakeRequest:
    """What the connector reads of a request; `prompt` is a token for each hash block."""

    def __init__(
        self,
        request_id: str,
        prompt: list[int],
        *,
        computed: int = 0,
        outputs: int = 0,
        extra: int = 0,
        start: int = 0,
        finished: bool = False,
    ) -> None:
        self.request_id = request_id
        self.block_hashes = prompt_hashes(prompt)
        self.num_prompt_tokens = len(prompt) * BLOCK + extra
        self.num_output_tokens = outputs
        self.num_computed_tokens = computed
        self.sampling_params: Any = SimpleNamespace(routed_experts_prompt_start=start)
        self.finished = finished

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_output_tokens

    def is_finished(self) -> bool:
        return self.finished


def step(
    connector: AuxOutputSchedulerConnector,
    scheduled: dict[str, int] | None = None,
    *requests: FakeRequest,
) -> Any:
    return connector.build_connector_meta(
        SimpleNamespace(num_scheduled_tokens=scheduled or {}),
        {one.request_id: one for one in requests},
    )


def finish(
    connector: AuxOutputSchedulerConnector, pool: FakePool, prompt: list[int]
) -> list[bytes]:
    """A request ends with all its blocks on the GPU; returns their keys."""
    request = FakeRequest("finished", prompt, computed=len(prompt) * BLOCK)
    for one in request.block_hashes:
        pool.put(one)
    connector.request_finished(request)
    return request.block_hashes


def packed(hashes: Any) -> list[bytes]:
    return [] if hashes is None else list(hashes)


# -- being there --------------------------------------------------------------------------


def test_imports_without_vllm(root: Path) -> None:
    code = (
        "import sys; sys.modules['vllm'] = sys.modules['torch'] = None;"
        "import auxconn.connector, auxconn.errors"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root, timeout=50)


def test_metadata_are_vllms_own(connector: AuxOutputSchedulerConnector) -> None:
    from vllm.distributed.aux_output_connector.connector import (
        AuxOutputConnectorMetadata,
        PackedBlockHashes,
    )

    request = FakeRequest("a", [1, 2], computed=0)
    metadata = step(connector, {"a": 8}, request)
    assert type(metadata) is AuxOutputConnectorMetadata
    assert type(metadata.block_hashes["a"]) is PackedBlockHashes
    assert metadata.block_hashes["a"].item_size == HASH_SIZE


def test_capacity_starts_as_vllms(pool: FakePool) -> None:
    blocks = manager(pool, BLOCK, num_blocks=70)
    assert AuxOutputSchedulerConnector(blocks).capacity == 70
    assert AuxOutputSchedulerConnector(blocks, object()).capacity == 140


def test_a_block_of_part_of_a_hash_block_is_refused(pool: FakePool) -> None:
    with pytest.raises(ContractError, match=r"blocks of 6 tokens .* of 4 tokens"):
        AuxOutputSchedulerConnector(manager(pool, 6))


def test_the_plain_keeper_serves_other_pools() -> None:
    other = SimpleNamespace(hash_block_size=BLOCK, get_cached_block=lambda *_: None)
    connector = AuxOutputSchedulerConnector(manager(other, BLOCK))
    assert isinstance(connector._blocks, ScannedBlocks)
    assert connector.max_cache_hit(FakeRequest("a", [1, 2])) == 0


def test_the_full_attention_group_is_the_one_that_counts() -> None:
    pool = FakePool(group=1, hash_block_size=2)
    blocks = manager(pool, 99)
    blocks.coordinator.full_attention_group_id = 1
    blocks.coordinator.single_type_managers.append(
        SimpleNamespace(block_pool=pool, block_size=BLOCK)
    )
    connector = AuxOutputSchedulerConnector(blocks)
    assert isinstance(connector._blocks, TracedBlocks)
    assert connector.block_size == BLOCK
    assert connector.hash_block_size == 2
    request = FakeRequest("a", [1, 2, 3, 4, 5])
    pool.put(request.block_hashes[1])
    pool.put(request.block_hashes[3])
    assert connector.max_cache_hit(request) == 2 * BLOCK


# -- capacity -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [True, False, 0, -1, 1.0, 2.5, float("nan"), "7", None, b"7", [8], np.float64(5)],
    ids=repr,
)
def test_a_capacity_that_is_no_number_of_blocks_is_refused(
    connector: AuxOutputSchedulerConnector, value: Any
) -> None:
    before = connector.capacity
    with pytest.raises(CapacityError) as caught:
        connector.set_capacity(value)
    assert repr(value) in str(caught.value)
    assert "from 1 to" in str(caught.value)
    assert caught.value.value is value
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, AuxConnError)
    assert connector.capacity == before


def test_numpys_booleans_are_no_capacity(
    connector: AuxOutputSchedulerConnector,
) -> None:
    with pytest.raises(CapacityError, match="True"):
        connector.set_capacity(np.bool_(True))


@pytest.mark.parametrize("value", [1, np.int64(9), 10**12])
def test_whole_numbers_are_capacities(
    connector: AuxOutputSchedulerConnector, value: Any
) -> None:
    connector.set_capacity(value)
    assert connector.capacity == value
    assert type(connector.capacity) is int


def test_lowering_releases_the_oldest_that_may_go(
    connector: AuxOutputSchedulerConnector, pool: FakePool
) -> None:
    old = finish(connector, pool, [1, 2, 3])
    new = finish(connector, pool, [7, 8])
    step(connector)
    pool.evict(old[0])
    pool.evict(old[2])
    pool.evict(new[1])
    connector.set_capacity(3)
    assert connector.held() == [old[1], *new]
    metadata = step(connector)
    assert packed(metadata.released_block_hashes) == [old[0], old[2]]
    assert metadata.retained_block_hashes is None
    # Said once.
    assert step(connector).released_block_hashes is None
    # What is on the GPU stays, however low the capacity.
    connector.set_capacity(1)
    assert packed(step(connector).released_block_hashes) == [new[1]]
    assert connector.held() == [old[1], new[0]]


def test_raising_releases_nothing_even_when_too_much_is_held(
    connector: AuxOutputSchedulerConnector, pool: FakePool
) -> None:
    keys = finish(connector, pool, [1, 2, 3, 4])
    connector.set_capacity(1)
    for key in keys:
        pool.evict(key)
    connector.set_capacity(2)
    assert connector.held() == keys
    assert step(connector).released_block_hashes is None
    # The next finish sees to it, as in vLLM.
    connector.request_finished(FakeRequest("x", []))
    assert connector.held() == keys[2:]


def test_a_loading_block_is_not_released_before_its_load_ends(
    connector: AuxOutputSchedulerConnector, pool: FakePool
) -> None:
    keys = finish(connector, pool, [1, 2, 3, 4])
    request = FakeRequest("r", [1, 2, 3, 4])
    connector.request_loading(request, 2 * BLOCK + 1)
    assert connector.loading() == {"r": frozenset(keys[:2])}
    for key in keys:
        pool.evict(key)
    connector.set_capacity(1)
    assert connector.held() == keys[:2]
    request.num_computed_tokens = 2 * BLOCK
    step(connector, {"r": 5}, request)
    assert connector.loading() == {}
    assert connector.held() == keys[:2]
    request.num_computed_tokens = 0
    connector.request_finished(request)
    assert connector.held() == keys[1:2]


# -- state --------------------------------------------------------------------------------


def test_reading_the_state_disturbs_nothing(
    connector: AuxOutputSchedulerConnector, pool: FakePool
) -> None:
    first = finish(connector, pool, [1, 2])
    second = finish(connector, pool, [5, 6])
    assert connector.held() == [*first, *second]
    connector.held().clear()
    connector.loading()["x"] = frozenset()
    assert connector.held() == [*first, *second]
    assert connector.loading() == {}
    assert connector.max_cache_hit(FakeRequest("a", [1, 2, 3])) == 2 * BLOCK
    assert connector.held() == [*second, *first]


def test_state_shows_hashes_as_kv_events_do(
    connector: AuxOutputSchedulerConnector,
    pool: FakePool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = finish(connector, pool, [1, 2])
    connector.request_loading(FakeRequest("r", [1, 2]), BLOCK)
    monkeypatch.setenv("VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES", "1")
    numbers = [int.from_bytes(key, "big") & (2**64 - 1) for key in keys]
    assert connector.held() == numbers
    assert connector.loading() == {"r": frozenset(numbers[:1])}


# -- look-ups -----------------------------------------------------------------------------


def test_a_hit_leaves_a_token_to_compute(
    connector: AuxOutputSchedulerConnector, pool: FakePool
) -> None:
    finish(connector, pool, [1, 2])
    assert connector.max_cache_hit(FakeRequest("a", [1, 2])) == 2 * BLOCK - 1
    assert connector.max_cache_hit(FakeRequest("a", [1, 2], extra=1)) == 2 * BLOCK
    assert connector.max_cache_hit(FakeRequest("a", [2, 1])) == 0


@pytest.mark.parametrize(
    ("local", "external", "accepted"),
    [(4, 4, 4), (4, 3, 0), (4, 8, 0), (0, 8, 8), (8, 0, 0), (12, 4, 0)],
)
def test_an_offer_is_taken_whole_or_not(
    connector: AuxOutputSchedulerConnector,
    pool: FakePool,
    local: int,
    external: int,
    accepted: int,
) -> None:
    finish(connector, pool, [1, 2])
    request = FakeRequest("a", [1, 2, 3])
    assert connector.cap_external_hit(request, local, external) == accepted


def test_an_unaligned_offer_moves_nothing(
    connector: AuxOutputSchedulerConnector, pool: FakePool
) -> None:
    first = finish(connector, pool, [1])
    second = finish(connector, pool, [2])
    connector.cap_external_hit(FakeRequest("a", [1]), 0, 3)
    assert connector.held() == [*first, *second]
    connector.cap_external_hit(FakeRequest("a", [1]), 0, 4)
    assert connector.held() == [*second, *first]


# -- metadata -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "outputs", "expected"),
    [
        (0, 0, 0),
        (3, 0, 3),
        (8, 0, 8),
        (11, 0, 8),  # a prefiller's prompt is shorter than the start
        (0, 1, 8),
        (11, 2, 9),
    ],
)
def test_where_the_rows_of_a_request_start(
    connector: AuxOutputSchedulerConnector, start: int, outputs: int, expected: int
) -> None:
    request = FakeRequest("a", [1, 2], start=start, outputs=outputs)
    assert step(connector, {"a": 1}, request).requests == {"a": expected}


def test_hashes_are_sent_once_and_as_far_as_computed(
    connector: AuxOutputSchedulerConnector,
) -> None:
    request = FakeRequest("a", [1, 2, 3, 4])
    hashes = request.block_hashes
    assert packed(step(connector, {"a": 9}, request).block_hashes["a"]) == hashes[:2]
    request.num_computed_tokens = 9
    assert step(connector, {"a": 2}, request).block_hashes == {}
    # Not scheduled: what has settled since is sent all the same.
    request.num_computed_tokens = 13
    metadata = step(connector, {}, request)
    assert metadata.requests == {}
    assert packed(metadata.block_hashes["a"]) == hashes[2:3]
    # The last ones come with the terminal event, and that comes once.
    request.num_computed_tokens = 16
    connector.request_finished(request)
    metadata = step(connector)
    assert metadata.finished_requests == ("a",)
    assert packed(metadata.block_hashes["a"]) == hashes[3:]
    assert step(connector).finished_requests == ()


def test_what_is_held_is_told_in_the_order_of_the_prompt() -> None:
    pool = FakePool(hash_block_size=2)
    connector = AuxOutputSchedulerConnector(manager(pool, BLOCK))
    request = FakeRequest("a", [1, 2, 3, 4, 5, 6, 7], computed=14)
    hashes = request.block_hashes
    pool.put(hashes[1])
    pool.put(hashes[5])
    connector.request_finished(request)
    # Every hash block of the two blocks on the GPU; the block between them is not there.
    retained = step(connector).retained_block_hashes
    assert packed(retained) == [*hashes[:2], *hashes[4:6]]
    assert connector.held() == [hashes[1], hashes[5]]


def test_a_reset_begins_a_generation(
    connector: AuxOutputSchedulerConnector, pool: FakePool
) -> None:
    old = finish(connector, pool, [1, 2])
    new = finish(connector, pool, [3])
    connector.max_cache_hit(FakeRequest("x", [1, 2]))
    running = FakeRequest("a", [1, 2], computed=0)
    ended = FakeRequest("b", [9], computed=0)
    connector.request_loading(FakeRequest("r", [3]), BLOCK)
    step(connector, {"a": 8, "b": 4}, running, ended)
    connector.request_finished(ended)
    pool.reset()
    connector.reset()
    assert connector.generation == 1
    assert connector.held() == []
    assert connector.loading() == {"r": frozenset(new)}
    metadata = step(connector, {"a": 8}, running)
    assert metadata.generation == 1
    assert metadata.finished_requests == ()
    assert packed(metadata.released_block_hashes) == [*new, *old]
    assert packed(metadata.block_hashes["a"]) == running.block_hashes


# -- output -------------------------------------------------------------------------------


def rows_from(start: int, count: int) -> dict[str, Any]:
    rows = np.arange(start, start + count).reshape(-1, 1, 1)
    return {"a": SimpleNamespace(token_start=start, rows=rows)}


def test_rows_of_accepted_tokens_are_taken(
    connector: AuxOutputSchedulerConnector,
) -> None:
    request = FakeRequest("a", [1, 2], outputs=1)
    rows = connector.take_output(request, rows_from(5, 6))
    assert rows is not None
    assert rows.ravel().tolist() == [5, 6, 7]
    whole = connector.take_output(request, rows_from(8, 0))
    assert whole is not None
    assert len(whole) == 0


def test_rows_that_begin_later_are_none_for_an_unfinished_request(
    connector: AuxOutputSchedulerConnector,
) -> None:
    request = FakeRequest("a", [1, 2], outputs=1)
    assert connector.take_output(request, rows_from(9, 2)) is None


# -- broken contracts ---------------------------------------------------------------------

HOSTILE = "<b>\x1b[31m'"


def test_errors_quote_the_request() -> None:
    error = ContractError("no", request_id=HOSTILE)
    assert error.request_id == HOSTILE
    assert str(error) == f"request {HOSTILE!r}: no"
    assert "\x1b" not in str(error)


@pytest.mark.parametrize("output", [None, {}, rows_from(0, 8)])
def test_output_without_the_request_is_refused(
    connector: AuxOutputSchedulerConnector, output: Any
) -> None:
    request = FakeRequest("b", [1, 2], outputs=1)
    with pytest.raises(ContractError, match=r"'b': .*no rows for it") as caught:
        connector.take_output(request, output)
    assert caught.value.request_id == "b"


def test_too_few_rows_are_refused_with_the_ranges(
    connector: AuxOutputSchedulerConnector,
) -> None:
    request = FakeRequest("a", [1, 2], outputs=5)
    with pytest.raises(ContractError, match=r"'a': .* end at 12, .* \[5, 11\)"):
        connector.take_output(request, rows_from(5, 6))


def test_a_finished_request_without_its_range_is_refused(
    connector: AuxOutputSchedulerConnector,
) -> None:
    request = FakeRequest("a", [1, 2], outputs=1, finished=True)
    match = r"'a': .* end at 8, .* \[9, 11\), and it is finished"
    with pytest.raises(ContractError, match=match):
        connector.take_output(request, rows_from(9, 2))


def test_an_unknown_request_is_refused(connector: AuxOutputSchedulerConnector) -> None:
    known = FakeRequest("a", [1])
    with pytest.raises(ContractError, match=r"'ghost': it is scheduled, but .* 1 req"):
        step(connector, {"ghost": 1}, known)
    step(connector, {"a": 1}, known)
    with pytest.raises(ContractError, match=r"'a': it is active, but .* 0 requests"):
        step(connector)


def test_a_request_without_sampling_parameters_is_refused(
    connector: AuxOutputSchedulerConnector,
) -> None:
    request = FakeRequest("pooling", [1])
    request.sampling_params = None
    with pytest.raises(ContractError, match="'pooling': it has no sampling parameters"):
        step(connector, {"pooling": 1}, request)


@pytest.mark.parametrize(
    "use",
    [
        lambda connector, request: step(connector, {"a": 1}, request),
        lambda connector, request: step(connector, {}, request),
        lambda connector, request: connector.request_finished(request),
    ],
    ids=["scheduled", "left out", "finished"],
)
def test_a_shrunken_history_is_refused(
    connector: AuxOutputSchedulerConnector, use: Any
) -> None:
    request = FakeRequest("a", [1, 2, 3])
    step(connector, {"a": 12}, request)
    del request.block_hashes[1:]
    with pytest.raises(ContractError, match=r"'a': .* \[0, 3\) .* \[0, 1\)"):
        use(connector, request)


def test_a_load_of_less_than_nothing_is_refused(
    connector: AuxOutputSchedulerConnector,
) -> None:
    with pytest.raises(ContractError, match=r"'a': .*\[0, -4\)"):
        connector.request_loading(FakeRequest("a", [1]), -BLOCK)
