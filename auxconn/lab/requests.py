"""One request of a workload: everything it will be, before it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from auxconn.checks import check_whole, whole
from auxconn.texts import shown

Tokens = Sequence[int] | np.ndarray

MOST_TOKEN = 2**31 - 1
"""Token ids are no larger, whatever the vocabulary."""


@dataclass(frozen=True, eq=False, repr=False)
class LabRequest:
    """A request with its prompt and the tokens it will generate.

    The lab has no model, so the workload decides what is generated. That makes a run
    repeatable, and lets a later turn of a conversation contain what an earlier one said.

    Parameters
    ----------
    id
        Unique among all requests of a workload; a whole number is taken as its digits, as
        in `group` and `after`.
    prompt
        Token ids, at least one; kept as an array of int64.
    output
        Token ids it generates, at least one; their number is its max_tokens.
    group
        The sample group or conversation it belongs to; empty when it stands alone.
    after
        Id of a request before it in the workload that has to end before this one arrives;
        empty when none. One that has ended, or isn't there, is not waited for.
    arrival_step
        Step at which it may arrive, counted from the start of the workload.
    prompt_start
        vLLM's `routed_experts_prompt_start`: prompt rows before it are not delivered.

    Raises
    ------
    ValueError
        When something cannot be what it should be; the text names it.
    """

    id: str
    prompt: Tokens
    output: Tokens
    group: str = ""
    after: str = ""
    arrival_step: int = 0
    prompt_start: int = 0

    def __post_init__(self) -> None:
        keep = object.__setattr__
        for name in ("id", "group", "after"):
            keep(self, name, name_of(name, getattr(self, name)))
        if not self.id:
            raise ValueError("id='': give each request an id of its own")
        try:
            if self.after == self.id:
                raise ValueError("it waits for its own end; leave after empty")
            for name in ("prompt", "output"):
                keep(self, name, _tokens(name, getattr(self, name)))
            # A start past the prompt is vLLM's to take: a prefiller's can be cut short.
            for name in ("arrival_step", "prompt_start"):
                keep(self, name, check_whole(name, getattr(self, name), 0))
        except ValueError as error:
            raise ValueError(f"request {shown(self.id)}: {error}") from None

    @property
    def max_tokens(self) -> int:
        """Tokens it generates."""
        return len(self.output)

    def __repr__(self) -> str:
        after = f", after={shown(self.after)}" if self.after else ""
        return (
            f"LabRequest({shown(self.id)}, {len(self.prompt)} prompt tokens, "
            f"{self.max_tokens} output tokens{after})"
        )


def name_of(what: str, given: Any) -> str:
    """Return an id as text; a whole number is taken as its digits.

    Raises
    ------
    ValueError
        When it is neither.
    """
    if isinstance(given, str):
        return given
    number = whole(given)
    if number is None:
        raise ValueError(f"{what}={shown(given)} is no text; give a str")
    return str(number)


def _tokens(what: str, given: Any) -> np.ndarray:
    try:
        tokens = np.asarray(given)
    except (ValueError, TypeError):
        tokens = np.empty((0, 0))  # ragged
    if tokens.ndim != 1 or (tokens.size and tokens.dtype.kind not in "iu"):
        raise ValueError(
            f"{what}={shown(given)} is no list of token ids; give whole numbers from 0 to "
            f"{MOST_TOKEN}"
        )
    if tokens.size and (tokens.min() < 0 or tokens.max() > MOST_TOKEN):
        raise ValueError(
            f"{what} has token ids from {tokens.min()} to {tokens.max()}; they must be "
            f"from 0 to {MOST_TOKEN}"
        )
    return tokens.astype(np.int64, copy=False)
