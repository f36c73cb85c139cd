"""What is shown beside the pointer.

Bokeh hangs its tooltips on the document's body, outside of everything that has a theme, in a
notebook beside other people's plots. So each of ours carries its colours with it: a style in
its own text reaches the bubble around it and nothing else.
"""

from __future__ import annotations

from typing import Any

from bokeh.models import CustomJSHover, HoverTool

from ..theme import FONT, Theme
from .band import Band
from .numbers import CLOCK, NUMBER


class BandTooltip:
    """The tooltip of a plot: the clock, and a row for each band.

    Attributes
    ----------
    number
        Writes the numbers; its code can be changed.
    """

    def __init__(
        self, renderer: Any, bands: tuple[Band, ...], unit: str, more: str
    ) -> None:
        rows = "".join(
            f"<tr><td style='padding:0 7px 0 0'>{band.swatch}</td>"
            f"<td style='padding:1px 14px 1px 0'>{band.label}</td>"
            "<td style='text-align:right;font-weight:600;"
            f"font-variant-numeric:tabular-nums'>@{band.key}{{custom}}</td></tr>"
            for band in reversed(bands)
        )
        self._html = (
            "<div style='opacity:.75;padding-bottom:3px'>@x{custom}"
            f"{' · ' + unit if unit else ''}</div>"
            f"<table style='border-spacing:0'>{rows}</table>{more}"
        )
        self.number = CustomJSHover(code=NUMBER)
        self.tool = HoverTool(
            renderers=[renderer],
            mode="vline",
            formatters={
                "@x": CustomJSHover(code=CLOCK % "value"),
                **{f"@{band.key}": self.number for band in bands},
            },
            point_policy="follow_mouse",
            attachment="horizontal",
            name="values",
        )

    def restyle(self, theme: Theme) -> None:
        """Take the colours of a theme."""
        self.tool.tooltips = dressed(self._html, theme)


def dressed(html: str, theme: Theme) -> str:
    """The HTML of a tooltip in the colours of a theme."""
    # Bokeh's own style sheet comes later in the bubble than this one: hence `important`.
    look = {
        "--tooltip-color": theme.raised,
        "--tooltip-arrow-color": theme.raised,
        "--tooltip-arrow-inner-color": theme.raised,
        "--tooltip-text": theme.text,
        "--tooltip-border": theme.line,
        "border-radius": "8px",
        "padding": "8px 11px",
        "box-shadow": "0 6px 22px rgb(0 0 0 / .2)",
        "opacity": "1",
        "font": f"12px/1.35 {FONT}",
    }
    rules = ";".join(f"{name}:{value} !important" for name, value in look.items())
    # Within something: a style that comes first is taken for one of a head, and dropped.
    return f"<div><style>:host{{{rules}}}</style>{html}</div>"
