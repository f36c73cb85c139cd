"""One Chromium and one served lab for the tests that drive the page."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator

import pytest
from chromium import ARGUMENTS
from playwright.sync_api import Browser as Chromium
from playwright.sync_api import sync_playwright

from auxconn_dashboard.hub import Hub
from auxconn_dashboard.server import serve
from bench.serving import Serving

from .driving import Browser, executable

STARTED_SECONDS = 120
"""Importing vLLM on a busy machine takes its time."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    setattr(item, f"report_{report.when}", report)
    return report


@pytest.fixture(scope="session")
def chromium() -> Iterator[Chromium]:
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=executable(), args=ARGUMENTS)
        yield found
        found.close()


class Lab:
    """The demo's lab behind a page that this process serves."""

    def __init__(self, hub: Hub, serving: Serving) -> None:
        self.hub = hub
        self.serving = serving

    @property
    def url(self) -> str:
        return self.serving.url

    def started(self) -> None:
        """Wait until the lab is live."""
        end = time.monotonic() + STARTED_SECONDS
        while self.hub.link(None).state not in ("live", "idle", "paused"):
            assert time.monotonic() < end, (self.hub.link(None), self.hub.lab.output)
            time.sleep(0.1)

    def kill(self) -> None:
        """End the lab's process as a crash would."""
        os.kill(self.hub.lab.pid, signal.SIGKILL)

    def reset(self) -> None:
        """Back to the demo's settings."""
        if not self.hub.lab.alive:
            self.hub.restart_lab()
        self.started()
        config = self.hub.lab.config
        for name, args in (
            ("resume", {}),
            ("speed", {"steps_per_s": 50.0}),
            ("reconfigure", {
                "block_size": config.block_size, "num_blocks": config.num_blocks,
                "hash_block_size": config.hash_block_size, "connector": config.connector,
                "kv_tier_blocks": config.kv_tier_blocks, "capacity": config.capacity,
            }),
        ):  # fmt: skip
            ack = self.hub.command("lab", name, **args).result(30)
            assert ack.ok, ack.text


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with (
        Hub.demo() as hub,
        Serving(lambda: serve(hub, 0, show=False, start=False)) as serving,
    ):
        yield Lab(hub, serving)


@pytest.fixture
def open_page(chromium: Chromium, request, root) -> Iterator[Callable[..., Browser]]:
    """Opens pages of an address, each in a browser of its own; keeps pictures of failures."""
    contexts, pages = [], []

    def open_one(url: str, query: str = "?theme=light", **how) -> Browser:
        context = chromium.new_context(
            **({"viewport": {"width": 1280, "height": 900}} | how)
        )
        contexts.append(context)
        made = Browser(context.new_page(), url)
        pages.append(made)
        return made.open(query)

    yield open_one
    failed = getattr(request.node, "report_call", None)
    if failed is not None and failed.failed:
        for index, one in enumerate(pages):
            one.report(root / "out" / "failures" / f"{request.node.name}-{index}.png")
    for context in contexts:
        context.close()


@pytest.fixture
def page(lab: Lab, open_page) -> Browser:
    """A page on the running lab, with the demo's settings."""
    lab.reset()
    return open_page(lab.url).live()
