"""The frames say what happened, exactly: two thousand requests against vLLM's own figures."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from auxconn.attach import attach
from auxconn.frames import FrameStore
from auxconn.lab.config import LabConfig
from auxconn.lab.engine import Engine
from tests.engine.probes_truth import SMALL_ROWS, Traffic, Truth

PLAIN = {"num_blocks": 160, "block_size": 16}
TIER = {
    **PLAIN,
    "num_blocks": 110,
    "kv_tier_blocks": 600,
    "kv_tier_offer": "all_but_last",
}
HYBRID = {
    "num_blocks": 150,
    "block_size": 32,
    "hash_block_size": 16,
    "kv_tier_blocks": 300,
}
CASES = {
    "vllm": ("vllm", PLAIN, 2000),
    "auxconn": ("auxconn", PLAIN, 2000),
    "vllm-tier": ("vllm", TIER, 2000),
    "auxconn-tier": ("auxconn", TIER, 2000),
    "vllm-hybrid": ("vllm", HYBRID, 600),
    "auxconn-hybrid": ("auxconn", HYBRID, 600),
    "vllm-async": ("vllm", {**PLAIN, "async_scheduling": True}, 400),
    "vllm-tier-async": ("vllm", {**TIER, "async_scheduling": True}, 500),
    "auxconn-hybrid-async": ("auxconn", {**HYBRID, "async_scheduling": True}, 500),
}


def run(connector, settings, requests, *, deferred=False, aborts=0.02, resets=True):
    config = LabConfig(
        connector=connector,
        max_num_seqs=12,
        max_num_batched_tokens=256,
        **SMALL_ROWS,
        **settings,
    )
    engine = Engine(config)
    truth = Truth(engine)
    store = FrameStore(1_000_000)
    attachment = attach(
        scheduler=engine.scheduler, worker=engine.worker, to=store, deferred=deferred
    )
    traffic = Traffic(config, requests, aborts=aborts)
    steps = resets_done = 0
    try:
        while not traffic.done or engine.has_work:
            traffic.feed(engine, 20)
            engine.step()
            steps += 1
            if steps == 400:
                engine.set_capacity(max(config.num_blocks // 4, 1))
            if resets and steps % 500 == 300:
                engine.reset_prefix_cache()
                resets_done += 1
        truth.take_left_over()
        assert not attachment.scheduler_probe.guard.failures
        assert not attachment.worker_probe.guard.failures
        attachment.detach()
    finally:
        engine.close()
    return truth, store, resets_done


@pytest.mark.parametrize("case", CASES)
def test_frames_agree_with_vllm(case):
    truth, store, resets = run(*CASES[case], deferred="async" in case)
    overlapped = "async" in case
    check_lookups(truth, store.lookups())
    check_steps(truth, store.steps())
    check_blocks(truth, store.blocks())
    check_rows(truth, store.rows(), plain=not overlapped)
    check_requests(truth, store)
    kinds = Counter(store.events()["kind"])
    assert kinds["reset"] == resets
    assert kinds["capacity"] == 1
    assert kinds["error"] == 0


def check_lookups(truth, lookups):
    for resumed, prefix in ((False, ""), (True, "preempted_")):
        rows = lookups[lookups.resumed == resumed]
        local = {
            name: getattr(truth.local, prefix + name)
            for name in ("requests", "queries", "hits")
        }
        assert local == {
            "requests": len(rows),
            "queries": rows.query_tokens.sum(),
            "hits": rows.local_hit.sum(),
        }
        if truth.scheduler.connector is not None:
            external = {
                name: getattr(truth.external, prefix + name)
                for name in ("queries", "hits")
            }
            assert external == {
                "queries": (rows.query_tokens - rows.local_hit).sum(),
                "hits": rows.external_accepted.sum(),
            }
    assert (lookups.local_hit <= lookups.retained_hit).all()
    assert (
        lookups.external_offered == lookups.external_accepted + lookups.external_refused
    ).all()
    refused = lookups.external_refused > 0
    assert ((lookups.refusal != "") == refused).all()
    unaligned = (lookups.local_hit + lookups.external_offered) % truth.block_size != 0
    assert ((lookups.refusal == "unaligned") == (refused & unaligned)).all()
    assert (lookups.run_end % truth.block_size == 0).all()
    assert (lookups.run_end >= lookups.retained_hit).all()
    capped = lookups.run_end > lookups.retained_hit
    assert ((lookups.run_end_reason == "last_token") == capped).all()
    rest = lookups.query_tokens - lookups.run_end
    assert ((lookups.run_end_reason == "whole") == (rest == 1)).all()
    short = (rest > 1) & (rest < truth.block_size)
    assert ((lookups.run_end_reason == "short") == short).all()
    assert set(lookups.run_end_reason) >= {
        "evicted",
        "never_seen",
        "last_token",
        "short",
    }


def check_steps(truth, steps):
    assert list(steps.step) == list(range(1, len(truth.metadata) + 1))
    scanned = steps.set_index("step").loc[[one.step for one in truth.steps]]
    assert len(scanned) > 100
    for column, name in {
        "retained": "retained",
        "retained_on_gpu": "on_gpu",
        "kv_in_use": "in_use",
        "kv_cached_free": "cached_free",
        "kv_free": "empty_free",
        "loading_blocks": "loading_blocks",
        "loading_requests": "loading_requests",
        "waiting": "waiting",
        "running": "running",
        "capacity": "capacity",
    }.items():
        expected = np.array([getattr(step, name) for step in truth.steps])
        np.testing.assert_array_equal(scanned[column].to_numpy(), expected, column)
    expected = [
        sum(
            len(packed.data) // packed.item_size for packed in one.block_hashes.values()
        )
        for one in truth.metadata
    ]
    np.testing.assert_array_equal(steps.hashes_sent.to_numpy(), expected)
    assert steps.hashes_retained.sum() == len(truth.retained) * truth.per_block
    assert steps.hashes_released.sum() == len(truth.released) * truth.per_block
    assert list(steps.generation) == [one.generation for one in truth.metadata]
    assert (steps.ns_build_connector_meta > 0).all()
    assert (steps.ns_probe[1:] > 0).all()


def check_blocks(truth, blocks):
    def hashes(event):
        return [int(one) for one in blocks.hash[blocks.event == event]]

    assert hashes("retained") == truth.retained
    assert hashes("released") == truth.released
    assert hashes("gpu_evicted") == truth.evicted
    started = (
        blocks[blocks.event == "load_started"].groupby("request", sort=False).size()
    )
    expected: Counter[str] = Counter()
    for request_id, count in truth.loads:
        expected[request_id] += count
    assert dict(started) == dict(+expected)
    ended = blocks[blocks.event == "load_ended"].groupby("request", sort=False).size()
    assert dict(ended) == dict(started)
    if truth.scheduler.connector is not None:
        assert len(started) > 50
    # A released block was retained before, so its age is known, and never negative.
    released = blocks[blocks.event == "released"]
    assert released.age.notna().all()
    assert (released.age >= 0).all()
    assert (released.idle.dropna() >= 0).all()
    assert (released.uses[released.idle.isna()] == 0).all()
    assert (released.uses[released.idle.notna()] > 0).all()
    # What is wanted again was released, and not retained since.
    gone: set[int] = set()
    met = 0
    for event, block in zip(blocks.event, blocks.hash, strict=True):
        if event == "released":
            gone.add(int(block))
        elif event == "retained":
            gone.discard(int(block))
        elif event == "wanted_again":
            met += 1
            assert int(block) in gone
    assert met > 0


def check_rows(truth, rows, *, plain):
    delivered = rows.step_rows + rows.store_rows + rows.tail_rows
    assert delivered.sum() == truth.worker_rows
    assert rows.step_rows.sum() == truth.step_rows
    assert rows.delivered_requests.sum() == truth.worker_receivers
    assert rows.captured_rows.sum() == truth.captured
    assert rows.store_rows.sum() > 0
    assert rows.tail_rows.sum() > 0
    size = truth.engine.config.row_bytes
    for source in ("step", "store", "tail"):
        assert (rows[f"{source}_bytes"] == rows[f"{source}_rows"] * size).all()
    assert (rows.captured_bytes == rows.captured_rows * size).all()
    if plain:
        # Nothing is in flight when a request ends, so all that was made is delivered.
        assert delivered.sum() == sum(truth.delivered.values())
    steps = set(range(1, len(truth.metadata) + 1))
    assert set(rows.step) <= steps
    assert rows.step.is_monotonic_increasing
    assert rows.step.is_unique


def check_requests(truth, store):
    requests, lookups, blocks = store.requests(), store.lookups(), store.blocks()
    assert dict(zip(requests.request, requests.reason, strict=True)) == {
        name: status.removeprefix("FINISHED_").lower()
        for name, status in truth.finished.items()
    }
    assert requests.request.is_unique
    assert requests.preemptions.sum() == truth.preemptions
    assert truth.preemptions > 0
    by_request = lookups.groupby("request", observed=True)
    local = by_request.local_hit.sum()
    external = by_request.external_accepted.sum()
    indexed = requests.set_index("request")
    assert (indexed.local_hit.reindex(local.index) == local).all()
    assert (indexed.external_hit.reindex(external.index) == external).all()
    assert indexed.local_hit.sum() == local.sum()
    loads = Counter(name for name, _ in truth.loads)
    assert {name: n for name, n in indexed.loads.items() if n} == dict(loads)
    ended = indexed[indexed.reason == "length_capped"]
    assert (ended.first_scheduled >= ended.arrival).all()
    assert len(blocks) > 0
