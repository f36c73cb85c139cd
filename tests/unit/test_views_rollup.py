"""Buckets hold what a slow and plain computation over all rows says they hold."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from auxconn_dashboard.rollup import ROWS, Rollup

WIDTH = 0.5

rows = st.lists(
    st.tuples(st.floats(0, 20), st.integers(-5, 1000)), min_size=0, max_size=80
)


def fold(rollup, some):
    t = np.array([t for t, _ in some], float)
    values = np.array([value for _, value in some], np.int64)
    rollup.fold(t, {"sum": values, "level": values})


def expected(some, number):
    """Rows, sum, lowest, highest and last of one bucket, in the order they came."""
    mine = [value for t, value in some if int(np.floor(t / WIDTH)) == number]
    if not mine:
        return 0, 0, np.nan, np.nan, np.nan
    return len(mine), sum(mine), min(mine), max(mine), mine[-1]


@given(st.lists(rows, max_size=5))
def test_every_row_is_in_its_bucket_once_however_the_rows_come(batches):
    rollup = Rollup(WIDTH, 64, ("sum",), ("level",))
    for batch in batches:
        fold(rollup, batch)
    seen = [row for batch in batches for row in batch]
    found = rollup.buckets(0, 45)
    for number in range(46):
        got = (
            found.rows[number],
            found.sums["sum"][number],
            found.low["level"][number],
            found.high["level"][number],
            found.last["level"][number],
        )
        np.testing.assert_equal(got, expected(seen, number))


@given(rows)
def test_wider_buckets_say_what_the_narrow_ones_say_together(some):
    rollup = Rollup(WIDTH, 64, ("sum",), ("level",))
    fold(rollup, some)
    fine = rollup.buckets(0, 39)
    coarse = fine.coarse(4)
    assert len(coarse) == 10
    assert coarse.width == 4 * WIDTH
    for number in range(10):
        four = slice(4 * number, 4 * number + 4)
        assert coarse.sums["sum"][number] == fine.sums["sum"][four].sum()
        known = fine.last["level"][four]
        known = known[~np.isnan(known)]
        if len(known):
            assert coarse.low["level"][number] == np.nanmin(fine.low["level"][four])
            assert coarse.high["level"][number] == np.nanmax(fine.high["level"][four])
            assert coarse.last["level"][number] == known[-1]
        else:
            assert np.isnan(coarse.last["level"][number])


def test_time_that_has_passed_over_a_bucket_empties_its_place():
    rollup = Rollup(1.0, 4, ("sum",), ("level",))
    rollup.fold(
        np.array([1.5, 2.5]), {"sum": np.array([1, 2]), "level": np.array([3, 4])}
    )
    rollup.fold(np.array([7.5]), {"sum": np.array([9]), "level": np.array([9])})
    found = rollup.buckets(0, 8)
    assert found.rows.tolist() == [0, 0, 0, 0, 0, 0, 0, 1, 0]
    assert found.sums["sum"].sum() == 9
    assert np.isnan(found.last["level"][:7]).all()


def test_a_row_older_than_all_buckets_is_left_out():
    rollup = Rollup(1.0, 4, ("sum",), ())
    rollup.fold(np.array([10.0, 2.0, 9.0]), {"sum": np.array([1, 100, 2])})
    assert rollup.buckets(0, 10).sums["sum"].sum() == 3


def test_rows_behind_a_pinned_stretch_do_not_move_it():
    rollup = Rollup(1.0, 4, ("sum",), (), until=5)
    rollup.fold(np.array([3.0, 5.5, 6.0, 50.0]), {"sum": np.array([1, 2, 4, 8])})
    assert rollup.buckets(2, 5).sums["sum"].tolist() == [0, 1, 0, 2]


def test_a_clock_that_is_no_number_is_left_out():
    rollup = Rollup(1.0, 4, ("sum",), ())
    rollup.fold(np.array([np.nan, 1.0, np.inf]), {"sum": np.array([1, 2, 4])})
    assert rollup.buckets(0, 3).sums["sum"].tolist() == [0, 2, 0, 0]


def test_buckets_are_copies():
    rollup = Rollup(1.0, 4, ("sum",), ())
    rollup.fold(np.array([1.0]), {"sum": np.array([1])})
    before = rollup.buckets(0, 3)
    rollup.fold(np.array([1.0]), {"sum": np.array([1])})
    assert before.sums["sum"].tolist() == [0, 1, 0, 0]
    with pytest.raises(ValueError, match="read-only"):
        before.sums["sum"][0] = 1


def test_nothing_known_is_not_zero():
    rollup = Rollup(1.0, 8, ("sum",), ("level",))
    empty = rollup.buckets(0, 7)
    assert empty.total("sum") is None
    assert empty.rate("sum", 8.0, 4.0) is None
    rollup.fold(np.array([2.0]), {"sum": np.array([0]), "level": np.array([5])})
    found = rollup.buckets(0, 7)
    assert found.total("sum") == 0.0
    assert found.rate("sum", 8.0, 4.0) is None
    assert found.rate("sum", 3.0, 2.0) == 0.0


def test_a_rate_is_of_its_stretch_alone():
    rollup = Rollup(1.0, 16, ("sum",), ())
    t = np.arange(10) + 0.5
    rollup.fold(t, {"sum": np.full(10, 6)})
    found = rollup.buckets(0, 15)
    assert found.rate("sum", 5.0, 3.0) == pytest.approx(6.0)
    assert found.rate(ROWS, 5.0, 3.0) == pytest.approx(1.0)
    # Not to the end of what there is.
    assert found.rate("sum", 10.0, 5.0) == pytest.approx(6.0)


def test_a_part_is_cut_in_whole_bars():
    rollup = Rollup(1.0, 20, ("sum",), ())
    rollup.fold(np.arange(20) + 0.5, {"sum": np.ones(20)})
    part = rollup.buckets(0, 19).between(6.2, 12.1, 5)
    assert (part.start[0], part.start[-1]) == (5.0, 14.0)
    assert part.coarse(5).sums["sum"].tolist() == [5, 5]


def test_the_whole_is_not_cut():
    found = Rollup(1.0, 20, ("sum",), ()).buckets(0, 19)
    assert found.between(-3.0, 25.0, 5) is found
