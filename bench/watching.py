"""A browser that looks at the page: what a person at it would feel.

`python -m bench.watching URL SECONDS` says `connected` when the page is drawn, and after
that time, as JSON, how often it was drawn. The page's server beats five times a second
whatever it draws, so the longest time between two beats that the browser has seen is how
long the page stood still.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

import chromium

SETTLE_SECONDS = 5.0
"""The first drawing reads all that is kept, which is part of opening the page."""

WATCH = """() => {
  const find = (name) => {
    for (const drawn of window.Bokeh?.documents ?? []) {
      const found = drawn.get_model_by_name(name)
      if (found) return found
    }
  }
  const top = find("auxconn-topbar"), plot = find("auxconn-retained")
  const seen = window.seen = { beats: [], drawings: [] }
  let beat, data
  setInterval(() => {
    const now = performance.now(), one = (top.data ?? top).beat
    if (one !== beat) { beat = one; seen.beats.push(now) }
    if (plot.data !== data) { data = plot.data; seen.drawings.push(now) }
  }, 10)
}"""


def watch(url: str, seconds: float) -> dict[str, Any]:
    """Open the page at `url` and look at it for some time."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium.find(), args=chromium.ARGUMENTS
        )
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        began = time.monotonic()
        page.goto(url)
        page.locator(".pill .word").wait_for(timeout=60_000)
        page.locator(".ac-plot-retained canvas").first.wait_for(timeout=60_000)
        opened = time.monotonic() - began
        print("connected", flush=True)
        page.wait_for_timeout(1000 * SETTLE_SECONDS)
        page.evaluate(WATCH)
        page.wait_for_timeout(1000 * seconds)
        seen = page.evaluate("() => window.seen")
        browser.close()
    found: dict[str, Any] = {"opened_s": opened}
    for what, times in seen.items():
        gaps = [(b - a) / 1000 for a, b in itertools.pairwise(times)]
        found[what] = {
            "count": len(times),
            "median_s": statistics.median(gaps) if gaps else seconds,
            "longest_s": max(gaps, default=seconds),
        }
    return found


def main() -> None:
    """Watch, and print what was seen."""
    print(json.dumps(watch(sys.argv[1], float(sys.argv[2]))), flush=True)


if __name__ == "__main__":
    main()
