"""What the lab's engines are asked: seeded streams of requests.

A workload can be iterated as often as needed and says the same each time, so two engines,
or two settings of one, can be compared on the very same requests. Each prompt and output is
drawn from a generator of its own, seeded by what it belongs to, so a stream of a million
requests keeps nothing in memory and a prompt that comes back is the same prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from inspect import Parameter, Signature
from itertools import count, islice
from typing import Any

import numpy as np

from auxconn.lab.requests import LabRequest
from auxconn.lab.workload_specs import KINDS, Kind, Value, WorkloadSpec

__all__ = ["LabRequest", "Workload", "grpo", "multi_turn", "scan", "shared_prefix"]

VOCABULARY = 32_000
"""Token ids are below this; 0 to 9 are left for the lab's own use."""


class Workload:
    """A stream of requests, the same at every iteration.

    Attributes
    ----------
    spec
        Name and parameters: its form as plain data.
    """

    def __init__(self, spec: WorkloadSpec) -> None:
        self.spec = spec

    @property
    def name(self) -> str:
        """Which workload it is."""
        return self.spec.name

    @property
    def concurrency(self) -> int | None:
        """Requests to keep in the engine; None when they arrive by themselves."""
        if self.spec.params["rate"] is not None:
            return None
        return int(self.spec.params["concurrency"] or 1)

    @property
    def requests(self) -> int | None:
        """How many there are; None when it is endless."""
        number = self.spec.params["requests"]
        return None if number is None else int(number)

    @property
    def longest(self) -> tuple[int, int]:
        """Tokens of the longest prompt and of the longest output."""
        return self.spec.longest

    def __iter__(self) -> Iterator[LabRequest]:
        params = self.spec.params
        endless = _STREAMS[self.name](
            _Draw(int(params["seed"] or 0), self.name), params
        )
        stream = islice(endless, self.requests)
        rate = params["rate"]
        return stream if rate is None else _arriving(stream, float(rate), params)

    def __repr__(self) -> str:
        return self.spec.describe()


def _maker(kind: Kind) -> Callable[..., Workload]:
    """Build the function that makes a workload: what is known of it is in its `Kind`."""

    def make(**params: Value) -> Workload:
        return Workload(WorkloadSpec(kind.name, params))

    make.__name__ = make.__qualname__ = kind.name
    make.__doc__ = kind.manual
    make.__signature__ = Signature(  # type: ignore[attr-defined]
        [
            Parameter(name, Parameter.KEYWORD_ONLY, default=default)
            for name, default in kind.defaults.items()
        ],
        return_annotation=Workload,
    )
    return make


grpo = _maker(KINDS["grpo"])
multi_turn = _maker(KINDS["multi_turn"])
shared_prefix = _maker(KINDS["shared_prefix"])
scan = _maker(KINDS["scan"])


class _Draw:
    """Numbers that depend on the seed, the workload and what they are drawn for."""

    def __init__(self, seed: int, name: str) -> None:
        self._root = [seed, int.from_bytes(name.encode(), "little")]

    def rng(self, *what: int) -> np.random.Generator:
        return np.random.default_rng([*self._root, *what])

    def tokens(self, number: int, *what: int) -> np.ndarray:
        return self.rng(*what).integers(10, VOCABULARY, number, dtype=np.int64)

    def some(self, longest: int, *what: int) -> np.ndarray:
        """Tokens of a length between half of `longest` and all of it."""
        rng = self.rng(*what)
        number = int(rng.integers((longest + 1) // 2, longest + 1))
        return rng.integers(10, VOCABULARY, number, dtype=np.int64)


# What a number is drawn for; the first of the words that seed it.
_SYSTEM, _PROMPT, _OUTPUT, _ORDER, _ARRIVAL = range(5)


def _grpo(draw: _Draw, params: Any) -> Iterator[LabRequest]:
    system = draw.tokens(params["system_tokens"], _SYSTEM)
    for epoch in count():
        order = draw.rng(_ORDER, epoch).permutation(params["prompts"])
        for prompt in map(int, order):
            asked = draw.some(params["prompt_tokens"], _PROMPT, prompt)
            tokens = np.concatenate((system, asked))
            for sample in range(params["samples"]):
                yield LabRequest(
                    id=f"grpo-{epoch}-{prompt}-{sample}",
                    prompt=tokens,
                    output=draw.some(
                        params["output_tokens"], _OUTPUT, epoch, prompt, sample
                    ),
                    group=f"{epoch}-{prompt}",
                )


def _multi_turn(draw: _Draw, params: Any) -> Iterator[LabRequest]:
    system = draw.tokens(params["system_tokens"], _SYSTEM)
    for generation in count():
        said = [system] * params["sessions"]
        for turn in range(params["turns"]):
            for session in range(params["sessions"]):
                what = (generation, session, turn)
                asked = draw.some(params["user_tokens"], _PROMPT, *what)
                prompt = np.concatenate((said[session], asked))
                answer = draw.some(params["output_tokens"], _OUTPUT, *what)
                said[session] = np.concatenate((prompt, answer))
                name = f"chat-{generation}-{session}"
                yield LabRequest(
                    id=f"{name}-{turn}",
                    prompt=prompt,
                    output=answer,
                    group=name,
                    after=f"{name}-{turn - 1}" if turn else "",
                )


def _shared_prefix(draw: _Draw, params: Any) -> Iterator[LabRequest]:
    weights = np.arange(1, params["prefixes"] + 1, dtype=float) ** -params["zipf"]
    edges = np.cumsum(weights / weights.sum())
    picks = draw.rng(_ORDER)
    for number in count():
        prefix = int(np.searchsorted(edges, picks.random(), side="right"))
        prefix = min(prefix, params["prefixes"] - 1)
        yield LabRequest(
            id=f"prefix-{number}-{prefix}",
            prompt=np.concatenate(
                (
                    draw.tokens(params["prefix_tokens"], _SYSTEM, prefix),
                    draw.some(params["suffix_tokens"], _PROMPT, number),
                )
            ),
            output=draw.some(params["output_tokens"], _OUTPUT, number),
            group=str(prefix),
        )


def _scan(draw: _Draw, params: Any) -> Iterator[LabRequest]:
    for round_ in count():
        for document in range(params["documents"]):
            yield LabRequest(
                id=f"scan-{round_}-{document}",
                prompt=draw.tokens(params["prompt_tokens"], _PROMPT, document),
                output=draw.some(params["output_tokens"], _OUTPUT, round_, document),
                group=str(document),
            )


_STREAMS: dict[str, Callable[[_Draw, Any], Iterator[LabRequest]]] = {
    "grpo": _grpo,
    "multi_turn": _multi_turn,
    "shared_prefix": _shared_prefix,
    "scan": _scan,
}


def _arriving(
    stream: Iterator[LabRequest], rate: float, params: Any
) -> Iterator[LabRequest]:
    """Give each request a step to arrive at: a Poisson stream of `rate` per step."""
    from dataclasses import replace

    gaps = _Draw(params["seed"], "arrival").rng(_ARRIVAL)
    now = 0.0
    for request in stream:
        now += gaps.exponential(1 / rate)
        yield replace(request, arrival_step=int(now))
