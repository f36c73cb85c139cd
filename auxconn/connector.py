"""Our scheduler connector: vLLM's decisions, capacity settable while it runs.

vLLM keeps the routed experts (R3 rows) of a prefix-cache hit under the KV blocks' hashes,
and its scheduler connector decides which of those blocks the worker must keep once nobody
computes with them. That connector has no metric, fixes its capacity at the start and costs
time that grows with what it holds. This one takes its place in a running scheduler:

    scheduler.aux_output_connector = AuxOutputSchedulerConnector(
        scheduler.kv_cache_manager, scheduler.connector
    )

Every decision is vLLM's, step by step and in the same order (tests/differential holds the
two in lockstep), and the metadata are objects of vLLM's own classes, so its worker takes
them. Two things are kept apart: here is the protocol with scheduler and worker (what was
sent, terminal events, the generation); which blocks are held, in which order, and what
protects them is the business of `auxconn.traced`, or of `auxconn.scanned` where the pool is
not built as the former expects.

Blocks are known by their hash as the scheduler has it. vLLM converts it first to what its
KV events show (`VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES`, the low 64 bits by default), which
decides the same unless two different hashes share their low 64 bits; it is converted here
where keys are shown, in `held` and `loading`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from auxconn.checks import check_capacity
from auxconn.errors import ContractError
from auxconn.residency import GpuWatch
from auxconn.scanned import ScannedBlocks
from auxconn.traced import TracedBlocks

if TYPE_CHECKING:
    import numpy as np
    from vllm.distributed.aux_output_connector.connector import (
        AuxOutputConnectorMetadata,
        AuxRequestOutput,
        PackedBlockHashes,
    )
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

Blocks = TracedBlocks | ScannedBlocks


class AuxOutputSchedulerConnector:
    """Decide which blocks keep their R3 rows and tell the worker, as vLLM's does.

    All methods belong to the scheduler's thread.

    Parameters
    ----------
    kv_cache_manager
        The scheduler's; its full-attention group is the one whose blocks count.
    kv_connector
        The scheduler's KV connector. With one, blocks are worth keeping after they have
        left the GPU, so the capacity starts at twice the pool instead of once.

    Raises
    ------
    ContractError
        When the group's block size isn't a multiple of the hash block size.
    """

    def __init__(
        self,
        kv_cache_manager: KVCacheManager,
        kv_connector: KVConnectorBase_V1 | None = None,
    ) -> None:
        # vLLM is imported here, not with the module: the viewer's side reads this package
        # without having vLLM.
        from vllm.distributed.aux_output_connector import connector as upstream
        from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

        self._metadata_class = upstream.AuxOutputConnectorMetadata
        self._packed_class = upstream.PackedBlockHashes
        self._shown = maybe_convert_block_hash

        coordinator = kv_cache_manager.coordinator
        group_id: int = getattr(coordinator, "full_attention_group_id", None) or 0
        manager = coordinator.single_type_managers[group_id]
        self._block_size: int = manager.block_size
        self._hash_block_size: int = kv_cache_manager.block_pool.hash_block_size
        if self._block_size % self._hash_block_size:
            raise ContractError(
                f"KV blocks of {self._block_size} tokens (group {group_id}) are not a "
                f"whole number of hash blocks of {self._hash_block_size} tokens"
            )
        self._step = self._block_size // self._hash_block_size
        pool = manager.block_pool
        keep = TracedBlocks if GpuWatch.fits(pool) else ScannedBlocks
        self._blocks: Blocks = keep(pool, group_id, self._step)
        self._capacity: int = kv_cache_manager.kv_cache_config.num_blocks * (
            2 if kv_connector else 1
        )
        self._generation = 0
        self._sent: dict[str, int] = {}
        """Hashes each active request has sent to the worker."""
        self._finished: dict[str, PackedBlockHashes | None] = {}
        """Terminal events for the next metadata, each with the request's last hashes."""

    # -- state, readable without disturbing it --------------------------------------------

    @property
    def capacity(self) -> int:
        """KV blocks held before releasing begins; blocks in use may exceed it."""
        return self._capacity

    @property
    def generation(self) -> int:
        """Prefix-cache resets so far; rows of different generations never mix."""
        return self._generation

    @property
    def block_size(self) -> int:
        """Tokens of a KV block."""
        return self._block_size

    @property
    def hash_block_size(self) -> int:
        """Tokens of a hash block; a KV block has one or more."""
        return self._hash_block_size

    def held(self) -> list[bytes | int]:
        """Blocks that are held, oldest first, by their hash as KV events show it."""
        return [self._shown(key) for key in self._blocks.held()]

    def loading(self) -> dict[str, frozenset[bytes | int]]:
        """Blocks protected by each request whose KV load is under way."""
        return {
            request_id: frozenset(self._shown(key) for key in keys)
            for request_id, keys in self._blocks.loading().items()
        }

    def set_capacity(self, blocks: int) -> None:
        """Hold at most `blocks` KV blocks from now on, save those that are protected.

        Lowering it releases what may be released; the worker hears of it with the next
        metadata. Raising it releases nothing. Call it from the scheduler's thread.

        Raises
        ------
        CapacityError
            When `blocks` isn't a whole number from 1 to `MOST_CAPACITY`.
        """
        capacity = check_capacity(blocks)
        lowered = capacity < self._capacity
        self._capacity = capacity
        if lowered:
            self._release()

    # -- what the scheduler calls ---------------------------------------------------------

    def max_cache_hit(self, request: Request) -> int:
        """Leading tokens of `request` whose rows exist, at most all but its last.

        Held blocks among them become the youngest: looking changes the order.
        """
        tokens = self._blocks.hit(request.block_hashes) * self._block_size
        return min(tokens, request.num_tokens - 1)

    def cap_external_hit(
        self, request: Request, num_local: int, num_external: int
    ) -> int:
        """Tokens of a KV connector's offer that may be taken: all of them or none.

        None when the hit would end inside a block or beyond the tokens that have rows.
        """
        num_hit = num_local + num_external
        if num_hit % self._block_size == 0 and num_hit <= self.max_cache_hit(request):
            return num_external
        return 0

    def request_loading(self, request: Request, num_tokens: int) -> None:
        """Protect the blocks of the first `num_tokens` until the request is scheduled.

        Raises
        ------
        ContractError
            When `num_tokens` is negative.
        """
        if num_tokens < 0:
            raise ContractError(
                f"a KV load of tokens [0, {num_tokens}) has no end",
                request_id=request.request_id,
            )
        self._blocks.load(
            request.request_id, request.block_hashes, num_tokens // self._block_size
        )

    def build_connector_meta(
        self, scheduler_output: SchedulerOutput, requests: dict[str, Request]
    ) -> AuxOutputConnectorMetadata:
        """What the worker has to know for this step: new hashes, starts, ends, releases.

        Raises
        ------
        ContractError
            When a request is unknown, has no sampling parameters, or has fewer block
            hashes than were sent for it.
        """
        sent, size = self._sent, self._hash_block_size
        scheduled = scheduler_output.num_scheduled_tokens
        starts: dict[str, int] = {}
        hashes: dict[str, PackedBlockHashes] = {}
        # Once for each running request and step: what is rare is kept out of the way.
        for request_id, num_tokens in scheduled.items():
            request = requests.get(request_id)
            if request is None:
                raise _unknown(request_id, "scheduled", requests)
            already = sent.get(request_id)
            if already is None:
                already = sent[request_id] = 0
            computed = request.num_computed_tokens + num_tokens
            if computed // size > already or already > len(request.block_hashes):
                packed = self._new_hashes(request, computed)
                if packed is not None:
                    hashes[request_id] = packed
            if request.num_output_tokens:
                # All before the newest token was handed out, the prompt included.
                starts[request_id] = request.num_tokens - 1
            else:
                starts[request_id] = _prompt_start(request)
        loading = self._blocks.loads_of
        if loading:
            for request_id in loading.keys() & scheduled.keys():
                self._blocks.loaded(request_id)
        if len(sent) != len(starts):
            # With a step in flight the last token of a hash block can settle after the
            # next step was built; a request left out of that one still owes its hash.
            for request_id in sent:
                if request_id in starts:
                    continue
                request = requests.get(request_id)
                if request is None:
                    raise _unknown(request_id, "active", requests)
                packed = self._new_hashes(request, request.num_computed_tokens)
                if packed is not None:
                    hashes[request_id] = packed
        finished, self._finished = self._finished, {}
        hashes.update(
            (request_id, last)
            for request_id, last in finished.items()
            if last is not None
        )
        retained, released, size = self._blocks.take()
        packed_class = self._packed_class
        return self._metadata_class(
            self._generation,
            starts,
            hashes,
            tuple(finished),
            packed_class(retained, size) if retained else None,
            packed_class(released, size) if released else None,
        )

    def take_output(
        self, request: Request, output: dict[str, AuxRequestOutput] | None
    ) -> np.ndarray | None:
        """Rows of `request` for the tokens accepted by now, from those of the worker.

        Returns
        -------
        Array (tokens, layers, top_k); None when the accepted tokens end before the first
        row, which only an unfinished request may see.

        Raises
        ------
        ContractError
            When the worker sent nothing for the request, or rows that end too early, or
            rows that start after its end.
        """
        request_id = request.request_id
        rows_out = None if output is None else output.get(request_id)
        if rows_out is None:
            raise ContractError(
                "the worker's output has no rows for it "
                f"(it has {'none at all' if output is None else len(output)})",
                request_id=request_id,
            )
        rows, start = rows_out.rows, rows_out.token_start
        end = request.num_tokens - 1
        accepted, count = end - start, len(rows)
        if accepted == count:
            return rows  # as most are when they decode: not even a view has to be made
        if 0 <= accepted < count:
            return rows[:accepted]
        if accepted < 0 and not request.is_finished():
            return None
        raise ContractError(
            f"its accepted tokens end at {end}, the worker's rows cover tokens "
            f"[{start}, {start + count})"
            + (", and it is finished" if accepted < 0 else ""),
            request_id=request_id,
        )

    def request_finished(self, request: Request) -> None:
        """Hold the request's blocks, release what is too much, queue its terminal event.

        Called when a request ends and when it is preempted, before its blocks are freed.

        Raises
        ------
        ContractError
            When it has fewer block hashes than were sent for it.
        """
        request_id = request.request_id
        self._blocks.loaded(request_id)
        self._blocks.retain(
            request.block_hashes, request.num_computed_tokens // self._block_size
        )
        self._release()
        if request_id in self._sent:
            self._finished[request_id] = self._new_hashes(
                request, request.num_computed_tokens
            )
            del self._sent[request_id]

    def reset(self) -> None:
        """Release everything and begin a generation, after a reset of the prefix cache.

        The worker forgets its requests with the old generation, so running ones send
        their hashes again and ended ones need no terminal event. Loads under way stay
        protected.
        """
        self._sent.clear()
        self._finished.clear()
        self._generation += 1
        self._blocks.clear()

    def _release(self) -> None:
        self._blocks.release(self._capacity)

    # -- hashes ---------------------------------------------------------------------------

    def _new_hashes(self, request: Request, computed: int) -> PackedBlockHashes | None:
        """Hashes of full hash blocks among `computed` tokens that were not sent yet."""
        hashes = request.block_hashes
        sent = self._sent[request.request_id]
        if sent > len(hashes):
            raise ContractError(
                f"hashes of its hash blocks [0, {sent}) were sent to the worker, it has "
                f"only [0, {len(hashes)}) now",
                request_id=request.request_id,
            )
        keyed = min(len(hashes), computed // self._hash_block_size)
        if keyed <= sent:
            return None
        self._sent[request.request_id] = keyed
        return self._packed_class(b"".join(hashes[sent:keyed]), len(hashes[sent]))


def _unknown(request_id: str, what: str, requests: dict[str, Request]) -> ContractError:
    return ContractError(
        f"it is {what}, but not among the scheduler's {len(requests)} requests",
        request_id=request_id,
    )


def _prompt_start(request: Request) -> int:
    """First token whose row a request without output is to get."""
    params = request.sampling_params
    if params is None:
        raise ContractError(
            "it has no sampling parameters, so the start of its routed experts is unknown",
            request_id=request.request_id,
        )
    # A prefiller's prompt can end before the start its client asked for.
    return max(min(params.routed_experts_prompt_start, request.num_prompt_tokens), 0)
