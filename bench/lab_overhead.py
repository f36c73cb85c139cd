"""What watching costs: the lab with probes and stream beside the bare loop.

The same requests go through three engines in turn, a stretch of steps each: the bare loop
of vLLM's scheduler and worker connector, the same with our scheduler connector in place,
and the lab, whose probes send everything to a collector in another process. The machine's
mood changes in seconds, so stretches alternate and medians are compared.

Exit status 1 when the lab runs at less than 0.9 of the bare loop as vLLM ships it, with its
own connector. The ratio to the bare loop with ours is printed beside it: that is what the
probes and the stream cost alone.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

from auxconn.channel import Channel
from auxconn.lab import demo
from auxconn.lab.config import LabConfig
from auxconn.lab.engine import Engine
from auxconn.lab.feeder import Feeder
from auxconn.lab.lab import Lab
from bench.collecting import Collecting

TARGET = 0.9
"""Speed of the lab over that of vLLM's bare loop, at least."""


class Bare:
    """The loop and nothing else."""

    def __init__(self, config: LabConfig) -> None:
        self.engine = Engine(config)
        self.feeder = Feeder(demo.WORKLOAD.build())

    def step(self) -> int:
        """Take a step; returns the requests that ended."""
        for request in self.feeder.due():
            self.engine.add(request)
        finished = self.engine.step().finished
        for name in finished:
            self.feeder.ended(name)
        return len(finished)

    def close(self) -> None:
        """End the store's writer."""
        self.engine.close()


def stretch(step: Callable[[], int], steps: int) -> tuple[float, float, int]:
    """Time some steps: wall clock and CPU of the process in s, requests that ended."""
    wall, cpu, ended = time.perf_counter(), time.process_time(), 0
    for _ in range(steps):
        ended += step()
    return time.perf_counter() - wall, time.process_time() - cpu, ended


def measure(
    rounds: int, steps: int, config: LabConfig, address: str, *, envs_cache: bool
) -> float:
    """Run and print; returns the lab's speed over the bare loop with vLLM's connector."""
    channel = Channel(address, "lab")
    lab = Lab(config, demo.WORKLOAD.build(), sink=channel)
    bare, ours = Bare(config.replace(connector="vllm")), Bare(config)
    if envs_cache:
        from vllm.envs import enable_envs_cache

        enable_envs_cache()
    runs: dict[str, Callable[[], int]] = {
        "bare loop, vLLM's connector": bare.step,
        "bare loop, our connector": ours.step,
        "lab, probes and stream": lambda: len(lab.step().finished),
    }
    walls: dict[str, list[float]] = {name: [] for name in runs}
    cpus: dict[str, list[float]] = {name: [] for name in runs}
    requests: dict[str, int] = dict.fromkeys(runs, 0)
    if not channel.wait_connected(10):
        raise RuntimeError("the collector did not come up")
    for step in runs.values():
        stretch(step, steps)  # the store grows, caches fill, refusals begin
    for turn in range(rounds):
        # Each takes each place in turn: who runs first would else have an advantage.
        names = list(runs)
        names = names[turn % 3 :] + names[: turn % 3]
        for name in names:
            time.sleep(0.3)  # what the channel still has to send is not the next one's
            wall, cpu, ended = stretch(runs[name], steps)
            walls[name].append(wall)
            cpus[name].append(cpu)
            requests[name] += ended
    print(f"{rounds} stretches of {steps} steps each, {config}")
    for name in runs:
        wall = statistics.median(walls[name])
        print(
            f"  {name:30s} {wall / steps * 1e3:6.2f} ms/step "
            f"({steps / wall:5.0f} steps/s, "
            f"{requests[name] / sum(walls[name]):4.0f} requests/s, "
            f"{statistics.median(cpus[name]) / steps * 1e3:6.2f} ms/step of CPU)"
        )
    lost = sum(channel.dropped.values())
    lab.close()
    channel.close()
    bare.close()
    ours.close()

    def ratio(
        of: str,
        times: dict[str, list[float]],
        which: Callable[[list[float]], float] = statistics.median,
    ) -> float:
        return which(times[of]) / which(times["lab, probes and stream"])

    print(f"  rows lost in the stream: {lost}")
    for name in list(runs)[:2]:
        print(
            f"  lab / {name}: {ratio(name, walls):.3f} by the wall clock, "
            f"{ratio(name, cpus):.3f} by CPU; the quickest stretches "
            f"{ratio(name, walls, min):.3f} and {ratio(name, cpus, min):.3f}"
        )
    return ratio("bare loop, vLLM's connector", walls)


def main() -> int:
    """Read the arguments, measure, judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="at least 7")
    parser.add_argument("--steps", type=int, default=300, help="steps of a stretch")
    parser.add_argument(
        "--envs-cache",
        action="store_true",
        help="as in a live engine, where vLLM's connector is quicker for it",
    )
    args = parser.parse_args()
    if args.rounds < 7:
        parser.error("medians of fewer than 7 say little")
    with Collecting() as collecting:
        found = measure(
            args.rounds,
            args.steps,
            demo.CONFIG,
            collecting.address,
            envs_cache=args.envs_cache,
        )
    print(f"  target {TARGET}: {'met' if found >= TARGET else 'MISSED'}")
    return 0 if found >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
