"""Take the pictures of the documentation anew: the page on the lab, light and dark.

A picture of a page that has changed since misleads, so they are made by one command. The
lab runs long enough first for every plot to have something to show, and the capacity is
lowered in between, so that the picture tells what the page is for. Beside the pictures of
the documentation, the whole page is taken at two widths into `out/screenshots`, to be
looked at by whoever changes it.
"""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import chromium
from PIL import Image
from playwright.sync_api import Page, ViewportSize, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"

PICTURES = {"screenshot.png": "light", "screenshot-dark.png": "dark"}
SIZE: ViewportSize = {"width": 1600, "height": 1000}
REVIEW = ROOT / "out" / "screenshots"
REVIEW_WIDTHS = (1280, 1920)

LOWERED = 700
"""Blocks the capacity is lowered to: well below what the demo's lab retains."""
LOWERED_SECONDS = 18
"""How long before the pictures."""


def main() -> int:
    """Take them, and name the files that were written."""
    parser = argparse.ArgumentParser(description="Take the pictures anew.")
    parser.add_argument(
        "--seconds", type=float, default=75, help="how long the lab runs first"
    )
    parser.add_argument("--into", type=Path, default=DOCS)
    options = parser.parse_args()
    port = _free_port()
    address = f"http://127.0.0.1:{port}/"
    command = [
        sys.executable,
        "-m",
        "auxconn.cli",
        "demo",
        "--no-show",
        "--port",
        f"{port}",
    ]
    with subprocess.Popen(command, cwd=ROOT) as server, sync_playwright() as playwright:
        try:
            _wait_for(address, server)
            browser = playwright.chromium.launch(
                executable_path=chromium.find(), args=chromium.ARGUMENTS
            )
            pages = {
                name: _open(browser.new_page(viewport=SIZE), address, theme)
                for name, theme in PICTURES.items()
            }
            time.sleep(max(0.0, options.seconds - LOWERED_SECONDS))
            capacity = next(iter(pages.values())).locator(".ac-control-capacity input")
            capacity.fill(str(LOWERED))
            capacity.press("Enter")
            time.sleep(LOWERED_SECONDS)
            for name, page in pages.items():
                _take(page, options.into / name)
            REVIEW.mkdir(parents=True, exist_ok=True)
            for theme, page in zip(PICTURES.values(), pages.values(), strict=True):
                for width in REVIEW_WIDTHS:
                    page.set_viewport_size({"width": width, "height": 1000})
                    time.sleep(2)
                    _take(page, REVIEW / f"{theme}-{width}.png", whole=True)
            browser.close()
        finally:
            server.terminate()
    return 0


def _take(page: Page, into: Path, *, whole: bool = False) -> None:
    """Take a picture, in as few bytes as it takes without loss."""
    page.screenshot(path=into, full_page=whole)
    with Image.open(into) as picture:
        picture.convert("RGB").save(into, optimize=True)
    print(f"{into} {into.stat().st_size:,} B")


def _open(page: Page, address: str, theme: str) -> Page:
    page.goto(f"{address}?theme={theme}")
    page.locator("canvas").first.wait_for(timeout=60_000)
    return page


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(
    address: str, server: subprocess.Popen[bytes], seconds: float = 60
) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until and server.poll() is None:
        try:
            with urllib.request.urlopen(address, timeout=20):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise SystemExit(f"the page did not come up at {address}")


if __name__ == "__main__":
    sys.exit(main())
