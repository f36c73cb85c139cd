"""Watching the R3 store: its slots, its growth, its first error.

The store belongs to a writer thread that works through batches while the engine goes on. A
reader that looks at its dictionaries in the middle of a batch sees slots that are promised
and not filled, and one that waits for the batch holds up the engine. So the numbers are
taken by the writer itself, after each batch, in a hook around `put`, and left as one tuple;
whoever wants them takes the tuple, which is never half new.

vLLM logs the same words whenever the arena grows, though there are two causes: everything
in it is referenced, or one batch is larger than what could be evicted. Here the event says
which. It also says the first error: what the engine raises later names only its consequence.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from auxconn.probes.guard import Guard
from auxconn.probes.hooks import Hooks
from auxconn.records import Events
from auxconn.sink import Sink

Measured = tuple[int, int, int, int, int, int, int, int]
"""Columns of `store` from `slots_used` to `evictions`."""

StoreNumbers = tuple[Measured, int, str]
"""Those, the backlog and the error."""


class StoreProbe:
    """Follows one `BackgroundBlockObjectStore` and the store in it.

    Parameters
    ----------
    background
        vLLM's store with its writer thread.
    sink, guard
        Where events and failures go.
    step
        Says which step the worker is in.
    """

    def __init__(
        self, background: Any, sink: Sink, guard: Guard, step: Callable[[], int]
    ) -> None:
        self._background = background
        self._waiting: Any = background._queue.queue
        self._store: Any = background._store
        self._sink = sink
        self._guard = guard
        self._step = step
        self._hooks = Hooks()
        self._growths = 0
        self._evictions = 0
        self._slots = self._store.num_slots
        self._error = ""
        self._numbers = self._measure()

    def install(self) -> None:
        """Put the hooks in; raises `UnknownConnectorError` when they don't fit."""
        self._hooks.wrap(
            self._store, "_evict_to_fit", self._evict_to_fit, ("protected",)
        )
        self._hooks.wrap(self._store, "put", self._put, ("objects",))
        if self._background._error is not None:
            self.on_error(self._background._error)

    def remove(self) -> None:
        """Take the hooks away; one that has to stay does nothing from now on."""
        self._hooks.restore()
        for name in ("on_put", "on_evicted", "on_error"):
            setattr(self, name, _nothing)

    def look(self) -> StoreNumbers:
        """What a row of `store` says, as of the last batch; from any thread."""
        return self._numbers, len(self._waiting), self._error

    # -- in the writer's thread -----------------------------------------------------------

    def _put(self, original: Any) -> Any:
        failed = self._guard.failed

        def put(objects: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                result = original(objects, *args, **kwargs)
            except BaseException as error:
                try:
                    self.on_error(error)
                except Exception:  # noqa: BLE001 - the engine must not see it
                    failed("store error")
                raise
            try:
                self.on_put(objects)
            except Exception:  # noqa: BLE001 - the engine must not see it
                failed("store put")
            return result

        return put

    def _evict_to_fit(self, original: Any) -> Any:
        failed, slots = self._guard.failed, self._store._slots

        def evict_to_fit(*args: Any, **kwargs: Any) -> Any:
            before = len(slots)
            result = original(*args, **kwargs)
            try:
                self.on_evicted(before - len(slots))
            except Exception:  # noqa: BLE001 - the engine must not see it
                failed("store eviction")
            return result

        return evict_to_fit

    def on_evicted(self, slots: int) -> None:
        """Count evicted slots."""
        self._evictions += slots

    def on_put(self, objects: Any) -> None:
        """A batch is done: take the numbers, and tell of growth."""
        before, now = self._slots, self._store.num_slots
        if now != before:
            self._slots = now
            self._growths += 1
            self._tell("growth", self._growth(before, now, len(objects)))
        self._numbers = self._measure()

    def on_error(self, error: BaseException) -> None:
        """Keep the writer's first error; from then on it stores nothing."""
        if not self._error:
            self._error = f"{type(error).__name__}: {error}"[:400]
            self._tell("error", f"the R3 store's writer failed: {self._error}")

    def _growth(self, before: int, now: int, batch: int) -> str:
        store = self._store
        unreferenced = len(store._lru)
        referenced = len(store._slots) - unreferenced
        if unreferenced:
            cause = (
                f"a batch of {batch} new blocks did not fit beside {referenced} "
                "referenced ones"
            )
        else:
            cause = f"all {referenced} blocks in it are referenced"
        size = store.object_nbytes
        return (
            f"the R3 store grew from {before} to {now} slots "
            f"({before * size} to {now * size} B): {cause}"
        )

    def _measure(self) -> Measured:
        store = self._store
        used, unreferenced = len(store._slots), len(store._lru)
        total = store.num_slots
        return (
            used,
            used - unreferenced,
            unreferenced,
            total - used,
            total,
            total * store.object_nbytes,
            self._growths,
            self._evictions,
        )

    def _tell(self, kind: Any, text: str) -> None:
        self._sink.emit("events", Events(time.time(), self._step(), kind, text))


def _nothing(*_args: Any, **_kwargs: Any) -> None:
    """Take the place of a method of a probe that was detached."""
