"""The figures at the top: each with its counters, and how it went over the window."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import panel as pn

from auxconn.catalogue import explain

from .. import theme, words
from ..rollup import ROWS, Buckets, Values
from ..snapshot import COARSE, Snapshot
from ..theme import asset
from .component import Component, script

PEAK_SECONDS = 2.0
"""What lasts only a few steps is shown by its highest reading of so long."""

POINTS = 60
"""Points of a sparkline."""

_NEUTRAL = "#7B8A9D"


class Cards(Component):
    """The row of cards in the browser; `state` has cards."""

    _esm = script("indicators.js")
    _stylesheets: ClassVar[list[Any]] = [asset("indicators.css")]


class IndicatorsView:
    """Hit ratio, releases, loading, rows, retained, store, speed.

    Attributes
    ----------
    source
        The cards; `source.shown["cards"]` are dicts with key, value, unit, sub, spark
        and `amount`, the number behind the value.
    """

    def __init__(self) -> None:
        self.source = Cards(name="auxconn-indicators", sizing_mode="stretch_width")
        self.source.show(cards=_unknown())
        self.root = pn.Column(
            self.source,
            css_classes=["ac-indicators"],
            sizing_mode="stretch_width",
            margin=0,
        )
        self._seen: Any = None

    def update(self, snapshot: Snapshot) -> bool:
        """Compute the figures; False when nothing has moved."""
        moved = (
            snapshot.moved(("steps", "lookups", "blocks", "rows", "store")),
            snapshot.link.state,
        )
        if moved == self._seen:
            return False
        self._seen = moved
        return self.source.show(cards=cards(snapshot))


def cards(snapshot: Snapshot) -> list[dict[str, Any]]:
    """The cards of one snapshot, plain data."""
    seconds = snapshot.end - snapshot.start
    over = words.span(round(seconds)) if seconds >= 1 else words.duration(seconds)
    if snapshot.window.pinned is None:
        over = f"the last {over}"
    return [
        _hits(snapshot, over),
        _released(snapshot, over),
        _loading(snapshot),
        _rows(snapshot, over),
        _retained(snapshot),
        _store(snapshot),
        _engine(snapshot),
    ]


def _hits(snapshot: Snapshot, over: str) -> dict[str, Any]:
    table = snapshot.visible("lookups")
    hit, asked = table.total("hit_tokens"), table.total("query_tokens")
    bars = table.coarse(COARSE)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.where(
            bars.sums["query_tokens"] > 0,
            bars.sums["hit_tokens"] / bars.sums["query_tokens"],
            np.nan,
        )
    value, unit = _split(words.share(hit, asked))
    return {
        "key": "hits",
        "label": "Hit tokens",
        "amount": hit / asked if hit is not None and asked else None,
        "value": value,
        "unit": unit,
        "sub": f"{words.short(hit)} of {words.short(asked)}"
        if asked
        else "no look-ups",
        "tip": f"{words.whole(hit)} of {words.whole(asked)} looked-up tokens in {over}\n"
        + explain("hit_ratio"),
        "color": theme.LOCAL,
        "spark": _spark(ratio),
        "top": 1.0,
        "base": None,
    }


def _released(snapshot: Snapshot, over: str) -> dict[str, Any]:
    rate = snapshot.rate("blocks", "released")
    table = snapshot.visible("blocks")
    known = snapshot.level("steps", "retained") is not None
    total = table.total("released") or (0 if known else None)
    ever = snapshot.totals.get("released", 0) if known else None
    bars = table.coarse(COARSE)
    values = _ended(snapshot, bars, _alive(snapshot), bars.sums["released"])
    return {
        "key": "released",
        "label": "Released",
        "amount": rate,
        "value": words.short(rate),
        "unit": "blocks/s",
        "sub": f"{words.whole(ever)} in all",
        "tip": f"Mean of {words.duration(snapshot.recent)}; {words.whole(total)} blocks in "
        f"{over}, {words.whole(ever)} since the page began to read\n"
        + explain("released_rate"),
        "color": theme.RELEASED,
        "spark": _spark(values),
        "top": 0,
        "base": None,
    }


def _loading(snapshot: Snapshot) -> dict[str, Any]:
    blocks, requests = (
        peak(snapshot, name) for name in ("loading_blocks", "loading_requests")
    )
    high = snapshot.visible("steps").coarse(COARSE).high["loading_blocks"]
    return {
        "key": "loading",
        "label": "Loading",
        "amount": blocks,
        "value": words.short(blocks),
        "unit": "blocks",
        "sub": f"{words.plural(requests, 'request')} waiting"
        if requests is not None
        else "no steps",
        "tip": f"Highest of {words.duration(PEAK_SECONDS)}: a load lasts a few steps\n"
        + explain("loading_blocks"),
        "color": theme.LOADING,
        "spark": _spark(high),
        "top": 0,
        "base": None,
    }


def peak(snapshot: Snapshot, name: str) -> float | None:
    """Highest reading of a level of `steps` in the last moments."""
    steps = snapshot.visible("steps")
    first = int(
        np.searchsorted(steps.start, snapshot.end - max(PEAK_SECONDS, steps.width))
    )
    high = steps.high[name][first:]
    if not len(high) or np.isnan(high).all():
        return snapshot.level("steps", name)
    return float(np.nanmax(high))


def _rows(snapshot: Snapshot, over: str) -> dict[str, Any]:
    rows, size = (snapshot.rate("rows", name) for name in ("rows", "bytes"))
    table = snapshot.visible("rows")
    bars = table.coarse(COARSE)
    values = _ended(snapshot, bars, bars.rows > 0, bars.sums["rows"])
    value, prefix = _split(words.short(rows))
    return {
        "key": "rows",
        "label": "R3 rows",
        "amount": rows,
        "value": value,
        "unit": f"{prefix} rows/s".strip(),
        "sub": f"{words.size(size)}/s" if size is not None else "no worker steps",
        "tip": f"Mean of {words.duration(snapshot.recent)}; "
        f"{words.whole(table.total('rows'))} rows, {words.size(table.total('bytes'))} in "
        f"{over}\n" + explain("rows_rate"),
        "color": _NEUTRAL,
        "spark": _spark(values),
        "top": 0,
        "base": None,
    }


def _retained(snapshot: Snapshot) -> dict[str, Any]:
    retained = snapshot.level("steps", "retained")
    capacity = snapshot.level("steps", "capacity")
    on_gpu = snapshot.level("steps", "retained_on_gpu")
    last = snapshot.visible("steps").coarse(COARSE).last["retained"]
    return {
        "key": "retained",
        "label": "Retained / capacity",
        "amount": retained,
        "value": words.whole(retained),
        "unit": f"/ {words.whole(capacity)}",
        "sub": over_capacity(retained, capacity, on_gpu),
        "tip": f"{words.whole(retained)} blocks retained, {words.whole(on_gpu)} of them still "
        f"on the GPU, capacity {words.whole(capacity)}\n" + explain("over_capacity"),
        "color": theme.RETAINED,
        "spark": _spark(last),
        "top": capacity or 0,
        "base": capacity,
    }


def over_capacity(
    retained: float | None, capacity: float | None, on_gpu: float | None
) -> str:
    """How retained stands to capacity; over it is legal and explained."""
    if retained is None or capacity is None:
        return "no steps"
    over = retained - capacity
    if over <= 0:
        return f"{words.share(retained, capacity)} of capacity"
    if on_gpu is not None and on_gpu >= over:
        return f"{words.whole(over)} over, on GPU"
    return f"{words.whole(over)} over capacity"


def _store(snapshot: Snapshot) -> dict[str, Any]:
    used = snapshot.level("store", "slots_used")
    total = snapshot.level("store", "slots_total")
    arena = snapshot.level("store", "arena_bytes")
    last = snapshot.visible("store").coarse(COARSE).last["slots_used"]
    size = None if used is None or not total or arena is None else arena * used / total
    error = snapshot.latest.get("store", {}).get("error", "")
    sub = (
        "no store"
        if total is None
        else f"{words.share(used, total)} of {words.size(arena)}"
    )
    return {
        "key": "store",
        "label": "R3 store, slots",
        "amount": used,
        "value": words.short(used),
        "unit": f"/ {words.short(total)}",
        "sub": words.plain(error, 80) or sub,
        "tip": f"{words.whole(used)} of {words.whole(total)} slots, {words.size(size)} of "
        f"{words.size(arena)}\n" + explain("store_used"),
        "color": theme.RETAINED,
        "spark": _spark(last),
        "top": total or 0,
        "base": total,
    }


def _engine(snapshot: Snapshot) -> dict[str, Any]:
    steps = snapshot.visible("steps")
    rate = snapshot.rate("steps", ROWS)
    if rate is None and steps.rows.any():
        rate = 0.0
    bars = steps.coarse(COARSE)
    running, waiting = (
        snapshot.level("steps", name) for name in ("running", "waiting")
    )
    return {
        "key": "engine",
        "label": "Steps",
        "amount": rate,
        "value": words.short(rate),
        "unit": "steps/s",
        "sub": f"{words.whole(running)} run, {words.whole(waiting)} wait"
        if running is not None
        else "no steps",
        "tip": explain("steps_rate"),
        "color": _NEUTRAL,
        "spark": _spark(_ended(snapshot, bars, _alive(snapshot), bars.rows)),
        "top": 0,
        "base": None,
    }


def _alive(snapshot: Snapshot) -> Values:
    """True for the bars since the engine's first step in the window."""
    steps: Buckets = snapshot.visible("steps").coarse(COARSE)
    begun = np.maximum.accumulate(steps.rows > 0)
    found: Values = begun & (steps.start <= snapshot.end)
    return found


def _ended(snapshot: Snapshot, bars: Buckets, known: Values, counts: Values) -> Values:
    """Counts per second where they are known; not of a bar that is still being filled."""
    whole = known & (bars.start + bars.width <= snapshot.end + 1e-6)
    found: Values = np.where(whole, counts / bars.width, np.nan)
    return found


def _spark(values: Values) -> list[float | None]:
    """At most `POINTS` numbers; None where nothing is known."""
    if len(values) > POINTS:
        factor = len(values) // POINTS
        values = values[-factor * POINTS :].reshape(POINTS, factor)
        known = ~np.isnan(values)
        count = known.sum(axis=1)
        values = np.where(
            count > 0,
            np.where(known, values, 0).sum(axis=1) / np.maximum(count, 1),
            np.nan,
        )
    return [
        None if np.isnan(value) else float(f"{value:.4g}") for value in values.tolist()
    ]


def _split(text: str) -> tuple[str, str]:
    """A number and its unit apart, to set them in different sizes."""
    value, _, unit = text.partition(words.THIN)
    return value, unit


def _unknown() -> list[dict[str, Any]]:
    """Cards before anything is known: dashes, in the places the numbers will have."""
    names = (
        ("hits", "Hit tokens"),
        ("released", "Released"),
        ("loading", "Loading"),
        ("rows", "R3 rows"),
        ("retained", "Retained / capacity"),
        ("store", "R3 store, slots"),
        ("engine", "Steps"),
    )
    return [
        {
            "key": key,
            "label": label,
            "amount": None,
            "value": words.DASH,
            "unit": "",
            "sub": "",
            "tip": "",
            "color": _NEUTRAL,
            "spark": [],
            "top": 0,
            "base": None,
        }
        for key, label in names
    ]
