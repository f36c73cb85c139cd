"""The settings of a real engine on a CPU, checked before a minute of imports is spent.

Names are those of `LabConfig` where they mean the same, so a page that shows or changes the
settings of a lab can do so with a real engine. Nothing here imports vLLM.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from auxconn.checks import check_whole
from auxconn.lab.workload_specs import WorkloadSpec
from auxconn.texts import shown

Connector = Literal["auxconn", "vllm"]

CONNECTORS: tuple[Connector, ...] = ("auxconn", "vllm")

BLOCK_STEP = 32
"""vLLM's attention on a CPU takes KV blocks of a multiple of so many tokens."""

MAX_MODEL_LEN = 8192
"""Longest request of the toy model, in tokens."""


@dataclasses.dataclass(frozen=True)
class EngineConfig:
    """One real engine: its pool, its tier, its batch limits, the shape of its toy model.

    Parameters
    ----------
    num_blocks
        KV blocks of the pool; vLLM keeps one of them as its null block.
    block_size
        Tokens of a KV block, a multiple of 32.
    kv_tier_blocks
        KV blocks of the host tier behind the pool; 0 starts vLLM without a KV connector.
    connector
        Scheduler connector: `auxconn` (ours) or `vllm` (upstream's).
    max_num_seqs, max_num_batched_tokens
        Requests and tokens of one step at most. A request of a step costs some 20 ms here,
        since vLLM's kernels run in Triton's interpreter.
    kv_load_blocks
        KV blocks that the tier loads in a step, over all requests: how fast it is.
    num_layers, num_experts, top_k
        Shape of a token's rows.
    seed
        Of the toy's weights.

    Raises
    ------
    ValueError
        When a setting cannot be; the text names the value, the limit and the way out.
    """

    num_blocks: int = 48
    block_size: int = 32
    kv_tier_blocks: int = 256
    connector: Connector = "auxconn"
    max_num_seqs: int = 8
    max_num_batched_tokens: int = 1024
    kv_load_blocks: int = 4
    num_layers: int = 4
    num_experts: int = 16
    top_k: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        for name, (least, most) in _WHOLE.items():
            value = check_whole(name, getattr(self, name), least, most)
            object.__setattr__(self, name, value)
        if self.connector not in CONNECTORS:
            raise ValueError(
                f"connector={shown(self.connector)} is unknown; take one of "
                f"{', '.join(CONNECTORS)}"
            )
        if self.block_size % BLOCK_STEP:
            raise ValueError(
                f"block_size={self.block_size} is not a multiple of {BLOCK_STEP}, which "
                "vLLM's attention on a CPU needs; take 32, 64, 96 ..."
            )
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

    # What a page shows of a lab's settings, and follows here from others.

    @property
    def capacity(self) -> None:
        """Blocks to retain: the connector's own default; set while it runs."""
        return

    @property
    def default_capacity(self) -> int:
        """KV blocks that the connector retains at the start."""
        return self.num_blocks * (2 if self.kv_tier_blocks else 1)

    @property
    def hash_size(self) -> int:
        """Tokens of a block hash: with one group of layers, those of a block."""
        return self.block_size

    @property
    def hash_block_size(self) -> int:
        """The same, under the name of the fact."""
        return self.block_size

    @property
    def bytes_per_block(self) -> int:
        """Bytes of the R3 rows of one KV block."""
        width = 1 if self.num_experts <= 256 else 2
        return self.num_layers * self.top_k * self.block_size * width

    @property
    def max_request_tokens(self) -> int:
        """Tokens of the longest request, prompt and output."""
        return min((self.num_blocks - 1) * self.block_size, MAX_MODEL_LEN)

    def check_workload(self, spec: WorkloadSpec) -> WorkloadSpec:
        """Return a workload whose longest request fits.

        Raises
        ------
        ValueError
            When it doesn't.
        """
        prompt, output = spec.longest
        if prompt + output > self.max_request_tokens:
            raise ValueError(
                f"workload {spec.describe()}: a prompt of {prompt} tokens and {output} "
                f"output tokens are longer than the engine takes, "
                f"{self.max_request_tokens} tokens ({self.num_blocks} blocks of "
                f"{self.block_size}); raise num_blocks, or shorten the prompts"
            )
        return spec

    def replace(self, /, **changes: Any) -> EngineConfig:
        """Return a copy with some settings changed.

        Raises
        ------
        ValueError
            On an unknown setting, or when the result cannot be.
        """
        return EngineConfig.from_dict({**self.to_dict(), **changes})

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as plain data, for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> EngineConfig:
        """Read `to_dict`'s data; missing settings are defaults.

        Raises
        ------
        ValueError
            On an unknown setting, or when the result cannot be.
        """
        unknown = [name for name in settings if name not in FIELDS]
        if unknown:
            raise ValueError(
                f"unknown setting {', '.join(map(shown, unknown[:5]))}; EngineConfig has "
                f"{', '.join(FIELDS)}"
            )
        return cls(**settings)


FIELDS: tuple[str, ...] = tuple(
    field.name for field in dataclasses.fields(EngineConfig)
)

_WHOLE: dict[str, tuple[int, int]] = {
    "num_blocks": (2, 100_000),
    "block_size": (1, 4096),
    "kv_tier_blocks": (0, 1_000_000),
    "max_num_seqs": (1, 1024),
    "max_num_batched_tokens": (1, 65_536),
    "kv_load_blocks": (1, 1_000_000),
    "num_layers": (1, 64),
    "num_experts": (2, 512),
    "top_k": (1, 64),
    "seed": (0, 2**31 - 1),
}

DEMO_WORKLOAD = WorkloadSpec(
    "grpo",
    {
        "prompts": 6,
        "samples": 3,
        "system_tokens": 64,
        "prompt_tokens": 320,
        "output_tokens": 16,
        "concurrency": 4,
    },
)
"""What `--load` sends unless told otherwise: an epoch is more than the pool holds and less
than the tier does, and takes about half a minute."""
