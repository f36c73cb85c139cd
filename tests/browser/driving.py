"""A browser on the page, and what it has been sent: for tests to look at and act on.

What a person sees is asked of the page itself, numbers are asked of Bokeh's models in it.
When a test fails, what the browser's console said is printed and a picture is saved.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chromium
from playwright.sync_api import Page


def executable() -> str:
    """The Chromium to drive: the one that the set-up finds or brings."""
    found = chromium.find()
    if found is None:
        raise FileNotFoundError(
            "no Chromium: `make browser` brings one, or name one in AUXCONN_CHROMIUM"
        )
    return found


def within(seconds: float) -> float:
    """What `seconds` on a machine with cores to spare come to on this one, now.

    Chromium, the server and the lab share two cores with whatever else there is to do; what
    is promised for a machine of one's own is asked of a crowded one in proportion.
    """
    return seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


MODEL = """(name) => {
  for (const drawn of window.Bokeh?.documents ?? []) {
    const found = drawn.get_model_by_name(name)
    if (found) return found
  }
  return null
}"""


class Browser:
    """One page of the dashboard in a browser."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.console: list[str] = []
        self.faults: list[str] = []
        page.on("console", lambda one: self.console.append(f"{one.type}: {one.text}"))
        page.on("pageerror", lambda one: self.faults.append(str(one)))

    def open(self, query: str = "") -> Browser:
        """Open the page and wait until its header is drawn."""
        self.page.goto(self.url + query)
        self.page.locator(".pill .word").wait_for(timeout=60_000)
        return self

    def live(self, seconds: float = 60) -> Browser:
        """Wait until the engine is live and has taken steps."""
        self.until(lambda: self.word == "live" and self.level("steps") > 0, seconds)
        return self

    # What a person sees

    @property
    def word(self) -> str:
        """The word in the header's pill."""
        return self.page.locator(".pill .word").inner_text()

    @property
    def header(self) -> str:
        """All of the header's text."""
        return self.page.locator(".bar").first.inner_text()

    def card(self, key: str) -> dict[str, str]:
        """An indicator as it is read: its figure, unit and counters."""
        card = self.page.locator(f".card[data-key={key}]")
        return {
            name: card.locator(f".{name}").inner_text()
            for name in ("value", "unit", "sub")
        }

    def chip(self, plot: str, label: str) -> str:
        """The number beside a band's name in the legend of a plot."""
        chip = self.page.locator(f".ac-plot-{plot} .chip", has_text=label)
        return chip.locator("b").inner_text()

    # What the browser was sent

    def state(self, name: str) -> dict[str, Any]:
        """What a part of the page shows, as it was sent."""
        code = f"""(name) => {{
          const model = ({MODEL})(name)
          return (model?.data ?? model)?.state ?? "{{}}"
        }}"""
        text = self.page.evaluate(code, name)
        return json.loads(text)

    def column(self, plot: str, name: str) -> list[float | None]:
        """A column of a plot's source; None where it is not a number."""
        code = f"""([plot, name]) => {{
          const model = ({MODEL})("auxconn-" + plot)
          return model ? Array.from(model.data[name], (v) => isFinite(v) ? v : null) : []
        }}"""
        return self.page.evaluate(code, [plot, name])

    def newest(self, plot: str, name: str) -> float:
        """The last number of a column; NaN when there is none."""
        known = [value for value in self.column(plot, name) if value is not None]
        return known[-1] if known else float("nan")

    def level(self, name: str) -> float:
        """The number in front of an indicator's figure or counters, without separators."""
        if name == "steps":
            return number(self.card("engine")["value"])
        if name == "released":
            return number(self.card("released")["sub"])
        return number(self.card(name)["value"])

    def range(self) -> tuple[float, float]:
        """The stretch of time shown, in ms."""
        code = (
            f"() => {{ const r = ({MODEL})('auxconn-time'); return [r.start, r.end] }}"
        )
        start, end = self.page.evaluate(code)
        return start, end

    def marks(self) -> list[dict[str, Any]]:
        """The marked lines, as every plot draws them."""
        code = f"""() => {{
          const data = ({MODEL})('auxconn-marks').data
          return Array.from(data.x, (x, i) => ({{x, kind: data.kind[i], text: data.text[i]}}))
        }}"""
        return self.page.evaluate(code)

    # What a person does

    def enter(self, control: str, value: float) -> None:
        """Type a number into a control of the side panel."""
        box = self.page.locator(f".ac-control-{control} input")
        box.fill(str(value))
        box.press("Enter")

    def choose(self, control: str, label: str) -> None:
        """Choose from a list of the side panel."""
        self.page.locator(f".ac-control-{control} select").select_option(label=label)

    def click(self, text: str) -> None:
        """Click a button by its text."""
        self.page.get_by_role("button", name=text).first.click()

    def drag(self, plot: str, start: float, end: float) -> None:
        """Draw a stretch across a plot, in shares of its width.

        Bokeh takes a button that rests for 0.3 s for a long press, which a busy machine
        makes of every drag; so the view is better paused for it.
        """
        box = self.page.locator(f".ac-plot-{plot} canvas").first.bounding_box()
        assert box is not None
        y = box["y"] + box["height"] / 2
        self.page.mouse.move(box["x"] + box["width"] * start, y)
        self.page.mouse.down()
        self.page.mouse.move(box["x"] + box["width"] * (start + end) / 2, y + 1)
        self.page.mouse.move(box["x"] + box["width"] * end, y)
        self.page.mouse.up()

    def pause(self, paused: bool) -> None:
        """Pause the view, or let it go on."""
        self.page.locator(".pause").click()
        text = "Resume view" if paused else "Pause view"
        self.until(lambda: text in self.page.locator(".pause").inner_text(), 10)

    def until(self, true: Callable[[], Any], seconds: float = 10) -> Any:
        """Wait until something holds, and return it."""
        end = time.monotonic() + seconds
        while True:
            found = true()
            if found:
                return found
            if time.monotonic() > end:
                raise AssertionError(f"not within {seconds} s; header: {self.header!r}")
            self.page.wait_for_timeout(50)

    def report(self, into: Path) -> None:
        """Say what the browser knows of a test that failed."""
        into.parent.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=into, full_page=True)
        print(
            f"\npicture: {into}\nconsole:",
            *self.console[-40:],
            *self.faults,
            sep="\n  ",
        )


def number(text: str) -> float:
    """The first number of a text as it is shown: 12,345 or 12.4 k; NaN for a dash."""
    parts = text.replace("\u202f", " ").replace(",", "").split()
    if not parts or not parts[0].replace(".", "").replace("-", "").isdigit():
        return float("nan")
    scale = {"k": 1e3, "M": 1e6, "G": 1e9}.get(parts[1] if len(parts) > 1 else "", 1.0)
    return float(parts[0]) * scale
