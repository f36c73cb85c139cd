"""The time axis that all plots share: it follows the engine until a user takes hold of it.

Two writers would fight over one range: the server moves it a little with each tick, the
user drags it. A tick that left the server before a zoom and arrives after it would undo the
zoom. So the server never writes the range itself: it writes where the axis *would* be
(`live`), and a callback in the browser, which knows whether the user has taken hold, copies
that or leaves it. The browser's word, `pinned` or `live`, is a tag on the range.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from bokeh.core.properties import value
from bokeh.models import (
    BoxZoomTool,
    CDSView,
    ColumnDataSource,
    CrosshairTool,
    CustomJS,
    CustomJSTickFormatter,
    DatetimeTicker,
    GlyphRenderer,
    HoverTool,
    PanTool,
    Range1d,
    Span,
    Text,
    VSpan,
    WheelZoomTool,
)

from .. import words
from ..snapshot import Event, Snapshot
from ..theme import FONT, Theme
from .numbers import CLOCK
from .tooltip import dressed

MARKED = (
    "capacity",
    "reconfigured",
    "workload",
    "reset",
    "start",
    "stop",
    "stale",
    "back",
    "gap",
)
"""Kinds of events that are drawn as a line in every plot."""

LABELS = {
    "capacity": "capacity",
    "reconfigured": "rebuilt",
    "workload": "workload",
    "reset": "reset",
    "start": "start",
    "stop": "stop",
    "stale": "lost",
    "back": "back",
    "gap": "gap",
}

MOST_MARKS = 60
"""Lines in a window; older ones than the newest so many are left out."""


_MARK = (
    "<b>@label</b> <span>@at</span>"
    "<div style='max-width:360px;opacity:.75;overflow-wrap:anywhere'>@text</div>"
)


class TimeAxis:
    """Range, marks and gestures of the plots of one session.

    Parameters
    ----------
    on_pin
        Called with (start, stop) in seconds when the user has zoomed or panned, and with
        None when the view goes back to following.
    """

    def __init__(self, on_pin: Callable[[tuple[float, float] | None], None]) -> None:
        self._on_pin = on_pin
        self.range = Range1d(0, 1, tags=["live"], name="auxconn-time")
        self.live = Range1d(0, 1, name="auxconn-live")
        self.live.js_on_change(
            "end",
            CustomJS(
                args={"range": self.range, "live": self.live},
                code="""
                if (range.tags[0] !== "pinned")
                    range.setv({start: live.start, end: live.end}, {sync: false})
                """,
            ),
        )
        self._pin = CustomJS(
            args={"range": self.range},
            code="""
            // The whole stretch goes along: the two ends would reach the server one by one.
            range.tags = ["pinned", Math.min(range.start, range.end),
                          Math.max(range.start, range.end)]
            """,
        )
        self._release = CustomJS(
            args={"range": self.range, "live": self.live},
            code="""
            range.tags = ["live"]
            range.setv({start: live.start, end: live.end}, {sync: false})
            """,
        )
        self.range.on_change("tags", self._changed)
        self.ticker = DatetimeTicker(desired_num_ticks=5)
        self.formatter = CustomJSTickFormatter(code=CLOCK % "tick")
        self.crosshair = Span(
            dimension="height", line_width=1, line_alpha=0.35, line_color="#808a98"
        )
        self.marks = ColumnDataSource(
            {"x": [], "kind": [], "label": [], "text": [], "at": []},
            name="auxconn-marks",
        )
        self._seen: tuple[Any, ...] = ()
        self._tooltips: list[HoverTool] = []
        self.flags: dict[Any, Text] = {}
        """Names of the marks, one glyph per figure; its height is the figure's top."""

    @property
    def pinned(self) -> bool:
        """True when a user has zoomed or panned."""
        return bool(self.range.tags) and self.range.tags[0] == "pinned"

    def release(self) -> None:
        """Follow the engine again."""
        if self.pinned:
            # The tag reaches the browser before the range, so that a tick in between
            # cannot be taken for one of a pinned axis.
            self.range.tags = ["live"]
            self.range.update(start=self.live.start, end=self.live.end)

    def join(self, figure: Any) -> None:
        """Give a figure the shared range, the gestures, the crosshair and the marks."""
        figure.x_range = self.range
        figure.xaxis.ticker = self.ticker
        figure.xaxis.formatter = self.formatter
        zoom = BoxZoomTool(dimensions="width")
        wheel = WheelZoomTool(dimensions="width", modifiers={"ctrl": True})
        figure.add_tools(
            zoom,
            PanTool(dimensions="width"),
            wheel,
            CrosshairTool(overlay=self.crosshair, dimensions="height"),
        )
        figure.toolbar.active_drag = zoom
        figure.toolbar.active_scroll = wheel
        figure.js_on_event("rangesupdate", self._pin)
        figure.js_on_event("doubletap", self._release)
        self.flags[figure] = flag = Text(
            x="x",
            y=1.0,
            text="label",
            angle=np.pi / 2,
            text_align="right",
            text_baseline="bottom",
            text_font=value(FONT),
            text_font_size="10px",
            x_offset=-2,
            y_offset=3,
        )
        draw(figure, flag, self.marks, "flags")
        line = draw(
            figure,
            VSpan(
                x="x",
                line_width=1.25,
                line_dash=[2, 2],
                line_color="#808a98",
                line_alpha=0.9,
            ),
            self.marks,
            "marks",
        )
        tool = HoverTool(renderers=[line], name="marks")
        self._tooltips.append(tool)
        figure.add_tools(tool)

    def update(self, snapshot: Snapshot) -> None:
        """Move the axis (unless it is held) and the marks."""
        start, end = snapshot.start * 1000, snapshot.end * 1000
        if not self.pinned and (self.live.start, self.live.end) != (start, end):
            if self.live.start == 0:
                # The first time the browser may not be there to copy it.
                self.range.update(start=start, end=end)
            self.live.update(start=start, end=end)
        shown = [event for event in snapshot.events if event.kind in MARKED][
            -MOST_MARKS:
        ]
        key = tuple((event.t, event.kind) for event in shown)
        if key != self._seen:
            self._seen = key
            self.marks.data = marks(shown)

    def restyle(self, theme: Theme) -> None:
        """Give crosshair and marks the colours of a theme."""
        self.crosshair.line_color = theme.text
        for tool in self._tooltips:
            tool.tooltips = dressed(_MARK, theme)
        for flag in self.flags.values():
            flag.text_color = theme.text
            flag.background_fill_color = theme.card
            flag.background_fill_alpha = 0.7

    def _changed(self, _attr: str, _old: Any, new: list[Any]) -> None:
        if new and new[0] == "pinned" and len(new) == 3:
            start, stop = float(new[1]) / 1000, float(new[2]) / 1000
            if stop > start:
                self._on_pin((start, stop))
        else:
            self._on_pin(None)


def marks(events: list[Event]) -> dict[str, list[Any]]:
    """Columns of the marks' source. Bokeh escapes what a tooltip shows of them."""
    return {
        "x": [event.t * 1000 for event in events],
        "kind": [event.kind for event in events],
        "label": [LABELS.get(event.kind, event.kind) for event in events],
        "text": [words.plain(event.text, 200) for event in events],
        "at": [words.clock(event.t) for event in events],
    }


def draw(figure: Any, glyph: Any, source: ColumnDataSource, name: str) -> GlyphRenderer:
    """Add a glyph to a figure.

    Bokeh's own methods make three more glyphs for each, for selections that we do not have,
    and a view of the source of its own; with fifty glyphs on the page that is a third of the
    time it takes to build it.
    """
    known = [one.view for one in figure.renderers if one.data_source is source]
    renderer = GlyphRenderer(
        data_source=source,
        glyph=glyph,
        name=name,
        view=known[0] if known else CDSView(),
    )
    figure.renderers.append(renderer)
    return renderer
