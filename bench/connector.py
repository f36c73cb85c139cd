"""The scheduler connector, call by call: vLLM's time over ours, with equal results.

Both connectors sit on one real KV cache manager and are asked the same, in turn; what they
answer, what they would tell the worker and what they hold is compared before a figure
counts. Then the same calls at 10^3 to nearly 10^6 held blocks and 10^2 to 10^4 blocks a prompt:
what must not grow with what is held is drawn in `docs/connector-cost.png`.

Exit status 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import statistics
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from operator import methodcaller
from pathlib import Path
from time import perf_counter_ns
from types import SimpleNamespace
from typing import Any

from auxconn.lab.build import build_block_hasher, build_scheduler
from auxconn.lab.config import LabConfig

BLOCK = 16
LENGTHS = (32_760, 65_528, 131_064)
"""Tokens of the prompts that are looked up: as long as vLLM's limits of 32k to 131k allow."""


class Bed:
    """A real KV cache manager with both connectors on it.

    Parameters
    ----------
    num_blocks
        KV blocks of the pool.
    """

    def __init__(self, num_blocks: int) -> None:
        config = LabConfig(
            num_blocks=num_blocks, block_size=BLOCK, num_layers=1, top_k=1
        )
        # Before vLLM is imported: the lab has to set it up for a machine without a GPU.
        self.scheduler: Any = build_scheduler(config)
        from vllm.distributed.aux_output_connector.connector import (
            AuxOutputSchedulerConnector as Theirs,
        )
        from vllm.envs import enable_envs_cache
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        from auxconn.connector import AuxOutputSchedulerConnector as Ours

        # As vLLM's engine does once it is up; its connector is slower without.
        enable_envs_cache()
        self.manager: Any = self.scheduler.kv_cache_manager
        self._hasher = build_block_hasher(config)
        self._make_request: Callable[..., Any] = Request
        self._make_params: Callable[..., Any] = SamplingParams
        self._make: tuple[Callable[..., Any], ...] = (Theirs, Ours)
        self._names = itertools.count()
        self.renew()

    def renew(self) -> None:
        """Put new connectors on the pool, which hold nothing."""
        self.both: list[Any] = [make(self.manager) for make in self._make]

    def prompt(self, tokens: int, seed: int) -> list[int]:
        """Tokens of a prompt that no other seed begins like."""
        return [
            seed % 30_000,
            seed // 30_000,
            *(at * 7 % 30_000 for at in range(tokens)),
        ][:tokens]

    def request(self, tokens: list[int]) -> Any:
        """A request that was not seen yet."""
        return self._make_request(
            request_id=f"chatcmpl-{next(self._names):032x}",
            prompt_token_ids=tokens,
            sampling_params=self._make_params(max_tokens=1000, ignore_eos=True),
            pooling_params=None,
            block_hasher=self._hasher,
        )

    def computed(self, tokens: list[int]) -> Any:
        """A request whose blocks are all on the GPU, as after its prefill."""
        request = self.request(tokens)
        if self.manager.allocate_slots(request, len(tokens)) is None:
            raise RuntimeError("the pool is too small for this benchmark")
        request.num_computed_tokens = len(tokens)
        return request

    def hold(self, blocks: int, per_prompt: int, seed: int) -> None:
        """Have both connectors hold `blocks` more, which stay on the GPU."""
        for number in range(blocks // per_prompt):
            one = self.computed(self.prompt(per_prompt * BLOCK, seed + number))
            for connector in self.both:
                connector.request_finished(one)

    def capacity(self, blocks: int) -> None:
        """Set the capacity of both; vLLM's has no way, so it is done to it."""
        theirs, ours = self.both
        theirs._capacity = blocks
        ours.set_capacity(blocks)

    def check(self) -> None:
        """Compare what they hold and what they tell the worker."""
        theirs, ours = self.both
        nothing = SimpleNamespace(num_scheduled_tokens={})
        said = [one.build_connector_meta(nothing, {}) for one in self.both]
        if said[0] != said[1]:
            raise AssertionError("the connectors tell the worker different things")
        if list(theirs._kv_cached) != ours.held():
            raise AssertionError("the connectors hold different blocks")


def clock(call: Callable[[], Any]) -> tuple[int, Any]:
    """Nanoseconds of a call, and what it returned."""
    started = perf_counter_ns()
    result = call()
    return perf_counter_ns() - started, result


def compare(
    bed: Bed,
    calls: Callable[[Any], Any],
    rounds: int,
    before: Callable[[], object] | None = None,
    *,
    check: bool = True,
) -> tuple[float, float]:
    """Medians of `calls(connector)` in ns, vLLM's and ours; equal results asserted.

    `check` compares their state too, for which no request may run.
    """
    times: tuple[list[int], list[int]] = ([], [])
    gc.collect()
    with quiet():
        for turn in range(rounds):
            if before is not None:
                before()
            results: list[Any] = [None, None]
            for side in (0, 1) if turn % 2 else (1, 0):
                spent, results[side] = clock(partial(calls, bed.both[side]))
                times[side].append(spent)
            if results[0] != results[1]:
                raise AssertionError(f"vLLM says {results[0]!r}, ours {results[1]!r}")
            if check:
                bed.check()
    return statistics.median(times[0]), statistics.median(times[1])


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the garbage collector out of what is timed."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class Report:
    """Prints the figures and remembers whether one missed its target."""

    def __init__(self) -> None:
        self.met = True

    def row(self, what: str, times: tuple[float, float], target: float) -> None:
        """One operation: both times, their ratio, the target."""
        theirs, ours = times
        ratio = theirs / ours
        self.met &= ratio >= target
        print(
            f"{what:58s} {theirs / 1e6:9.3f} ms {ours / 1e6:9.3f} ms  x{ratio:8.1f}  "
            f"{'met' if ratio >= target else 'MISSED'} (at least {target:g})",
            flush=True,
        )


def look_ups(report: Report, rounds: int) -> None:
    """`max_cache_hit`, and `request_finished` of a long prompt over capacity."""
    bed = Bed(24_000)
    for length in LENGTHS:
        tokens = bed.prompt(length, 1)
        first = bed.computed(tokens)
        again = bed.request(tokens)
        report.row(
            f"max_cache_hit, {length:,} tokens, on the GPU, first seen",
            compare(bed, methodcaller("max_cache_hit", again), rounds, bed.renew),
            1,
        )
        for connector in bed.both:
            connector.request_finished(first)
        report.row(
            f"max_cache_hit, {length:,} tokens, held",
            compare(bed, methodcaller("max_cache_hit", again), rounds),
            15,
        )
        bed.manager.free(first)
        bed.manager.reset_prefix_cache()
        bed.renew()
    bed = Bed(24_000)
    long = bed.computed(bed.prompt(LENGTHS[-1], 1))

    others = [bed.computed(bed.prompt(1000 * BLOCK, 100 + at)) for at in range(14)]

    def begin_again() -> None:
        bed.renew()
        for other in others:
            for connector in bed.both:
                connector.request_finished(other)
        bed.capacity(4096)
        bed.check()

    report.row(
        "request_finished, 131,064 tokens, over capacity, new",
        compare(bed, methodcaller("request_finished", long), rounds, begin_again),
        2,
    )
    report.row(
        "request_finished, 131,064 tokens, over capacity, held",
        compare(bed, methodcaller("request_finished", long), rounds),
        10,
    )


def release_nothing(report: Report, rounds: int) -> None:
    """A finish over capacity when nothing may be released, at two sizes."""
    ours = []
    for held in (10_000, 200_000):
        bed = Bed(held + 1_000)
        bed.hold(held, 100, 1)
        bed.capacity(held // 2)
        bed.check()
        small = bed.computed(bed.prompt(BLOCK, 10**6))
        for connector in bed.both:
            connector.request_finished(small)
        bed.check()
        times = compare(bed, methodcaller("request_finished", small), rounds)
        ours.append(times[1])
        report.row(f"releasing nothing from {held:,} held blocks", times, 100)
    report.met &= ours[1] < 3 * ours[0]
    print(
        f"  ours with 20 times as many: {ours[1] / ours[0]:.2f} times as long "
        f"({'met' if ours[1] < 3 * ours[0] else 'MISSED'}: must not grow)"
    )


def metadata(report: Report, rounds: int) -> None:
    """`build_connector_meta` of 256 requests that decode, each block boundary included."""
    bed = Bed(8_000)
    running = {}
    for number in range(256):
        one = bed.computed(bed.prompt(200 + number % BLOCK, number))
        one.append_output_token_ids(5)
        running[one.request_id] = one
    scheduled = SimpleNamespace(num_scheduled_tokens=dict.fromkeys(running, 1))

    def grow() -> None:
        for one in running.values():
            one.num_computed_tokens += 1
            one.append_output_token_ids(5)

    report.row(
        "build_connector_meta, 256 running requests",
        compare(
            bed,
            lambda one: one.build_connector_meta(scheduled, running),
            max(rounds, 4 * BLOCK),
            grow,
            check=False,  # the metadata are compared as the results they are
        ),
        1,
    )


def memory(report: Report) -> None:
    """Bytes for each held block, once the requests are gone."""
    blocks = 40_000
    for per_prompt in (4, 1000):
        # What the pool itself keeps of the hashes is in all three and taken off.
        pool, *both = [_kept(blocks, per_prompt, side) for side in (None, 0, 1)]
        found = [(one - pool) / blocks for one in both]
        ratio = found[0] / found[1]
        report.met &= ratio >= 1
        print(
            f"{f'memory of a held block, prompts of {per_prompt} blocks':58s} "
            f"{found[0]:9.0f} B  {found[1]:9.0f} B   x{ratio:8.2f}  "
            f"{'met' if ratio >= 1 else 'MISSED'} (at least 1)"
        )


def _kept(blocks: int, per_prompt: int, side: int | None) -> int:
    """Bytes allocated when all requests are gone, with one of the connectors or none."""
    bed = Bed(blocks + 100)
    gc.collect()
    tracemalloc.start()
    for at in range(blocks // per_prompt):
        request = bed.computed(bed.prompt(per_prompt * BLOCK, at))
        if side is not None:
            bed.both[side].request_finished(request)
        bed.manager.free(request)
    if side is not None:
        nothing = SimpleNamespace(num_scheduled_tokens={})
        bed.both[side].build_connector_meta(nothing, {})
    del request
    gc.collect()
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return kept


HELD = (1_000, 10_000, 100_000, 990_000)
PROMPTS = (100, 1_000, 10_000)
"""Held blocks, and blocks of a prompt, for which each operation is timed."""

Curve = dict[str, dict[int, tuple[float, float]]]
"""Operation -> size -> ns of vLLM's connector and of ours."""


def operations(
    bed: Bed, per_prompt: int, rounds: int
) -> dict[str, tuple[float, float]]:
    """Each operation on what `bed` holds, for a prompt of `per_prompt` blocks."""
    tokens = bed.prompt(per_prompt * BLOCK + 1, 10**7)
    one = bed.computed(tokens)
    again = bed.request(tokens)
    found = {}
    held = len(bed.both[1]._blocks)
    bed.capacity(max(held // 2, 1))
    for connector in bed.both:
        connector.request_finished(one)
    found["look-up of a held prompt"] = compare(
        bed, methodcaller("max_cache_hit", again), rounds, check=False
    )
    found["finish, blocks held already"] = compare(
        bed, methodcaller("request_finished", one), rounds, check=False
    )
    bed.check()
    fresh = [
        bed.computed(bed.prompt(per_prompt * BLOCK, 10**7 + 1 + at))
        for at in range(min(rounds, 7))
    ]
    queue = iter([one for one in fresh for _ in range(2)])
    bed.capacity(10**9)
    found["finish, blocks new"] = compare(
        bed, lambda its: its.request_finished(next(queue)), len(fresh), check=False
    )
    bed.check()
    return found


def growth(rounds: int) -> tuple[Curve, Curve]:
    """Time of each operation against held blocks, and against blocks of a prompt."""
    by_held: Curve = {}
    for held in HELD:
        bed = Bed(held + 2_000)
        bed.hold(held, 100, 1)
        for name, times in operations(bed, 100, rounds).items():
            by_held.setdefault(name, {})[held] = times
    by_prompt: Curve = {}
    for blocks in PROMPTS:
        bed = Bed(100_000 + 10 * blocks + 1_000)
        bed.hold(100_000, 1_000, 1)
        for name, times in operations(bed, blocks, rounds).items():
            by_prompt.setdefault(name, {})[blocks] = times
    return by_held, by_prompt


def table(title: str, curve: Curve) -> None:
    """Print one of the two, in us, as Markdown."""
    sizes = list(next(iter(curve.values())))
    print(f"\n| us, {title} | " + " | ".join(f"{size:,}" for size in sizes) + " |")
    print("| --- " * (len(sizes) + 1) + "|")
    for name, times in curve.items():
        for side, whose in enumerate(("vLLM", "ours")):
            cells = " | ".join(f"{times[size][side] / 1e3:,.1f}" for size in sizes)
            print(f"| {name}: {whose} | {cells} |", flush=True)


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="at least 7")
    parser.add_argument("--picture", type=Path, help="draw the growth into this PNG")
    arguments = parser.parse_args()
    if arguments.rounds < 7:
        parser.error("medians of fewer than 7 say little")
    report = Report()
    print(f"{'':58s} {'vLLM':>12s} {'ours':>12s}")
    look_ups(report, arguments.rounds)
    release_nothing(report, arguments.rounds)
    metadata(report, arguments.rounds)
    memory(report)
    by_held, by_prompt = growth(7)
    table("held blocks, prompts of 100", by_held)
    table("blocks of a prompt, 100,000 held", by_prompt)
    if arguments.picture is not None:
        from bench.picture import draw

        draw(
            arguments.picture,
            {
                "held blocks (prompts of 100)": by_held,
                "blocks of a prompt (100,000 held)": by_prompt,
            },
        )
    return 0 if report.met else 1


if __name__ == "__main__":
    sys.exit(main())
