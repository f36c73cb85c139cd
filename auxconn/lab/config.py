"""The settings of a lab engine, checked before anything is built.

vLLM's own checks speak after seconds of imports, one at a time and in the words of its
internals (an `assert` in a coordinator, a hang when a prompt never fits). The lab is steered
by people who try sizes, so each setting that cannot be built is refused here, at once, with
the value, the limit and the way out. Nothing in this module imports vLLM or torch: the
viewer uses it to check a control before it sends it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from auxconn.checks import check_bool, check_capacity, check_whole
from auxconn.lab.sizes import MAX_MODEL_LEN, Sizes
from auxconn.texts import shown

Connector = Literal["auxconn", "vllm"]
Offer = Literal["blocks", "all_but_last"]

CONNECTORS: tuple[Connector, ...] = ("auxconn", "vllm")
"""Scheduler connectors the lab can put in."""

OFFERS: tuple[Offer, ...] = ("blocks", "all_but_last")
"""How the host KV tier offers a prompt it holds whole: every block, or one token less."""

MAX_BLOCKS = 1_000_000
"""Each KV block is a Python object in vLLM's pool: a million of them take about 0.3 GB."""

MAX_STORE_BYTES = 64 << 30
"""The R3 store's arena is mapped in one piece and filled as rows come in."""

MAX_EXPERTS = 65_536
"""Expert ids travel as uint8 or uint16."""

MAX_STEP_BYTES = 4 << 30
"""The rows of a step are made, copied and put in one piece."""


@dataclasses.dataclass(frozen=True)
class LabConfig(Sizes):
    """One engine of the lab: pool, connector, shape of the rows, batch limits.

    Parameters
    ----------
    num_blocks
        KV blocks of the pool. vLLM keeps one of them as its null block.
    block_size
        Tokens per KV block, the smallest prefix that can be reused.
    capacity
        KV blocks the connector retains; None is vLLM's default: `num_blocks`, twice that
        with a KV tier.
    kv_tier_blocks
        KV blocks of the host tier behind the pool; 0 builds the engine without a KV
        connector.
    hash_block_size
        Tokens per block hash. None is `block_size`. A finer one makes the pool hybrid:
        full attention over blocks of `block_size` and a sliding window over blocks of
        `hash_block_size`, as vLLM hashes finer only there.
    connector
        Scheduler connector: `auxconn` (ours) or `vllm` (upstream's).
    max_num_seqs, max_num_batched_tokens
        Requests and tokens of one step at most.
    num_layers, num_experts, top_k
        Shape of a token's rows, (num_layers, top_k), of ids below num_experts.
    seed
        Of everything the lab invents.
    async_scheduling
        vLLM's AsyncScheduler, with one step in flight.
    kv_load_steps
        Steps a load from the KV tier takes.
    kv_tier_offer
        `blocks`: the tier offers every block it holds. `all_but_last`: of a prompt that it
        holds whole it offers all but the last token, as some connectors do; vLLM's
        connector refuses such an offer as unaligned.
    hybrid
        True makes the pool hybrid although the hashes are as coarse as the blocks; None
        decides by `hash_block_size`.
    sliding_window
        Tokens of the sliding window of a hybrid pool; None is four blocks.
    settle_store
        Wait for the R3 store's writer after each step's puts, so that the same seed gives
        the same frames. False leaves the writer as far behind as it is in vLLM.

    Raises
    ------
    ValueError
        When an engine with these settings cannot be built; the text names the value, the
        limit and the way out.
    """

    num_blocks: int = 2048
    block_size: int = 16
    capacity: int | None = None
    kv_tier_blocks: int = 0
    hash_block_size: int | None = None
    connector: Connector = "auxconn"
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 8192
    num_layers: int = 48
    num_experts: int = 128
    top_k: int = 8
    seed: int = 0
    async_scheduling: bool = False
    kv_load_steps: int = 3
    kv_tier_offer: Offer = "blocks"
    hybrid: bool | None = None
    sliding_window: int | None = None
    settle_store: bool = True

    def __post_init__(self) -> None:
        for name, (least, most) in _WHOLE.items():
            self._take(name, check_whole(name, getattr(self, name), least, most))
        for name, (most, default) in _OPTIONAL.items():
            value = getattr(self, name)
            if value is not None:
                self._take(name, check_whole(name, value, 1, most, default))
        if self.capacity is not None:
            self._take("capacity", check_capacity(self.capacity))
        for name in ("async_scheduling", "settle_store"):
            check_bool(name, getattr(self, name))
        if self.hybrid is not None:
            check_bool("hybrid", self.hybrid)
        _check_one_of("connector", self.connector, CONNECTORS)
        _check_one_of("kv_tier_offer", self.kv_tier_offer, OFFERS)
        self._check_hashing()
        if self.top_k > self.num_experts:
            raise ValueError(
                f"top_k={self.top_k} exceeds num_experts={self.num_experts}: a token is "
                "routed to distinct experts; lower top_k or raise num_experts"
            )
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens={self.max_num_batched_tokens} is below "
                f"max_num_seqs={self.max_num_seqs}: each running request needs a token per "
                "step; raise the former or lower the latter"
            )
        if self.store_bytes > MAX_STORE_BYTES:
            raise ValueError(
                f"the R3 store would take {self.store_bytes / 2**30:.1f} GiB "
                f"({self.num_blocks} blocks of {self.bytes_per_block} B), the limit is "
                f"{MAX_STORE_BYTES >> 30} GiB; take fewer or smaller blocks, fewer layers "
                "or a lower top_k"
            )
        if self.step_bytes > MAX_STEP_BYTES:
            raise ValueError(
                f"the R3 rows of a step would take {self.step_bytes / 2**30:.1f} GiB "
                f"({self.row_bytes} B a token), the limit is {MAX_STEP_BYTES >> 30} GiB; "
                f"lower max_num_batched_tokens={self.max_num_batched_tokens}, num_layers "
                "or top_k"
            )
        if self.max_request_tokens < self.block_size:
            raise ValueError(
                f"num_blocks={self.num_blocks} is too small a pool: a single request of one "
                f"block of {self.block_size} tokens does not fit; raise num_blocks"
                + (
                    f" (the sliding window's group alone can take "
                    f"{self.window_blocks(self.block_size)} blocks) or lower block_size"
                    if self.is_hybrid
                    else ""
                )
            )

    def _take(self, name: str, value: int) -> None:
        """Keep a whole number, of numpy's for instance, as Python's."""
        object.__setattr__(self, name, value)

    def _check_hashing(self) -> None:
        hashed = self.hash_block_size
        if hashed is not None:
            if hashed > self.block_size or self.block_size % hashed:
                divisors = ", ".join(str(size) for size in _finer(self.block_size))
                raise ValueError(
                    f"block_size={self.block_size} is not a multiple of "
                    f"hash_block_size={hashed}; take one of {divisors}, or None for the "
                    "block size"
                )
            if hashed < self.block_size and self.hybrid is False:
                raise ValueError(
                    f"hash_block_size={hashed} is finer than block_size={self.block_size}, "
                    "which vLLM does only in a hybrid pool; leave hybrid at None (or True), "
                    "or hash_block_size at None"
                )
        if self.sliding_window is not None and not self.is_hybrid:
            raise ValueError(
                f"sliding_window={self.sliding_window} needs a hybrid pool; set hybrid=True "
                "or a hash_block_size finer than block_size, or leave sliding_window at None"
            )

    def check_request(self, prompt_tokens: int, max_tokens: int, what: str) -> None:
        """Refuse a request that can never run in this pool.

        Raises
        ------
        ValueError
            When prompt or output is empty, or both together are longer than
            `max_request_tokens`.
        """
        for name, tokens in ("prompt", prompt_tokens), ("output", max_tokens):
            if tokens < 1:
                raise ValueError(
                    f"{what}: its {name} has {tokens} tokens; give it at least 1"
                )
        total = prompt_tokens + max_tokens
        if total > self.max_request_tokens:
            raise ValueError(
                f"{what}: a prompt of {prompt_tokens} tokens and {max_tokens} output tokens "
                f"are longer than the pool, which holds {self.max_request_tokens} tokens for "
                f"one request ({self.num_blocks} blocks of {self.block_size}); raise "
                "num_blocks or block_size, or shorten the prompts"
            )

    # -- changed copies, and plain data ---------------------------------------------------

    def replace(self, /, **changes: Any) -> LabConfig:
        """Return a copy with some settings changed.

        Raises
        ------
        ValueError
            On an unknown setting, or when the result cannot be built.
        """
        _check_names(changes)
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as plain data, for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> LabConfig:
        """Build a configuration from `to_dict`'s data; missing settings are defaults.

        Raises
        ------
        ValueError
            On an unknown setting, or when it cannot be built.
        """
        _check_names(settings)
        return cls(**settings)


FIELDS: tuple[str, ...] = tuple(field.name for field in dataclasses.fields(LabConfig))
"""Settings that `reconfigure` takes."""

_WHOLE: dict[str, tuple[int, int]] = {
    # name: least, most
    "num_blocks": (2, MAX_BLOCKS),
    "block_size": (1, 65_536),
    "kv_tier_blocks": (0, MAX_BLOCKS * 10),
    "max_num_seqs": (1, 65_536),
    "max_num_batched_tokens": (1, MAX_MODEL_LEN),
    "num_layers": (1, 1024),
    "num_experts": (1, MAX_EXPERTS),
    "top_k": (1, 1024),
    "seed": (0, 2**63 - 1),
    "kv_load_steps": (1, 1_000_000),
}

_OPTIONAL: dict[str, tuple[int, str]] = {
    # name: most, what None stands for; at least 1
    "hash_block_size": (65_536, "the block size"),
    "sliding_window": (MAX_MODEL_LEN, "four blocks"),
}


def _check_names(settings: Any) -> None:
    if not isinstance(settings, Mapping):
        raise ValueError(
            f"{shown(settings)} is no settings of an engine; give them by name"
        )
    unknown = [name for name in settings if name not in FIELDS]
    if unknown:
        raise ValueError(
            f"unknown setting {', '.join(map(shown, unknown[:5]))}; LabConfig has "
            f"{', '.join(FIELDS)}"
        )


def _check_one_of(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in choices:
        raise ValueError(
            f"{name}={shown(value)} is unknown; take one of {', '.join(choices)}"
        )


def _finer(block_size: int) -> list[int]:
    """Hash block sizes that divide `block_size`, coarse to fine, a handful of them."""
    return [size for size in range(block_size, 0, -1) if block_size % size == 0][:6]
