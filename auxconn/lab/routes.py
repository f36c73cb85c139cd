"""Rows without a router: which experts each token of the lab "ran" through.

The worker connector and its store move real rows of the configured shape and dtype, so
somebody has to invent them, cheaply enough not to be the cost that is measured, and so that
a delivered row can be checked wherever it came from. A token's row depends on the token and
its position alone: it is one entry of a small table, picked by a hash of the two. Two
requests with the same prefix have the same rows, as with a real model, and a row that is
delivered for a wrong token or from a wrong place is seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from auxconn.lab.config import LabConfig

if TYPE_CHECKING:
    import torch

_PERIODS = (1021, 509, 251, 127, 61, 31, 13)
"""Sizes of the table: primes, so that no stride of tokens or positions folds it."""

_TABLE_BYTES = 4 << 20
"""The table should stay in the processor's cache: copying from it is most of the cost."""


class RouteTable:
    """Invents the rows of tokens.

    Parameters
    ----------
    config
        Shape, dtype and seed of the rows.
    """

    def __init__(self, config: LabConfig) -> None:
        self.shape_per_token = config.row_shape
        self.dtype = config.row_dtype
        row_bytes = config.row_bytes
        self._period = next(
            (size for size in _PERIODS if size * row_bytes <= _TABLE_BYTES),
            _PERIODS[-1],
        )
        self._rows = _invent(
            np.random.default_rng([config.seed, 0x52_33]),
            self._period,
            config.num_layers,
            config.num_experts,
            config.top_k,
        ).astype(config.row_dtype)

    def index(self, tokens: np.ndarray, first_position: int = 0) -> np.ndarray:
        """Entries of the table for consecutive tokens, int32 of the same length."""
        positions = np.arange(first_position, first_position + len(tokens))
        mixed = np.asarray(tokens, np.int64) * 7919 + positions * 104_729
        return (mixed % self._period).astype(np.int32)

    def rows(self, tokens: Sequence[int], first_position: int = 0) -> np.ndarray:
        """Rows of consecutive tokens, of shape (tokens, layers, experts per token)."""
        return self.take(self.index(np.asarray(tokens, np.int64), first_position))

    def take(self, index: np.ndarray) -> np.ndarray:
        """Rows of entries of the table, a fresh array."""
        return np.take(self._rows, index, axis=0)

    def capturer(self) -> InventedCapturer:
        """Build a stand-in for vLLM's capturer that hands out these rows."""
        return InventedCapturer(self)


class InventedCapturer:
    """What the worker connector asks of vLLM's `RoutedExpertsCapturer`."""

    def __init__(self, table: RouteTable) -> None:
        self.shape_per_token = table.shape_per_token
        self.output_dtype_name = table.dtype
        self._table = table
        self._index: np.ndarray = np.empty(0, np.int32)

    def stage(self, index: np.ndarray) -> None:
        """Say which entries of the table the tokens of the next step get, in their order."""
        self._index = index

    def snapshot_routing_data(self, num_tokens: int) -> torch.Tensor:
        """Rows of the step's first `num_tokens` tokens, of (tokens, layers, top_k)."""
        import torch

        if num_tokens > len(self._index):
            raise ValueError(
                f"{num_tokens} rows asked for, {len(self._index)} staged: stage() the "
                "step's tokens before prepare_output()"
            )
        return torch.from_numpy(self._table.take(self._index[:num_tokens]))


def _invent(
    rng: np.random.Generator, period: int, layers: int, experts: int, top_k: int
) -> Any:
    """Ids of distinct experts in each (token, layer), int64 of (period, layers, top_k).

    Walking from a random expert in strides that share no factor with the number of experts
    meets each expert once before any twice.
    """
    strides = np.array(
        [stride for stride in range(1, experts) if np.gcd(stride, experts) == 1] or [1]
    )
    start = rng.integers(experts, size=(period, layers, 1))
    stride = rng.choice(strides, size=(period, layers, 1))
    return (start + stride * np.arange(top_k)) % experts
