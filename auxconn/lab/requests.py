"""One request of a workload: everything it will be, before it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Tokens = Sequence[int] | np.ndarray


@dataclass(frozen=True, eq=False)
class LabRequest:
    """A request with its prompt and the tokens it will generate.

    The lab has no model, so the workload decides what is generated. That makes a run
    repeatable, and lets a later turn of a conversation contain what an earlier one said.

    Parameters
    ----------
    id
        Unique among all requests of a workload.
    prompt
        Token ids, at least one.
    output
        Token ids it generates, at least one; their number is its max_tokens.
    group
        The sample group or conversation it belongs to; empty when it stands alone.
    after
        Id of a request that has to end before this one arrives; empty when none.
    arrival_step
        Step at which it may arrive, counted from the start of the workload.
    prompt_start
        vLLM's `routed_experts_prompt_start`: prompt rows before it are not delivered.
    """

    id: str
    prompt: Tokens
    output: Tokens
    group: str = ""
    after: str = ""
    arrival_step: int = 0
    prompt_start: int = 0

    @property
    def max_tokens(self) -> int:
        """Tokens it generates."""
        return len(self.output)
