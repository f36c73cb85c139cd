"""Drawing how costs grow, for the documentation.

Bokeh draws, Chromium takes the picture: both are there for the dashboard and its tests.
"""

from __future__ import annotations

import sys
from pathlib import Path

from bokeh.embed import file_html
from bokeh.layouts import row
from bokeh.models import Legend
from bokeh.plotting import figure
from bokeh.resources import INLINE
from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
import chromium

Curve = dict[str, dict[int, tuple[float, float]]]
"""Operation -> size -> ns of vLLM's connector and of ours."""

COLOURS = ("#0072b2", "#d55e00", "#009e73")
"""Okabe and Ito's, told apart by everybody."""


def plot(title: str, curve: Curve, *, legend: bool) -> figure:
    """One operation a colour; vLLM's dashed, ours solid; both axes logarithmic."""
    drawn = figure(
        width=790 if legend else 500,
        height=400,
        y_range=(3, 5e6),
        x_axis_type="log",
        y_axis_type="log",
        x_axis_label=title,
        y_axis_label="time of a call (us)",
        toolbar_location=None,
    )
    items = []
    for colour, (name, times) in zip(COLOURS, curve.items(), strict=True):
        for side, whose in enumerate(("vLLM", "ours")):
            x, y = list(times), [both[side] / 1e3 for both in times.values()]
            line = drawn.line(
                x,
                y,
                color=colour,
                line_width=2.5,
                line_dash="solid" if side else "dashed",
            )
            drawn.scatter(x, y, color=colour, size=7)
            items.append((f"{name}: {whose}", [line]))
    if legend:
        drawn.add_layout(
            Legend(
                items=items,
                glyph_width=45,
                label_text_font_size="11px",
                border_line_color=None,
            ),
            "right",
        )
    return drawn


def draw(into: Path, curves: dict[str, Curve]) -> None:
    """Take the picture of one plot for each of `curves`, by the label of its x axis."""
    page = file_html(
        row(
            [
                plot(title, curve, legend=at == len(curves) - 1)
                for at, (title, curve) in enumerate(curves.items())
            ]
        ),
        INLINE,
    )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium.find(), args=chromium.ARGUMENTS
        )
        tab = browser.new_page(viewport={"width": 1310, "height": 420})
        tab.set_content(page)
        tab.locator("canvas").first.wait_for()
        tab.wait_for_timeout(500)  # the fonts
        tab.screenshot(path=into)
        browser.close()
