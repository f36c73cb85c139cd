"""What all plots over time have in common.

A plot gets a snapshot and turns it into columns of one source; everything else (axes that
do not move, colours of the theme, tooltips, the legend with its numbers, doing nothing when
nothing moved) is here.

Layers are stacked by the browser (`Stack`): each column is sent once, as what it is, and
not a second and third time as the floor and the top of its layer.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import numpy as np
import panel as pn
from bokeh.core.properties import expr
from bokeh.models import (
    AdaptiveTicker,
    ColumnDataSource,
    CustomJSHover,
    CustomJSTickFormatter,
    HoverTool,
    Range1d,
    Stack,
)
from bokeh.plotting import figure

from auxconn.catalogue import METRICS

from ..rollup import Values
from ..snapshot import Snapshot
from ..theme import Theme, style
from .axis import CLOCK, TimeAxis
from .card import CardHead
from .component import fixed

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

NUMBER = """
const a = Math.abs(value)
if (!isFinite(value)) return "–"
if (a >= 1e9) return (value / 1e9).toPrecision(3) + " G"
if (a >= 1e6) return (value / 1e6).toPrecision(3) + " M"
return value.toLocaleString("en", {maximumFractionDigits: a < 10 ? 2 : a < 100 ? 1 : 0})
"""
"""JavaScript: a number of a tooltip. Not known is a dash."""

SIZE = """
const a = Math.abs(value)
if (!isFinite(value)) return "–"
for (const [unit, name] of [[2**30, "GiB"], [2**20, "MiB"], [2**10, "KiB"]])
    if (a >= unit) return (value / unit).toPrecision(3) + " " + name
return value.toFixed(0) + " B"
"""
"""JavaScript: bytes of a tooltip."""


POINTER = "pointer"
"""Name of the invisible renderer over the whole stack, which tooltips hang on."""


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
        What is drawn; `source.data` has `x` in ms and a column for each band.
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
    height: ClassVar[int] = HEIGHT
    ground: ClassVar[tuple[str, ...]] = ()
    """Column the lowest layer stands on, if not on 0."""

    def __init__(self, axis: TimeAxis, theme: Theme) -> None:
        self.hidden: list[str] = []
        """Keys of the bands that are switched off."""
        self.option = self.options[0] if self.options else ""
        self.head = CardHead(
            name=f"auxconn-head-{self.key}",
            fixed=fixed(
                title=self.title,
                unit=self.unit,
                help=explanation(self.metrics),
                chips=[dataclasses.asdict(band) for band in self.bands],
                options=self.options,
                height=self.height,
            ),
            sizing_mode="stretch_width",
        )
        self.head.on_message = self.ask
        self.source = ColumnDataSource(self.empty(), name=f"auxconn-{self.key}")
        self._axis = axis
        self.stacks: dict[str, tuple[Stack, Stack]] = {}
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

    def columns(self, snapshot: Snapshot) -> dict[str, Values]:
        """Columns of the source for a snapshot."""
        raise NotImplementedError

    def layers(self) -> list[str]:
        """Keys of the bands that are stacked, lowest first."""
        return [band.key for band in self.bands if band.look not in ("dash", "line")]

    def lines(self) -> list[str]:
        """Keys of the bands that are lines over the stack."""
        return [band.key for band in self.bands if band.look in ("dash", "line")]

    def values(self, snapshot: Snapshot) -> dict[str, str]:
        """Newest value of each band, as text."""
        return {}

    def note(self, snapshot: Snapshot) -> str:
        """What would fill the plot, when it is empty; else nothing."""
        return ""

    # What it does

    def update(self, snapshot: Snapshot) -> bool:
        """Draw a snapshot; False when nothing of it has moved since the last one."""
        moved = (*snapshot.moved(self.tables), self.context(snapshot))
        if moved == self._seen:
            return False
        self._seen = moved
        self._last = snapshot
        columns = self.columns(snapshot)
        self.source.data = {
            # Milliseconds since 1970 need all digits of a double; a height does not.
            name: values if name == "x" else values.astype(np.float32)
            for name, values in columns.items()
        }
        self._fit(self.highest(columns))
        self.head.show(values=self.values(snapshot), note=self.note(snapshot))
        return True

    def context(self, snapshot: Snapshot) -> Any:
        """What else the drawing depends on: facts and the last events."""
        return (
            snapshot.link.state,
            len(snapshot.events),
            snapshot.facts.get("kv_tier_blocks"),
        )

    def shows(self, key: str) -> bool:
        """True when a band is switched on."""
        return key not in self.hidden

    def ask(self, said: dict[str, Any]) -> None:
        """Do what the user asks of the card: hide bands, or change the unit."""
        known = {band.key for band in self.bands}
        if isinstance(hidden := said.get("hidden"), list):
            self.hidden = [str(key) for key in hidden if key in known]
        if said.get("option") in self.options:
            self.option = str(said["option"])
            self.changed_option()
        self._restack()
        if self._last is not None:
            self._seen = None
            self.update(self._last)

    def changed_option(self) -> None:
        """Another unit was chosen."""

    def restyle(self, theme: Theme) -> None:
        """Take the colours of a theme."""
        style(self.figure, theme)

    def highest(self, columns: dict[str, Values]) -> float:
        """Highest point drawn: of the stack, and of the lines."""
        shown = [columns[key] for key in self.layers() if self.shows(key)]
        drawn = [np.sum(shown, axis=0)] if shown else []
        drawn += [columns[key] for key in self.lines() if self.shows(key)]
        tops = [
            float(np.nanmax(one))
            for one in drawn
            if len(one) and not np.isnan(one).all()
        ]
        return max(tops, default=0.0)

    # Parts for those below

    def stacked(self, key: str) -> tuple[Any, Any]:
        """Floor and top of a layer, as Bokeh computes them in the browser."""
        self.stacks[key] = (Stack(), Stack())
        return expr(self.stacks[key][0]), expr(self.stacks[key][1])

    def _restack(self) -> None:
        """Stack the layers that are shown; hidden ones are not drawn."""
        below: list[str] = list(self.ground)
        for renderer in self.figure.renderers:
            key = renderer.name
            if key == POINTER:
                continue
            if key in self.stacks:
                floor, top = self.stacks[key]
                floor.fields = list(below)
                if self.shows(key):
                    below.append(key)
                top.fields = list(below)
                renderer.visible = self.shows(key)
            elif key in self.lines():
                renderer.visible = self.shows(key)
        self.stacks[POINTER][1].fields = list(below)

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
            # A plot that was clicked is not framed as if it were a text field.
            stylesheets=["* { --outline-width: 0px; }"],
        )
        axis.join(found)
        found.xgrid.visible = False
        self.axis_of(found, size=False)
        return found

    def axis_of(self, found: Any, *, size: bool) -> None:
        """Number the axis in SI prefixes, or in binary units of bytes."""
        found.yaxis.formatter = CustomJSTickFormatter(code=_BYTES if size else _SI)
        found.yaxis.ticker = (
            AdaptiveTicker(
                base=2, mantissas=[1], num_minor_ticks=0, desired_num_ticks=3
            )
            if size
            else AdaptiveTicker(mantissas=[1, 2, 5], desired_num_ticks=4)
        )

    def hover(self, renderer: Any, more: str = "", number: str = NUMBER) -> None:
        """Give the figure one tooltip with a row for each band, the top one first.

        Parameters
        ----------
        renderer
            What is pointed at, anywhere above or below it.
        more
            HTML to put below, with columns in it.
        number
            JavaScript that makes a number's text.
        """
        lines = "".join(
            f"<tr><td style='padding:0 7px 0 0'>{_swatch(band)}</td>"
            f"<td style='padding:1px 14px 1px 0'>{band.label}</td>"
            "<td style='text-align:right;font-weight:600;"
            f"font-variant-numeric:tabular-nums'>@{band.key}{{custom}}</td></tr>"
            for band in reversed(self.bands)
        )
        tooltip = (
            "<div style='font:12px/1.35 var(--ac-font, sans-serif)'>"
            "<div style='opacity:.75;padding-bottom:3px'>@x{custom}"
            f"{' · ' + self.unit if self.unit else ''}</div>"
            f"<table style='border-spacing:0'>{lines}</table>{more}</div>"
        )
        self.number = CustomJSHover(code=number)
        self.figure.add_tools(
            HoverTool(
                renderers=[renderer],
                mode="vline",
                tooltips=tooltip,
                formatters={
                    "@x": CustomJSHover(code=CLOCK % "value"),
                    **{f"@{band.key}": self.number for band in self.bands},
                },
                point_policy="follow_mouse",
                attachment="horizontal",
                name="values",
            )
        )

    def _fit(self, highest: float) -> None:
        """Fit the axis to a round number above the highest point, and let it rest there."""
        end = self.figure.y_range.end
        wanted = nice(highest * 1.08)
        if wanted > end or wanted < end * 0.55:
            self.figure.y_range.end = wanted
            self._axis.flags[self.figure].y = wanted


def nice(value: float) -> float:
    """Smallest round number that is not below `value`; 1 for nothing."""
    if not np.isfinite(value) or value <= 0:
        return 1.0
    power = 10.0 ** np.floor(np.log10(value))
    steps = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)
    return float(
        next(step * power for step in steps if step * power >= value * (1 - 1e-9))
    )


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
    filled = np.maximum.accumulate(
        np.where(np.isnan(values), -1, np.arange(len(values)))
    )
    away = [
        event.t for event in snapshot.events if event.kind in ("stop", "stale", "start")
    ]
    for t in away:
        first = int(np.searchsorted(start, t, side="right"))
        lost = filled[first:] < first
        filled[first:][lost] = -1
    found = np.where(filled >= 0, values[filled], np.nan)
    if snapshot.window.pinned is None and len(start) > 1:
        found[start > snapshot.end + (start[1] - start[0]) / 2] = np.nan
    return found


def _swatch(band: Band) -> str:
    if band.look in ("dash", "line"):
        return (
            "<span style='display:inline-block;width:11px;"
            f"border-top:2px {'dashed' if band.look == 'dash' else 'solid'} currentColor;"
            "vertical-align:middle'></span>"
        )
    fade = ";opacity:.45" if band.look == "pale" else ""
    return (
        "<span style='display:inline-block;width:10px;height:10px;border-radius:3px;"
        f"background:{band.color}{fade}'></span>"
    )
