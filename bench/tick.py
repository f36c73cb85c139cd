"""What a tick of the page costs the server: `python -m bench.tick`.

A real server with one real browser, over rings that are full to the last row, while
another thread appends what an engine at 50 steps/s would. What is measured is the CPU time
of the server's thread, with all that it does: taking snapshots, drawing, serializing,
sending, and the lighter looks between two drawings. It is divided by the drawings.

The limit is 50 ms (`docs/design.md`); exit code 1 when the median is above it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

from auxconn.frames import FrameStore
from auxconn.records import TABLES

# Run as a module or as a file, both find what lies beside it.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.feed import Feed
from bench.serving import Serving

LIMIT_MS = 50.0
ROUNDS, SECONDS = 9, 2.0


def full_store(rows: int, feed_rate: float) -> tuple[FrameStore, Feed]:
    """A store whose rings are full, and the feed that filled it."""
    store = FrameStore(rows)
    # The rarest tables decide how long: a look-up comes every other step.
    steps = int(rows * 2.3)
    feed = Feed(store, start=time.time() - steps / feed_rate, rate=feed_rate)
    done = 0
    while done < steps:
        feed.run(min(5000, steps - done))
        done += 5000
    for _ in range(rows // 100):
        feed.event("mark", "filling the table")
    full = {table: store.kept(table) for table in TABLES if table not in ("requests",)}
    assert all(kept >= rows for name, kept in full.items() if name != "events"), full
    feed.t = time.time()
    return store, feed


def main() -> int:
    """Measure, print, and judge."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rows", type=int, default=100_000, help="rows of each ring")
    options.add_argument("--rate", type=float, default=50.0, help="steps per second")
    options.add_argument("--window", type=int, default=300, help="seconds shown")
    options.add_argument("--refresh", type=float, default=0.5, help="seconds")
    options.add_argument("--rounds", type=int, default=ROUNDS)
    options.add_argument("--json", action="store_true")
    chosen = options.parse_args()

    import panel as pn

    from auxconn_dashboard import app
    from auxconn_dashboard.hub import Hub
    from auxconn_dashboard.session import HUB_KEY, Dashboard

    store, feed = full_store(chosen.rows, chosen.rate)
    hub = Hub(store)
    pn.state.as_cached(HUB_KEY, lambda: hub)
    made: list[Dashboard] = []

    def page() -> Dashboard:
        dashboard = app.page()
        dashboard.window, dashboard.refresh = chosen.window, chosen.refresh
        made.append(dashboard)
        return dashboard

    def server() -> object:
        return pn.serve({"/": page}, port=0, show=False, start=False, verbose=False)

    with Serving(server) as serving:
        client = subprocess.Popen(
            [sys.executable, "-m", "bench.watching", serving.url, "86400"],
            cwd=Path(__file__).resolve().parent.parent,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert client.stdout is not None
        stop = threading.Event()
        try:
            client.stdout.readline()
            feeding = threading.Thread(target=_feed, args=(feed, stop), daemon=True)
            feeding.start()
            _wait(lambda: made and made[0].draws > 4)
            costs = [_round(made[0], serving.thread) for _ in range(chosen.rounds)]
        finally:
            stop.set()
            client.kill()
            client.wait()
    ms = [cost for cost, _ in costs]
    report = {
        "rows": chosen.rows,
        "steps_per_s": chosen.rate,
        "window_s": chosen.window,
        "refresh_s": chosen.refresh,
        "ms_per_drawing": [round(one, 2) for one in ms],
        "median_ms": round(statistics.median(ms), 2),
        "worst_ms": round(max(ms), 2),
        "server_cpu_share": round(statistics.median(share for _, share in costs), 3),
        "limit_ms": LIMIT_MS,
    }
    if chosen.json:
        print(json.dumps(report))
    else:
        for name, value in report.items():
            print(f"{name:18} {value}")
    return 0 if report["median_ms"] <= LIMIT_MS else 1


def _round(dashboard: object, thread: threading.Thread) -> tuple[float, float]:
    """CPU ms of the server's thread per drawing, and the share of a core it takes."""
    assert thread.ident is not None
    clock = time.pthread_getcpuclockid(thread.ident)
    draws = dashboard.draws  # type: ignore[attr-defined]
    cpu, wall = time.clock_gettime(clock), time.monotonic()
    time.sleep(SECONDS)
    cpu = time.clock_gettime(clock) - cpu
    wall = time.monotonic() - wall
    drawn = dashboard.draws - draws  # type: ignore[attr-defined]
    if not drawn:
        raise RuntimeError("the page was not drawn at all: there is nothing to measure")
    return 1000 * cpu / drawn, cpu / wall


def _feed(feed: Feed, stop: threading.Event) -> None:
    while not stop.is_set():
        behind = time.time() - feed.t
        feed.run(max(0, int(behind * feed.rate)))
        stop.wait(0.05)


def _wait(true: object, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not true():  # type: ignore[operator]
        if time.monotonic() > end:
            raise TimeoutError("the page did not begin to draw")
        time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main())
