"""How each metric is asked of Prometheus: the catalogue's formulas once more, in PromQL.

A counter becomes a rate, a histogram its median or mean, a ratio the quotient of two rates:
the same figures as on the page, over a window that is chosen where they are read.
"""

from __future__ import annotations

from auxconn.exporter.families import EXPORTED, FAMILIES, FORMULAS, Family, counter_of

BY = "engine, model_name, rank"
"""What a series is of."""


def query(metric: str, window: str, chosen: str = "") -> str:
    """The expression of a metric, one series for each engine and rank.

    Parameters
    ----------
    metric
        Name in the catalogue, or in `families.EXTRA`.
    window
        Over which counters and histograms are read: `5m`, `$__rate_interval`.
    chosen
        Label matchers, such as `engine=~"$engine"`.

    Raises
    ------
    KeyError
        When there is no such metric.
    """
    formula = FORMULAS[metric]
    if formula.kind == "ratio":
        pair = (formula.value, formula.divisor)
        counters = (counter_of(formula.table, value) for value in pair)
        return " / ".join(_rate(counter, window, chosen) for counter in counters)
    family = FAMILIES[metric]
    if family.kind == "gauge":
        return f"{family.exposed}{_matched(chosen)}"
    if family.kind == "counter":
        return _rate(family, window, chosen)
    if formula.kind == "mean":
        above, below = (
            f"sum by ({BY}) (rate({family.name}_{part}{_matched(chosen)}[{window}]))"
            for part in ("sum", "count")
        )
        return f"{above} / {below}"
    return quantile(metric, 0.5, window, chosen)


def quantile(metric: str, share: float, window: str, chosen: str = "") -> str:
    """The value that a `share` of a histogram's values does not exceed."""
    name = FAMILIES[metric].name
    inside = f"sum by (le, {BY}) (rate({name}_bucket{_matched(chosen)}[{window}]))"
    return f"histogram_quantile({share:g}, {inside})"


def unit(metric: str) -> str:
    """Unit of what `query` answers: that of the metric, a second's if it is a rate."""
    family = FAMILIES.get(metric)
    known = EXPORTED[metric].unit
    if family is None or family.kind == "gauge":
        return known
    if family.kind == "histogram":
        return "s" if family.name.endswith("_seconds") else known
    if family.name.endswith("_seconds"):
        return "%"  # seconds of each second
    return known if known.endswith("/s") else f"{known}/s"


def _rate(family: Family, window: str, chosen: str) -> str:
    by = f"{BY}, {family.label}" if family.label else BY
    return f"sum by ({by}) (rate({family.exposed}{_matched(chosen)}[{window}]))"


def _matched(chosen: str) -> str:
    return f"{{{chosen}}}" if chosen else ""
