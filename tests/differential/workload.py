"""Seeded workloads that go where two connectors could part.

A seed fixes everything: the engine's sizes, the requests, what happens to them and when.
Ten consecutive seeds go once through all the settings that have to be met together, and
the rest is drawn, so a chunk of ten in a row can be held to having met every case.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from auxconn.lab.config import LabConfig
from auxconn.lab.requests import LabRequest

VOCABULARY = 1000


@dataclass(frozen=True)
class Setting:
    """What the tenth part of the seeds has in common."""

    block_size: int
    hash_block_size: int | None = None
    overlapped: bool = False
    tier: int = 0
    """KV tier in pools; 0 is none."""
    load_steps: int = 1
    offer: str = "blocks"
    scarce: bool = False
    """A capacity of at most what the pool holds, often lowered to next to nothing while
    loads are under way, so that their protection decides what goes."""
    quarter: bool = False
    """A capacity of a quarter of the pool; else it is vLLM's default."""


SETTINGS = (
    Setting(8),
    Setting(16, overlapped=True, quarter=True),
    Setting(32, 16, quarter=True),
    Setting(32, 8, overlapped=True),
    Setting(16, tier=1, load_steps=2),
    Setting(8, tier=8, load_steps=9, scarce=True),
    Setting(8, tier=8, load_steps=3, offer="all_but_last"),
    Setting(32, tier=8, load_steps=1, overlapped=True, quarter=True),
    Setting(16, 8, tier=8, load_steps=6, scarce=True),
    Setting(32, 8, tier=2, load_steps=5, overlapped=True, scarce=True),
)


@dataclass
class Actions:
    """What is done to both engines before a step, in this order."""

    capacity: int | None = None
    reset: bool = False
    reset_in_flight: bool = False
    failing_reset: bool = False
    """The KV connector refuses its part, so vLLM resets the pool and not the connector."""
    swap: bool = False
    evict: list[int] | None = None
    """Pool blocks to drop from the prefix cache, as after a failed KV load."""
    abort: float | None = None
    """Which request, as a share of those there are."""
    abort_loading: bool = False
    arrivals: list[LabRequest] = field(default_factory=list)


class Workload:
    """Settings and actions of one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.setting = setting = SETTINGS[seed % len(SETTINGS)]
        self.draw = draw = random.Random(seed)
        hybrid = setting.hash_block_size is not None
        self.num_blocks = draw.randint(28, 56) * (2 if hybrid else 1)
        budget = draw.choice((2, 3, 5)) * setting.block_size + draw.randint(0, 9)
        self.config = LabConfig(
            num_blocks=self.num_blocks,
            block_size=setting.block_size,
            hash_block_size=setting.hash_block_size,
            sliding_window=2 * setting.block_size if hybrid else None,
            capacity=self._capacity(),
            kv_tier_blocks=setting.tier * self.num_blocks,
            kv_load_steps=setting.load_steps,
            kv_tier_offer=setting.offer,
            max_num_seqs=draw.randint(3, 7),
            max_num_batched_tokens=max(budget, 16),
            num_layers=2,
            num_experts=8,
            top_k=2,
            async_scheduling=setting.overlapped,
            connector="vllm",
            seed=seed,
        )
        self.int_hashes = draw.random() < 0.5
        self.arrival_rate = draw.choice((0.15, 0.3, 0.6))
        self.longest = min(self.config.max_request_tokens // 2, 9 * setting.block_size)
        self.prompts: list[list[int]] = [self._tokens(3 * setting.block_size)]
        self.count = 0
        self._roomy = True

    def _capacity(self) -> int | None:
        if self.setting.scarce:
            return self.draw.randint(self.num_blocks // 2, self.num_blocks)
        return max(self.num_blocks // 4, 1) if self.setting.quarter else None

    def _tokens(self, count: int) -> list[int]:
        return [self.draw.randrange(VOCABULARY) for _ in range(count)]

    def _prompt(self) -> list[int]:
        draw, size = self.draw, self.setting.block_size
        base = draw.choice(self.prompts)
        # With a tier it is coming back that matters.
        kind = draw.random() * (0.8 if self.setting.tier else 1)
        if kind < 0.25:
            prompt = list(base)  # the same again
        elif kind < 0.45:
            prompt = base[: max(1, len(base) // size) * size]  # ends with a block
        elif kind < 0.9:
            # Shared to somewhere, then its own way.
            prompt = base[: draw.randint(0, len(base))]
            prompt = prompt + self._tokens(draw.randint(1, 4 * size))
        else:
            prompt = self._tokens(draw.randint(1, self.longest))
        return prompt[: self.longest]

    def _request(self) -> LabRequest:
        draw = self.draw
        prompt = self._prompt()
        length = draw.choice((1, 3, 9, 2 * self.setting.block_size))
        if draw.random() < 0.3:
            # The last token that is computed completes a block: with a step in flight its
            # hash comes after the request was scheduled for the last time.
            hashed = self.config.hash_size
            length += -(len(prompt) + length - 1) % hashed
        output = self._tokens(length)
        start = draw.choice(
            (0, 0, draw.randint(0, len(prompt)), len(prompt), len(prompt) + 5)
        )
        # What was said can be asked again: the next turn of a conversation.
        self.prompts.append(prompt + output)
        if len(self.prompts) > 12:
            del self.prompts[draw.randrange(12)]
        self.count += 1
        return LabRequest(
            id=f"r{self.count}", prompt=prompt, output=output, prompt_start=start
        )

    def next(self, waiting: int) -> Actions:
        """What happens before the next step; `waiting` requests have not been admitted."""
        draw = self.draw
        actions = Actions()
        blocks = self.num_blocks
        if draw.random() < 0.02:
            actions.capacity = draw.choice(
                (1, 3, blocks // 4, blocks // 2, blocks, 2 * blocks)
            )
        elif self.setting.scarce and draw.random() < 0.15:
            # Next to nothing for a step or so, then room again.
            actions.capacity, self._roomy = (
                (draw.randint(1, 4), False) if self._roomy else (2 * blocks, True)
            )
        if draw.random() < 0.015:
            actions.reset = True
            actions.reset_in_flight = draw.random() < 0.5
            actions.failing_reset = self.setting.tier > 0 and draw.random() < 0.3
        actions.swap = draw.random() < 0.002
        if draw.random() < 0.01:
            actions.evict = draw.sample(range(1, blocks), draw.randint(1, 8))
        if draw.random() < 0.05:
            actions.abort = draw.random()
            actions.abort_loading = draw.random() < 0.6
        while waiting < 8 and draw.random() < self.arrival_rate:
            actions.arrivals.append(self._request())
            waiting += 1
        return actions
