"""What each metric of the catalogue becomes in Prometheus.

A sum or a count is a counter: it only rises, and whoever reads it chooses the window. A
newest reading is a gauge. A mean or a median is neither, since the window would be ours, so
its distribution goes out as a histogram. A ratio goes out as the two counters it is made of.

Names are the catalogue's, behind `auxconn:` as vLLM's own stand behind `vllm:`, with the
unit that Prometheus expects at the end (docs/adr/0011-prometheus.md).
"""

from __future__ import annotations

from typing import Literal

import msgspec

from auxconn.catalogue import METRICS, Metric
from auxconn.exporter.formulas import Formula, parse
from auxconn.records import columns

PREFIX = "auxconn:"

Kind = Literal["counter", "gauge", "histogram"]

RENAMED = {
    "retained_rate": "blocks_retained",
    "released_rate": "blocks_released",
    "rows_rate": "rows_delivered",
    "rows_bytes_rate": "rows_delivered_bytes",
    "captured_rate": "rows_captured",
    "captured_bytes_rate": "rows_captured_bytes",
    "steps_rate": "steps",
    "store_total": "store_slots",
}
"""A rate's counter is named for what is counted; only a counter's name ends in `_total`."""

COUNTED_BY_ENGINE = frozenset({"store_growths", "store_evictions"})
"""Counters of which the rows have the count itself, not what came to it."""

UNITS: dict[str, tuple[str, float]] = {
    "s": ("_seconds", 1.0),
    "ms": ("_seconds", 1e-3),
    "ns": ("_seconds", 1e-9),
    "B": ("_bytes", 1.0),
    "B/s": ("_bytes", 1.0),
    "%": ("_ratio", 1.0),
}
"""End of the name, and what a value is multiplied by, for units that are not just counts."""

BUCKETS: dict[str, tuple[float, ...]] = {
    "s": (0.01, 0.03, 0.1, 0.3, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 3600),
    "ms": (1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.5, 1),
    "ns": (1e-6, 3e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 1e-2, 0.1),
    "1": (0, 1, 2, 3, 4, 6, 8, 12, 16, 32, 64),
    "tokens": (0, 16, 64, 256, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072),
}
"""Upper bounds of a histogram's buckets, by the unit of the metric."""

METHODS = (
    "build_connector_meta",
    "max_cache_hit",
    "cap_external_hit",
    "request_loading",
    "take_output",
    "request_finished",
)
"""Methods of the connector on the scheduler's thread."""

EXTRA = (
    Metric(
        "lookup_hit",
        "Hit tokens of a look-up",
        "tokens",
        "hits",
        "Tokens that one look-up hit, on the GPU or loaded: few requests with long hits look "
        "like many with short ones in a ratio.",
        "median(lookups.local_hit + lookups.external_accepted)",
    ),
    Metric(
        "lookup_query",
        "Queried tokens of a look-up",
        "tokens",
        "hits",
        "Tokens that one look-up asked for.",
        "median(lookups.query_tokens)",
    ),
    Metric(
        "tokens_after_end",
        "Tokens after the end of the run",
        "tokens",
        "hits",
        "Looked-up tokens behind the leading run of blocks with R3 rows, by why it ended: what "
        "each reason costs.",
        "sum(max(0, lookups.query_tokens - lookups.run_end))",
        split_by="lookups.run_end_reason",
    ),
    Metric(
        "tokens_scheduled",
        "Tokens scheduled",
        "tokens",
        "engine",
        "Tokens scheduled in all steps.",
        "sum(steps.scheduled_tokens)",
    ),
    *(
        Metric(
            f"time_{name}",
            f"Time in {name}",
            "ns",
            "engine",
            f"Time in the connector's {name}, on the scheduler's thread.",
            f"sum(steps.ns_{name})",
        )
        for name in METHODS
    ),
)
"""What the page shows look-up by look-up or part by part, and the catalogue has no figure
of: distributions, and the parts of a whole as counters."""


class Family(msgspec.Struct, frozen=True):
    """One metric as Prometheus knows it."""

    name: str
    """Without the `_total` of a counter."""
    kind: Kind
    help: str
    metric: str
    """Name in the catalogue, or in `EXTRA`."""
    formula: Formula
    scale: float
    label: str = ""
    """Column that its series are split by, and the name of the label."""
    label_values: tuple[str, ...] = ()
    """All values the label can have, when they are known."""
    buckets: tuple[float, ...] = ()
    counted_by_engine: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that have to be read."""
        return (*self.formula.columns, *filter(None, [self.label]))

    @property
    def exposed(self) -> str:
        """Name of its samples, but for a histogram's."""
        return self.name + ("_total" if self.kind == "counter" else "")


def _family(metric: Metric, formula: Formula) -> Family:
    counted = metric.name in COUNTED_BY_ENGINE
    kind: Kind
    if formula.kind in ("sum", "count") or counted:
        kind = "counter"
    elif formula.kind in ("mean", "median"):
        kind = "histogram"
    else:
        kind = "gauge"
    ending, scale = UNITS.get(metric.unit, ("", 1.0))
    name = RENAMED.get(metric.name, metric.name)
    if kind == "histogram" and metric.unit == "tokens":
        ending = "_tokens"
    label = metric.split_by.partition(".")[2]
    return Family(
        name=PREFIX + name.removesuffix(ending) + ending,
        kind=kind,
        help=f"{metric.help} [{metric.formula}]",
        metric=metric.name,
        formula=formula,
        scale=scale,
        label=label,
        label_values=_values_of(formula.table, label),
        buckets=BUCKETS[metric.unit] if kind == "histogram" else (),
        counted_by_engine=counted,
    )


def _values_of(table: str, label: str) -> tuple[str, ...]:
    """The categories of a column but the empty one, which means that there was none."""
    for column in columns(table):
        if column.name == label:
            return tuple(filter(None, column.categories))
    return ()


EXPORTED: dict[str, Metric] = METRICS | {metric.name: metric for metric in EXTRA}
"""Every metric that can be asked of Prometheus, by name."""

FORMULAS: dict[str, Formula] = {
    name: parse(metric.formula) for name, metric in EXPORTED.items()
}

FAMILIES: dict[str, Family] = {
    name: _family(metric, FORMULAS[name])
    for name, metric in EXPORTED.items()
    if FORMULAS[name].kind != "ratio"
}
"""By the metric's name; a ratio has none of its own."""


def counter_of(table: str, value: str) -> Family:
    """The counter of the sum of an expression; `KeyError` when no metric is that sum."""
    for family in FAMILIES.values():
        formula = family.formula
        is_whole = not (formula.where or family.label)
        if is_whole and (formula.kind, formula.table, formula.value) == (
            "sum",
            table,
            value,
        ):
            return family
    raise KeyError(f"no metric is sum({value})")
