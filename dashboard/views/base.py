"""What all plots over time have in common.

A plot gets a snapshot and turns it into columns of one source; everything else (axes that
do not move, colours of the theme, tooltips, the legend with its numbers, doing nothing when
nothing moved) is here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import panel as pn
from bokeh.models import (
    AdaptiveTicker,
    ColumnDataSource,
    CustomJSHover,
    CustomJSTickFormatter,
    HoverTool,
    Range1d,
)
from bokeh.plotting import figure

from auxconn.catalogue import METRICS

from .. import words
from ..rollup import Values
from ..snapshot import Snapshot
from ..theme import Theme, style
from .axis import CLOCK, TimeAxis
from .card import CardHead

HEIGHT = 200
"""Pixels of a plot without its head."""

LEFT, RIGHT = 52, 14
"""Pixels beside the frame: fixed, so that the page does not move with the tick labels."""

_SI = """
// One prefix for all ticks of an axis: 5 k below 10 k, not 5,000.
const a = Math.max(...ticks.map(Math.abs)), r = (v, u) => String(+v.toPrecision(3)) + u
if (tick === 0) return "0"
if (a >= 1e9) return r(tick / 1e9, " G")
if (a >= 1e6) return r(tick / 1e6, " M")
if (a >= 1e4) return r(tick / 1e3, " k")
return tick.toLocaleString("en", {maximumFractionDigits: 3})
"""

_BYTES = """
const a = Math.max(...ticks.map(Math.abs)), r = (v, u) => String(+v.toPrecision(3)) + u
if (tick === 0) return "0"
if (a >= 2**30) return r(tick / 2**30, " GiB")
if (a >= 2**20) return r(tick / 2**20, " MiB")
if (a >= 2**10) return r(tick / 2**10, " KiB")
return String(+tick.toPrecision(3)) + " B"
"""


@dataclasses.dataclass(frozen=True)
class Band:
    """One part of a plot: a layer of a stack, or a line."""

    key: str
    label: str
    color: str
    tip: str = ""
    look: str = ""
    """Of the swatch: hatch, cross, dots, pale, dash, line; empty is plain."""

    @property
    def hatch(self) -> dict[str, Any]:
        """How Bokeh draws the look."""
        pattern = {"hatch": "/", "cross": "x", "dots": "."}.get(self.look)
        return {} if pattern is None else {"hatch_pattern": pattern}


class Plot:
    """A card with one figure over the shared time axis.

    Attributes
    ----------
    root
        What to show.
    source
        What is drawn; `source.data` is what tests look at.
    figure
        The Bokeh figure.
    """

    key: ClassVar[str]
    """Name of the plot, for tests and styles."""
    title: ClassVar[str]
    unit: ClassVar[str] = ""
    bands: ClassVar[tuple[Band, ...]] = ()
    tables: ClassVar[tuple[str, ...]]
    """Tables it is drawn from; it stands still when they do."""
    metrics: ClassVar[tuple[str, ...]] = ()
    """Names in the catalogue that explain it."""
    options: ClassVar[tuple[str, ...]] = ()
    bytes_axis: ClassVar[bool] = False
    height: ClassVar[int] = HEIGHT

    def __init__(self, axis: TimeAxis, theme: Theme) -> None:
        self.head = CardHead(
            title=self.title,
            unit=self.unit,
            help=explanation(self.metrics),
            chips=[
                {
                    "key": band.key,
                    "label": band.label,
                    "color": band.color,
                    "look": band.look,
                    "tip": band.tip,
                }
                for band in self.bands
            ],
            options=list(self.options),
            option=self.options[0] if self.options else "",
            note_height=self.height,
            sizing_mode="stretch_width",
        )
        self.head.param.watch(self._redraw, ["hidden", "option"])
        self.source = ColumnDataSource(self.empty(), name=f"auxconn-{self.key}")
        self.figure = self._figure(axis)
        self.draw()
        self.restyle(theme)
        self.root = pn.Column(
            self.head,
            pn.pane.Bokeh(self.figure, sizing_mode="stretch_width", height=self.height),
            css_classes=["ac-card", f"ac-plot-{self.key}"],
            sizing_mode="stretch_width",
            margin=0,
        )
        self._seen: Any = None
        self._last: Snapshot | None = None

    # What a plot is

    def draw(self) -> None:
        """Add the glyphs to the figure."""
        raise NotImplementedError

    def empty(self) -> dict[str, Any]:
        """Columns of the source without rows."""
        raise NotImplementedError

    def columns(self, snapshot: Snapshot) -> dict[str, Any]:
        """Columns of the source for a snapshot; bands that are hidden are left out."""
        raise NotImplementedError

    def values(self, snapshot: Snapshot) -> dict[str, str]:
        """Newest value of each band, as text."""
        return {}

    def note(self, snapshot: Snapshot) -> str:
        """What would fill the plot, when it is empty; else nothing."""
        return ""

    def highest(self, columns: dict[str, Any]) -> float:
        """Highest point drawn."""
        raise NotImplementedError

    # What it does

    def update(self, snapshot: Snapshot) -> bool:
        """Draw a snapshot; False when nothing of it has moved since the last one."""
        moved = (*snapshot.moved(self.tables), self.context(snapshot))
        if moved == self._seen:
            return False
        self._seen = moved
        self._last = snapshot
        columns = self.columns(snapshot)
        self.source.data = columns
        self._fit(self.highest(columns))
        values = self.values(snapshot)
        if values != self.head.values:
            self.head.values = values
        note = self.note(snapshot)
        if note != self.head.note:
            self.head.note = note
        return True

    def context(self, snapshot: Snapshot) -> Any:
        """What else the drawing depends on: facts and the last events."""
        return (snapshot.link.state, len(snapshot.events), snapshot.facts.get("kv_tier_blocks"))

    def shows(self, key: str) -> bool:
        """True when a band is switched on."""
        return key not in self.head.hidden

    def restyle(self, theme: Theme) -> None:
        """Take the colours of a theme."""
        style(self.figure, theme)

    def _redraw(self, *_: Any) -> None:
        """A band was toggled or a unit chosen: draw what is there anew."""
        if self._last is not None:
            self._seen = None
            self.update(self._last)

    def _figure(self, axis: TimeAxis) -> Any:
        found = figure(
            height=self.height,
            sizing_mode="stretch_width",
            tools="",
            toolbar_location=None,
            y_range=Range1d(0, 1),
            min_border_left=LEFT,
            min_border_right=RIGHT,
            min_border_top=8,
            min_border_bottom=26,
            output_backend="canvas",
            name=f"auxconn-figure-{self.key}",
        )
        axis.join(found)
        found.xgrid.visible = False
        found.yaxis.formatter = CustomJSTickFormatter(
            code=_BYTES if self.bytes_axis else _SI
        )
        found.yaxis.ticker = (
            AdaptiveTicker(base=1024, mantissas=[2**power for power in range(10)])
            if self.bytes_axis
            else AdaptiveTicker(mantissas=[1, 2, 5])
        )
        found.yaxis.ticker.desired_num_ticks = 4
        return found

    def hover(self, renderer: Any, rows: Sequence[tuple[Band, str]], more: str = "") -> None:
        """Give the figure one tooltip with a row for each band.

        Parameters
        ----------
        renderer
            What is pointed at, anywhere above or below it.
        rows
            Bands, and what to show of each: a column with its format.
        more
            HTML to put below, with columns in it.
        """
        lines = "".join(
            f"<tr><td style='padding:0 7px 0 0'>{_swatch(band)}</td>"
            f"<td style='padding:1px 14px 1px 0'>{band.label}</td>"
            "<td style='text-align:right;font-weight:600;"
            f"font-variant-numeric:tabular-nums'>{shown}</td></tr>"
            for band, shown in rows
        )
        tooltip = (
            "<div style='font:12px/1.35 var(--ac-font, sans-serif)'>"
            "<div style='opacity:.75;padding-bottom:3px'>@x{custom}</div>"
            f"<table style='border-spacing:0'>{lines}</table>{more}</div>"
        )
        self.figure.add_tools(
            HoverTool(
                renderers=[renderer],
                mode="vline",
                tooltips=tooltip,
                formatters={"@x": CustomJSHover(code=CLOCK % "value")},
                point_policy="follow_mouse",
                attachment="horizontal",
                name="values",
            )
        )

    def _fit(self, highest: float) -> None:
        """Fit the axis to a round number above the highest point, and let it rest there."""
        end = self.figure.y_range.end
        wanted = nice(highest * 1.08, binary=self.bytes_axis)
        if wanted > end or wanted < end * 0.55:
            self.figure.y_range.end = wanted


def nice(value: float, *, binary: bool = False) -> float:
    """Smallest round number that is not below `value`; 1 for nothing."""
    if not np.isfinite(value) or value <= 0:
        return 1.0
    if binary:
        power = 2.0 ** np.floor(np.log2(value))
        steps: tuple[float, ...] = (1, 1.25, 1.5, 2)
    else:
        power = 10.0 ** np.floor(np.log10(value))
        steps = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)
    return float(next(step * power for step in steps if step * power >= value * (1 - 1e-9)))


def explanation(names: tuple[str, ...]) -> list[list[str]]:
    """What the catalogue says of some metrics, as paragraphs for the `?`."""
    found: list[list[str]] = []
    tables: dict[str, None] = {}
    for name in names:
        metric = METRICS[name]
        found.append(["said", f"{metric.title}: {metric.help}"])
        by = f", by {metric.split_by}" if metric.split_by else ""
        found.append(["formula", f"{metric.formula}{by}"])
        tables.update(dict.fromkeys(metric.tables))
    if tables:
        found.append(["from", "From the tables: " + ", ".join(tables)])
    return found


def held(values: Values, snapshot: Snapshot, start: Values) -> Values:
    """Carry a level on until its next reading: nothing is said because nothing changed.

    Not across an engine's absence, and not beyond now: there it is not known.
    """
    filled = np.maximum.accumulate(np.where(np.isnan(values), -1, np.arange(len(values))))
    away = [event.t for event in snapshot.events if event.kind in ("stop", "stale", "start")]
    for t in away:
        first = int(np.searchsorted(start, t, side="right"))
        lost = filled[first:] < first
        filled[first:][lost] = -1
    found = np.where(filled >= 0, values[filled], np.nan)
    width = start[1] - start[0] if len(start) > 1 else 1.0
    beyond = start > snapshot.end + width / 2
    if snapshot.window.pinned is None:
        found[beyond] = np.nan
    return found


def stack(layers: Sequence[tuple[str, Values]], shown: Sequence[str]) -> dict[str, Values]:
    """Bottom (`b_key`) and top (`t_key`) of each layer; hidden ones have no height.

    Where any layer is not known, all are NaN: an area with a floor and no top would be
    drawn down to the floor.
    """
    found: dict[str, Values] = {}
    floor = np.sum([values for _, values in layers], axis=0) * 0.0
    for key, values in layers:
        top = floor + values if key in shown else floor
        found[f"b_{key}"], found[f"t_{key}"] = floor, top
        floor = top
    return found


def _swatch(band: Band) -> str:
    if band.look in ("dash", "line"):
        color = "currentColor" if band.look == "dash" else band.color
        return (
            "<span style='display:inline-block;width:11px;"
            f"border-top:2px {'dashed' if band.look == 'dash' else 'solid'} {color};"
            "vertical-align:middle'></span>"
        )
    fade = ";opacity:.45" if band.look == "pale" else ""
    return (
        "<span style='display:inline-block;width:10px;height:10px;border-radius:3px;"
        f"background:{band.color}{fade}'></span>"
    )


def shorten(value: float | None) -> str:
    """Newest value of a band, as the legend shows it."""
    return words.short(value)
