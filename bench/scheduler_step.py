"""What a scheduler step costs with our connector and everything watched.

`schedule` and `update_from_output` are timed in four schedulers that get the same requests:
vLLM's connector with nothing on, which is the measure; the same with the probes and the
stream; ours with nothing on; ours with the probes and the stream. The collector is another
process. Stretches of steps alternate, and the ratio of each stretch to the one of the same
round with vLLM's connector is taken; the figures are medians of these.

Between two steps the loop waits as an engine waits for its GPU. The thread that makes rows
of what was noted gets its turn there, and where it runs into the next step that counts as
time of the step. `--wait 0` leaves no such gap: then all that the probes do is paid by the
steps, and the ratios say what an engine without any spare time would pay.

Cases: 16, 64 and 256 running requests; prompts of about 1,200 and 32,000 tokens; with and
without a KV tier; requests that come and go, and pure decode.

Exit status 1 when a case misses its target.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from auxconn.attach import Attachment, attach
from auxconn.lab.config import LabConfig
from bench.collecting import Collecting
from bench.loop import Loop, Wanted, groups

TARGETS = {
    ("ours, watched", "mix"): 0.90,
    ("ours, watched", "decode"): 1.00,
    ("vLLM's, watched", "mix"): 1.03,
    ("vLLM's, watched", "decode"): 1.03,
}
"""Time of a step over that with vLLM's connector and nothing on, at most."""

SHORT, LONG = 1_200, 32_000


@dataclass(frozen=True)
class Case:
    """What the schedulers are given."""

    running: int
    prompt: int
    tier: bool
    decode: bool

    def __str__(self) -> str:
        return (
            f"{self.running:3d} running, prompts of {self.prompt:6,d} tokens, "
            f"{'KV tier' if self.tier else 'no tier'}, "
            f"{'decode' if self.decode else 'mix'}"
        )

    @property
    def kind(self) -> str:
        """Which target it has."""
        return "decode" if self.decode else "mix"

    def config(self, steps: int) -> LabConfig:
        """Settings of the schedulers: a pool half as large again as what runs."""
        longest = self.prompt * 9 // 8 + (steps if self.decode else 128) + 64
        blocks = self.running * longest // 16 * 3 // 2 + 64
        return LabConfig(
            num_blocks=blocks,
            kv_tier_blocks=2 * blocks if self.tier else 0,
            max_num_seqs=self.running,
            max_num_batched_tokens=8192,
            num_layers=1,
            top_k=1,
        )

    def requests(self, steps: int) -> Iterator[Wanted]:
        """The requests of every scheduler."""
        if self.decode:
            return groups(self.prompt, (steps + 64, steps + 64), 8)
        return groups(self.prompt, (32, 128), 8)


VARIANTS = {
    "vLLM's": ("vllm", False),
    "vLLM's, watched": ("vllm", True),
    "ours": ("auxconn", False),
    "ours, watched": ("auxconn", True),
}
"""Connector, and whether it is watched."""


class Runner:
    """One variant of one case."""

    def __init__(self, name: str, case: Case, steps: int, address: str) -> None:
        connector, watched = VARIANTS[name]
        config = case.config(steps).replace(connector=connector)
        self.loop = Loop(config, case.requests(steps), case.running)
        self.attachment: Attachment | None = None
        if watched:
            self.attachment = attach(
                scheduler=self.loop.scheduler, to=address, engine=name
            )
        self.cpu = 0

    def stretch(self, steps: int, wait: float) -> tuple[float, float, float]:
        """Take steps; ns a step by the clock, of the thread, and of the process."""
        loop = self.loop
        ns, cpu = loop.ns, loop.cpu_ns
        spare, own = time.process_time_ns(), time.thread_time_ns()
        for _ in range(steps):
            loop.step()
            if wait:
                time.sleep(wait)
        if self.attachment is not None:
            self.attachment.flush()
        others = time.process_time_ns() - spare - (time.thread_time_ns() - own)
        ns, cpu = loop.ns - ns, loop.cpu_ns - cpu
        return ns / steps, cpu / steps, (cpu + others) / steps

    def close(self) -> int:
        """End it; returns how many rows the stream lost."""
        lost = 0
        if self.attachment is not None:
            self.attachment.detach()
            assert self.attachment.channel is not None
            lost = sum(self.attachment.channel.dropped.values())
        self.loop.close()
        return lost


def measure(case: Case, rounds: int, steps: int, wait: float, address: str) -> bool:
    """Run a case and print its figures; False when it misses a target."""
    total = (rounds + 2) * steps
    runners = {name: Runner(name, case, total, address) for name in VARIANTS}
    for runner in runners.values():
        if case.decode:
            runner.loop.prefill()
        else:
            # Until the pool is full and blocks leave it.
            while runner.loop.finished < 2 * case.running:
                runner.loop.step()
        runner.stretch(steps, wait)
    gc.collect()
    gc.freeze()
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in VARIANTS}
    names = list(VARIANTS)
    for turn in range(rounds):
        # Each takes each place in turn: who runs first would else have an advantage.
        for name in names[turn % 4 :] + names[: turn % 4]:
            found[name].append(runners[name].stretch(steps, wait))
            time.sleep(0.1)  # what the channel still has to send is not the next one's
    lost = sum([runner.close() for runner in runners.values()])
    gc.unfreeze()
    print(f"{case}" + (f"; {lost} ROWS LOST" if lost else ""))
    met = not lost
    for name in VARIANTS:
        ratios = [
            statistics.median(
                one[at] / base[at]
                for one, base in zip(found[name], found["vLLM's"], strict=True)
            )
            for at in range(3)
        ]
        target = TARGETS.get((name, case.kind))
        verdict = ""
        if target is not None:
            met &= ratios[0] <= target
            verdict = f"  {'met' if ratios[0] <= target else 'MISSED'} ({target})"
        mean = statistics.median(one[0] for one in found[name]) / 1e3
        print(
            f"  {name:16s} {mean:8.1f} us/step  ratio {ratios[0]:.3f} by the clock, "
            f"{ratios[1]:.3f} CPU of the thread, {ratios[2]:.3f} with its helpers"
            f"{verdict}",
            flush=True,
        )
    return met


def cases(arguments: Any) -> Iterator[Case]:
    """All that were asked for."""
    for prompt, running, tier, decode in itertools.product(
        (SHORT, LONG), (16, 64, 256), (False, True), (False, True)
    ):
        case = Case(running, prompt, tier, decode)
        if arguments.only is None or all(
            word in str(case).replace(",", "") for word in arguments.only.split()
        ):
            yield case


def main() -> int:
    """Read the arguments, measure, judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40, help="at least 7")
    parser.add_argument("--steps", type=int, default=15, help="steps of a stretch")
    parser.add_argument("--wait", type=float, default=5.0, help="ms between two steps")
    parser.add_argument("--only", help="words that a case must have, e.g. '64 mix'")
    arguments = parser.parse_args()
    if arguments.rounds < 7:
        parser.error("medians of fewer than 7 say little")
    met = True
    with Collecting() as collecting:
        for case in cases(arguments):
            met &= measure(
                case,
                arguments.rounds,
                arguments.steps,
                arguments.wait / 1e3,
                collecting.address,
            )
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
