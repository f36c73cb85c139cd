"""From look-ups to admissions: what a request asked of the prefix cache and what it got.

A look-up is `max_cache_hit`, then, when there is a KV connector, `cap_external_hit`. Most
lead nowhere: the head of the queue is looked up at every step until there is room. vLLM's
own statistics count the admitted ones alone, when `record_prefix_cache_stats` is called
(which it is whether or not statistics are kept), so that call is what turns the pending
look-up into a row here, and the sums of both agree. A request that skips the prefix cache
is in neither; a load that vLLM defers is here at its admission, there when it begins.

The connector answers with numbers alone: a token count that is capped at all but the last
token, and 0 for a refused offer. What they mean follows from the sizes, so it is worked out
from the answers, without asking again (asking moves what it touches).

Words for the end of the run of blocks that have rows: `last_token`, the run covers all
tokens, but the last has to be computed, so its block is lost; `whole`, it covers every
token that may be reused; `short`, what is left is shorter than a block; `evicted`, the next
block was here once and was lost, as far as the ledger remembers; `never_seen`, it was not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from auxconn.records import Lookups, Refusal, RunEnd


def run_blocks(hit: int, num_tokens: int, block_size: int, last_present: bool) -> int:
    """Blocks of the leading run that has rows, from what `max_cache_hit` answered.

    Parameters
    ----------
    hit
        Its answer, at most `num_tokens` - 1.
    last_present
        Whether the block of the last token has rows. Only with blocks of one token can the
        answer not tell; elsewhere it does not matter.
    """
    if hit == num_tokens - 1 and num_tokens % block_size == 0:
        whole = num_tokens // block_size
        return whole if block_size > 1 or last_present else whole - 1
    return hit // block_size


def refusal(
    local: int, offered: int, run: int, num_tokens: int, block_size: int
) -> Refusal:
    """Why an offer was refused.

    Parameters
    ----------
    local, offered
        Tokens found on the GPU, and tokens beyond them that the KV connector offered.
    run
        Blocks of the leading run that has rows.
    """
    end = local + offered
    if end % block_size:
        return "unaligned"
    if num_tokens <= end <= run * block_size:
        return "last_token"
    return "not_retained"


class Admission:
    """A look-up that was admitted; a row of `lookups` once the step is over."""

    __slots__ = (
        "accepted", "attempts", "hit", "keys", "local", "offered", "prompt_tokens",
        "refusal", "request_id", "resumed", "run", "tokens",
    )  # fmt: skip

    def __init__(self, request: Any, hit: int, run: int, keys: Sequence[bytes]) -> None:
        self.request_id: str = request.request_id
        self.tokens: int = request.num_tokens
        self.prompt_tokens: int = request.num_prompt_tokens
        self.resumed: bool = request.num_preemptions > 0
        self.hit = hit
        self.run = run
        self.keys = keys
        """Key of each of its full KV blocks."""
        self.local = self.offered = self.accepted = 0
        self.refusal: Refusal = ""
        self.attempts = 1

    def reason(self, block_size: int, is_lost: Callable[[bytes], bool]) -> RunEnd:
        """Why its run of hits ended; `is_lost` says of a block that it was here once."""
        end = self.run * block_size
        if end >= self.tokens:
            return "last_token"
        if end == self.tokens - 1:
            return "whole"
        if self.run >= len(self.keys):
            return "short"
        return "evicted" if is_lost(self.keys[self.run]) else "never_seen"

    def row(self, t: float, step: int, block_size: int, reason: RunEnd) -> Lookups:
        """Make the row; `reason` is why the run of hits ended."""
        return Lookups(
            t,
            step,
            self.request_id,
            self.tokens,
            self.prompt_tokens,
            self.resumed,
            block_size,
            self.hit,
            self.local,
            self.offered,
            self.accepted,
            self.offered - self.accepted,
            self.refusal,
            self.run * block_size,
            reason,
            self.attempts,
        )


class LookupLog:
    """Follows look-ups until they are admitted.

    Parameters
    ----------
    block_size, step
        Tokens of a KV block, and hash blocks per KV block.
    has_rows
        Says whether the block of a key has rows, without touching it.
    """

    def __init__(
        self, block_size: int, step: int, has_rows: Callable[[bytes], bool]
    ) -> None:
        self._block_size = block_size
        self._step = step
        self._has_rows = has_rows
        # vLLM looks up one request at a time, so one look-up at most is pending.
        self._request: Any = None
        self._hit = self._local = self._offered = self._accepted = 0
        self._tries: dict[str, int] = {}
        self._admitted: list[Admission] = []

    def looked(self, hit: int, request: Any) -> None:
        """`max_cache_hit(request)` has answered `hit`."""
        if self._request is not None:
            # The one before was not admitted.
            missed = self._request.request_id
            self._tries[missed] = self._tries.get(missed, 0) + 1
        self._request = request
        self._hit = hit
        self._local = self._offered = self._accepted = 0

    def capped(self, accepted: int, request: Any, local: int, offered: int) -> None:
        """`cap_external_hit` has answered `accepted`."""
        if request is self._request:
            self._local = local
            self._offered = offered
            self._accepted = accepted

    def admitted(self, request: Any, local: int) -> Admission | None:
        """The pending look-up was admitted with `local` tokens; None when there is none."""
        if request is not self._request:
            return None
        self._request = None
        tries = self._tries.pop(request.request_id, 0)
        if request.skip_reading_prefix_cache:
            return None
        size = self._block_size
        keys = request.block_hashes[self._step - 1 :: self._step]
        tokens = request.num_tokens
        last_present = (
            size > 1 or len(keys) < tokens or self._has_rows(keys[tokens - 1])
        )
        run = run_blocks(self._hit, tokens, size, last_present)
        one = Admission(request, self._hit, run, keys)
        one.local = local
        one.attempts += tries
        if self._offered:
            one.offered = self._offered
            one.accepted = self._accepted
            if self._accepted < self._offered:
                one.refusal = refusal(self._local, self._offered, run, tokens, size)
        self._admitted.append(one)
        return one

    def take(self) -> list[Admission]:
        """Admissions since the last call, in order."""
        taken, self._admitted = self._admitted, []
        return taken

    def forget(self, request_id: str) -> None:
        """The request has ended."""
        self._tries.pop(request_id, None)
        if self._request is not None and self._request.request_id == request_id:
            self._request = None
