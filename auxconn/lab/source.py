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
    """A sink for the probes of one engine after another.

    Parameters
    ----------
    inner
        Where it all goes.
    """

    def __init__(self, inner: Sink) -> None:
        self.inner = inner
        self.facts: dict[str, Fact] = {}
        """As announced last."""
        self.commands: tuple[str, ...] = ()
        """As announced last."""
        self.step = 0
        """Step of the newest record."""
        self._base = 0
        self._probe_facts: dict[str, Fact] = {}
        self._lab_facts: dict[str, Fact] = {}

    def emit(self, table: str, record: Any) -> None:
        """Pass a probe's record on, its step counted from the lab's first engine."""
        step = record.step
        if self._base:
            step += self._base
            record.step = step
        if step > self.step:
            self.step = step
        self.inner.emit(table, record)

    def hello(self, facts: Mapping[str, Fact], commands: tuple[str, ...]) -> None:
        """Take the facts a probe announces; the lab's own win, and so do its commands."""
        self._probe_facts = dict(facts)
        if self._lab_facts:
            self._announce()

    def announce(self, facts: Mapping[str, Fact], commands: tuple[str, ...]) -> None:
        """Announce the lab's facts, with those of the probe that it doesn't have."""
        self._lab_facts = dict(facts)
        self.commands = commands
        self._announce()

    def _announce(self) -> None:
        merged = {**self._probe_facts, **self._lab_facts}
        if merged != self.facts:
            self.facts = merged
            self.inner.hello(merged, self.commands)

    def event(self, kind: EventKind, text: str) -> None:
        """Say that something rare has happened, at the newest step."""
        record = Events(time.time(), self.step, kind, text)
        self.inner.emit("events", record)

    def next_engine(self) -> None:
        """Count the steps of the next engine after those of this one."""
        self._base = self.step


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
