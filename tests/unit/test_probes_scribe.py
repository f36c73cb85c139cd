"""The scribe: working up many steps at once gives what one at a time gives."""

from __future__ import annotations

import random
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from auxconn.probes import batch as batch_module
from auxconn.probes import ledger as ledger_module
from auxconn.probes.batch import Batch, Entry
from auxconn.probes.guard import Guard
from auxconn.probes.ledger import Ledger
from auxconn.probes.notes import Note, Snapshot
from auxconn.probes.scribe import Scribe

BLOCKS = 10
SIZE = 4


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def keys(numbers) -> list[bytes]:
    return [key(number) for number in numbers]


class ListSink:
    def __init__(self):
        self.records = []

    def emit(self, table, record):
        # As it is now: it must not change afterwards.
        self.records.append((table, msgspec.msgpack.encode(record)))

    def hello(self, facts, commands):
        pass


def make_scribe(sink):
    view = SimpleNamespace(
        capacity=1,
        group_id=0,
        num_groups=1,
        block_size=SIZE,
        step=1,
        pool=SimpleNamespace(num_gpu_blocks=100),
    )
    guard = Guard("test", sink, lambda: 0, lambda: None)
    made = Scribe(view, sink, guard, deferred=False)
    made.ledger = Ledger(memory=20)
    made.wants_snapshot = False
    return made


def packed(numbers):
    if not numbers:
        return None
    return SimpleNamespace(data=b"".join(keys(numbers)), item_size=16)


def looked(name, run, numbers, tokens):
    """What is noted of an admission whose run of hits has `run` blocks."""
    hashes = keys(numbers)
    request = SimpleNamespace(request_id=name, block_hashes=hashes)
    hit = min(run * SIZE, tokens - 1)
    return (request, tokens, tokens, False, len(hashes), hit, True, 0, 0, 0, 0, 1)


def history(rng: random.Random):
    """Notes of what a connector and a pool could do, on few blocks so that they meet."""

    def some(most=4):
        return rng.sample(range(BLOCKS), rng.randint(0, most))

    retained: set[int] = set()
    notes = []
    for step in range(1, rng.randint(1, 25) + 1):
        new = [one for one in some() if one not in retained]
        retained.update(new)
        admissions = []
        for place in range(rng.choice([0, 0, 1, 2])):
            wanted = some()
            run = rng.randint(0, len(wanted))
            while run < len(wanted) and wanted[run] in retained:
                # A run does not end at a block that has rows.
                run += 1
            tokens = max(len(wanted) * SIZE + rng.randint(0, SIZE - 1), 1)
            admissions.append(looked(f"{step}-{place}", run, wanted, tokens))
        log = []
        for _ in range(rng.randint(0, 2)):
            left = [key(one) + bytes(4) for one in some()]
            log.append((left, None if rng.random() < 0.05 else keys(some())))
        gone = [one for one in some() if one in retained]
        retained.difference_update(gone)
        loads = []
        if rng.random() < 0.15:
            loads.append(
                (rng.choice("ab"), keys(some()) if rng.random() < 0.5 else None)
            )
        metadata = SimpleNamespace(
            generation=0,
            retained_block_hashes=packed(new),
            released_block_hashes=packed(gone),
            block_hashes={"r": packed([1, 2])},
        )
        snapshot = None
        if rng.random() < 0.06:
            held = sorted(retained)
            absent = [one for one in held if rng.random() < 0.5]
            snapshot = Snapshot(keys(held), keys(absent), [])
        notes.append((step, len(retained), metadata, admissions, loads, log, snapshot))
    return notes


OUTPUT = SimpleNamespace(
    num_scheduled_tokens={"r": 2}, total_num_scheduled_tokens=2, scheduled_new_reqs=[]
)


def make_note(step, now, retained, metadata, admissions, loads, log):
    return Note(
        step / 4,
        now,
        step,
        metadata,
        OUTPUT,
        3,
        4,
        50,
        20,
        retained,
        1,
        7,
        [0] * 6,
        0,
        None,
        0,
        admissions,
        list(loads),
        [(list(left), cached) for left, cached in log],
    )


def note(made):
    step, retained, metadata, admissions, loads, log, snapshot = made
    one = make_note(step, step / 4, retained, metadata, admissions, loads, log)
    one.snapshot = snapshot
    return one


def records(history, cuts):
    sink = ListSink()
    scribe = make_scribe(sink)
    for number, made in enumerate(history):
        scribe._notes.append(note(made))
        if number in cuts:
            scribe.flush()
    scribe.flush()
    assert not scribe._guard.failures
    assert scribe.missed == 0
    return sink.records


@pytest.mark.parametrize("seed", range(8))
def test_many_steps_at_once_give_what_one_at_a_time_gives(seed, monkeypatch):
    monkeypatch.setattr(ledger_module, "CHUNK", 1000)
    rng = random.Random(seed)
    joined = 0
    for _ in range(60):
        made = history(rng)
        one_by_one = records(made, range(len(made)))
        assert records(made, ()) == one_by_one
        cuts = {number for number in range(len(made)) if rng.random() < 0.2}
        assert records(made, cuts) == one_by_one
        joined += len(made)
    assert joined > 500


def plain(step, retained=(), touched=(), left=(), released=(), loads=()):
    metadata = SimpleNamespace(
        generation=0,
        retained_block_hashes=packed(list(retained)),
        released_block_hashes=packed(list(released)),
        block_hashes={},
    )
    admissions = []
    if touched:
        admissions = [looked("r", len(touched), list(touched), len(touched) * SIZE + 1)]
    log = [([key(one) + bytes(4) for one in left], [])] if left else []
    return make_note(step, float(step), 0, metadata, admissions, loads, log)


def cuts(*notes):
    """Whether a second note can join the batch of the first."""
    batch = Batch(lambda key: False, SIZE)
    first, second = (Entry(one, SIZE, 1, _clean) for one in notes)
    assert batch.add(first)
    return batch.closed or not batch.add(second)


def _clean(log):
    return [([one[:-4] for one in left], cached) for left, cached in log]


@pytest.mark.parametrize(
    ("first", "second", "cut"),
    [
        ({"retained": [1]}, {"retained": [2]}, False),
        ({"retained": [1]}, {"touched": [1]}, False),
        ({"retained": [1]}, {"left": [1], "released": [1]}, False),
        ({"touched": [1]}, {"retained": [1]}, False),
        ({"touched": [1]}, {"touched": [1]}, False),
        ({"left": [1]}, {"left": [1]}, False),
        ({"left": [1]}, {"released": [1]}, False),
        ({"left": [1]}, {"retained": [1]}, True),
        ({"left": [1]}, {"touched": [1]}, True),
        ({"released": [1]}, {"retained": [1]}, True),
        ({"released": [1]}, {"touched": [1]}, True),
        ({"released": [1]}, {"left": [1]}, True),
        ({"loads": [("r", [b"x" * 16])]}, {}, True),
    ],
)
def test_where_a_batch_is_cut(first, second, cut):
    assert cuts(plain(1, **first), plain(2, **second)) == cut


def test_a_batch_is_cut_when_it_is_large(monkeypatch):
    monkeypatch.setattr(batch_module, "KEYS", 6)
    assert not cuts(plain(1, retained=range(5)), plain(2, retained=range(5, 9)))
    assert cuts(plain(1, retained=range(6)), plain(2, retained=range(6, 9)))


def test_a_failure_in_a_batch_loses_its_steps_and_counts_them():
    sink = ListSink()
    scribe = make_scribe(sink)
    for step in range(1, 5):
        scribe._notes.append(plain(step, retained=[step]))
    scribe._notes.append(plain(5, retained=[1], left=[3]))

    def broken(keys, now):
        raise RuntimeError("made to fail")

    retain, scribe.ledger.retain = scribe.ledger.retain, broken
    scribe.flush()
    scribe.ledger.retain = retain
    assert scribe.missed == 5
    assert scribe.wants_snapshot
    assert scribe._guard.failures == {"the rows of steps": 1}
    assert [table for table, _ in sink.records] == ["events"]


def test_ages_within_a_batch_are_those_of_their_steps():
    scribe = make_scribe(ListSink())
    emitted = []
    scribe._sink = SimpleNamespace(
        emit=lambda table, record: emitted.append((table, record))
    )
    scribe._notes.extend(
        [
            plain(1, retained=[1, 2]),
            plain(3, touched=[1]),
            plain(4, left=[1, 2]),
            plain(9, released=[1]),
            plain(12, released=[2]),
        ]
    )
    scribe.flush()
    found = {
        (record.event, record.step): [
            np.frombuffer(column, dtype).tolist()
            for column, dtype in (
                (record.hash, "<u8"),
                (record.age, "<f4"),
                (record.uses, "<u4"),
            )
        ]
        for table, record in emitted
        if table == "blocks"
    }
    assert found == {
        ("retained", 1): [[1, 2], [0, 0], [0, 0]],
        ("gpu_evicted", 4): [[1, 2], [3, 3], [1, 0]],
        ("released", 9): [[1], [8], [1]],
        ("released", 12): [[2], [11], [0]],
    }
