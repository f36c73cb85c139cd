"""Attaching, detaching, commanding, and what is rare, on real objects."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from auxconn import facts as names
from auxconn.attach import attach
from auxconn.collector import Collector
from auxconn.errors import CapacityError
from auxconn.frames import FrameStore
from auxconn.lab.build import build_worker
from auxconn.lab.config import LabConfig
from auxconn.lab.engine import Batch, Engine
from auxconn.lab.requests import LabRequest
from auxconn.probes import scribe as scribe_module
from auxconn.probes import ticker as ticker_module
from auxconn.probes import worker as worker_module
from auxconn.probes.access import ConnectorView, UnknownConnectorError
from auxconn.probes.guard import Guard
from auxconn.probes.pool import PoolProbe
from auxconn.records import Store
from auxconn.sink import StoreSink
from auxconn.wire import Command
from tests.engine.probes_truth import SMALL_ROWS, Traffic

CONNECTORS = ["vllm", "auxconn"]


def make(connector="vllm", **settings):
    config = LabConfig(
        **{
            "connector": connector,
            "num_blocks": 80,
            "max_num_seqs": 8,
            "max_num_batched_tokens": 192,
            **SMALL_ROWS,
            **settings,
        }
    )
    return Engine(config), Traffic(config, 10_000, seed=5)


def go(engine, traffic, steps):
    for _ in range(steps):
        traffic.feed(engine, 12)
        engine.step()


class OnGpu:
    """Retained blocks that are on the GPU, counted one by one after each `schedule`."""

    def __init__(self, engine):
        scheduler, self.counts = engine.scheduler, []
        schedule, view = scheduler.schedule, ConnectorView(scheduler)

        def counting():
            output = schedule()
            self.counts.append(sum(map(view.on_gpu, view.held())))
            return output

        scheduler.schedule = counting


@pytest.fixture(params=CONNECTORS)
def watched(request):
    engine, traffic = make(request.param)
    yield engine, traffic
    engine.close()


def hooked_objects(engine):
    scheduler, worker = engine.scheduler, engine.worker
    pool = scheduler.kv_cache_manager.block_pool
    return [
        scheduler,
        scheduler.aux_output_connector,
        scheduler.kv_cache_manager,
        pool,
        pool.free_block_queue,
        pool.cached_block_hash_to_block,
        worker,
        worker._buffer,
        worker._store,
        worker._store._store,
    ]


def callables(engine):
    """Attributes of the instances that hide a method of their class."""
    return [
        {
            name: value
            for name, value in vars(one).items()
            if callable(value) and hasattr(type(one), name)
        }
        for one in hooked_objects(engine)
    ]


# -- attach and detach ---------------------------------------------------------------------


def test_detach_restores_exactly(watched):
    engine, traffic = watched
    go(engine, traffic, 20)
    before = callables(engine)
    threads = set(threading.enumerate())
    store = FrameStore()
    attachment = attach(
        scheduler=engine.scheduler, worker=engine.worker, to=store, deferred=True
    )
    assert callables(engine) != before
    go(engine, traffic, 20)
    attachment.detach()
    assert callables(engine) == before
    assert set(threading.enumerate()) == threads
    attachment.detach()
    versions = [store.version(table) for table in ("steps", "rows", "blocks")]
    go(engine, traffic, 20)
    assert [store.version(table) for table in ("steps", "rows", "blocks")] == versions


def test_detach_after_a_reset_of_the_prefix_cache(watched):
    engine, traffic = watched
    before = callables(engine)
    with attach(scheduler=engine.scheduler, worker=engine.worker, to=FrameStore()):
        go(engine, traffic, 20)
        engine.reset_prefix_cache()
        go(engine, traffic, 5)
    # Our connector's own hook comes back to the new map by itself; ours must not stay.
    for mine, theirs in zip(callables(engine), before, strict=True):
        assert mine.keys() <= theirs.keys() | {"pop"}
    for one in hooked_objects(engine):
        for value in vars(one).values():
            assert getattr(value, "__module__", "") != "auxconn.probes.pool"


def test_hooks_below_another_wrapper_do_nothing_after_detach(watched):
    engine, traffic = watched
    store = FrameStore()
    attachment = attach(scheduler=engine.scheduler, worker=engine.worker, to=store)
    connector = engine.scheduler.aux_output_connector
    inner = connector.max_cache_hit
    calls = []

    def wrapper(request):
        calls.append(request)
        return inner(request)

    connector.max_cache_hit = wrapper
    go(engine, traffic, 20)
    attachment.detach()
    assert connector.max_cache_hit is wrapper
    versions = {table: store.version(table) for table in ("steps", "lookups", "events")}
    seen = len(calls)
    go(engine, traffic, 20)
    assert len(calls) > seen
    assert {table: store.version(table) for table in versions} == versions
    assert not attachment.scheduler_probe.guard.failures


def test_a_second_attachment_is_refused_or_takes_the_place_of_the_first(watched):
    engine, traffic = watched
    sides = {"scheduler": engine.scheduler, "worker": engine.worker}
    before = callables(engine), [set(vars(one)) for one in hooked_objects(engine)]
    stores = [FrameStore() for _ in range(3)]
    first = attach(**sides, to=stores[0])
    hooked = callables(engine)
    for part in (sides, {"worker": engine.worker}, {"scheduler": engine.scheduler}):
        with pytest.raises(ValueError, match="pass replace=True"):
            attach(**part, to=stores[1])
    assert callables(engine) == hooked
    go(engine, traffic, 20)
    steps = stores[0].version("steps")
    second = attach(**sides, to=stores[1], replace=True)
    go(engine, traffic, 20)
    third = attach(**sides, to=stores[2], replace=True)
    go(engine, traffic, 20)
    # In the order in which they were made: the first ones are over already.
    for attachment in (first, second, third):
        attachment.detach()
    after = callables(engine), [set(vars(one)) for one in hooked_objects(engine)]
    assert after == before
    assert steps > 0
    assert [store.version("steps") for store in stores] == [steps, 20, 20]


def test_another_connector_of_a_watched_scheduler_is_not_watched_twice():
    engine, _ = make()
    before = callables(engine)
    connector = engine.scheduler.aux_output_connector
    former = attach(scheduler=engine.scheduler, to=FrameStore())
    engine.scheduler.aux_output_connector = type(connector)(
        engine.scheduler.kv_cache_manager, engine.scheduler.connector
    )
    with pytest.raises(ValueError, match="watches this already"):
        attach(scheduler=engine.scheduler, to=FrameStore())
    attach(scheduler=engine.scheduler, to=FrameStore(), replace=True).detach()
    engine.scheduler.aux_output_connector = connector
    former.detach()
    assert callables(engine) == before
    engine.close()


@pytest.mark.parametrize(
    ("name", "rank", "wrong"),
    [
        ("mine", 2**31, "rank=2147483648: a whole number from 0 to 2147483647"),
        ("mine", -1, "rank=-1"),
        ("mine", "0", "rank='0'"),
        ("mine", 1.0, "rank=1.0"),
        ("\ud800", 0, r"engine='\\ud800': a name of at most 128 printable"),
        ("", 0, "engine=''"),
        (None, 0, "engine=None"),
        ("x" * 129, 0, "129 characters, the limit is 128"),
    ],
)
@pytest.mark.parametrize(
    "to", [FrameStore, lambda: "tcp://127.0.0.1:1", lambda: StoreSink(FrameStore())]
)
def test_a_name_or_rank_that_cannot_be_is_refused_whatever_it_goes_to(
    to, name, rank, wrong
):
    engine, _ = make()
    before, threads = callables(engine), set(threading.enumerate())
    with pytest.raises(ValueError, match=wrong):
        attach(scheduler=engine.scheduler, to=to(), engine=name, rank=rank)
    assert callables(engine) == before
    assert set(threading.enumerate()) == threads
    engine.close()


def test_what_cannot_be_attached():
    engine, _ = make()
    scheduler = engine.scheduler
    with pytest.raises(ValueError, match="give a scheduler, a worker, or both"):
        attach(to=FrameStore())
    with pytest.raises(ValueError, match="no FrameStore, no address"):
        attach(scheduler=scheduler, to=42)
    with pytest.raises(ValueError, match="no auxiliary-output worker connector"):
        attach(worker=object(), to=FrameStore())
    connector, scheduler.aux_output_connector = scheduler.aux_output_connector, None
    with pytest.raises(UnknownConnectorError, match="--enable-return-routed-experts"):
        attach(scheduler=scheduler, to=FrameStore())
    scheduler.aux_output_connector = object()
    with pytest.raises(UnknownConnectorError, match="cannot read what it retains"):
        attach(scheduler=scheduler, to=FrameStore())
    scheduler.aux_output_connector = connector
    # A method that is not as expected: nothing stays behind.
    before = callables(engine)
    pool = scheduler.kv_cache_manager.block_pool
    pool.evict_blocks = lambda ids: None
    with pytest.raises(UnknownConnectorError, match="evict_blocks takes"):
        attach(scheduler=scheduler, worker=engine.worker, to=FrameStore())
    del pool.evict_blocks
    assert callables(engine) == before
    engine.close()


def test_attaching_to_a_model_runner_takes_its_connector():
    engine, traffic = make()
    store = FrameStore()
    runner = SimpleNamespace(aux_output_connector=engine.worker)
    with attach(worker=runner, to=store):
        go(engine, traffic, 10)
    assert store.version("rows") > 0
    engine.close()


def test_attaching_in_the_middle_of_a_run(watched):
    engine, traffic = watched
    go(engine, traffic, 120)
    store, counted = FrameStore(), OnGpu(engine)
    with attach(scheduler=engine.scheduler, worker=engine.worker, to=store):
        go(engine, traffic, 100)
    assert store.steps().retained_on_gpu.tolist() == counted.counts
    blocks = store.blocks()
    released = blocks[blocks.event == "released"]
    # Those that were retained before have no known age.
    assert released.age.isna().any()
    assert store.steps().step.tolist() == list(range(1, 101))
    assert set(store.rows().step) <= set(range(1, 101))


def test_facts():
    engine, _ = make("auxconn", kv_tier_blocks=100)
    attachment = attach(
        scheduler=engine.scheduler, worker=engine.worker, to=FrameStore()
    )
    config = engine.config
    found = attachment.facts
    assert found[names.CONNECTOR] == "auxconn"
    assert found[names.NUM_BLOCKS] == 80
    assert found[names.CAPACITY] == 160
    assert found[names.BLOCK_SIZE] == found[names.HASH_BLOCK_SIZE] == 16
    assert found[names.NUM_LAYERS] == config.num_layers
    assert found[names.TOP_K] == config.top_k
    assert found[names.ROW_BYTES] == config.row_bytes
    assert found[names.BYTES_PER_BLOCK] == config.bytes_per_block
    assert found[names.MAX_NUM_SEQS] == 8
    assert found[names.VLLM_VERSION] == "0.33.0"
    assert attachment.sink.facts == found
    assert attachment.sink.commands == ("set_capacity",)
    attachment.detach()
    engine.close()


# -- look-ups of unusual engines -----------------------------------------------------------


def test_admissions_are_seen_without_vllms_statistics():
    engine, traffic = make()
    scheduler = engine.scheduler
    scheduler.log_stats = scheduler.kv_cache_manager.log_stats = False
    scheduler.kv_cache_manager.prefix_cache_stats = None
    store = FrameStore()
    with attach(scheduler=scheduler, to=store):
        go(engine, traffic, 60)
    assert scheduler.make_stats() is None
    lookups = store.lookups()
    assert len(lookups) > 20
    assert lookups.local_hit.sum() > 0
    engine.close()


def test_requests_that_skip_the_prefix_cache_are_no_look_ups():
    engine, _ = make()
    engine.add(LabRequest("warm", list(range(64)), [1, 2]))
    store = FrameStore()
    with attach(scheduler=engine.scheduler, to=store):
        go(engine, SimpleNamespace(feed=lambda *_: None), 6)
        engine.add(LabRequest("skips", list(range(64)), [1, 2]))
        engine.scheduler.requests["skips"].skip_reading_prefix_cache = True
        engine.add(LabRequest("reads", list(range(64)), [1, 2]))
        go(engine, SimpleNamespace(feed=lambda *_: None), 6)
    assert store.lookups().request.tolist() == ["warm", "reads"]
    requests = store.requests().set_index("request")
    assert requests.local_hit.to_dict() == {"warm": 0, "skips": 0, "reads": 48}
    assert requests.first_scheduled.notna().all()
    engine.close()


def test_a_look_up_that_waits_for_room_counts_its_attempts():
    engine, _ = make(num_blocks=20)
    store = FrameStore()
    nothing = SimpleNamespace(feed=lambda *_: None)
    with attach(scheduler=engine.scheduler, to=store):
        engine.add(LabRequest("first", list(range(200)), list(range(40))))
        go(engine, nothing, 4)
        engine.add(LabRequest("waits", list(range(1000, 1250)), [1]))
        go(engine, nothing, 60)
    lookups = store.lookups().set_index("request")
    assert lookups.attempts["first"] == 1
    assert lookups.attempts["waits"] > 20
    engine.close()


# -- commands ------------------------------------------------------------------------------


def answered(engine, traffic, future: Future, seconds=20.0):
    end = time.monotonic() + seconds
    while not future.done() and time.monotonic() < end:
        go(engine, traffic, 1)
    return future.result(timeout=0)


def test_capacity_is_commanded_by_a_collector(watched):
    engine, traffic = watched
    with Collector() as collector:
        attachment = attach(
            scheduler=engine.scheduler,
            worker=engine.worker,
            to=collector.address,
            engine="e1",
        )
        assert attachment.channel.wait_connected(10)
        go(engine, traffic, 80)
        view = ConnectorView(engine.scheduler)
        assert view.retained() > 40
        ack = answered(
            engine, traffic, collector.command("e1", "set_capacity", blocks=20)
        )
        assert ack.ok
        assert ack.text == "capacity 80 -> 20 blocks"
        assert view.capacity == 20
        for args, words in (
            ({"blocks": 0}, "capacity=0"),
            ({"blocks": "many"}, "capacity='many'"),
            ({"blocks": True}, "capacity=True"),
            ({}, "takes 'blocks'"),
            ({"blocks": 3, "more": 1}, "got 'blocks', 'more'"),
        ):
            ack = answered(
                engine, traffic, collector.command("e1", "set_capacity", **args)
            )
            assert not ack.ok
            assert words in ack.text
        assert view.capacity == 20
        attachment.flush()
        attachment.channel.close()
        assert collector.store.wait("steps", attachment.scheduler_probe.step, 10)
        events = collector.store.events()
        changed = events[events.kind == "capacity"]
        assert changed.text.tolist() == ["capacity changed from 80 to 20 blocks"]
        step = changed.step.iloc[0]
        steps = collector.store.steps().set_index("step")
        # What may be released leaves with the very next metadata.
        assert steps.hashes_released[step] > 0
        row = steps.loc[step]
        assert row.retained == max(20, row.retained_on_gpu)
        assert row.capacity == 20
        (source,) = collector.sources()
        assert source.facts[names.CAPACITY] == 20
        assert source.commands == ("set_capacity",)
        attachment.detach()


def test_commands_are_applied_by_hand_too(watched):
    engine, _ = watched
    attachment = attach(scheduler=engine.scheduler, to=FrameStore())
    assert attachment.apply_commands() == 0
    text = attachment.apply(Command(1, "set_capacity", {"blocks": 33}))
    assert text == "capacity 80 -> 33 blocks"
    with pytest.raises(ValueError, match="no command 'explode' here"):
        attachment.apply(Command(2, "explode", {}))
    with pytest.raises(CapacityError, match="capacity=-1"):
        attachment.apply(Command(3, "set_capacity", {"blocks": -1}))
    attachment.detach()
    worker_only = attach(worker=engine.worker, to=FrameStore())
    with pytest.raises(ValueError, match="obeys none"):
        worker_only.apply(Command(1, "set_capacity", {"blocks": 33}))
    worker_only.detach()


# -- the scribe's thread -------------------------------------------------------------------


def test_steps_left_out_are_told_and_the_count_is_exact_again(watched, monkeypatch):
    monkeypatch.setattr(scribe_module, "NOTES", 8)
    monkeypatch.setattr(ticker_module, "SECONDS", 3600.0)
    engine, traffic = watched
    store, counted = FrameStore(), OnGpu(engine)
    attachment = attach(scheduler=engine.scheduler, to=store, deferred=True)
    scribe = attachment.scheduler_probe.scribe
    go(engine, traffic, 20)
    locked, release = threading.Event(), threading.Event()

    def hold():
        with scribe._lock:
            locked.set()
            release.wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    locked.wait(30)
    go(engine, traffic, 40)
    release.set()
    holder.join()
    # Steps up to the limit, and requests that ended up to twice that.
    assert 8 <= len(scribe._notes) <= 16
    assert scribe.missed > 20
    assert scribe.missed_requests > 0
    attachment.flush()
    for _ in range(60):
        go(engine, traffic, 1)
        attachment.flush()
    steps = store.steps()
    counts = [counted.counts[step - 1] for step in steps.step]
    assert steps.retained_on_gpu.tolist() == counts
    events = store.events()
    (text,) = events[events.kind == "gap"].text
    left_out = int(text.split()[0])
    assert len(steps) == 120 - left_out
    attachment.detach()


def test_a_failed_note_makes_the_next_one_begin_anew(watched, monkeypatch):
    engine, traffic = watched
    store, counted = FrameStore(), OnGpu(engine)
    attachment = attach(scheduler=engine.scheduler, to=store)
    scribe = attachment.scheduler_probe.scribe
    go(engine, traffic, 60)
    retain = scribe.ledger.retain
    failing = iter([True])

    def fails_once(keys, now):
        if next(failing, False):
            raise RuntimeError("half a note")
        retain(keys, now)

    scribe.ledger.retain = fails_once
    go(engine, traffic, 60)
    steps = store.steps()
    counts = [counted.counts[step - 1] for step in steps.step]
    assert steps.retained_on_gpu.tolist() == counts
    assert attachment.scheduler_probe.guard.failures == {"the rows of steps": 1}
    assert store.version("steps") == 119
    attachment.detach()


# -- the pool ------------------------------------------------------------------------------


def test_partial_keys_copies_and_moves_of_a_pool():
    from vllm.v1.core.block_pool import BlockPool

    pool = BlockPool(10, True, 16)
    view = SimpleNamespace(
        pool=pool, group_id=0, step=2, block_size=32, num_groups=1, partial_hashes=True
    )
    guard = Guard("test", SimpleNamespace(emit=print), lambda: 0, lambda: None)
    probe = PoolProbe(view, guard)
    probe.install()

    def empty_free():
        free = pool.free_block_queue.get_all_free_blocks()
        return sum(block.block_hash is None for block in free)

    def check():
        assert probe.unhashed_free == empty_free()
        assert not guard.failures

    check()
    hashes = [bytes([number]) * 32 for number in range(8)]
    request = SimpleNamespace(
        request_id="r", block_hashes=hashes, all_token_ids=[0] * 128, mm_features=[]
    )
    blocks = pool.get_new_blocks(3)
    check()
    # A partial key, then the whole block: nothing has left.
    pool.cache_partial_block(request, blocks[0], 16, 0, 32)
    pool.cache_full_blocks(request, blocks, 0, 2, 32, 0)
    assert probe.take() == [([], [hashes[1], hashes[3]])]
    # A second copy of the first block: when one goes, the hash stays.
    copies = pool.get_new_blocks(1)
    pool.cache_full_blocks(request, copies, 0, 1, 32, 0)
    probe.take()
    pool.free_blocks(blocks)
    check()
    pool.free_blocks(copies)
    check()
    pool.evict_blocks({blocks[0].block_id})
    check()
    assert probe.take() == []
    moved_to = pool.get_new_blocks(1)[0]
    check()
    probe.take()
    # The request goes on writing into its block, the cache keeps a copy.
    pool.touch(copies)
    pool.move_block_hashes(copies[0], moved_to)
    assert probe.take() == []
    pool.free_blocks([*copies, moved_to])
    check()
    everything = pool.get_new_blocks(9)
    check()
    gone = {key[:-4] for left, _ in probe.take() for key in left}
    assert gone == {hashes[1], hashes[3]}
    pool.unpin_blocks(everything, lambda block: None)
    check()
    assert pool.reset_prefix_cache()
    assert probe.take() == [([], None)]
    check()
    probe.remove()


# -- the worker ----------------------------------------------------------------------------


def test_worker_alone_counts_the_steps_it_begins():
    engine, traffic = make()
    store = FrameStore()
    with attach(worker=engine.worker, to=store, rank=3):
        go(engine, traffic, 40)
    rows = store.rows()
    assert len(rows) == 40
    assert rows.step.tolist() == list(range(1, 41))
    assert set(rows["rank"]) == {3}
    assert store.version("steps") == 0
    engine.close()


def test_worker_steps_left_out_are_told(monkeypatch):
    monkeypatch.setattr(worker_module, "NOTES", 5)
    monkeypatch.setattr(ticker_module, "SECONDS", 3600.0)
    engine, traffic = make()
    store = FrameStore()
    attachment = attach(worker=engine.worker, to=store, deferred=True)
    locked, release = threading.Event(), threading.Event()

    def hold():
        with attachment.worker_probe._flushing:
            locked.set()
            release.wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    locked.wait(30)
    go(engine, traffic, 30)
    release.set()
    holder.join()
    attachment.detach()
    assert store.rows().step.tolist() == list(range(22, 31))
    events = store.events()
    (text,) = events[events.kind == "gap"].text
    assert text.startswith("21 worker steps are without rows")
    engine.close()


def stored(attachment) -> Store:
    """The row of the store as it stands."""
    numbers, backlog, error = attachment.worker_probe._store.look()
    return Store(0.0, 1, *numbers, backlog, error)


def test_rank_without_rows_is_only_told_of():
    store = FrameStore()
    worker = SimpleNamespace(
        _buffer=None, _store=None, begin_step=lambda metadata: None
    )
    with attach(worker=worker, to=store):
        pass
    assert store.events().text.tolist() == [
        "this rank owns no R3 rows: nothing to watch"
    ]


def metadata(starts, hashes=None, finished=(), retained=(), released=()):
    from vllm.distributed.aux_output_connector.connector import (
        AuxOutputConnectorMetadata,
        PackedBlockHashes,
    )

    def packed(blocks):
        return PackedBlockHashes(b"".join(blocks), 32) if blocks else None

    return AuxOutputConnectorMetadata(
        0,
        starts,
        {name: packed(blocks) for name, blocks in (hashes or {}).items()},
        tuple(finished),
        packed(retained),
        packed(released),
    )


def run_step(worker, data, computed, counts, sampled, rejected):
    worker.begin_step(data)
    bounds = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    worker._capturer.stage(np.zeros(int(bounds[-1]), np.int64))
    pending = worker.prepare_output(
        Batch(list(data.requests), bounds, np.array(computed, np.int32))
    )
    pending.enqueue_cpu_copy(np.array(sampled), np.array(rejected))
    return pending.process_output()


def test_rejected_rows_and_sources_by_hand():
    config = LabConfig(num_blocks=20, **SMALL_ROWS)
    worker = build_worker(config)
    store = FrameStore()
    attachment = attach(worker=worker, to=store)
    size = config.row_bytes
    blocks = [bytes([number]) * 32 for number in range(3)]
    # 20 tokens in two chunks: nothing is sampled after the first.
    run_step(worker, metadata({"a": 0}), [0], [10], [0], [0])
    out = run_step(worker, metadata({"a": 0}, {"a": blocks[:1]}), [10], [10], [1], [0])
    assert len(out["a"].rows) == 20
    # Three drafts, two of them rejected; then one token, all of it new.
    out = run_step(worker, metadata({"a": 20}), [20], [4], [2], [2])
    assert len(out["a"].rows) == 2
    out = run_step(worker, metadata({"a": 22}), [22], [1], [1], [0])
    assert len(out["a"].rows) == 1
    rows = store.rows()
    assert rows.captured_rows.tolist() == [10, 10, 2, 1]
    assert rows.rejected_rows.tolist() == [0, 0, 2, 0]
    assert rows.step_rows.tolist() == [0, 0, 2, 1]
    assert rows.store_rows.tolist() == [0, 16, 0, 0]
    assert rows.tail_rows.tolist() == [0, 4, 0, 0]
    assert rows.delivered_requests.tolist() == [0, 1, 1, 1]
    assert rows.tail_bytes.tolist() == [0, 4 * size, 0, 0]
    assert (rows.ms_commit > 0).all()
    # The copy is timed in the first step, then in one of sixteen.
    assert rows.ms_copy[0] > 0
    assert rows.ms_copy[1:].isna().all()
    attachment.detach()
    worker.close()


def test_rows_that_nobody_wanted_are_not_delivered():
    worker = build_worker(LabConfig(num_blocks=20, **SMALL_ROWS))
    store = FrameStore()
    with attach(worker=worker, to=store):
        # Emission starts behind the prompt, whose last chunk is one token long.
        run_step(worker, metadata({"a": 6}), [0], [5], [0], [0])
        run_step(worker, metadata({"a": 6}), [5], [1], [1], [0])
        run_step(worker, metadata({"a": 6}), [6], [1], [1], [0])
        run_step(worker, metadata({"a": 7}), [7], [1], [1], [0])
    rows = store.rows()
    assert rows.captured_rows.tolist() == [5, 1, 1, 1]
    assert rows.step_rows.tolist() == [0, 0, 1, 1]
    assert rows.delivered_requests.tolist() == [0, 0, 1, 1]
    worker.close()


def test_store_growth_says_its_cause_and_the_first_error_is_told_once():
    config = LabConfig(num_blocks=4, num_layers=2, num_experts=16, top_k=2)
    worker = build_worker(config)
    background = worker._store
    store = FrameStore()
    attachment = attach(worker=worker, to=store)
    inner = background._store
    block = SimpleNamespace

    def put(keys, **kwargs):
        payload = bytes(inner.object_nbytes)
        background.put([block(key=key, payload=payload) for key in keys], **kwargs)
        background._queue.join()
        return stored(attachment)

    row = put(["a", "b"], retain_keys=["a"])
    assert (row.slots_used, row.slots_referenced, row.slots_unreferenced) == (2, 1, 1)
    assert (row.slots_free, row.slots_total, row.growths) == (2, 4, 0)
    # One batch is larger than what can be evicted.
    row = put(["c", "d", "e", "f"])
    assert (row.slots_total, row.growths, row.evictions) == (8, 1, 1)
    # All that is there is referenced.
    many = [f"r{number}" for number in range(12)]
    row = put([], retain_keys=["c", "d", "e", "f"])
    row = put(many, retain_keys=many)
    assert (row.slots_total, row.growths) == (17, 2)
    assert row.slots_unreferenced == 0
    assert row.arena_bytes == 17 * inner.object_nbytes
    causes = [text.split(": ")[1] for text in store.events().text[1:]]
    assert causes == [
        "a batch of 4 new blocks did not fit beside 1 referenced ones",
        "all 17 blocks in it are referenced",
    ]
    assert row.error == ""
    # The writer fails; whoever puts next hears of it.
    background._queue.put(([], (), ("nobody knows it",)))
    background._queue.join()
    for _ in range(2):
        with pytest.raises(Exception, match="publication failed"):
            put(["x"])
    row = stored(attachment)
    assert row.error == "KeyError: 'nobody knows it'"
    events = store.events()
    errors = events[events.kind == "error"].text.tolist()
    assert errors == ["the R3 store's writer failed: KeyError: 'nobody knows it'"]
    assert not attachment.worker_probe.guard.failures
    attachment.detach()
    # Attached to one that has failed already, the error is told again.
    with attach(worker=worker, to=store):
        assert store.events().text.iloc[-2].startswith("the R3 store's writer failed")
    with pytest.raises(Exception, match="publication failed"):
        worker.close()


def test_config_of_these_tests_is_as_assumed():
    config = LabConfig(num_blocks=4, num_layers=2, num_experts=16, top_k=2)
    assert replace(config).store_bytes == 4 * config.bytes_per_block
