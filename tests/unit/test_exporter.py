"""The exporter: names, labels, who is shown when, and the files made from the catalogue."""

from __future__ import annotations

import json
import re
import socket
import sys
import threading
import urllib.error
import urllib.request

import msgspec
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from auxconn import FrameStore, cli
from auxconn.catalogue import METRICS
from auxconn.exporter import grafana, promql, rules
from auxconn.exporter.account import Account
from auxconn.exporter.families import EXPORTED, FAMILIES
from auxconn.exporter.formulas import FormulaError, parse
from auxconn.exporter.scrape import MissingExtraError
from auxconn.exporter.server import Exporter
from auxconn.exporter.tally import LABEL_LIMIT, MOST_LABELS, OTHER
from auxconn.records import TABLES
from auxconn.source import Source
from auxconn_dashboard.hub import Hub
from auxconn_dashboard.metrics import OnDemand
from scripts import make_docs
from tests.unit import stream_made as made


class Engines:
    """Stands in for a collector: says who is there."""

    malformed = 3
    refused = 0

    def __init__(self, *sources: Source) -> None:
        self.now = list(sources)

    def sources(self) -> list[Source]:
        return self.now

    def turn(self, state: str, number: int = 0) -> None:
        self.now[number] = msgspec.structs.replace(self.now[number], state=state)


def source(engine="e", rank=0, role="engine", state="live", **facts) -> Source:
    return Source(
        engine, rank, role, "1", facts, (), state, 0.0, 0.25, None, 7, {"rows": 2}, 1, 0,
        0, "",
    )  # fmt: skip


def samples(exporter: Exporter) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Every sample of a scrape, read back by prometheus-client's own parser."""
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(exporter.text().decode()):
        for one in family.samples:
            series = found.setdefault(one.name, {})
            labels = tuple(sorted((k, v) for k, v in one.labels.items() if v))
            assert labels not in series, "no series twice"
            series[labels] = one.value
    return found


def labels(**named) -> tuple[tuple[str, str], ...]:
    return tuple(sorted({"engine": "e", "rank": "0", **named}.items()))


KNOWN = {
    "requests": {"first_scheduled": made.T0 + 2.0},
    "rows": {"ms_commit": 0.25},
}


def record(table: str, number: int, **other):
    """A row with everything known in it."""
    row = made.MAKERS[table](number)
    return msgspec.structs.replace(row, **KNOWN.get(table, {}), **other)


def fill(store: FrameStore, engine: str = "e", rank: int = 0) -> None:
    """Two steps, and rows of every table."""
    for table in TABLES:
        store.append(table, [record(table, i) for i in (1, 2)], engine, rank)


@pytest.fixture
def store():
    return FrameStore(100)


def test_every_metric_of_the_catalogue_is_served_and_can_be_asked_for(store):
    fill(store)
    with Exporter(store) as exporter:
        there = set(samples(exporter))
    for name in METRICS:
        named = set(re.findall(r"auxconn:\w+", promql.query(name, "5m")))
        assert named, name
        assert named <= there, name
    assert len({family.name for family in FAMILIES.values()}) == len(FAMILIES)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_a_family_is_named_as_prometheus_wants_it(family):
    assert re.fullmatch(r"auxconn:[a-z0-9_]+", family.name)
    assert not family.name.endswith(("_total", "_count", "_sum", "_bucket"))
    assert (family.kind == "histogram") == bool(family.buckets)
    assert list(family.buckets) == sorted(set(family.buckets))
    assert family.label not in ("request", "hash", "text", "error", "step")
    if EXPORTED[family.metric].unit in ("s", "ms", "ns"):
        assert family.name.endswith("_seconds")
        assert 0 < family.scale <= 1


def test_a_name_of_an_engine_cannot_break_out_of_its_label(store):
    hostile = 'a"} auxconn:retained{engine="b\\"} 1 # <script>é'
    fill(store, hostile, 7)
    model = "m\n# TYPE x counter\nx 1\r\0" + "y" * 500
    with Exporter(store, Engines(source(hostile, 7, model=model))) as exporter:
        found = samples(exporter)
    assert "x" not in found
    (series,) = found["auxconn:retained"]
    named = dict(series)
    assert named["engine"] == hostile
    assert named["rank"] == "7"
    assert named["model_name"] == model[: LABEL_LIMIT - 1] + "…"


def test_ever_new_reasons_make_no_ever_new_series(store):
    requests = [record("requests", i, reason=f"reason {i}") for i in range(100)]
    store.append("requests", requests, "e")
    with Exporter(store) as exporter:
        series = samples(exporter)["auxconn:finish_reasons_total"]
    assert len(series) == MOST_LABELS + 1
    assert sum(series.values()) == 100
    assert series[labels(reason=OTHER)] == 100 - MOST_LABELS


def test_no_request_is_named(store):
    fill(store)
    with Exporter(store) as exporter:
        assert b"request-1" not in exporter.text()


def test_what_nobody_said_is_absent_and_not_0(store):
    store.append("lookups", [made.lookups(1)], "e")
    store.append("requests", [made.requests(1)], "e")  # it never ran
    with Exporter(store) as exporter:
        found = samples(exporter)
    assert found["auxconn:hit_tokens_total"] == {labels(): 48.0}
    assert "auxconn:retained" not in found
    assert "auxconn:steps_total" not in found
    assert "auxconn:queue_time_seconds_count" not in found
    assert "auxconn:source_up" not in found


def test_an_engine_that_is_silent_shows_that_and_nothing_else(store):
    engines = Engines(source(model="m"))
    fill(store)
    with Exporter(store, engines) as exporter:
        found = samples(exporter)
        mine = labels(model_name="m")
        steps = found["auxconn:steps_total"][mine]
        assert found["auxconn:source_up"] == {labels(model_name="m", role="engine"): 1}
        assert found["auxconn:retained"]
        engines.turn("stale")
        found = samples(exporter)
        assert found["auxconn:source_up"] == {labels(model_name="m", role="engine"): 0}
        lost = labels(model_name="m", role="engine", table="rows")
        assert found["auxconn:rows_lost_total"][lost] == 2
        assert not set(found) & {family.exposed for family in FAMILIES.values()}
        # It is heard again: its counters go on from where they were.
        fill(store)
        engines.turn("live")
        assert samples(exporter)["auxconn:steps_total"][mine] == steps + 2
        engines.turn("gone")
        assert not samples(exporter).get("auxconn:source_up")
        # Another start under the same name, while the former is still listed.
        engines.now.append(msgspec.structs.replace(source(model="n"), incarnation="2"))
        fill(store)
        found = samples(exporter)
        assert found["auxconn:steps_total"] == {labels(model_name="n"): steps + 4}
        assert len(found["auxconn:source_up"]) == 1
        # Forgotten by the collector, and so here: a later one begins at 0.
        engines.now.clear()
        assert not samples(exporter).get("auxconn:steps_total")
        engines.now.append(source(model="m"))
        fill(store)
        assert samples(exporter)["auxconn:steps_total"][mine] == 2


def test_a_worker_and_a_scheduler_are_silent_on_their_own(store):
    engines = Engines(
        source(role="scheduler", model="m"), source(role="worker", state="live")
    )
    fill(store)
    with Exporter(store, engines) as exporter:
        engines.turn("stale", 1)
        found = samples(exporter)
        assert "auxconn:store_used" not in found
        assert found["auxconn:retained"].keys() == {labels(model_name="m")}
        engines.turn("live", 1)
        engines.turn("stale", 0)
        found = samples(exporter)
        assert "auxconn:retained" not in found
        # Whoever else speaks in the engine's name measures nothing of it.
        engines.now.append(source(role="supervisor"))
        assert "auxconn:retained" not in samples(exporter)
        # The model is what the scheduler said it is.
        assert found["auxconn:store_used"].keys() == {labels(model_name="m")}
    assert found["auxconn:sources"][(("state", "stale"),)] == 1
    assert found["auxconn:collector_malformed_total"] == {(): 3}


def test_rows_that_were_overwritten_unseen_are_told():
    store = FrameStore(10)
    store.append("steps", [made.steps(i) for i in range(25)], "e")
    account = Account(store)
    account.advance()
    assert account.lost["steps"] == 0, "what was gone before is nobody's loss"
    store.append("steps", [made.steps(i) for i in range(25)], "e")
    account.advance()
    assert account.lost["steps"] == 15
    store.clear()
    account.advance()
    with account.reading() as reading:
        assert reading.numbers["steps"]["e", 0].sums["steps_rate"] == {"": 20.0}


def test_the_names_do_not_depend_on_who_asks(store):
    fill(store)
    with Exporter(store) as exporter:
        port = exporter.serve(0)
        for accept in (
            "",
            "application/openmetrics-text;version=1.0.0,text/plain;q=0.5",
        ):
            asked = urllib.request.Request(
                f"http://127.0.0.1:{port}/metrics", headers={"Accept": accept}
            )
            with urllib.request.urlopen(asked, timeout=10) as answer:
                assert answer.headers["Content-Type"].startswith("text/plain")
                assert b"\nauxconn:steps_total{" in answer.read()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10)
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10)


def test_the_page_has_the_metrics_beside_it(store, monkeypatch):
    """From the first scrape on, until the hub ends; in words where a package lacks."""
    fill(store)
    hub = Hub(store)
    exporter = OnDemand(hub)
    assert not hub._closers
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(MissingExtraError):
        exporter.text()
    monkeypatch.undo()
    assert b"\nauxconn:steps_total{" in exporter.text()
    exporter.text()
    assert len(hub._closers) == 1
    assert "auxconn-exporter" in {thread.name for thread in threading.enumerate()}
    hub.close()
    assert "auxconn-exporter" not in {thread.name for thread in threading.enumerate()}


def test_a_taken_port_is_told_in_words(store):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            Exporter(store) as exporter,
            pytest.raises(OSError, match=f"port {port} .*--port {port + 1}"),
        ):
            exporter.serve(port)


def test_a_missing_package_is_told_in_words(store, monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'auxconn\[prometheus\]'"):
        Exporter(store)
    done = CliRunner().invoke(
        cli.app, ["export", "--collector-bind", "tcp://127.0.0.1:*", "--port", "0"]
    )
    assert done.exit_code == 1
    assert "auxconn[prometheus]" in done.output


def test_an_address_that_is_none_is_told():
    done = CliRunner().invoke(cli.app, ["export", "--collector-bind", "tcp//oops"])
    assert done.exit_code == 1
    assert "tcp//oops" in done.output
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    ("formula", "told"),
    [
        ("steps.step", "begins with"),
        ("sum(steps.step", "is no formula"),
        ("sum(steps.step + rows.step)", "2 tables"),
        ("max(0, steps.step)", "none of sum"),
        ("max(0, open(steps.step))", r"'open\(steps.step\)' is none of"),
    ],
)
def test_a_formula_of_no_known_form_is_refused(formula, told):
    with pytest.raises(FormulaError, match=told):
        parse(formula)


def test_a_formula_cannot_call_what_it_likes():
    formula = parse("sum(__import__(steps.step))")
    with pytest.raises(FormulaError, match="cannot be computed"):
        formula.values({"step": made.steps(1)})


@pytest.mark.parametrize("name", make_docs.DOCUMENTS)
def test_the_files_made_from_code_are_up_to_date(root, name):
    text = make_docs.DOCUMENTS[name]()
    assert (root / name).read_text() == text, "run `make docs`"


def test_every_name_that_is_served_is_documented(store, root):
    fill(store)
    text = (root / "docs" / "prometheus.md").read_text()
    with Exporter(store, Engines(source(model="m"))) as exporter:
        for name in samples(exporter):
            bare = re.sub(r"_(bucket|sum|count)$", "", name)
            assert f"`{bare}`" in text or f"`{name}`" in text, name


def test_grafana_has_a_panel_for_each_metric(root):
    board = json.loads((root / "deploy" / "grafana-dashboard.json").read_text())
    panels = list(grafana._flat(board["panels"]))
    asked = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    for name in METRICS:
        assert promql.query(name, grafana.WINDOW, grafana.CHOSEN) in asked
    assert sorted(panel["id"] for panel in panels) == list(range(1, len(panels) + 1))
    places = [tuple(panel["gridPos"].values())[:2] for panel in board["panels"]]
    assert len(set(places)) == len(places), "none covers another"
    for panel in panels:
        if panel["type"] != "row":
            assert panel["description"]
            assert panel["fieldConfig"]["defaults"]["unit"]


def test_the_rules_are_yaml_and_in_words(root):
    text = (root / "deploy" / "prometheus-rules.yml").read_text()
    (group,) = yaml.safe_load(text)["groups"]
    assert len(group["rules"]) == len(rules.ALERTS)
    for rule, alert in zip(group["rules"], rules.ALERTS, strict=True):
        assert rule["expr"] == alert.expr
        assert rule["annotations"]["summary"].endswith(".")
        assert rule["annotations"]["description"].endswith(".")
        assert rule["labels"]["severity"] in ("warning", "critical")


def test_the_alerts_cover_what_people_were_bitten_by():
    """Hit rate, capacity, growth, loss, backlog and silence: each has its rule."""
    watched = " ".join(alert.expr for alert in rules.ALERTS)
    for name in (
        "hit_tokens", "over_capacity", "store_growths", "rows_lost", "batches_lost",
        "store_backlog", "source_up",
    ):  # fmt: skip
        assert f"auxconn:{name}" in watched
