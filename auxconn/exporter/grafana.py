"""The Grafana dashboard: a panel for each metric of the catalogue, in its groups.

Made from the catalogue, so that a metric that is added there has its panel, with the
sentence that explains it. The first row is what one looks at; the groups below are folded.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from auxconn.catalogue import GROUPS, Metric
from auxconn.exporter.families import EXPORTED, FAMILIES, FORMULAS, PREFIX
from auxconn.exporter.promql import quantile, query, unit

WINDOW = "$__rate_interval"
CHOSEN = 'engine=~"$engine", model_name=~"$model_name"'
WHO = "{{engine}} {{rank}}"

UNITS = {
    "%": "percentunit",
    "B": "bytes",
    "B/s": "Bps",
    "s": "s",
    "ns": "ns",
    "1": "none",
}
"""Grafana's names of units; what is only counted is shown as a number with its unit named."""

WIDTH, HEIGHT, LINE = 6, 8, 24

Panel = dict[str, Any]


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    panels: list[Panel] = [_row("At a glance", 0), *_placed(_glance(), 1)]
    y = 1 + _lines(len(panels) - 1) * HEIGHT
    for group, title in GROUPS.items():
        metrics = [one for one in EXPORTED.values() if one.group == group]
        folded = list(_placed(map(_panel, metrics), y + 1))
        panels.append(_row(title, y, folded))
        y += 1
    _number(panels)
    return {
        "uid": "auxconn",
        "title": "auxconn: vLLM's auxiliary-output (R3) connector",
        "description": "Made from auxconn/catalogue.py by `make docs`.",
        "tags": ["auxconn", "vllm"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "",
        "templating": {"list": [_datasource(), _of("engine"), _of("model_name")]},
        "annotations": {"list": []},
        "panels": panels,
    }


def text() -> str:
    """The text of `deploy/grafana-dashboard.json`."""
    return json.dumps(dashboard(), indent=1, ensure_ascii=False) + "\n"


def queries(made: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Title and expression of every query of a dashboard, those of its variables too."""
    for variable in made["templating"]["list"]:
        if variable["type"] == "query":
            yield f"${variable['name']}", variable["query"]["query"]
    for panel in _flat(made["panels"]):
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def _flat(panels: Iterable[Panel]) -> Iterator[Panel]:
    for panel in panels:
        yield panel
        yield from _flat(panel.get("panels", ()))


def _glance() -> Iterator[Panel]:
    who = f"{{{CHOSEN}}}"
    hit, asked = (
        f"sum(rate({FAMILIES[name].exposed}{who}[{WINDOW}]))"
        for name in ("hit_tokens", "query_tokens")
    )
    yield _made(
        "Hit tokens, all engines chosen",
        "Share of the looked-up tokens that hit; nothing while nobody asks.",
        "%",
        [(f"{hit} / {asked}", "hit")],
    )
    yield _made(
        "Retained against capacity",
        "Retained blocks and the capacity they are released at, of all engines chosen.",
        "blocks",
        [
            (f"sum({query('retained', WINDOW, CHOSEN)})", "retained"),
            (f"sum({query('retained_on_gpu', WINDOW, CHOSEN)})", "of them on the GPU"),
            (f"sum({query('capacity', WINDOW, CHOSEN)})", "capacity"),
        ],
    )
    yield _made(
        "Engines heard",
        "1 while a process is heard, 0 when it is silent; none when it ended.",
        "1",
        [(f"{PREFIX}source_up{who}", WHO + " {{role}}")],
    )
    yield _made(
        "Rows and batches lost",
        "What never reached the collector. Not 0: the figures of that time are too low.",
        "1",
        [
            (
                f"sum by (engine, rank, table) (increase({PREFIX}rows_lost_total{who}"
                f"[{WINDOW}]))",
                WHO + " {{table}}",
            ),
            (
                f"sum by (engine, rank) (increase({PREFIX}batches_lost_total{who}"
                f"[{WINDOW}]))",
                WHO + " batches",
            ),
            (
                f"sum by (table) (increase({PREFIX}exporter_rows_lost_total[{WINDOW}]))",
                "exporter {{table}}",
            ),
        ],
    )


def _panel(metric: Metric) -> Panel:
    family = FAMILIES.get(metric.name)
    split = f" {{{{{family.label}}}}}" if family is not None and family.label else ""
    asked = [(query(metric.name, WINDOW, CHOSEN), WHO + split)]
    if FORMULAS[metric.name].kind == "median":
        far = quantile(metric.name, 0.99, WINDOW, CHOSEN)
        asked = [(asked[0][0], f"{WHO} half"), (far, f"{WHO} 99%")]
    about = f"{metric.help}\n\n`{metric.formula}`"
    return _made(metric.title, about, unit(metric.name), asked)


def _made(
    title: str, about: str, measured: str, asked: Sequence[tuple[str, str]]
) -> Panel:
    source = {"type": "prometheus", "uid": "${datasource}"}
    known = UNITS.get(measured)
    return {
        "type": "timeseries",
        "title": title if known else f"{title} [{measured}]",
        "description": about,
        "datasource": source,
        "fieldConfig": {
            "defaults": {
                "unit": known or "short",
                "min": 0,
                "custom": {
                    "fillOpacity": 10,
                    "spanNulls": False,
                    "showPoints": "never",
                },
            },
            "overrides": [],
        },
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": source,
                "expr": expr,
                "legendFormat": legend,
            }
            for number, (expr, legend) in enumerate(asked)
        ],
    }


def _row(title: str, y: int, folded: list[Panel] | None = None) -> Panel:
    return {
        "type": "row",
        "title": title,
        "collapsed": folded is not None,
        "gridPos": {"x": 0, "y": y, "w": LINE, "h": 1},
        "panels": folded or [],
    }


def _placed(panels: Iterable[Panel], y: int) -> Iterator[Panel]:
    for number, panel in enumerate(panels):
        line, place = divmod(number, LINE // WIDTH)
        at = {"x": place * WIDTH, "y": y + line * HEIGHT, "w": WIDTH, "h": HEIGHT}
        yield {**panel, "gridPos": at}


def _lines(panels: int) -> int:
    return -(-panels * WIDTH // LINE)


def _number(panels: Iterable[Panel]) -> None:
    for number, panel in enumerate(_flat(panels), start=1):
        panel["id"] = number


def _datasource() -> dict[str, Any]:
    return {
        "name": "datasource",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
    }


def _of(label: str) -> dict[str, Any]:
    asked = f"label_values({PREFIX}source_up, {label})"
    return {
        "name": label,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "definition": asked,
        "query": {"query": asked, "refId": label},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }
