"""A view below a running cell: a thread ticks where the kernel's loop cannot."""

import gc
import threading
import time
import types

import pytest

from auxconn_dashboard.kernel import TURN, CellTicks, shell, take_turns


class Events:
    """IPython's register of callbacks."""

    def __init__(self):
        self.hooks = {"pre_run_cell": [], "post_run_cell": []}

    def register(self, event, hook):
        self.hooks[event].append(hook)

    def unregister(self, event, hook):
        self.hooks[event].remove(hook)

    def trigger(self, event):
        for hook in list(self.hooks[event]):
            hook(None)


class View:
    def __init__(self):
        self.count = 0
        self.ticked = threading.Event()

    def tick(self):
        self.count += 1
        self.ticked.set()


@pytest.fixture
def kernel():
    made = types.SimpleNamespace(events=Events())
    yield made
    assert threading.active_count() < 50


def until(true, seconds=5):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.002)


def test_it_ticks_while_a_cell_runs_and_not_between_cells(kernel):
    view = View()
    cells = CellTicks(kernel, view.tick, 0.01)
    until(lambda: view.count >= 3)
    kernel.events.trigger("post_run_cell")
    view.ticked.clear()
    assert not view.ticked.wait(0.1)
    kernel.events.trigger("pre_run_cell")
    assert view.ticked.wait(5)
    cells.stop()
    cells.stop()
    assert kernel.events.hooks == {"pre_run_cell": [], "post_run_cell": []}


def test_the_end_of_a_cell_waits_for_the_tick_under_way(kernel):
    view, order = View(), []
    inside, go_on = threading.Event(), threading.Event()

    def slow():
        inside.set()
        assert go_on.wait(5)
        order.append("ticked")

    view.tick = types.MethodType(lambda self: slow(), view)
    tick = view.tick
    cells = CellTicks(kernel, tick, 0.01)
    assert inside.wait(5)

    def end():
        kernel.events.trigger("post_run_cell")
        order.append("cell ended")

    ending = threading.Thread(target=end)
    ending.start()
    go_on.set()
    ending.join(5)
    assert order[0] == "ticked"
    assert order[-1] == "cell ended"
    cells.stop()


def test_it_leaves_the_ticks_to_a_loop_that_can(kernel):
    view = View()
    cells = CellTicks(kernel, view.tick, 0.05)
    for _ in range(30):
        cells.seen()
        time.sleep(0.005)
    assert view.count == 0
    cells.stop()


def test_a_view_that_is_garbage_ends_its_thread(kernel):
    views = [View()]
    CellTicks(kernel, views[0].tick, 0.01)
    until(lambda: views[0].count)
    views.clear()
    gc.collect()
    until(lambda: not kernel.events.hooks["pre_run_cell"])


def test_what_comes_from_the_browser_waits_for_its_turn():
    came = []
    comm = types.SimpleNamespace(_on_msg=came.append)
    take_turns(comm)
    wrapped = comm._on_msg
    take_turns(comm)
    assert comm._on_msg is wrapped, "once is enough"
    with TURN:
        hand = threading.Thread(target=comm._on_msg, args=("click",))
        hand.start()
        hand.join(0.05)
        assert came == []
    hand.join(5)
    assert came == ["click"]


def test_a_process_that_is_no_kernel_has_no_shell():
    assert shell() is None
    with TURN, TURN:
        pass
