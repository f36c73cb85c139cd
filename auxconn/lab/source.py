"""What a lab says of itself: a sink that outlives the engines behind it.

A lab builds its engine anew when sizes change, and each engine's probe counts steps from 1
and announces what it can see. For those who look on it is one source: steps go on counting,
facts of the lab stand beside those of the probe, and the commands are the lab's.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from auxconn import facts as names
from auxconn.lab.config import LabConfig
from auxconn.records import EventKind, Events
from auxconn.sink import Sink
from auxconn.wire import Fact


class LabSource:
    """The sinks of one engine's probes after another, and what the lab itself says.

    Parameters
    ----------
    inner
        Where it all goes.
    """

    def __init__(self, inner: Sink) -> None:
        self.inner = inner
        self.facts: dict[str, Fact] = {}
        """As announced last."""
        self.step = 0
        """Step of the newest record."""
        self._announced: tuple[str, ...] = ()
        self._engines = 0

    def engine_sink(self) -> Sink:
        """Build the sink of the next engine's probes; its steps follow those so far."""
        self._engines += 1
        return _EngineSink(self, self.step, self._engines == 1)

    def announce(
        self,
        engine: Sink,
        facts: Mapping[str, Fact],
        commands: tuple[str, ...],
    ) -> None:
        """Announce the lab's facts, and those of its engine's probe that it doesn't have.

        Does nothing when they are as announced before.
        """
        assert isinstance(engine, _EngineSink)
        merged = {**engine.facts, **facts}
        if merged != self.facts or commands != self._announced:
            self.facts, self._announced = merged, commands
            self.inner.hello(merged, commands)

    def event(self, kind: EventKind, text: str) -> None:
        """Say that something rare has happened, at the newest step."""
        self.inner.emit("events", Events(time.time(), self.step, kind, text))


class _EngineSink:
    """Passes the records of one engine's probes on, steps counted over all engines."""

    def __init__(self, source: LabSource, base: int, first: bool) -> None:
        self.facts: dict[str, Fact] = {}
        self._first = first
        self._source = source
        self._base = base
        self._emit = source.inner.emit

    def emit(self, table: str, record: Any) -> None:
        if table == "events" and record.kind == "start" and not self._first:
            # The lab says in one event what has been built anew, and why.
            return
        step = record.step + self._base
        if self._base:
            record.step = step
        if step > self._source.step:
            self._source.step = step
        self._emit(table, record)

    def hello(self, facts: Mapping[str, Fact], commands: tuple[str, ...]) -> None:
        # The lab announces them together with its own.
        self.facts = dict(facts)


def config_facts(config: LabConfig) -> dict[str, Fact]:
    """Facts that follow from the settings alone, before an engine is there."""
    return {
        names.SOURCE: "lab",
        names.MODEL: (
            f"invented MoE, {config.num_layers} layers x {config.num_experts} experts, "
            f"top {config.top_k}"
        ),
        names.CONNECTOR: config.connector,
        names.NUM_BLOCKS: config.num_blocks,
        names.BLOCK_SIZE: config.block_size,
        names.HASH_BLOCK_SIZE: config.hash_size,
        names.KV_TIER_BLOCKS: config.kv_tier_blocks,
        names.MAX_NUM_SEQS: config.max_num_seqs,
        names.MAX_NUM_BATCHED_TOKENS: config.max_num_batched_tokens,
        names.MAX_REQUEST_TOKENS: config.max_request_tokens,
        names.NUM_LAYERS: config.num_layers,
        names.NUM_EXPERTS: config.num_experts,
        names.TOP_K: config.top_k,
        names.ROW_BYTES: config.row_bytes,
        names.BYTES_PER_BLOCK: config.bytes_per_block,
        names.ASYNC_SCHEDULING: config.async_scheduling,
        names.SEED: config.seed,
    }
