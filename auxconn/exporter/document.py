"""`docs/prometheus.md`: every name that Prometheus sees, what it is, and how it is asked for."""

from __future__ import annotations

from auxconn.catalogue import GROUPS
from auxconn.exporter.families import EXPORTED, FAMILIES, PREFIX
from auxconn.exporter.promql import query
from auxconn.exporter.rules import ALERTS

OWN = (
    ("source_up", "gauge", "role", "1 while a process is heard, 0 when it is silent."),
    ("source_silent_seconds", "gauge", "role", "Since anything was heard of it."),
    ("source_rows_total", "counter", "role", "Rows received of it."),
    ("rows_lost_total", "counter", "role, table", "Rows of it that were lost."),
    ("batches_lost_total", "counter", "role", "Batches lost on the way."),
    ("source_errors_total", "counter", "role", "Messages that could not be used."),
    (
        "engine_info",
        "gauge",
        "role, connector, vllm_version, block_size",
        "Always 1: what it says of itself.",
    ),
    ("exporter_rows_lost_total", "counter", "table", "Rows overwritten unread."),
    ("sources", "gauge", "state", "Processes of engines, by state."),
    ("collector_malformed_total", "counter", "", "Messages that were none."),
    ("collector_refused_total", "counter", "", "Greetings of engines refused."),
)
"""What is told of those who tell: name, type, labels beyond the usual ones, and what."""


def markdown() -> str:
    """The text of `docs/prometheus.md`."""
    lines = [
        "# Prometheus",
        "",
        "Made from `auxconn/catalogue.py` and `auxconn/exporter/` by `make docs`; a test "
        "compares the two.",
        "",
        "`auxconn export` serves these at `/metrics`, and so does the page. Labels of all: "
        "`engine`, `model_name`, `rank`. What they mean is in [metrics.md](metrics.md), why "
        "they are named so in [decision 11](adr/0011-prometheus.md). `/metrics` has no login "
        "of its own: it is on loopback unless `--address` says otherwise.",
    ]
    for group, title in GROUPS.items():
        lines += ["", f"## {title}", "", *_HEAD]
        for metric in EXPORTED.values():
            if metric.group != group:
                continue
            family = FAMILIES.get(metric.name)
            name = "two counters" if family is None else f"`{family.exposed}`"
            kind = "ratio" if family is None else family.kind
            if family is not None and family.label:
                name += f" by `{family.label}`"
            asked = query(metric.name, "5m").replace("|", "\\|")
            lines.append(f"| {metric.title} | {name} | {kind} | `{asked}` |")
    lines += [
        "",
        "## Those who tell",
        "",
        "| name | type | further labels | what it says |",
        "| --- | --- | --- | --- |",
    ]
    lines += [f"| `{PREFIX}{a}` | {b} | {c} | {d} |" for a, b, c, d in OWN]
    lines += ["", "## Alerts", "", "| alert | fires when | what it means |"]
    lines += ["| --- | --- | --- |"]
    for alert in ALERTS:
        expr = alert.expr.replace("|", "\\|")
        lines.append(
            f"| `{alert.name}` | `{expr}` for {alert.held} | {alert.description} |"
        )
    return "\n".join(lines) + "\n"


_HEAD = ("| metric | name | type | asked for as |", "| --- | --- | --- | --- |")
