"""The account as prometheus-client's metrics.

Every scrape is made anew from the account, so a series ends with its engine: nothing is
registered that would have to be taken back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import isnan, nan
from typing import TYPE_CHECKING, Any

from auxconn.errors import AuxConnError
from auxconn.exporter.account import HEARD, Account, Reading
from auxconn.exporter.families import FAMILIES, PREFIX, Family
from auxconn.exporter.tally import Numbers, Spread

if TYPE_CHECKING:
    from prometheus_client.core import Metric

LABELS = ("engine", "model_name", "rank")
"""As vLLM labels its own metrics, and the rank."""

STATES = ("starting", "live", "stale")


class MissingExtraError(AuxConnError, ImportError):
    """prometheus-client is not installed."""

    def __init__(self) -> None:
        super().__init__(
            "prometheus-client is not installed, and the exporter needs it: pip install "
            "'auxconn[prometheus]' (in a checkout: make setup)"
        )


class Scrape:
    """A collector in the sense of prometheus-client: what its registry asks at each scrape.

    Parameters
    ----------
    account
        The running sums.
    collector
        The collector whose own counters go out too, if it has them.

    Raises
    ------
    MissingExtraError
        When prometheus-client is not there.
    """

    def __init__(self, account: Account, collector: object = None) -> None:
        try:
            from prometheus_client import core
        except ImportError:
            raise MissingExtraError from None
        self._core: Any = core
        self._account = account
        self._collector = collector

    def describe(self) -> Sequence[Metric]:
        """Nothing: the names are known, and registering must not scrape."""
        return ()

    def collect(self) -> Sequence[Metric]:
        """Everything there is to tell now."""
        with self._account.reading() as reading:
            return [
                *(self._family(family, reading) for family in FAMILIES.values()),
                *self._sources(reading),
                *self._own(reading),
            ]

    def _family(self, family: Family, reading: Reading) -> Metric:
        labels = (*LABELS, *filter(None, [family.label]))
        made = self._made(family.kind)(family.name, family.help, labels=labels)
        for (engine, rank), numbers in reading.numbers[family.formula.table].items():
            who = (engine, reading.model_name(engine, rank), str(rank))
            _add(made, family, who, numbers)
        return made

    def _sources(self, reading: Reading) -> Iterator[Metric]:
        core = self._core
        labels = (*LABELS, "role")
        up = core.GaugeMetricFamily(
            f"{PREFIX}source_up",
            "1 while an engine's process is heard, 0 when it is silent, absent when it ended.",
            labels=labels,
        )
        silent = core.GaugeMetricFamily(
            f"{PREFIX}source_silent_seconds",
            "Seconds since anything was heard of it.",
            labels=labels,
        )
        rows = core.CounterMetricFamily(
            f"{PREFIX}source_rows", "Rows received of it.", labels=labels
        )
        lost = core.CounterMetricFamily(
            f"{PREFIX}rows_lost",
            "Rows of it that were lost: dropped by the engine as the collector was away or "
            "slow, or of no use.",
            labels=(*labels, "table"),
        )
        batches = core.CounterMetricFamily(
            f"{PREFIX}batches_lost", "Batches of it lost on the way.", labels=labels
        )
        errors = core.CounterMetricFamily(
            f"{PREFIX}source_errors",
            "Messages of it that could not be used.",
            labels=labels,
        )
        info = core.GaugeMetricFamily(
            f"{PREFIX}engine_info",
            "Always 1; the labels are what it says of itself.",
            labels=(*labels, "connector", "vllm_version", "block_size"),
        )
        for one in reading.sources:
            who = (
                one.engine,
                reading.model_name(one.engine, one.rank),
                str(one.rank),
                one.role,
            )
            up.add_metric(who, int(one.state in HEARD))
            silent.add_metric(who, one.age_s)
            rows.add_metric(who, one.rows)
            for table in reading.numbers:
                lost.add_metric((*who, table), one.rows_lost.get(table, 0))
            batches.add_metric(who, one.batches_lost)
            errors.add_metric(who, one.errors)
            if one.state in HEARD:
                info.add_metric((*who, *reading.info(one).values()), 1)
        yield from (up, silent, rows, lost, batches, errors, info)

    def _own(self, reading: Reading) -> Iterator[Metric]:
        core = self._core
        missed = core.CounterMetricFamily(
            f"{PREFIX}exporter_rows_lost",
            "Rows that were overwritten before the exporter had read them; its counters lack "
            "them.",
            labels=("table",),
        )
        for table, rows in reading.lost.items():
            missed.add_metric((table,), rows)
        yield missed
        if self._collector is None:
            return
        states = core.GaugeMetricFamily(
            f"{PREFIX}sources", "Processes of engines, by state.", labels=("state",)
        )
        for state in STATES:
            there = sum(one.state == state for one in reading.sources)
            states.add_metric((state,), there)
        yield states
        for name, about in (
            ("malformed", "Messages that were none, of whoever they were."),
            ("refused", "Greetings of engines refused."),
        ):
            count = getattr(self._collector, name, None)
            if count is not None:
                yield core.CounterMetricFamily(
                    f"{PREFIX}collector_{name}", about, count
                )

    def _made(self, kind: str) -> Any:
        return {
            "counter": self._core.CounterMetricFamily,
            "gauge": self._core.GaugeMetricFamily,
            "histogram": self._core.HistogramMetricFamily,
        }[kind]


def _add(made: Any, family: Family, who: tuple[str, ...], numbers: Numbers) -> None:
    """Add one engine's series to a metric; none when it has nothing to say."""
    name = family.metric
    if family.kind == "counter":
        for label, value in numbers.sums.get(name, {}).items():
            made.add_metric((*who, label) if family.label else who, value)
    elif family.kind == "gauge":
        level = numbers.levels.get(name, nan)
        if not isnan(level):
            made.add_metric(who, level)
    elif name in numbers.spreads:
        spread = numbers.spreads[name]
        made.add_metric(who, _buckets(family, spread), spread.sum)


def _buckets(family: Family, spread: Spread) -> list[tuple[str, float]]:
    """Upper bound of each bucket, and how many values are not above it."""
    bounds = [*(repr(float(bound)) for bound in family.buckets), "+Inf"]
    below = accumulate(spread.counts.tolist())
    return [(bound, float(count)) for bound, count in zip(bounds, below, strict=True)]
