"""The catalogue names only columns that exist, and its document is up to date."""

from __future__ import annotations

import re

import pytest

from auxconn.catalogue import GROUPS, METRICS, explain, markdown
from auxconn.records import TABLES, columns

UNITS = {
    "%", "1", "1/s", "B", "B/s", "batches", "blocks", "blocks/s", "ms", "ns",
    "requests", "rows", "rows/s", "s", "slots", "tokens",
}  # fmt: skip
COLUMNS = {(table, column.name) for table in TABLES for column in columns(table)}


@pytest.mark.parametrize("metric", METRICS.values(), ids=lambda metric: metric.name)
def test_a_metric_is_whole(metric):
    assert metric.group in GROUPS
    assert metric.unit in UNITS
    assert metric.title
    assert metric.help.endswith(".")
    assert metric.columns, "a formula names the columns it is made of"
    assert set(metric.columns) <= COLUMNS
    if metric.split_by:
        assert tuple(metric.split_by.split(".")) in COLUMNS


@pytest.mark.parametrize("metric", METRICS.values(), ids=lambda metric: metric.name)
def test_a_split_is_explained_by_its_categories(metric):
    """What a curve is split by has to be a kind of thing, not a number."""
    if metric.split_by:
        table, name = metric.split_by.split(".")
        (column,) = [column for column in columns(table) if column.name == name]
        assert column.dtype in ("category", "str")


def test_ratios_are_made_of_two_counters():
    for metric in METRICS.values():
        if metric.unit == "%":
            assert len(metric.columns) >= 2
            assert "/" in metric.formula


def test_what_the_page_must_show_is_there():
    assert {
        "hit_ratio", "released_rate", "loading_blocks", "rows_rate", "rows_bytes_rate",
        "retained", "retained_on_gpu", "capacity", "store_used", "store_total",
        "local_tokens", "external_tokens", "refused_tokens", "run_end", "probe_cost",
    } <= set(METRICS)  # fmt: skip


def test_explain_gives_sentence_formula_and_tables():
    text = explain("refused_tokens")
    assert "refused" in text
    assert "sum(lookups.external_refused), by lookups.refusal [tokens]" in text
    assert text.endswith("From: lookups")
    with pytest.raises(KeyError):
        explain("no_such_metric")


def test_the_document_is_up_to_date(root):
    assert (root / "docs" / "metrics.md").read_text() == markdown(), "run `make docs`"


def test_the_document_has_a_row_for_each_metric():
    rows = re.findall(r"^\| [^|]*\(`(\w+)`\) \|", markdown(), re.MULTILINE)
    assert sorted(rows) == sorted(METRICS)
