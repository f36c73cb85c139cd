"""A view below a cell that is running.

A kernel's loop stands still while a cell runs, and with it every callback of Panel: just
when somebody watches `lab.run(...)`, nothing would move. What a view draws goes out by a
comm, and a comm may be written to from any thread. So while a cell keeps the loop from its
ticks, a thread ticks in its place.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

TURN = threading.RLock()
"""Held by whoever changes a view: a tick of the loop or of the thread, or what a user does,
which JupyterLab may hand to a thread of its own while a cell runs."""


def shell() -> Any:
    """IPython's shell when this process is a notebook's kernel, else None."""
    module = sys.modules.get("IPython")
    found = None if module is None else module.get_ipython()
    return found if getattr(found, "kernel", None) is not None else None


def take_turns(comm: Any) -> None:
    """Let what comes by a comm wait for its turn, with all that is sent in answer.

    An update is several messages one after the other; those of two threads would mix, and
    the browser would make neither out.
    """
    handle = comm._on_msg
    if handle is None or getattr(handle, "waits", False):
        return

    def in_turn(*args: Any, **how: Any) -> Any:
        with TURN:
            return handle(*args, **how)

    in_turn.waits = True  # type: ignore[attr-defined]
    comm._on_msg = in_turn


class CellTicks:
    """Ticks while a cell runs and the loop cannot, until it is stopped.

    Parameters
    ----------
    shell
        IPython's; a cell is running now, the one that shows the view.
    tick
        A bound method, whose object may be garbage at any time; it must not raise.
    seconds
        Between two ticks.
    """

    def __init__(self, shell: Any, tick: Callable[[], None], seconds: float) -> None:
        self._events = shell.events
        self._tick = weakref.WeakMethod(tick)
        self._seconds = seconds
        self._last = time.monotonic()
        self._busy = threading.Event()
        self._stopped = threading.Event()
        self._hooks = {"pre_run_cell": self._begin, "post_run_cell": self._end}
        for event, hook in self._hooks.items():
            self._events.register(event, hook)
        self._begin()
        threading.Thread(target=self._run, name="auxconn-view", daemon=True).start()

    def seen(self) -> None:
        """The loop has ticked, so the thread need not."""
        self._last = time.monotonic()

    def stop(self) -> None:
        """Tick no more. Safe to call again, also from a tick."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        self._busy.set()
        for event, hook in self._hooks.items():
            self._events.unregister(event, hook)

    def _begin(self, *_: Any) -> None:
        self._busy.set()

    def _end(self, *_: Any) -> None:
        if not self._stopped.is_set():
            self._busy.clear()
        with TURN:
            # A tick under way ends before the loop goes on.
            pass

    def _run(self) -> None:
        while not self._stopped.wait(self._seconds):
            self._busy.wait()
            with TURN:
                late = time.monotonic() - self._last > 1.5 * self._seconds
                if late and self._busy.is_set() and not self._stopped.is_set():
                    self._once()

    def _once(self) -> None:
        # Not in `_run`, whose frame would keep the view alive.
        tick = self._tick()
        if tick is None:
            self.stop()
        else:
            tick()
