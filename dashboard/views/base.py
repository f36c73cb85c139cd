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
    CustomJSTickFormatter,
    Range1d,
    Stack,
)
from bokeh.plotting import figure

from ..rollup import Values
from ..snapshot import Snapshot
from ..theme import Theme, style
from .axis import TimeAxis
from .band import Band
from .card import CardHead, explanation
from .component import fixed
from .numbers import BYTES, SI
from .tooltip import BandTooltip

HEIGHT = 200
"""Pixels of a plot without its head."""

LEFT, RIGHT = 52, 14
"""Pixels beside the frame: fixed, so that the page does not move with the tick labels."""

POINTER = "pointer"
"""Name of the invisible renderer over the whole stack, which tooltips hang on."""


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
        self.tooltip.restyle(theme)

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
        found.yaxis.formatter = CustomJSTickFormatter(code=BYTES if size else SI)
        found.yaxis.ticker = (
            AdaptiveTicker(
                base=2, mantissas=[1], num_minor_ticks=0, desired_num_ticks=3
            )
            if size
            else AdaptiveTicker(mantissas=[1, 2, 5], desired_num_ticks=4)
        )

    def hover(self, renderer: Any, more: str = "") -> None:
        """Give the figure one tooltip with a row for each band, the top one first.

        Parameters
        ----------
        renderer
            What is pointed at, anywhere above or below it.
        more
            HTML to put below, with columns in it.
        """
        self.tooltip = BandTooltip(renderer, self.bands, self.unit, more)
        self.figure.add_tools(self.tooltip.tool)

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
