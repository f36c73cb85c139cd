"""The page over Prometheus: weeks of a cluster, in the views of the last minutes.

A view draws buckets and does not ask who filled them. Here they are filled from what the
exporter counted, each with the very columns that rows would have given; a column that
Prometheus has nothing of stays empty. Single look-ups and events are not there: a row of
either has never left the collector.

Prometheus is asked in a thread. A tick of the page takes what is there and never waits.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from auxconn.errors import AuxConnError
from auxconn.exporter.history import History, Stretch
from auxconn.frames import FrameStore

from .derive import BLOCK_EVENTS, METHODS, PLANS, REFUSALS, RUN_ENDS
from .hub import MOST_TOGETHER, Hub
from .rollup import Buckets
from .snapshot import COARSE, LONG_WINDOWS, Link, Snapshot, Window
from .subjects import Subject, named
from .together import together

Values = np.ndarray[Any, np.dtype[Any]]

FRESH_SECONDS = 5.0
"""What was read less long ago is not read again; half a bucket, for wide ones."""

SCRAPES_SECONDS = 120.0
"""Rates of now are means over so long at least; Prometheus scrapes once a minute at most."""

MOST_KEPT = 32
"""Stretches of time kept for those who look."""

NEWEST = 2 * COARSE + 1
"""Buckets at the end of which one must have a level that is of now: some lie ahead."""

TELL_AT_MOST = 200
"""Characters of a problem."""

COUNTED: dict[str, dict[str, tuple[str, str, float]]] = {
    "steps": {
        "scheduled_tokens": ("tokens_scheduled_total", "", 1),
        "ns_probe": ("probe_cost_seconds_sum", "", 1e9),
        **{f"ns_{name}": (f"time_{name}_seconds_total", "", 1e9) for name in METHODS},
    },
    "lookups": {
        "query_tokens": ("query_tokens_total", "", 1),
        "local_hit": ("local_tokens_total", "", 1),
        "external_offered": ("offered_tokens_total", "", 1),
        "external_accepted": ("external_tokens_total", "", 1),
        "hit_tokens": ("hit_tokens_total", "", 1),
        "retained_unused": ("rows_only_tokens_total", "", 1),
        "missed": ("missed_tokens_total", "", 1),
        **{f"refused_{why}": ("refused_tokens_total", why, 1) for why in REFUSALS},
        **{f"ended_{why}": ("run_end_total", why, 1) for why in RUN_ENDS},
        **{f"missed_{why}": ("tokens_after_end_total", why, 1) for why in RUN_ENDS},
    },
    "blocks": {event: ("block_events_total", event, 1) for event in BLOCK_EVENTS},
    "rows": {
        "rows": ("rows_delivered_total", "", 1),
        "bytes": ("rows_delivered_bytes_total", "", 1),
        "step_rows": ("rows_step_total", "", 1),
        "store_rows": ("rows_store_total", "", 1),
        "tail_rows": ("rows_tail_total", "", 1),
        "captured_rows": ("rows_captured_total", "", 1),
        "captured_bytes": ("rows_captured_bytes_total", "", 1),
        "rejected_rows": ("rejected_rows_total", "", 1),
    },
}
"""By table and column that is added up: the counter, its label's value, and a factor."""

STOOD: dict[str, dict[str, str]] = {
    "steps": {
        "over": "over_capacity",
        **{
            name: name
            for name in (
                "retained", "retained_on_gpu", "retained_off_gpu", "capacity",
                "loading_blocks", "loading_requests", "kv_in_use", "kv_cached_free",
                "kv_free", "waiting", "running", "generation",
            )
        },
    },
    "store": {
        "slots_used": "store_used",
        "slots_referenced": "store_referenced",
        "slots_unreferenced": "store_unreferenced",
        "slots_free": "store_free",
        "slots_total": "store_slots",
        "arena_bytes": "store_bytes",
        "growths": "store_growths_total",
        "evictions": "store_evictions_total",
        "backlog": "store_backlog",
    },
}  # fmt: skip
"""By table and column that is a level: its gauge."""

ROWS = {
    "steps": "steps_total",
    "lookups": "lookups_total",
    "rows": "copy_time_seconds_count",
}
"""By table: the counter of its rows."""


def tables_of(stretch: Stretch, start: Values, width: float) -> dict[str, Buckets]:
    """The buckets of every table, from what Prometheus has of a stretch of time."""
    return {table: _buckets(table, stretch, start, width) for table in PLANS}


def _buckets(table: str, stretch: Stretch, start: Values, width: float) -> Buckets:
    plan = PLANS[table]
    nothing = np.full(len(start), np.nan)
    sums = dict.fromkeys(plan.sums, nothing)
    for name, (counter, label, factor) in COUNTED.get(table, {}).items():
        sums[name] = stretch.counted(counter, label) * factor
    if table == "lookups":
        sums["external_refused"] = _together(sums[f"refused_{why}"] for why in REFUSALS)
    levels = dict.fromkeys(plan.levels, nothing)
    for name, gauge in STOOD.get(table, {}).items():
        levels[name] = stretch.stood(gauge)
    if table == "store":
        fill = stretch.stood("store_fill_ratio")
        levels["used_bytes"] = levels["arena_bytes"] * fill
        rows = np.where(np.isnan(fill), 0.0, 1.0)
    elif table == "blocks":
        rows = np.nan_to_num(_together(sums[event] for event in BLOCK_EVENTS))
    else:
        rows = np.nan_to_num(stretch.counted(ROWS[table]))
    # A bucket without rows adds nothing, as in the rollup of rows; a column that nobody
    # counted stays unknown.
    known = [name for name in sums if np.isfinite(sums[name]).any() or not rows.any()]
    sums.update({name: np.nan_to_num(sums[name]) for name in known})
    return Buckets(width, start, rows, sums, levels, levels, levels)


def _together(parts: Iterable[Values]) -> Values:
    """The sum of what is known of some counters; NaN where nothing is."""
    grid = np.stack(list(parts))
    summed: Values = np.where(
        np.isnan(grid).all(axis=0), np.nan, np.nan_to_num(grid).sum(axis=0)
    )
    return summed


class Past(Snapshot):
    """A snapshot whose readings are a scrape apart."""

    @property
    def recent(self) -> float:
        """Seconds that rates are taken over: several scrapes."""
        if self.window.pinned is not None:
            return self.end - self.start
        return max(SCRAPES_SECONDS, 10 * self.tables["steps"].width)


@dataclasses.dataclass
class Read:
    """What was read of one stretch."""

    tables: dict[str, Buckets]
    end: float
    """Wall clock of the newest point in it."""


class HistoryHub(Hub):
    """A hub over a Prometheus. Any thread may call it.

    Parameters
    ----------
    url
        Of the server.

    Raises
    ------
    ValueError
        When that is no http address.
    """

    windows = LONG_WINDOWS
    has_rows = False

    def __init__(self, url: str, *, clock: Callable[[], float] = time.time) -> None:
        super().__init__(FrameStore(1))
        self.history = History(url)
        self._wall = clock
        self._guard = threading.Lock()
        self._asking = ThreadPoolExecutor(2, thread_name_prefix="auxconn-history")
        self._engines: dict[tuple[str, int], dict[str, str]] = {}
        self._read: OrderedDict[Any, Read] = OrderedDict()
        self._under_way: dict[Any, Future[None]] = {}
        self._done: dict[Any, float] = {}
        self.problem = ""
        """Why Prometheus could not be asked the last time; empty when it could."""
        self._version = 0
        self.on_close(lambda: self._asking.shutdown(cancel_futures=True))
        self._ask("engines", self._read_engines)

    # What is there

    def names(self) -> list[str]:
        """Names of the engines that Prometheus knows."""
        self._ask("engines", self._read_engines)
        return list(self._known())

    def source(self, name: str | None) -> Any:
        """Nobody: there is nothing to steer."""
        return None

    def advance(self, snapshot: Snapshot | None) -> None:
        """Nothing is missed by not looking."""

    def behind(self, snapshot: Snapshot) -> int:
        """Nobody counts steps here."""
        return 0

    def links(self, snapshot: Snapshot) -> Link:
        """As for any one: whether Prometheus can be asked."""
        return self.link(snapshot.name)

    def link(self, name: str | None) -> Link:
        """Whether Prometheus can be asked."""
        if self.problem:
            return Link("stopped", self.problem)
        if not self._engines:
            return Link(
                "starting", stage_text=f"asking Prometheus at {self.history.url}"
            )
        return Link("still", f"from Prometheus at {self.history.url}")

    def snapshot(self, name: str | None, window: Window) -> Snapshot:
        """What was read last of a stretch of time; a newer reading is on its way."""
        known = self._known()
        chosen = name if name in known else next(iter(known), "")
        subject = known.get(chosen, Subject(None))
        key = (chosen, window)
        if subject.engine is not None:
            width = window.grid(self._wall())[0]
            self._ask(key, lambda: self._read_stretch(key, subject, window), width / 2)
        with self._guard:
            read = self._read.get(key)
        end = self._wall() if read is None else read.end
        if read is None:
            width, first, last = window.grid(end)
            start = np.arange(first, last + 1) * width
            tables = tables_of(Stretch(len(start) + 1), start, width)
        else:
            tables = read.tables
        begin, stop = window.pinned or (end - window.seconds, end)
        return Past(
            engine=subject.engine or "",
            link=self.link(chosen),
            facts=self._facts_of(subject),
            commands=frozenset(),
            window=window,
            start=begin,
            end=stop,
            tables=tables,
            latest=_latest(tables),
            totals=_totals(tables["blocks"]),
            events=(),
            versions=dict.fromkeys(PLANS, self._version),
            lost={},
            rank=subject.rank,
            name=chosen,
        )

    def together(
        self, only: Collection[str], window: Window, *, wait: bool = True
    ) -> Snapshot:
        """Several engines; each is read in a thread anyway."""
        names = self.names()[:MOST_TOGETHER] or [""]
        return together([self.snapshot(name, window) for name in names], only)

    # In threads of their own

    def _ask(self, key: Any, do: Callable[[], None], pace: float = 0.0) -> None:
        """Have something read, unless it is being read or was a moment ago."""
        now = time.monotonic()
        with self._guard:
            ago = now - self._done.get(key, float("-inf"))
            # What failed is tried again soon, however wide its buckets are.
            fresh = ago < (FRESH_SECONDS if self.problem else max(FRESH_SECONDS, pace))
            if fresh or key in self._under_way:
                return
            try:
                self._under_way[key] = self._asking.submit(self._try, key, do)
            except RuntimeError:
                return  # it is closed

    def _try(self, key: Any, do: Callable[[], None]) -> None:
        try:
            do()
            self.problem = ""
        except AuxConnError as problem:
            self.problem = str(problem)[:TELL_AT_MOST]
        finally:
            with self._guard:
                self._version += 1
                self._under_way.pop(key, None)
                self._done.pop(key, None)
                self._done[key] = time.monotonic()
                while len(self._done) > 2 * MOST_KEPT:
                    self._done.pop(next(iter(self._done)))

    def _read_engines(self) -> None:
        self._engines = self.history.engines()

    def _read_stretch(self, key: Any, subject: Subject, window: Window) -> None:
        now = self._wall()
        width, first, last = window.grid(now)
        edges = np.arange(first, last + 2) * width
        past = int(np.searchsorted(edges, now, side="right"))
        stretch = self.history.read(
            subject.engine or "", subject.rank or 0, edges, max(past, 2)
        )
        tables = tables_of(stretch, edges[:-1], width)
        with self._guard:
            self._read[key] = Read(tables, float(edges[max(past, 1) - 1]))
            self._read.move_to_end(key)
            while len(self._read) > MOST_KEPT:
                self._read.popitem(last=False)

    def _known(self) -> dict[str, Subject]:
        return named(Subject(*key) for key in sorted(self._engines))

    def _facts_of(self, subject: Subject) -> Mapping[str, Any]:
        labels = self._engines.get((subject.engine or "", subject.rank or 0), {})
        size = labels.get("block_size", "")
        found = {
            "model": labels.get("model_name"),
            "connector": labels.get("connector"),
            "vllm_version": labels.get("vllm_version"),
            "block_size": int(size) if size.isdigit() else None,
        }
        return {name: value for name, value in found.items() if value}


def _totals(blocks: Buckets) -> dict[str, float]:
    """Block events by kind over the stretch: nobody knows what was before."""
    found = {event: blocks.total(event) for event in BLOCK_EVENTS}
    return {event: total for event, total in found.items() if total is not None}


def _latest(tables: Mapping[str, Buckets]) -> dict[str, dict[str, Any]]:
    """Level of each column at the end of the stretch; none of one that has ended."""
    found: dict[str, dict[str, Any]] = {}
    for table in ("steps", "store"):
        found[table] = row = {}
        for name, values in tables[table].last.items():
            known = values[-NEWEST:][~np.isnan(values[-NEWEST:])]
            if len(known):
                row[name] = float(known[-1])
    return found
