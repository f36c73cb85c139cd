"""What really happened in a lab engine, learned without the probes.

Everything here is taken from vLLM's own outputs and statistics, by scanning vLLM's objects,
or by hooks on other methods than those the probes hook.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from auxconn.lab.config import LabConfig
from auxconn.lab.engine import Engine
from auxconn.lab.requests import LabRequest

SCAN_EACH = 3
"""Every how many steps vLLM's objects are scanned."""

SMALL_ROWS = {"num_layers": 2, "num_experts": 16, "top_k": 2}


def low64(block_hash: bytes) -> int:
    """The hash as vLLM shows it in KV events."""
    return int.from_bytes(block_hash, "big") & ((1 << 64) - 1)


@dataclass
class Stats:
    """Sums of a `PrefixCacheStats`."""

    requests: int = 0
    queries: int = 0
    hits: int = 0
    preempted_requests: int = 0
    preempted_queries: int = 0
    preempted_hits: int = 0

    def add(self, other: Any) -> None:
        for name in vars(self):
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass
class Step:
    """What a scan of vLLM's objects found when a step had been scheduled."""

    step: int
    retained: int
    on_gpu: int
    in_use: int
    cached_free: int
    empty_free: int
    loading_blocks: int
    loading_requests: int
    waiting: int
    running: int
    capacity: int


@dataclass
class Truth:
    """Fills itself while `engine` runs; make it before the probes are attached."""

    engine: Engine
    local: Stats = field(default_factory=Stats)
    external: Stats = field(default_factory=Stats)
    steps: list[Step] = field(default_factory=list)
    metadata: list[Any] = field(default_factory=list)
    retained: list[int] = field(default_factory=list)
    released: list[int] = field(default_factory=list)
    evicted: list[int] = field(default_factory=list)
    loads: list[tuple[str, int]] = field(default_factory=list)
    refusals: Counter[str] = field(default_factory=Counter)
    offered: int = 0
    accepted: int = 0
    finished: dict[str, str] = field(default_factory=dict)
    preemptions: int = 0
    worker_rows: int = 0
    worker_receivers: int = 0
    step_rows: int = 0
    captured: int = 0
    delivered: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        scheduler = self.engine.scheduler
        self.scheduler = scheduler
        self.connector = scheduler.aux_output_connector
        coordinator = scheduler.kv_cache_manager.coordinator
        group = getattr(coordinator, "full_attention_group_id", None) or 0
        manager = coordinator.single_type_managers[group]
        self.group = group
        self.pool = manager.block_pool
        self.block_size = manager.block_size
        self.per_block = manager.block_size // self.pool.hash_block_size
        self._watch()

    # -- hooks of the test's own ----------------------------------------------------------

    def _watch(self) -> None:
        scheduler, worker = self.scheduler, self.engine.worker
        schedule, update = scheduler.schedule, scheduler.update_from_output
        preempt, free = scheduler._preempt_request, scheduler._free_request
        connector = self.connector
        loading, cap = connector.request_loading, connector.cap_external_hit
        remove = self.pool._remove_cached_block_hashes
        commit = worker._commit_output

        def scheduled() -> Any:
            output = schedule()
            self._note(output)
            return output

        def updated(scheduler_output: Any, output: Any) -> Any:
            rows = output.aux_output_connector_output or {}
            self.worker_rows += sum(len(one.rows) for one in rows.values())
            self.worker_receivers += sum(len(one.rows) > 0 for one in rows.values())
            result = update(scheduler_output, output)
            for outputs in result.values():
                if outputs.scheduler_stats is not None:
                    self._add(outputs.scheduler_stats)
                for one in outputs.outputs:
                    if one.routed_experts is not None:
                        self.delivered[one.request_id] += len(one.routed_experts)
            return result

        def preempted(request: Any, *args: Any, **kwargs: Any) -> Any:
            self.preemptions += 1
            return preempt(request, *args, **kwargs)

        def freed(request: Any, *args: Any, **kwargs: Any) -> Any:
            self.finished[request.request_id] = request.status.name
            return free(request, *args, **kwargs)

        def began(request: Any, num_tokens: int) -> Any:
            self.loads.append((request.request_id, num_tokens // self.block_size))
            return loading(request, num_tokens)

        def capped(request: Any, num_local: int, num_external: int) -> Any:
            return cap(request, num_local, num_external)

        def removed(block: Any) -> Any:
            keys = remove(block)
            cache = self.pool.cached_block_hash_to_block._cache
            for key in keys:
                if key not in cache and key.endswith(self.group.to_bytes(4, "big")):
                    self.evicted.append(low64(key[:-4]))
            return keys

        def committed(pending: Any) -> Any:
            outputs = commit(pending)
            self.captured += len(pending.routed_experts) - int(
                np.sum(pending.num_rejected)
            )
            for one in outputs.values():
                if len(one.rows) and np.shares_memory(one.rows, pending.routed_experts):
                    self.step_rows += len(one.rows)
            return outputs

        scheduler.schedule, scheduler.update_from_output = scheduled, updated
        scheduler._preempt_request, scheduler._free_request = preempted, freed
        connector.request_loading, connector.cap_external_hit = began, capped
        self.pool._remove_cached_block_hashes = removed
        worker._commit_output = committed

    def _add(self, stats: Any) -> None:
        self.local.add(stats.prefix_cache_stats)
        if stats.connector_prefix_cache_stats is not None:
            self.external.add(stats.connector_prefix_cache_stats)

    def take_left_over(self) -> None:
        """Statistics that no output has carried yet."""
        self._add(self.scheduler.make_stats())

    # -- scans ----------------------------------------------------------------------------

    def held(self) -> list[bytes]:
        """Keys of the blocks the connector retains."""
        if hasattr(self.connector, "_kv_cached"):
            return [keys[-1] for keys in self.connector._kv_cached.values()]
        return self.connector._blocks.held()

    def _note(self, output: Any) -> None:
        metadata = output.aux_output_connector_metadata
        self.metadata.append(metadata)
        for packed, into in (
            (metadata.retained_block_hashes, self.retained),
            (metadata.released_block_hashes, self.released),
        ):
            if packed is not None:
                hashes = list(packed)
                assert len(hashes) % self.per_block == 0
                into.extend(map(low64, hashes[self.per_block - 1 :: self.per_block]))
        # Scans cost more than the engine: not after each step.
        if len(self.metadata) % SCAN_EACH == 0:
            self._scan(len(self.metadata))

    def _scan(self, step: int) -> None:
        held = self.held()
        free = self.pool.free_block_queue.get_all_free_blocks()
        empty = sum(block.block_hash is None for block in free)
        used = sum(
            block.ref_cnt > 0 and not block.is_null for block in self.pool.blocks
        )
        if hasattr(self.connector, "_loading"):
            loading = self.connector._loading
        else:
            loading = self.connector._blocks.loading()
        scheduler = self.scheduler
        self.steps.append(
            Step(
                step,
                len(held),
                sum(
                    bool(self.pool.get_cached_block(key, [self.group])) for key in held
                ),
                used,
                len(free) - empty,
                empty,
                len(set().union(*loading.values())),
                len(loading),
                len(scheduler.waiting) + len(scheduler.kv_holding_waiting),
                len(scheduler.running),
                self.connector._capacity,
            )
        )


class Traffic:
    """Seeded requests with shared prefixes, and now and then an abort.

    Parameters
    ----------
    config
        Of the engine they are for.
    requests
        How many there are.
    aborts
        Share of the steps at which a request is aborted.
    """

    def __init__(
        self, config: LabConfig, requests: int, seed: int = 0, aborts: float = 0.0
    ) -> None:
        self.rng = np.random.default_rng(seed)
        self.left = requests
        self.aborts = aborts
        self.unit = config.block_size
        self.limit = config.max_request_tokens
        self.made = 0
        self.prefixes = [
            self.tokens(int(self.rng.integers(1, 8 * self.unit))) for _ in range(40)
        ]
        self.running: list[str] = []

    def tokens(self, count: int) -> np.ndarray:
        return self.rng.integers(0, 30_000, count)

    def make(self) -> LabRequest:
        rng, unit = self.rng, self.unit
        prefix = self.prefixes[int(rng.integers(len(self.prefixes)))]
        # Old prefixes make room, so that what was released is not always wanted again.
        if rng.random() < 0.02:
            self.prefixes[int(rng.integers(len(self.prefixes)))] = self.tokens(
                int(rng.integers(1, 8 * unit))
            )
        kind = rng.random()
        if kind < 0.3:
            # Whole blocks: the case of the last token.
            prompt = prefix[: max(len(prefix) // unit, 1) * unit]
        elif kind < 0.35:
            prompt = prefix[: int(rng.integers(1, unit))]
        else:
            prompt = np.concatenate(
                [prefix, self.tokens(int(rng.integers(1, 3 * unit)))]
            )
        start = int(rng.integers(0, 2 * len(prompt))) if rng.random() < 0.15 else 0
        self.made += 1
        return LabRequest(
            f"r{self.made}",
            prompt,
            self.tokens(int(rng.integers(1, 2 * unit))),
            prompt_start=start,
        )

    def feed(self, engine: Engine, at_once: int) -> None:
        """Hand in requests until `at_once` are there; abort one at times."""
        while self.left and engine.num_requests < at_once:
            request = self.make()
            self.left -= 1
            engine.add(request)
            self.running.append(request.id)
        if self.rng.random() < self.aborts and self.running:
            name = self.running[int(self.rng.integers(len(self.running)))]
            engine.abort(name)
        self.running = [name for name in self.running if name in engine._plans]

    @property
    def done(self) -> bool:
        return not self.left
