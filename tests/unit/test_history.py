"""The page over Prometheus: what a counter's points mean, and what is said when it fails."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

import numpy as np
import pytest

from auxconn.exporter.history import History, PrometheusError, Stretch
from auxconn_dashboard.derive import PLANS
from auxconn_dashboard.history import HistoryHub, tables_of
from auxconn_dashboard.session import Dashboard
from auxconn_dashboard.snapshot import LONG_WINDOWS, Window

NAN = float("nan")
T0 = 1_700_000_000.0


class Prometheus(ThreadingHTTPServer):
    """Answers what a test has laid down, and notes what it was asked."""

    daemon_threads = True

    def __init__(self):
        self.asked = []
        self.status = 200
        self.series = {}
        """Name and label to a function of time."""
        super().__init__(("127.0.0.1", 0), Answers)
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Answers(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        asked = {name: values[0] for name, values in parse_qs(body).items()}
        self.server.asked.append(asked)
        who = {"engine": 'a"b', "rank": "1", "model_name": "m", "block_size": "16"}
        result = []
        if "step" not in asked:
            result = [{"metric": who, "value": [T0, "1"]}]
        else:
            start, end = float(asked["start"]), float(asked["end"])
            times = np.arange(start, end, float(asked["step"]))
            for (name, label), value in self.server.series.items():
                metric = {"__name__": f"auxconn:{name}", **who, **dict([label])}
                points = [[t, str(value(t))] for t in times if value(t) is not None]
                result.append({"metric": metric, "values": points})
        text = json.dumps({"data": {"result": result}}).encode()
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


@pytest.fixture
def prometheus():
    server = Prometheus()
    yield server
    server.shutdown()
    server.server_close()


def until(reached, seconds=10.0):
    end = time.monotonic() + seconds
    while not (found := reached()):
        assert time.monotonic() < end, "nothing came of it"
        time.sleep(0.01)
    return found


def test_a_counter_is_what_came_to_it():
    stretch = Stretch(6)
    named = {"__name__": "auxconn:steps_total"}
    # It was not there, came, rose, fell to a new beginning, and was not heard.
    stretch.add(named, np.array([NAN, 5.0, 7.0, 3.0, NAN, NAN]))
    counted = stretch.counted("steps_total")
    np.testing.assert_array_equal(counted, [NAN, 2.0, 3.0, NAN, NAN])
    # Another series of the same engine, under another model.
    stretch.add({**named, "model_name": "n"}, np.array([NAN, NAN, 0.0, 4.0, 9.0, 9.0]))
    counted = stretch.counted("steps_total")
    np.testing.assert_array_equal(counted, [NAN, 2.0, 7.0, 5.0, 0.0])


def test_a_level_is_the_one_at_the_end_of_each_stretch():
    stretch = Stretch(3)
    stretch.add({"__name__": "auxconn:retained"}, np.array([1.0, 2.0, NAN]))
    np.testing.assert_array_equal(stretch.stood("retained"), [2.0, NAN])
    assert np.isnan(stretch.stood("capacity")).all()


def test_a_split_counter_keeps_its_parts_apart():
    stretch = Stretch(2)
    for reason, last in (("whole", 3.0), ("evicted", 5.0)):
        labels = {"__name__": "auxconn:run_end_total", "run_end_reason": reason}
        stretch.add(labels, np.array([1.0, last]))
    assert stretch.counted("run_end_total", "whole") == [2.0]
    assert stretch.counted("run_end_total", "evicted") == [4.0]


def test_nothing_known_is_drawn_as_nothing():
    start = np.arange(10) * 6.0
    tables = tables_of(Stretch(11), start, 6.0)
    for table, plan in PLANS.items():
        buckets = tables[table]
        assert set(buckets.sums) == set(plan.sums), table
        assert set(buckets.last) >= set(plan.levels)
        assert not buckets.rows.any()
        assert not any(values.any() for values in buckets.sums.values())
        assert all(np.isnan(values).all() for values in buckets.last.values())


def test_the_page_has_the_columns_of_rows(prometheus):
    prometheus.series = {
        ("steps_total", ("x", "")): lambda t: t - T0 + 1e6,
        ("lookups_total", ("x", "")): lambda t: 2 * (t - T0) + 1e6,
        ("query_tokens_total", ("x", "")): lambda t: 100 * (t - T0) + 1e9,
        ("hit_tokens_total", ("x", "")): lambda t: 75 * (t - T0) + 1e9,
        ("retained", ("x", "")): lambda t: 40,
        ("block_events_total", ("event", "released")): lambda t: 3 * (t - T0) + 1e6,
    }
    with HistoryHub(prometheus.url, clock=lambda: T0) as hub:
        assert hub.windows == LONG_WINDOWS
        until(hub.names)
        window = Window(3600)
        found = until(
            lambda: (
                (one := hub.snapshot(None, window)).tables["steps"].rows.any() and one
            )
        )
        assert (found.engine, found.rank, found.name) == ('a"b', 1, 'a"b')
        assert found.facts == {"model": "m", "block_size": 16}
        assert found.level("steps", "retained") == 40
        assert found.level("steps", "capacity") is None
        assert found.rate("steps", "") == pytest.approx(1.0, rel=0.1)
        assert found.rate("blocks", "released") == pytest.approx(3.0, rel=0.1)
        hit, asked = (
            found.total("lookups", name) for name in ("hit_tokens", "query_tokens")
        )
        assert hit / asked == pytest.approx(0.75)
        assert 0 <= T0 - found.end <= 6.0
        assert found.totals["released"] == pytest.approx(3 * 3600, rel=0.01)
        # The name was put into the question as a text, not as a part of it.
        (question,) = {one["query"] for one in prometheus.asked if "step" in one}
        assert 'engine="a\\"b", rank="1"' in question
        # What was read a moment ago is not asked for again.
        asked = len(prometheus.asked)
        for _ in range(5):
            hub.snapshot(None, window)
        assert len(prometheus.asked) == asked
        # A zoom is another stretch.
        near = Window(3600, (T0 - 600, T0 - 300))
        zoomed = until(
            lambda: (one := hub.snapshot(None, near)).tables["steps"].rows.any() and one
        )
        assert (zoomed.start, zoomed.end) == near.pinned


def test_a_server_that_refuses_or_is_not_there_is_told(prometheus):
    prometheus.status = 503
    with pytest.raises(PrometheusError, match=f"{prometheus.url} cannot be asked: 503"):
        History(prometheus.url).engines()
    with HistoryHub("http://127.0.0.1:1") as hub:
        link = until(lambda: (one := hub.link(None)).state == "stopped" and one)
        assert "http://127.0.0.1:1 cannot be asked" in link.text
        snapshot = hub.snapshot(None, Window(3600))
        assert snapshot.name == ""
        assert not hub.names()


def test_a_page_of_history_has_what_history_has(prometheus):
    with HistoryHub(prometheus.url, clock=lambda: T0) as hub:
        until(hub.names)
        page = Dashboard(hub)
        assert page.window == LONG_WINDOWS[0]
        assert page.record is None
        shown = [type(view).__name__ for view in page.views]
        assert "HitsPlot" in shown
        assert not {"LookupsView", "EventsView"} & set(shown)
        page.tick()
        page.draw()
        assert (page.failures, page.problem) == (0, "")
        assert page.snapshot.name == 'a"b'
        page._from_bar({"action": "window", "value": 60})
        assert page.window == LONG_WINDOWS[0], "it cannot be chosen"
        page._from_bar({"action": "window", "value": LONG_WINDOWS[-1]})
        assert page.window == LONG_WINDOWS[-1]
        page.close()


@pytest.mark.parametrize(
    "url", ["", "localhost:9090", "ftp://x", "http://", "http://["]
)
def test_what_is_no_address_is_refused(url):
    with pytest.raises(ValueError, match="http://localhost:9090"):
        History(url)
