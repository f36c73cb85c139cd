"""Where probes write: the one thing the engine's side knows of the rest.

A probe runs in the engine's own threads, between the scheduler and its connector. What it
calls there must return at once, whatever the state of the network or of the viewer, and
must never raise. `Sink` is that promise. A `Channel` keeps it towards another process, a
`StoreSink` towards a `FrameStore` in this one.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec

from auxconn.address import check_engine
from auxconn.stated import named, stated
from auxconn.wire import Fact

if TYPE_CHECKING:
    from auxconn.frames import FrameStore


@runtime_checkable
class Sink(Protocol):
    """Takes records: never blocks, never raises, in time that does not depend on load."""

    def emit(self, table: str, record: msgspec.Struct) -> None:
        """Take one record of `table`, from any thread. It must not change afterwards."""

    def hello(self, facts: Mapping[str, Fact], commands: tuple[str, ...]) -> None:
        """Announce what the engine is and obeys; again whenever that changes."""


class StoreSink:
    """A sink into a `FrameStore` of the same process.

    Parameters
    ----------
    store
        Where the records go; it shows them to the next reader.
    engine, rank
        The source the rows are marked with.

    Raises
    ------
    ValueError
        When they cannot name a source.
    """

    def __init__(
        self, store: FrameStore, engine: str = "engine", rank: int = 0
    ) -> None:
        check_engine(engine, rank)
        self.store = store
        self.engine = engine
        self.rank = rank
        self.facts: dict[str, Fact] = {}
        """As announced last."""
        self.commands: tuple[str, ...] = ()
        """As announced last."""
        self._dropped = 0
        self._counting = threading.Lock()

    @property
    def dropped(self) -> int:
        """Records that were lost since the store took nothing in for very long."""
        return self._dropped

    def emit(self, table: str, record: msgspec.Struct) -> None:
        """Take one record of `table`; see `Sink`."""
        try:
            kept = self.store.offer(table, record, self.engine, self.rank)
        except Exception:  # noqa: BLE001 - a probe's sink never raises into the engine
            kept = False
        if not kept:
            with self._counting:
                self._dropped += 1

    def hello(self, facts: Mapping[str, Fact], commands: tuple[str, ...]) -> None:
        """Keep `facts` and `commands` for whoever asks this sink."""
        # A probe's sink never raises into the engine; what is announced stays as it was.
        with contextlib.suppress(Exception):
            self.facts, self.commands = stated(facts), named(commands)
