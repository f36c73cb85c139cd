from __future__ import annotations

import threading

import pytest

from auxconn.buffers import INBOX_RECORDS, Buffer
from auxconn.texts import NAME_LIMIT
from tests.unit import stream_made as made


def fill(buffer: Buffer, records: list) -> None:
    buffer.inbox.extend(records)
    buffer.gather()


def test_records_come_out_in_order_in_portions():
    buffer = Buffer("steps", 100)
    fill(buffer, [made.steps(i) for i in range(10)])
    first, lost = buffer.take(4)
    assert ([record.step for record in first], lost) == ([0, 1, 2, 3], 0)
    rest, lost = buffer.take(100)
    assert [record.step for record in rest] == [4, 5, 6, 7, 8, 9]
    assert buffer.take(100) == ([], 0)


def test_the_oldest_make_room_and_are_counted_once():
    buffer = Buffer("steps", 5)
    fill(buffer, [made.steps(i) for i in range(12)])
    assert buffer.lost_total == 7
    kept, lost = buffer.take(100)
    assert ([record.step for record in kept], lost) == ([7, 8, 9, 10, 11], 7)
    assert buffer.take(100) == ([], 0)
    assert buffer.lost_total == 7


def test_rows_of_wide_records_are_what_is_counted():
    buffer = Buffer("blocks", 100)
    fill(buffer, [made.blocks(i, 30) for i in range(5)])
    kept, lost = buffer.take(1000)
    assert ([record.step for record in kept], lost) == ([2, 3, 4], 60)


def test_a_record_larger_than_the_buffer_is_kept_while_it_is_the_newest():
    buffer = Buffer("blocks", 100)
    fill(buffer, [made.blocks(1, 1), made.blocks(2, 5000)])
    assert buffer.lost_total == 1
    assert [record.step for record in buffer.take(10)[0]] == [2]
    fill(buffer, [made.blocks(3, 5000), made.blocks(4, 1)])
    kept, lost = buffer.take(10)
    assert ([record.step for record in kept], lost) == ([4], 5000)


def test_long_texts_weigh_more_and_are_cut_in_a_copy():
    buffer = Buffer("lookups", 100)
    mine = made.lookups(1, "x" * 256 * 60)
    fill(buffer, [made.lookups(0), mine, made.lookups(2, "y" * 256 * 60)])
    kept, lost = buffer.take(1000)
    assert ([record.step for record in kept], lost) == ([2], 2)
    cut = buffer.clipped([mine])
    assert len(cut[0].request) == NAME_LIMIT
    assert len(mine.request) == 256 * 60


def test_an_inbox_that_nobody_gathers_is_bounded():
    buffer = Buffer("steps", 10 * INBOX_RECORDS)
    assert buffer.inbox_limit == INBOX_RECORDS
    buffer.inbox.extend(made.steps(i) for i in range(INBOX_RECORDS + 3))
    buffer.relieve()
    assert (len(buffer.inbox), buffer.lost_total) == (INBOX_RECORDS, 3)
    assert Buffer("steps", 7).inbox_limit == 7


def test_what_is_no_record_passes_as_one_row():
    buffer = Buffer("blocks", 10)
    fill(buffer, [None, 7, made.steps(1)])
    assert buffer.take(10)[0][:2] == [None, 7]
    assert buffer.give_up(None) == 1
    assert buffer.take(10) == ([], 0)
    assert buffer.lost_total == 1


@pytest.mark.parametrize("capacity", [50, 5000])
def test_no_row_is_lost_uncounted_when_threads_race(capacity):
    buffer = Buffer("steps", capacity)
    each, writers = 5_000, 3
    step = made.steps(1)

    def emit() -> None:
        for _ in range(each):
            buffer.inbox.append(step)
            if len(buffer.inbox) > buffer.inbox_limit:
                buffer.relieve()

    threads = [threading.Thread(target=emit) for _ in range(writers)]
    for thread in threads:
        thread.start()
    taken = lost = 0
    while any(thread.is_alive() for thread in threads) or len(buffer):
        buffer.gather()
        records, dropped = buffer.take(64)
        taken, lost = taken + len(records), lost + dropped
    lost += buffer.take(1)[1]
    assert taken + lost == writers * each
    assert buffer.lost_total == lost
