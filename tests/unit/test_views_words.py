"""Numbers as people read them."""

import pytest

from auxconn_dashboard import words

T = words.THIN


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (float("nan"), "–"),
        (float("inf"), "–"),
        (0, "0"),
        (3, "3"),
        (0.123, "0.12"),
        (12.34, "12.3"),
        (99.6, "100"),
        (2048, "2,048"),
        (9_999.4, "9,999"),
        (9_999.6, f"10.0{T}k"),
        (12_400, f"12.4{T}k"),
        (999_960, f"1.00{T}M"),
        (-12_400, f"-12.4{T}k"),
        (3.2e9, f"3.20{T}G"),
    ],
)
def test_short_numbers(value, text):
    assert words.short(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, f"0{T}B"),
        (1023, f"1023{T}B"),
        (1024, f"1.00{T}KiB"),
        (384, f"384{T}B"),
        (24 * 2**20, f"24.0{T}MiB"),
        (3.5 * 2**30, f"3.50{T}GiB"),
    ],
)
def test_bytes_are_binary(value, text):
    assert words.size(value) == text


@pytest.mark.parametrize(
    ("part", "total", "text"),
    [
        (1, 2, f"50.0{T}%"),
        (0, 0, "–"),
        (None, 5, "–"),
        (5, None, "–"),
        (2000, 2000, f"100{T}%"),
        # Nearly all is not all.
        (99_999, 100_000, f"99.9{T}%"),
        (1, 3, f"33.3{T}%"),
    ],
)
def test_shares_come_from_two_counters(part, total, text):
    assert words.share(part, total) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (4e-6, f"4{T}µs"),
        (0.004, f"4{T}ms"),
        (3.2, f"3.2{T}s"),
        (34, f"34{T}s"),
        (300, f"5{T}min"),
        (9000, f"2.5{T}h"),
    ],
)
def test_lengths_of_time(seconds, text):
    assert words.duration(seconds) == text


def test_text_from_outside_is_made_harmless():
    hostile = "<img src=x onerror=alert(1)>\x00\u202eevil\n" + "a" * 600
    assert words.escape(hostile).startswith(
        "&lt;img src=x onerror=alert(1)&gt;\ufffd\ufffdevil"
    )
    assert len(words.plain(hostile)) == 500
    assert words.plain(hostile, 20).endswith("…")
    assert words.escape("\"'&") == "&quot;&#x27;&amp;"


def test_every_reason_of_the_schema_has_words():
    from typing import get_args

    from auxconn.records import EventKind, Refusal, RunEnd

    assert set(words.RUN_END) == set(words.RUN_END_LONG) == set(get_args(RunEnd))
    assert set(words.REFUSAL) == set(get_args(Refusal))
    assert set(words.EVENT) == set(get_args(EventKind))


def test_counts_have_their_nouns():
    assert words.plural(1, "block") == "1 block"
    assert words.plural(2048, "block") == "2,048 blocks"
