"""Several real labs behind one collector, looked at together in a browser."""

import contextlib

import pytest

from auxconn.lab import demo
from auxconn.lab.process import LabProcess
from auxconn.listening import Listening
from auxconn_dashboard.hub import Hub
from auxconn_dashboard.server import serve
from auxconn_dashboard.together import ALL
from bench.serving import Serving

from .driving import number

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

NAMES = ("east", "west")


@pytest.fixture(scope="module")
def cluster():
    with contextlib.ExitStack() as stack:
        hub = stack.enter_context(Hub.watch(Listening("tcp://127.0.0.1:*")))
        for name in NAMES:
            lab = LabProcess(
                demo.CONFIG, demo.WORKLOAD, hub.address, name, steps_per_s=20.0
            )
            stack.callback(lab.stop)
            lab.start()
        yield stack.enter_context(
            Serving(lambda: serve(hub, 0, show=False, start=False))
        )


def lines(page):
    return page.state("auxconn-engines")["rows"]


def test_all_engines_side_by_side_and_those_ticked_added_up(cluster, open_page):
    page = open_page(cluster.url)
    choice = page.page.locator(".bar select.engine")
    page.until(lambda: choice.locator("option").count() == 3, 120)
    choice.select_option(ALL)
    page.until(
        lambda: (
            [(one["name"], one["word"]) for one in lines(page)]
            == [(name, "live") for name in NAMES]
        ),
        120,
    )
    table = page.page.locator(".ac-engines")
    assert table.get_by_role("button", name="east").is_visible()
    page.until(lambda: page.level("steps") > 25, 60)
    both = 2 * demo.CONFIG.capacity
    page.until(lambda: page.newest("retained", "capacity") == both, 20)
    page.until(lambda: "engine=%2A" in page.page.url or "engine=*" in page.page.url, 20)
    whose = page.page.locator(".ac-lookups td.who")
    page.until(lambda: {"east", "west"} <= set(whose.all_inner_texts()), 60)
    said = page.page.get_by_text("Several engines: choose one to steer it.")
    page.until(said.is_visible, 20)
    page.until(page.page.locator(".ac-control-capacity input").is_disabled, 20)

    table.get_by_role("checkbox", name="Add up west").uncheck()
    page.until(lambda: page.newest("retained", "capacity") == demo.CONFIG.capacity, 20)
    page.until(table.get_by_text("adds up 1 of 2").is_visible, 20)
    page.until(lambda: number(page.card("engine")["value"]) < 30, 20)

    # The address opens it as it is.
    other = open_page(page.page.url, "")
    other.until(lambda: [one["on"] for one in lines(other)] == [True, False], 20)

    table.get_by_role("button", name="west").click()
    page.until(lambda: choice.input_value() == "west", 10)
    table.wait_for(state="hidden")
    page.until(lambda: set(whose.all_inner_texts()) <= {""}, 20)
    assert page.faults == []
