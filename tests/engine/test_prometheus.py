"""A real Prometheus scrapes a running lab, and every question we wrote down is answered.

A dashboard file is easily full of queries that no data will ever match. So all of them, and
the figure of every alert rule, are asked of a real server that has seen a real scheduler for
a while. The lab is set so that each has something to say: none may be empty.
"""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import prometheus as finder  # scripts/prometheus.py
import pytest
import yaml

from auxconn import Collector, FrameStore
from auxconn.exporter import grafana, rules
from auxconn.exporter.families import FAMILIES
from auxconn.exporter.server import Exporter
from auxconn.lab import LabConfig, LabProcess, WorkloadSpec
from auxconn_dashboard.history import HistoryHub
from auxconn_dashboard.snapshot import Window

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
CONFIG = LabConfig(
    num_blocks=120,
    kv_tier_blocks=400,
    capacity=110,
    num_layers=6,
    num_experts=32,
    top_k=4,
)
WORKLOAD = WorkloadSpec(
    "grpo",
    {"prompts": 12, "samples": 3, "prompt_tokens": 200, "output_tokens": 24},
)
WINDOW = "20s"
START_SECONDS = 150.0
PATIENCE = 30.0

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def programs() -> tuple[str, str]:
    """Paths of prometheus and promtool."""
    found = finder.find(Path(sys.prefix))
    if found is None and os.environ.get("CI"):
        pytest.fail(finder.ADVICE)
    if found is None:
        pytest.skip(finder.ADVICE)
    return found


class Prometheus:
    """A running server, and questions to it."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def get(self, path: str, **parameters: str) -> Any:
        asked = f"{self.url}{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(asked, timeout=20) as answer:
                return json.loads(answer.read())["data"]
        except urllib.error.HTTPError as problem:
            raise AssertionError(f"{parameters}: {problem.read().decode()}") from None

    def ask(self, expr: str) -> list[dict[str, Any]]:
        """Series with a number; NaN is a ratio of nothing."""
        found = self.get("/api/v1/query", query=expr)["result"]
        return [one for one in found if not math.isnan(float(one["value"][1]))]

    def value(self, expr: str) -> float:
        (one,) = self.ask(expr)
        return float(one["value"][1])

    def until(self, wanted: Any, seconds: float = PATIENCE) -> Any:
        end = time.monotonic() + seconds
        while True:
            found = wanted()
            if found:
                return found
            assert time.monotonic() < end, "nothing came of it"
            time.sleep(0.2)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector(store=FrameStore(2_000_000)) as one:
        yield one


@pytest.fixture(scope="module")
def lab(collector: Collector) -> Iterator[LabProcess]:
    with LabProcess(CONFIG, WORKLOAD, collector.address, steps_per_s=100.0) as process:
        assert collector.store.wait("requests", 40, START_SECONDS), process.output
        yield process


@pytest.fixture(scope="module")
def server(
    programs: tuple[str, str],
    collector: Collector,
    lab: LabProcess,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Prometheus]:
    """A Prometheus with our files, that has scraped the lab for longer than `WINDOW`."""
    here = tmp_path_factory.mktemp("prometheus")
    with Exporter(collector.store, collector) as exporter:
        config = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config["rule_files"] = [str(DEPLOY / "prometheus-rules.yml")]
        targets = config["scrape_configs"][0]["static_configs"][0]["targets"]
        targets[:] = [f"127.0.0.1:{exporter.serve(0)}"]
        (here / "prometheus.yml").write_text(yaml.safe_dump(config))
        port = free_port()
        with (here / "log").open("w") as log:
            process = subprocess.Popen(
                [
                    programs[0],
                    f"--config.file={here / 'prometheus.yml'}",
                    f"--storage.tsdb.path={here / 'data'}",
                    f"--web.listen-address=127.0.0.1:{port}",
                    "--log.level=warn",
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        one = Prometheus(port)

        def seen() -> bool:
            assert process.poll() is None, (here / "log").read_text()
            try:
                return one.value("sum(count_over_time(auxconn:steps_total[5m]))") > 8
            except (OSError, ValueError, AssertionError):
                return False

        try:
            one.until(seen, 60)
            yield one
        finally:
            process.terminate()
            process.wait(20)


def concrete(expr: str) -> str:
    """A query as Grafana would send it, all engines chosen."""
    for name, value in (
        ("rate_interval", WINDOW),
        ("engine", ".*"),
        ("model_name", ".*"),
    ):
        expr = expr.replace(f"$__{name}", value).replace(f"${name}", value)
    return expr


BOARD = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
QUERIES = list(grafana.queries(BOARD))


def test_every_query_of_the_dashboard_finds_data(server):
    silent = []
    for title, expr in QUERIES:
        if expr.startswith("label_values("):
            metric, label = expr.removeprefix("label_values(").rstrip(")").split(", ")
            found = server.get(f"/api/v1/label/{label}/values", **{"match[]": metric})
        else:
            found = server.ask(concrete(expr))
        if not found:
            silent.append(f"{title}: {expr}")
    assert not silent, "\n".join(silent)
    assert len(QUERIES) > len(FAMILIES)
    assert not server.ask("auxconn:no_such_metric")


def test_every_alert_can_be_computed_and_its_figure_has_data(server):
    silent = []
    for alert in rules.ALERTS:
        server.ask(alert.expr)
        if not server.ask(alert.figure):
            silent.append(f"{alert.name}: {alert.figure}")
        if alert.besides and "offset" not in alert.besides:
            assert server.ask(alert.besides)
    assert not silent, "\n".join(silent)


def test_the_server_evaluates_the_rules_without_a_fault(server):
    def evaluated() -> Any:
        (group,) = server.get("/api/v1/rules")["groups"]
        known = all(rule["health"] != "unknown" for rule in group["rules"])
        return known and group["rules"]

    found = server.until(evaluated)
    assert [rule["name"] for rule in found] == [alert.name for alert in rules.ALERTS]
    assert {rule["health"] for rule in found} == {"ok"}, [
        rule.get("lastError") for rule in found
    ]


def test_promtool_finds_nothing_wrong_with_the_files(programs, server, collector):
    _, tool = programs
    for command in (
        ["check", "rules", str(DEPLOY / "prometheus-rules.yml")],
        ["check", "config", str(DEPLOY / "prometheus.yml")],
    ):
        done = subprocess.run(
            [tool, *command], capture_output=True, text=True, check=False, timeout=30
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "SUCCESS" in done.stdout + done.stderr


def test_the_figures_are_those_of_the_frames(server, collector):
    """After a pause, so that both speak of the same rows."""
    assert collector.command("lab", "pause").result(20).ok
    frames = collector.store
    server.until(lambda: server.value("auxconn:steps_total") == frames.version("steps"))
    for table in ("steps", "lookups", "blocks", "rows"):
        assert frames.version(table) == frames.kept(table), "all are there still"
    steps, lookups, blocks = frames.steps(), frames.lookups(), frames.blocks()
    expected = {
        "auxconn:steps_total": len(steps),
        "auxconn:retained": steps.retained.iloc[-1],
        "auxconn:hit_tokens_total": (
            lookups.local_hit + lookups.external_accepted
        ).sum(),
        "auxconn:query_tokens_total": lookups.query_tokens.sum(),
        'auxconn:run_end_total{run_end_reason="whole"}': (
            lookups.run_end_reason == "whole"
        ).sum(),
        "auxconn:blocks_released_total": (blocks.event == "released").sum(),
        "auxconn:release_age_seconds_count": (
            blocks.age[blocks.event == "released"].notna().sum()
        ),
        'auxconn:lookup_hit_tokens_bucket{le="64.0"}': (
            (lookups.local_hit + lookups.external_accepted) <= 64
        ).sum(),
        "auxconn:rows_delivered_bytes_total": (
            frames.rows()[["step_bytes", "store_bytes", "tail_bytes"]].to_numpy().sum()
        ),
    }
    for expr, number in expected.items():
        assert number > 0, expr
        server.until(lambda: server.value(expr) == number)  # noqa: B023 - at once
    (one,) = server.ask("auxconn:engine_info")
    assert one["metric"]["engine"] == "lab"
    assert one["metric"]["model_name"].startswith("invented MoE")
    assert one["metric"]["connector"] == "auxconn"
    assert collector.command("lab", "resume").result(20).ok


def test_the_page_draws_the_history_from_prometheus(server, collector):
    """Its buckets hold what the frames hold, in the columns that the views draw."""
    with HistoryHub(server.url) as hub:
        window = Window(3600)
        snapshot = server.until(
            lambda: (
                (found := hub.snapshot(None, window)).tables["steps"].rows.any()
                and found
            )
        )
        assert hub.names() == ["lab"]
        assert hub.link(None).state == "still"
        assert snapshot.name == "lab"
        assert snapshot.fact("model").startswith("invented MoE")
        assert snapshot.fact("block_size") == CONFIG.block_size
        assert snapshot.level("steps", "capacity") == CONFIG.capacity
        assert snapshot.level("store", "slots_total") > 0
        assert snapshot.level("store", "used_bytes") > 0
        # Whatever came before the first scrape is not seen by anybody.
        frames = collector.store
        lookups, blocks = frames.lookups(), frames.blocks()
        for table, column, most in (
            ("lookups", "query_tokens", lookups.query_tokens.sum()),
            ("lookups", "ended_whole", (lookups.run_end_reason == "whole").sum()),
            ("blocks", "released", (blocks.event == "released").sum()),
            ("rows", "rows", frames.rows().store_rows.sum() + 1e9),
            ("steps", "ns_take_output", frames.steps().ns_take_output.sum()),
        ):
            total = snapshot.total(table, column)
            assert total is not None, (table, column)
            assert 0 < total <= most * 1.001, (table, column)
        # Every column that rows would give is there, and known.
        unknown = {
            (table, name)
            for table, buckets in snapshot.tables.items()
            for name, values in buckets.sums.items()
            if np.isnan(values).any()
        }
        assert unknown == {
            ("rows", f"{source}_bytes") for source in ("step", "store", "tail")
        }
        parts = snapshot.tables["lookups"].sums
        whole = sum(
            parts[name].sum()
            for name in ("hit_tokens", "external_refused", "retained_unused", "missed")
        )
        assert whole == pytest.approx(parts["query_tokens"].sum(), rel=1e-6)


def test_an_engine_that_is_killed_is_told_and_its_series_end(server, collector, lab):
    before = server.value("auxconn:steps_total")
    (source,) = collector.sources()
    os.kill(int(source.facts["pid"]), signal.SIGKILL)
    server.until(lambda: server.ask("auxconn:source_up == 0"))
    server.until(lambda: not server.ask("auxconn:retained"))
    assert not server.ask("auxconn:steps_total")

    def pending() -> Any:
        alerts = server.get("/api/v1/alerts")["alerts"]
        return [
            one for one in alerts if one["labels"]["alertname"] == "AuxconnEngineStale"
        ]

    (told,) = server.until(pending)
    assert told["labels"]["engine"] == "lab"
    assert told["annotations"]["summary"].startswith("lab, rank 0 (engine)")
    assert before > 0
