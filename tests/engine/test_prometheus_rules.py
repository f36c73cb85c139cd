"""Each alert rule fires when it should, with the words it should, and not before.

`promtool test rules` plays made-up series through the rules that are in `deploy/`: an alert
that has never fired is a guess.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import prometheus as finder  # scripts/prometheus.py
import pytest
import yaml

from auxconn.exporter.rules import ALERTS

RULES = Path(__file__).resolve().parents[2] / "deploy" / "prometheus-rules.yml"
WHO = {"engine": "e", "model_name": "m", "rank": "0"}
ROLE = {**WHO, "role": "engine"}
PLACE = {"instance": "host:9599", "job": "auxconn"}

# Values as promtool writes them: from + by x times, one a minute.
FIRES = {
    "AuxconnHitRateFell": (
        {
            ("hit_tokens_total", ()): "0+900x390 351100+100x39",
            ("query_tokens_total", ()): "0+1000x430",
        },
        "430m",
        WHO,
        "Hit rate of e, rank 0 fell to 12.33% of what it was.",
    ),
    "AuxconnBlocksWantedAgain": (
        {
            ("block_events_total", (("event", "wanted_again"),)): "0+5x60",
            ("blocks_released_total", ()): "0+10x60",
        },
        "40m",
        WHO,
        "50% of the blocks released by e, rank 0 were wanted again.",
    ),
    "AuxconnOverCapacity": (
        {("over_capacity", ()): "50x60", ("capacity", ()): "100x60"},
        "40m",
        WHO,
        "e, rank 0 retains 50% more blocks than its capacity.",
    ),
    "AuxconnStoreGrows": (
        {
            ("store_growths_total", ()): "0x70 1x5 2x30",
            ("store_slots", ()): "64x110",
        },
        "90m",
        WHO,
        "The R3 store of e, rank 0 grew 2 times in 30 minutes.",
    ),
    "AuxconnStoreBacklog": (
        {("store_backlog", ()): "12x30"},
        "20m",
        WHO,
        "The R3 store's writer of e, rank 0 is 12 batches behind.",
    ),
    "AuxconnRowsLost": (
        {("rows_lost_total", (("role", "engine"), ("table", "steps"))): "0x9 40x1"},
        "10m",
        {**WHO, "table": "steps"},
        "40 rows of steps of e, rank 0 were lost.",
    ),
    "AuxconnBatchesLost": (
        {("batches_lost_total", (("role", "engine"),)): "0x9 3x1"},
        "10m",
        WHO,
        "3 batches of e, rank 0 were lost on the way.",
    ),
    "AuxconnExporterBehind": (
        {
            (
                "exporter_rows_lost_total",
                (("table", "blocks"), *PLACE.items()),
            ): "0x9 70x1"
        },
        "10m",
        {"instance": PLACE["instance"], "table": "blocks"},
        "The exporter missed 70 rows of blocks.",
    ),
    "AuxconnEngineStale": (
        {("source_up", (("role", "engine"),)): "1x3 0x10"},
        "6m",
        ROLE,
        "e, rank 0 (engine) has not been heard of.",
    ),
    "AuxconnErrors": (
        {("events_total", (("kind", "error"),)): "0x9 1x1"},
        "10m",
        WHO,
        "e, rank 0 reported 1 errors.",
    ),
    "AuxconnExporterDown": (
        {("up", tuple(PLACE.items())): "1x3 0x10"},
        "6m",
        PLACE,
        "No metrics from the exporter at host:9599.",
    ),
}
"""By alert: series, when, labels, and the summary it must have then."""

WELL = {
    "AuxconnHitRateFell": {
        ("hit_tokens_total", ()): "0+900x390 351700+700x39",
        ("query_tokens_total", ()): "0+1000x430",
    },
    "AuxconnBlocksWantedAgain": {
        ("block_events_total", (("event", "wanted_again"),)): "0+1x60",
        ("blocks_released_total", ()): "0+10x60",
    },
    "AuxconnOverCapacity": {("over_capacity", ()): "20x60", ("capacity", ()): "100x60"},
    # An engine that began a moment ago finds its size.
    "AuxconnStoreGrows": {
        ("store_growths_total", ()): "_x70 0x4 1x4 2x4 3x30",
        ("store_slots", ()): "_x70 64x40",
    },
    # A moment of backlog is no backlog.
    "AuxconnStoreBacklog": {("store_backlog", ()): "12x4 0 12x4 0 12x4 0 12x4 0"},
    "AuxconnRowsLost": {
        ("rows_lost_total", (("role", "engine"), ("table", "steps"))): "40x10"
    },
    "AuxconnBatchesLost": {("batches_lost_total", (("role", "engine"),)): "3x10"},
    "AuxconnExporterBehind": {
        ("exporter_rows_lost_total", (("table", "blocks"), *PLACE.items())): "70x10"
    },
    # It said good-bye: the series ends.
    "AuxconnEngineStale": {("source_up", (("role", "engine"),)): "1x3 stale"},
    "AuxconnErrors": {("events_total", (("kind", "start"),)): "0x9 1x1"},
    "AuxconnExporterDown": {("up", (("instance", "a"), ("job", "vllm"))): "0x10"},
}
"""By alert: series that look like it and are all right."""


@pytest.fixture(scope="module")
def promtool() -> str:
    found = finder.find(Path(sys.prefix))
    if found is None and os.environ.get("CI"):
        pytest.fail(finder.ADVICE)
    if found is None:
        pytest.skip(finder.ADVICE)
    return found[1]


def case(name: str, series: dict, at: str, expected: list[dict]) -> dict:
    """One test of promtool's."""
    inputs = []
    for (metric, labels), values in series.items():
        is_ours = metric not in ("up", "exporter_rows_lost_total")
        named = {**(WHO if is_ours else {}), **dict(labels)}
        inside = ",".join(f'{label}="{value}"' for label, value in named.items())
        prefix = "" if metric == "up" else "auxconn:"
        inputs.append({"series": f"{prefix}{metric}{{{inside}}}", "values": values})
    tested = {"eval_time": at, "alertname": name, "exp_alerts": expected}
    return {"interval": "1m", "input_series": inputs, "alert_rule_test": [tested]}


def test_every_alert_has_a_case_of_each_kind():
    assert list(FIRES) == list(WELL) == [alert.name for alert in ALERTS]


def test_alerts_fire_when_they_should_and_only_then(promtool, tmp_path):
    tests = []
    for alert in ALERTS:
        series, at, labels, summary = FIRES[alert.name]
        fired = {
            "exp_labels": {"severity": alert.severity, **labels},
            "exp_annotations": {"summary": summary, "description": alert.description},
        }
        tests.append(case(alert.name, series, at, [fired]))
        tests.append(case(alert.name, WELL[alert.name], at, []))
    written = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}
    path = tmp_path / "tests.yml"
    path.write_text(yaml.safe_dump(written, sort_keys=False))
    done = subprocess.run(
        [promtool, "test", "rules", str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout + done.stderr
