"""The alert rules: what is worth telling somebody who is not looking.

Each is a figure, a threshold and a time, said once and in words; thresholds are starting
points for a cluster nobody has measured yet. The figure is kept apart from the threshold, so
that a test can see that the figure has data although all is well.
"""

from __future__ import annotations

import json
from typing import Literal

import msgspec

from auxconn.exporter.families import PREFIX
from auxconn.exporter.promql import BY, query

JOB = "auxconn"
"""Name of the scrape job in `deploy/prometheus.yml`."""


class Alert(msgspec.Struct, frozen=True):
    """One alert rule: it fires when the comparison has held for a while."""

    name: str
    figure: str
    """What is watched, in PromQL."""
    compared: str
    """Operator and threshold."""
    held: str
    """How long it must hold."""
    severity: Literal["warning", "critical"]
    summary: str
    """One line, with Prometheus' templates."""
    description: str
    """What it means and what to do."""
    besides: str = ""
    """What must be there too: without it, there is nothing to judge yet."""

    @property
    def expr(self) -> str:
        """The whole expression."""
        whole = f"{self.figure} {self.compared}"
        return f"{whole} and on ({BY}) {self.besides}" if self.besides else whole


WANTED_AGAIN = '{event="wanted_again"}'
_WHO = "{{ $labels.engine }}, rank {{ $labels.rank }}"


def _increase(name: str, window: str, by: str = BY, where: str = "") -> str:
    """What came to a counter in a window, whichever process it is of."""
    return f"sum by ({by}) (increase({PREFIX}{name}_total{where}[{window}]))"


ALERTS = (
    Alert(
        "AuxconnHitRateFell",
        f"({query('hit_ratio', '10m')}) / ({query('hit_ratio', '6h')})",
        "< 0.7",
        "10m",
        "warning",
        "Hit rate of "
        + _WHO
        + " fell to {{ $value | humanizePercentage }} of what it was.",
        "Share of looked-up tokens that hit, over 10 minutes against over 6 hours. See 'Why "
        "look-ups ended': evicted means too small a capacity, never_seen other prompts. A "
        "model update that resets the prefix cache does this for a while, too.",
        f"({query('query_tokens', '10m')} > 0)",
    ),
    Alert(
        "AuxconnBlocksWantedAgain",
        f"{_increase('block_events', '10m', where=WANTED_AGAIN)} / "
        f"{_increase('blocks_released', '10m')}",
        "> 0.2",
        "10m",
        "warning",
        "{{ $value | humanizePercentage }} of the blocks released by "
        + _WHO
        + " were wanted "
        "again.",
        "Blocks are released and then looked up: the capacity is too small for this load. "
        "Raise it, or look at the age and idle time at release.",
    ),
    Alert(
        "AuxconnOverCapacity",
        f"{query('over_capacity', '5m')} / {query('capacity', '5m')}",
        "> 0.25",
        "15m",
        "warning",
        _WHO
        + " retains {{ $value | humanizePercentage }} more blocks than its capacity.",
        "What is on the GPU or loading is never released, so some is normal. For this long "
        "it means a capacity below what the GPU holds: host memory grows beyond what was "
        "meant. Raise the capacity to plan for it.",
    ),
    Alert(
        "AuxconnStoreGrows",
        _increase("store_growths", "30m"),
        "> 1",
        "0m",
        "warning",
        "The R3 store of "
        + _WHO
        + " grew {{ $value | humanize }} times in 30 minutes.",
        "The arena doubles when all in it is referenced and never shrinks. Compare its bytes "
        "with the host's memory, and the referenced slots with the capacity. Its first hour, in "
        "which it finds its size, does not count.",
        f"{query('store_total', '5m')} offset 1h",
    ),
    Alert(
        "AuxconnStoreBacklog",
        f"min_over_time({query('store_backlog', '5m')}[5m])",
        "> 8",
        "2m",
        "warning",
        "The R3 store's writer of " + _WHO + " is {{ $value }} batches behind.",
        "The writer thread cannot keep up: rows come later and later, and memory is held "
        "meanwhile. Look for a starved CPU or a host memory that swaps.",
    ),
    Alert(
        "AuxconnRowsLost",
        _increase("rows_lost", "10m", f"{BY}, table"),
        "> 0",
        "0m",
        "warning",
        "{{ $value | humanize }} rows of {{ $labels.table }} of "
        + _WHO
        + " were lost.",
        "The engine dropped rows as the collector was away or slow, or they were of no use. "
        "Figures of these minutes are too low. Look at the collector's CPU and network, and "
        "at the events of kind gap.",
    ),
    Alert(
        "AuxconnBatchesLost",
        _increase("batches_lost", "10m"),
        "> 0",
        "0m",
        "warning",
        "{{ $value | humanize }} batches of " + _WHO + " were lost on the way.",
        "A connection broke with batches under way. Nobody knows how many rows were in them: "
        "figures of these minutes are too low.",
    ),
    Alert(
        "AuxconnExporterBehind",
        _increase("exporter_rows_lost", "10m", "instance, table"),
        "> 0",
        "0m",
        "warning",
        "The exporter missed {{ $value | humanize }} rows of {{ $labels.table }}.",
        "More rows came in a second than the collector keeps: its counters lack them. Give "
        "each exporter fewer engines.",
    ),
    Alert(
        "AuxconnEngineStale",
        f"{PREFIX}source_up",
        "== 0",
        "30s",
        "critical",
        _WHO + " ({{ $labels.role }}) has not been heard of.",
        "It did not say good-bye: it was killed, hangs, or its network is gone. Its other "
        "series end here until it is heard again.",
    ),
    Alert(
        "AuxconnErrors",
        _increase("events", "10m", where='{kind="error"}'),
        "> 0",
        "0m",
        "critical",
        _WHO + " reported {{ $value | humanize }} errors.",
        "Among them: the first failure of the R3 store's writer, after which nothing is "
        "stored. The events on the page, or the engine's log, say which.",
    ),
    Alert(
        "AuxconnExporterDown",
        f'up{{job="{JOB}"}}',
        "== 0",
        "1m",
        "critical",
        "No metrics from the exporter at {{ $labels.instance }}.",
        "It ended, or cannot be reached. The engines are not touched by that; what happens "
        "meanwhile is not counted.",
    ),
)
"""Every alert."""


def yaml() -> str:
    """The text of `deploy/prometheus-rules.yml`."""
    lines = [
        "# Made from auxconn/exporter/rules.py by `make docs`; a test compares the two.",
        "groups:",
        "  - name: auxconn",
        "    rules:",
    ]
    for alert in ALERTS:
        # A string of JSON is one of YAML.
        lines += [
            f"      - alert: {alert.name}",
            f"        expr: {json.dumps(alert.expr)}",
            f"        for: {alert.held}",
            "        labels:",
            f"          severity: {alert.severity}",
            "        annotations:",
            f"          summary: {json.dumps(alert.summary)}",
            f"          description: {json.dumps(alert.description)}",
        ]
    return "\n".join(lines) + "\n"


def scrape_config() -> str:
    """The text of `deploy/prometheus.yml`: the least Prometheus needs to be told."""
    return "\n".join(
        [
            "# Made from auxconn/exporter/rules.py by `make docs`; a test compares the two.",
            "global:",
            "  scrape_interval: 5s",
            "  evaluation_interval: 15s",
            "rule_files:",
            "  - prometheus-rules.yml",
            "scrape_configs:",
            f"  - job_name: {JOB}",
            "    static_configs:",
            '      - targets: ["localhost:9599"]',
            "",
        ]
    )
