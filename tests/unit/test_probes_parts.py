"""The smaller parts of the probes, without vLLM."""

from __future__ import annotations

import math
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from auxconn.probes.absent import AbsentBlocks
from auxconn.probes.access import UnknownConnectorError
from auxconn.probes.clock import AHEAD, StepClock
from auxconn.probes.guard import FAILURES, Guard
from auxconn.probes.hooks import Hooks
from auxconn.probes.ledger import Ledger
from auxconn.probes.lives import LifeLog
from auxconn.probes.loads import LoadLog
from auxconn.probes.lookups import Admission, LookupLog, refusal, run_blocks
from auxconn.probes.packed import last_hashes, low64, nans, zeros


class ListSink:
    def __init__(self):
        self.records = []

    def emit(self, table, record):
        self.records.append((table, record))

    def hello(self, facts, commands):
        pass

    def texts(self, kind):
        return [
            one.text
            for table, one in self.records
            if table == "events" and one.kind == kind
        ]


def key(number: int) -> bytes:
    return number.to_bytes(32, "big")


# -- hashes --------------------------------------------------------------------------------


@given(st.lists(st.binary(min_size=16, max_size=16), max_size=20))
def test_low64_is_what_vllm_shows(hashes):
    shown = [int.from_bytes(one, "big") & ((1 << 64) - 1) for one in hashes]
    assert np.frombuffer(low64(hashes), "<u8").tolist() == shown


def test_low64_of_hashes_of_eight_bytes():
    assert np.frombuffer(low64([bytes(range(8))]), "<u8")[0] == 0x0001020304050607


def test_last_hashes_takes_each_blocks_last():
    # Zeros at the end must not be taken for padding.
    hashes = [bytes([number]) * 31 + b"\0" for number in range(6)]
    packed = SimpleNamespace(data=b"".join(hashes), item_size=32)
    assert last_hashes(packed, 1) == hashes
    assert last_hashes(packed, 2) == hashes[1::2]
    assert last_hashes(packed, 3) == [hashes[2], hashes[5]]
    assert last_hashes(None, 2) == []


def test_constant_columns():
    assert np.frombuffer(zeros(3), "<f4").tolist() == [0, 0, 0]
    assert np.isnan(np.frombuffer(nans(3), "<f4")).all()


# -- look-ups ------------------------------------------------------------------------------


@given(
    tokens=st.integers(1, 200),
    size=st.sampled_from([1, 2, 8, 16]),
    data=st.data(),
)
def test_run_of_blocks_is_found_from_the_capped_answer(tokens, size, data):
    run = data.draw(st.integers(0, tokens // size))
    answer = min(run * size, tokens - 1)
    last_present = run == tokens // size and tokens % size == 0
    assert run_blocks(answer, tokens, size, last_present) == run


@pytest.mark.parametrize(
    ("local", "offered", "run", "tokens", "why"),
    [
        (0, 31, 4, 64, "unaligned"),
        (16, 17, 4, 64, "unaligned"),
        (16, 48, 4, 64, "last_token"),
        (0, 64, 4, 64, "last_token"),
        (0, 64, 3, 64, "not_retained"),
        (16, 32, 2, 100, "not_retained"),
        (0, 64, 3, 80, "not_retained"),
    ],
)
def test_why_an_offer_was_refused(local, offered, run, tokens, why):
    assert refusal(local, offered, run, tokens, 16) == why


def request(name="r", tokens=100, prompt=None, hashes=None, preemptions=0, skip=False):
    if hashes is None:
        hashes = [key(number) for number in range(tokens // 16)]
    return SimpleNamespace(
        request_id=name,
        num_tokens=tokens,
        num_prompt_tokens=tokens if prompt is None else prompt,
        num_preemptions=preemptions,
        block_hashes=hashes,
        skip_reading_prefix_cache=skip,
    )


def make_log():
    return LookupLog(16, lambda key: True)


def taken(log):
    return [Admission(*looked, block_size=16, step=1) for looked in log.take()]


def test_only_admitted_look_ups_count_with_their_attempts():
    log, first, second = make_log(), request("a"), request("b")
    log.looked(32, first)
    log.looked(48, first)
    log.looked(0, second)
    log.admitted(second, 0)
    log.looked(64, first)
    log.admitted(first, 64)
    one, other = taken(log)
    assert (one.request_id, one.attempts) == ("b", 1)
    assert (other.request_id, other.attempts) == ("a", 3)
    assert (other.hit, other.local, other.run) == (64, 64, 4)
    # The next admission of the same request counts from one again.
    log.looked(64, first)
    log.admitted(first, 64)
    assert [one.attempts for one in taken(log)] == [1]
    assert log.take() == []


def test_what_is_taken_is_written_no_more():
    log, one = make_log(), request()
    before = log.take()
    log.looked(0, one)
    log.admitted(one, 0)
    assert before == []
    assert len(log.take()) == 1


def test_an_admission_is_as_it_was_when_it_was_noted():
    log, one = make_log(), request(tokens=64)
    log.looked(48, one)
    log.admitted(one, 48)
    # It generates tokens before the row is made.
    one.num_tokens = 200
    one.block_hashes += [key(number) for number in range(50, 58)]
    (found,) = taken(log)
    assert found.tokens == 64
    assert found.keys == [key(number) for number in range(4)]


def test_an_admission_without_a_look_up_is_none():
    log = make_log()
    log.admitted(request("a"), 0)
    log.looked(16, request("a"))
    log.admitted(request("b"), 0)
    assert log.take() == []


def test_a_request_that_skips_the_prefix_cache_is_not_counted():
    log, one = make_log(), request(skip=True)
    log.looked(16, one)
    log.admitted(one, 0)
    assert log.take() == []


def test_external_ledger():
    log, one = make_log(), request(tokens=64)
    for local, offered, accepted in ((16, 48, 0), (16, 32, 32), (16, 0, 0), (16, 5, 0)):
        log.looked(63, one)
        log.capped(accepted, one, local, offered)
        log.admitted(one, local)
    log.looked(63, one)
    log.admitted(one, 48)
    found = [(one.offered, one.accepted, one.refusal) for one in taken(log)]
    assert found == [
        (48, 0, "last_token"),
        (32, 32, ""),
        # No offer, no refusal.
        (0, 0, ""),
        (5, 0, "unaligned"),
        # Nor is an offer remembered for the next look-up.
        (0, 0, ""),
    ]


def test_forgotten_requests_leave_nothing():
    log, one = make_log(), request()
    for _ in range(3):
        log.looked(0, one)
    log.forget("r")
    log.admitted(one, 0)
    assert log.take() == []
    log.looked(0, one)
    log.admitted(one, 0)
    assert [one.attempts for one in taken(log)] == [1]


def reason(hit, tokens, ledger):
    log = make_log()
    one = request(tokens=tokens)
    log.looked(hit, one)
    log.admitted(one, 0)
    return taken(log)[0].reason(16, ledger.is_lost)


def test_why_a_run_ended():
    ledger = Ledger()
    ledger.retain([key(2), key(3)], 0.0)
    ledger.lose([], [key(2)], 0.0)
    assert reason(0, 100, ledger) == "never_seen"
    assert reason(32, 100, ledger) == "evicted"
    assert reason(16, 100, ledger) == "never_seen"
    assert reason(96, 100, ledger) == "short"
    assert reason(0, 15, ledger) == "short"
    assert reason(96, 97, ledger) == "whole"
    assert reason(95, 96, ledger) == "last_token"


@pytest.mark.parametrize(("present", "run"), [(True, 8), (False, 7)])
def test_blocks_of_one_token_need_a_look_at_the_last(present, run):
    looked_at = []

    def has_rows(key):
        looked_at.append(key)
        return present

    log = LookupLog(1, has_rows)
    one = request(tokens=8, hashes=[key(number) for number in range(8)])
    log.looked(7, one)
    log.admitted(one, 0)
    (found,) = [Admission(*looked, block_size=1, step=1) for looked in log.take()]
    assert found.run == run
    assert looked_at == [key(7)]


# -- loads ---------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.none() | st.lists(st.integers(0, 6), unique=True, max_size=5),
        ),
        max_size=30,
    )
)
def test_loading_set_counts_distinct_blocks(ops):
    log: LoadLog = LoadLog()
    model: dict[str, list[bytes]] = {}
    for name, blocks in ops:
        before = model.pop(name, None)
        if blocks is None:
            assert log.end(name) == before
        else:
            model[name] = [key(one) for one in blocks]
            assert log.start(name, model[name]) == before
        assert log.requests == len(model)
        assert log.blocks == len(set().union(*model.values()))
    log.clear()
    assert (log.requests, log.blocks) == (0, 0)


# -- requests ------------------------------------------------------------------------------


def test_life_of_a_request():
    log = LifeLog()
    log.admitted(SimpleNamespace(request_id="r", local=32, accepted=0))
    log.loading("r")
    log.scheduled([SimpleNamespace(req_id="r")], 5.0)
    log.scheduled([SimpleNamespace(req_id="r")], 9.0)
    log.admitted(SimpleNamespace(request_id="r", local=16, accepted=48))
    ended = SimpleNamespace(
        request_id="r",
        arrival_time=4.0,
        num_prompt_tokens=64,
        num_output_tokens=3,
        num_preemptions=1,
        status=SimpleNamespace(name="FINISHED_LENGTH_CAPPED"),
    )
    row = log.ended(ended, 10.0, 7)
    assert (row.t, row.step, row.arrival, row.first_scheduled) == (10.0, 7, 4.0, 5.0)
    assert (row.local_hit, row.external_hit, row.loads, row.preemptions) == (
        48,
        48,
        1,
        1,
    )
    assert row.reason == "length_capped"
    assert len(log) == 0
    # One that never ran has nothing but its end.
    row = log.ended(ended, 10.0, 7)
    assert math.isnan(row.first_scheduled)
    assert row.local_hit == 0


# -- the pool's log ------------------------------------------------------------------------


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("left"), st.integers(0, 5)),
            st.tuples(st.just("other"), st.integers(0, 5)),
            st.tuples(st.just("came"), st.lists(st.integers(0, 5), max_size=3)),
            st.tuples(st.just("wiped"), st.none()),
            st.tuples(st.just("step"), st.none()),
        ),
        max_size=40,
    ),
    st.sets(st.integers(0, 5)),
)
def test_absent_blocks_are_where_their_last_entry_says(ops, retained):
    mine, others = (3).to_bytes(4, "big"), (2).to_bytes(4, "big")
    absent = AbsentBlocks(3, many_groups=True)
    away: set[int] = set()
    log, left = [], []
    for what, value in [*ops, ("step", None)]:
        if what == "left":
            left.append(key(value) + mine)
            away.add(value)
        elif what == "other":
            left.append(key(value) + others)
        elif what == "came":
            log.append((left, [key(one) for one in value]))
            left = []
            away.difference_update(value)
        elif what == "wiped":
            log.append((left, None))
            left = []
            away = set(range(6))
        else:
            log.append((left, []))
            clean = absent.clean(log)
            gone = {one for keys, _ in clean for one in keys}
            absent.follow(
                clean,
                gone & {key(one) for one in retained},
                [],
                lambda: [key(one) for one in retained],
            )
            assert absent.keys == {key(one) for one in away & retained}
            log, left = [], []


def test_released_blocks_are_not_absent():
    absent = AbsentBlocks(0, many_groups=False)
    log = absent.clean([([key(1) + bytes(4), key(2) + bytes(4)], [])])
    absent.follow(log, {key(1), key(2)}, [key(2)], list)
    assert absent.keys == {key(1)}


# -- steps of the worker -------------------------------------------------------------------


def test_clock_knows_objects_not_equals():
    clock = StepClock()
    one, other, equal = [1], [1], [1]
    clock.note(one, 5)
    clock.note(other, 6)
    assert clock.step_of(other, otherwise=9) == 6
    assert clock.step_of(one, otherwise=9) == 5
    assert clock.step_of(equal, otherwise=9) == 9


def test_clock_is_bounded():
    clock = StepClock()
    objects = [[number] for number in range(3 * AHEAD)]
    for number, one in enumerate(objects):
        clock.note(one, number)
    assert clock.step_of(objects[0], otherwise=-1) == -1
    assert clock.step_of(objects[-AHEAD], otherwise=-1) == 2 * AHEAD
    assert clock.step_of(objects[-1], otherwise=-1) == 3 * AHEAD - 1


# -- hooks ---------------------------------------------------------------------------------


class Owner:
    def __init__(self):
        self.other = 1

    def work(self, amount, by=1):
        return amount * by


def doubling(original):
    def work(*args, **kwargs):
        return 2 * original(*args, **kwargs)

    return work


def test_hook_and_back():
    owner, untouched = Owner(), Owner()
    before = dict(vars(owner))
    hooks = Hooks()
    hooks.wrap(owner, "work", doubling, ("amount",))
    assert owner.work(3) == 6
    assert untouched.work(3) == 3
    assert hooks.restore() == 0
    assert vars(owner) == before
    assert owner.work(3) == 3


def test_hook_over_an_attribute_of_the_instance():
    owner = Owner()
    owner.work = own = lambda amount: amount + 1
    hooks = Hooks()
    hooks.wrap(owner, "work", doubling, ("amount",))
    assert owner.work(3) == 8
    hooks.restore()
    assert owner.work is own


def test_hook_below_another_stays():
    owner, hooks, later = Owner(), Hooks(), Hooks()
    hooks.wrap(owner, "work", doubling, ("amount",))
    later.wrap(owner, "work", doubling, ("amount",))
    assert hooks.restore() == 1
    assert owner.work(1) == 4
    assert later.restore() == 0


def test_hooks_that_had_to_stay_do_not_pile_up():
    owner = Owner()
    for _ in range(2000):
        hooks = Hooks()
        hooks.wrap(owner, "work", doubling, ("amount",))
        ours = owner.work
        owner.work = lambda *args, ours=ours: ours(*args)
        assert hooks.restore() == 1
        owner.work = ours
    assert owner.work(3) == 6
    hooks.wrap(owner, "work", doubling, ("amount",))
    assert owner.work(3) == 6
    assert hooks.restore() == 0
    assert "work" not in vars(owner)


def test_hooks_of_a_method_that_is_not_as_expected():
    hooks = Hooks()
    with pytest.raises(
        UnknownConnectorError, match=r"takes \(amount, by\), expected \(x\)"
    ):
        hooks.wrap(Owner(), "work", doubling, ("x",))
    with pytest.raises(UnknownConnectorError, match="no method 'gone'"):
        hooks.wrap(Owner(), "gone", doubling, ())
    assert hooks.restore() == 0


# -- failures ------------------------------------------------------------------------------


def test_guard_tells_once_counts_and_switches_off():
    sink, switched = ListSink(), []
    guard = Guard("the probe", sink, lambda: 4, lambda: switched.append(1))
    for _ in range(FAILURES + 5):
        try:
            raise KeyError("x")
        except KeyError:
            guard.failed("part")
    assert guard.failures == {"part": FAILURES + 5}
    assert guard.off
    assert switched == [1]
    first, last = sink.texts("error")
    assert (
        "the probe failed in part: KeyError: 'x' (test_probes_parts.py, line" in first
    )
    assert "switched off" in last
    assert sink.records[0][1].step == 4


def test_guard_never_raises():
    class Broken(ListSink):
        def emit(self, table, record):
            raise OSError

    def cannot():
        raise RuntimeError

    guard = Guard("the probe", Broken(), lambda: 0, cannot)
    for _ in range(FAILURES):
        guard.failed("part")
    assert guard.off


def test_guard_counts_from_many_threads():
    sink = ListSink()
    guard = Guard("the probe", sink, lambda: 0, lambda: None)
    threads = [
        threading.Thread(target=lambda: [guard.failed("part") for _ in range(50)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert guard.failures["part"] == 200
    assert len(sink.texts("error")) == 2
