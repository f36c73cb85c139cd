"""What follows from the settings of a lab engine: sizes in bytes, blocks and tokens."""

from __future__ import annotations

MAX_MODEL_LEN = 1 << 20
"""No request is longer than this, however large the pool is."""


class Sizes:
    """Sizes of an engine; `LabConfig` has the settings they follow from."""

    num_blocks: int
    block_size: int
    hash_block_size: int | None
    hybrid: bool | None
    sliding_window: int | None
    kv_tier_blocks: int
    num_layers: int
    num_experts: int
    top_k: int
    max_num_batched_tokens: int
    async_scheduling: bool

    @property
    def is_hybrid(self) -> bool:
        """True when the pool has a sliding-window group beside full attention."""
        if self.hybrid is None:
            return self.hash_size < self.block_size
        return self.hybrid

    @property
    def hash_size(self) -> int:
        """Tokens per block hash."""
        return self.block_size if self.hash_block_size is None else self.hash_block_size

    @property
    def window(self) -> int:
        """Tokens of the sliding window; what it would be when the pool is not hybrid."""
        return (
            4 * self.block_size if self.sliding_window is None else self.sliding_window
        )

    @property
    def row_shape(self) -> tuple[int, int]:
        """(layers, experts per token) of one token's rows."""
        return self.num_layers, self.top_k

    @property
    def row_dtype(self) -> str:
        """Dtype of an expert id, as vLLM picks it."""
        return "uint8" if self.num_experts <= 256 else "uint16"

    @property
    def row_bytes(self) -> int:
        """Bytes of one token's rows."""
        return self.num_layers * self.top_k * (1 if self.row_dtype == "uint8" else 2)

    @property
    def bytes_per_block(self) -> int:
        """Bytes of the R3 rows of one KV block."""
        return self.row_bytes * self.block_size

    @property
    def store_bytes(self) -> int:
        """Bytes of the R3 store's arena when it starts."""
        return self.num_blocks * self.bytes_per_block

    @property
    def step_bytes(self) -> int:
        """Bytes of the rows of a step at most: a step computes what fits in the pool."""
        return min(self.max_num_batched_tokens * self.row_bytes, self.store_bytes)

    @property
    def default_capacity(self) -> int:
        """KV blocks vLLM's connector would retain: `num_blocks`, twice with a KV tier."""
        return self.num_blocks * (2 if self.kv_tier_blocks else 1)

    @property
    def max_request_tokens(self) -> int:
        """Longest request, prompt and output together, that fits in an empty pool."""
        usable = self.num_blocks - 1  # vLLM keeps block 0 as its null block
        longest = min(usable * self.block_size, MAX_MODEL_LEN)
        if not self.is_hybrid:
            return longest
        low, high = 0, longest
        while low < high:
            middle = (low + high + 1) // 2
            needed = _ceil_div(middle, self.block_size) + self.window_blocks(middle)
            low, high = (middle, high) if needed <= usable else (low, middle - 1)
        return low

    def window_blocks(self, tokens: int) -> int:
        """Blocks of the sliding-window group that a request of `tokens` can hold at once.

        Blocks that fall out of the window are freed once the step that used them is
        settled, so tokens in flight count too.
        """
        in_flight = self.max_num_batched_tokens * (2 if self.async_scheduling else 1)
        held = min(self.window - 1 + in_flight, tokens)
        return _ceil_div(held, self.hash_size) + 1


def _ceil_div(value: int, by: int) -> int:
    return -(-value // by)
