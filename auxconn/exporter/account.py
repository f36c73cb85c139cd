"""What Prometheus is told: the sums of every engine that is heard, and who is heard how.

Rows bear the name of an engine and no more, so whoever adds them up must also know when to
stop showing them: an engine that is silent has no newest reading, and its last one must not
be drawn on as if it stood. The collector knows; this module holds both together.

What is not known is left out. An engine that is stale shows as `source_up` 0 and with what
was lost of it, and with nothing that it once measured.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from auxconn.exporter.families import FAMILIES
from auxconn.exporter.tally import LABEL_LIMIT, Key, Numbers, Tally
from auxconn.facts import BLOCK_SIZE, CONNECTOR, MODEL, VLLM_VERSION
from auxconn.frames import FrameStore
from auxconn.records import TABLES
from auxconn.source import Source
from auxconn.texts import clip

HEARD = ("live", "starting")
"""States of a source whose readings are of now."""

WORKER_TABLES = frozenset({"rows", "store"})
"""Tables that a worker's process fills, where scheduler and workers have their own. Events
are of all."""


class Sourced(Protocol):
    """Whoever knows the engines: a `Collector`."""

    def sources(self) -> list[Source]:
        """Every source as it is now."""


class Account:
    """The running sums of all engines. Any thread may call it.

    Parameters
    ----------
    store
        Where the rows are.
    collector
        Who knows the engines; without one, all that have rows count as heard.
    """

    def __init__(self, store: FrameStore, collector: Sourced | None = None) -> None:
        self._store = store
        self._collector = collector
        self._lock = threading.Lock()
        self._tallies = {
            table: Tally(
                [one for one in FAMILIES.values() if one.formula.table == table]
            )
            for table in TABLES
        }
        self._versions = dict.fromkeys(TABLES, 0)
        self._begun = False
        self.lost = dict.fromkeys(TABLES, 0)
        """Rows by table that were overwritten before they were added up."""

    def advance(self) -> None:
        """Add up what is new, and forget who is no source any more."""
        with self._lock:
            for table, tally in self._tallies.items():
                delta = self._store.since(
                    table, self._versions[table], columns=tally.columns
                )
                self._versions[table] = delta.version
                if self._begun:
                    # What was gone before we came was never ours to count.
                    self.lost[table] += delta.lost
                tally.add(delta.columns)
            self._begun = True
            if self._collector is not None:
                # After the rows: whoever sent them was a source by then.
                known = {(one.engine, one.rank) for one in self._collector.sources()}
                for tally in self._tallies.values():
                    tally.keep(known)

    @contextmanager
    def reading(self) -> Iterator[Reading]:
        """Take in what is new; while it lasts, nothing moves."""
        self.advance()
        sources = [] if self._collector is None else _present(self._collector.sources())
        with self._lock:
            found: dict[str, dict[Key, Numbers]] = {}
            for table, tally in self._tallies.items():
                heard = None if self._collector is None else _heard(sources, table)
                found[table] = {
                    key: one
                    for key, one in tally.numbers.items()
                    if heard is None or key in heard
                }
            yield Reading(found, sources, self.lost)


class Reading:
    """What there is to tell at one moment.

    Parameters
    ----------
    numbers
        By table, those of every engine and rank that is heard.
    sources
        Everybody who is there, each engine, rank and role once.
    lost
        Rows by table that were never added up.
    """

    def __init__(
        self,
        numbers: dict[str, dict[Key, Numbers]],
        sources: Sequence[Source],
        lost: dict[str, int],
    ) -> None:
        self.numbers = numbers
        self.sources = sources
        self.lost = lost
        self._models: dict[str | Key, str] = {}
        for source in sources:
            model = _text(source, MODEL)
            if model:
                self._models.setdefault(source.engine, model)
                self._models[source.engine, source.rank] = model

    def model_name(self, engine: str, rank: int) -> str:
        """Model of an engine, of its own rank if that says so; empty when nobody does."""
        return self._models.get((engine, rank)) or self._models.get(engine, "")

    def info(self, source: Source) -> dict[str, str]:
        """What an engine says of itself that explains its figures; empty when it does not."""
        return {
            name: _text(source, name) for name in (CONNECTOR, VLLM_VERSION, BLOCK_SIZE)
        }


def _present(sources: Sequence[Source]) -> list[Source]:
    """Sources that are not gone; one that came back is there once."""
    there = [source for source in sources if source.state != "gone"]
    return list({(one.engine, one.rank, one.role): one for one in there}.values())


def _heard(sources: Sequence[Source], table: str) -> set[Key]:
    """Who is heard and fills this table."""
    role = "worker" if table in WORKER_TABLES else "scheduler"
    return {
        (one.engine, one.rank)
        for one in sources
        if one.state in HEARD and (one.role in ("engine", role) or table == "events")
    }


def _text(source: Source, name: str) -> str:
    value = source.facts.get(name)
    return "" if value is None else clip(str(value), LABEL_LIMIT)
