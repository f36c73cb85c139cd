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

from collections.abc import Callable
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


Looked = tuple[Any, int, int, bool, int, int, bool, int, int, int, int, int]
"""What is noted of an admission; the arguments of `Admission`, in order."""


class Admission:
    """A look-up that was admitted; a row of `lookups` once the step is over.

    Parameters
    ----------
    request
        Whose it was; only what does not change any more is read of it.
    tokens, prompt_tokens, resumed, num_hashes
        Its tokens, its prompt's, whether it came back from a preemption, and how many
        block hashes it had, all at the time.
    hit, last_present
        What `max_cache_hit` answered, and `last_present` as in `run_blocks`.
    local
        Tokens found on the GPU.
    capped_local, offered, accepted
        What `cap_external_hit` was asked, and answered.
    attempts
        Look-ups until it was admitted.
    block_size, step
        Tokens of a KV block, and hash blocks per KV block.
    """

    __slots__ = (
        "accepted", "attempts", "hit", "keys", "local", "offered", "prompt_tokens",
        "refusal", "request_id", "resumed", "run", "tokens",
    )  # fmt: skip

    def __init__(
        self,
        request: Any,
        tokens: int,
        prompt_tokens: int,
        resumed: bool,
        num_hashes: int,
        hit: int,
        last_present: bool,
        local: int,
        capped_local: int,
        offered: int,
        accepted: int,
        attempts: int,
        *,
        block_size: int,
        step: int,
    ) -> None:
        self.request_id: str = request.request_id
        self.tokens = tokens
        self.prompt_tokens = prompt_tokens
        self.resumed = resumed
        self.hit = hit
        self.local = local
        self.offered = offered
        self.accepted = accepted
        self.attempts = attempts
        self.run = run_blocks(hit, tokens, block_size, last_present)
        self.keys: list[bytes] = request.block_hashes[step - 1 : num_hashes : step]
        """Key of each of its full KV blocks."""
        self.refusal: Refusal = ""
        if accepted < offered:
            self.refusal = refusal(capped_local, offered, self.run, tokens, block_size)

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
    block_size
        Tokens of a KV block.
    has_rows
        Says whether the block of a key has rows, without touching it.
    """

    def __init__(self, block_size: int, has_rows: Callable[[bytes], bool]) -> None:
        self._block_size = block_size
        self._has_rows = has_rows
        # vLLM looks up one request at a time, so one look-up at most is pending.
        self._request: Any = None
        self._hit = self._local = self._offered = self._accepted = 0
        self._tries: dict[str, int] = {}
        self.admitted_now: list[Looked] = []
        """Admissions since `take`."""

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

    def admitted(self, request: Any, local: int) -> None:
        """The request was admitted with `local` tokens; a row if it was looked up."""
        if request is not self._request:
            return
        self._request = None
        tries = self._tries.pop(request.request_id, 0) if self._tries else 0
        if request.skip_reading_prefix_cache:
            return
        tokens, hashes = request.num_tokens, request.block_hashes
        last_present = (
            self._block_size > 1
            or len(hashes) < tokens
            or self._has_rows(hashes[tokens - 1])
        )
        self.admitted_now.append(
            (
                request,
                tokens,
                request.num_prompt_tokens,
                request.num_preemptions > 0,
                len(hashes),
                self._hit,
                last_present,
                local,
                self._local,
                self._offered,
                self._accepted,
                1 + tries,
            )
        )

    def take(self) -> list[Looked]:
        """Admissions since the last call, in order."""
        taken, self.admitted_now = self.admitted_now, []
        return taken

    def forget(self, request_id: str) -> None:
        """The request has ended."""
        if self._tries:
            self._tries.pop(request_id, None)
        if self._request is not None and self._request.request_id == request_id:
            self._request = None
