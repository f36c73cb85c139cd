"""One colour, one meaning; two themes; one look for what Bokeh, Panel and we draw.

Data colours come from Okabe and Ito's palette, are the same in both themes and in every
view, and are used for nothing else: the page around them is neutral, so that a blue is
always a local hit. Red, amber and green say how an engine is, with a word beside them.

The page's own colours are CSS variables that reach into every shadow root; Bokeh draws on
a canvas, which no style sheet reaches, so figures are told theirs by `style`.
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any, Literal

LOCAL = "#0072B2"
"""Local hit; a block in use on the GPU."""
CACHED = "#56B4E9"
"""Cached on the GPU."""
RETAINED = "#009E73"
"""Retained, off the GPU."""
LOADING = "#CC79A7"
"""Loading; an external offer accepted."""
REFUSED = "#E69F00"
"""An external offer refused; the reason by hatch."""
RELEASED = "#D55E00"
"""Released, evicted."""
COMPUTED = "#97A1AE"
"""Computed (a miss); free."""

FONT = (
    "-apple-system, BlinkMacSystemFont, 'Segoe UI', Inter, Roboto, 'Helvetica Neue', "
    "'Liberation Sans', Arial, sans-serif"
)

Name = Literal["light", "dark"]


@dataclasses.dataclass(frozen=True)
class Theme:
    """The neutral colours of one theme."""

    name: Name
    card: str
    text: str
    muted: str
    line: str
    """Axes, frames."""
    grid: str
    raised: str
    """What lies above the cards."""


LIGHT = Theme("light", "#FFFFFF", "#1B2430", "#5A6675", "#D5DAE1", "#EDF0F4", "#FFFFFF")
DARK = Theme("dark", "#181D25", "#E7EBF1", "#A3AEBC", "#39424F", "#262D37", "#232A34")

THEMES: dict[str, Theme] = {"light": LIGHT, "dark": DARK}

_ASSETS = Path(__file__).parent / "assets"


@functools.cache
def asset(name: str) -> str:
    """Text of a style sheet, script or template of the page."""
    return (_ASSETS / name).read_text(encoding="utf-8")


def style(figure: Any, theme: Theme) -> None:
    """Give a Bokeh figure the look of a theme. Cheap when nothing changes."""
    figure.background_fill_color = theme.card
    figure.border_fill_color = theme.card
    figure.outline_line_color = None
    for axis in figure.axis:
        axis.axis_line_color = theme.line
        axis.major_tick_line_color = theme.line
        axis.minor_tick_line_color = None
        axis.major_label_text_color = theme.muted
        axis.major_label_text_font = FONT
        axis.major_label_text_font_size = "11px"
        axis.axis_label_text_color = theme.muted
        axis.axis_label_text_font = FONT
        axis.axis_label_text_font_size = "11px"
        axis.axis_label_text_font_style = "normal"
    for grid in figure.grid:
        grid.grid_line_color = theme.grid
