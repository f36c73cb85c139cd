"""What the probes cost on the worker's side.

Lab engines decode the same requests, half of them watched (the collector is another
process). Two engines that do the same differ by a percent, as their objects lie elsewhere
in memory, and a percent is what is to be measured; so there are several pairs, one after the
other, and each figure is the mean of what the pairs say, with its standard error.
To put probes on and off one engine would not do: CPython has then to find out anew how to
read the attributes of its objects, and is slower for a while.

Timed are the calls of vLLM's worker connector that a step makes: `begin_step` and
`process_output`, and beside them `prepare_output` and the copy it hands out, which are
watched too.

Exit status 1 when the probes add more than `TARGET` to `begin_step` and `process_output`.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import statistics
import sys
import time
from time import perf_counter_ns
from typing import Any

from auxconn.attach import attach
from auxconn.lab.config import LabConfig
from auxconn.lab.engine import Engine
from auxconn.lab.requests import LabRequest
from bench.collecting import Collecting
from bench.loop import LAYERS, TOP_K, groups

TARGET = 0.01
"""Share of `begin_step` and `process_output` that the probes may add."""

RUNNING = 64


class Timed:
    """Stands before the worker connector, probes and all, and times its calls."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self.commit_ns = self.other_ns = 0

    def begin_step(self, metadata: Any) -> None:
        """As the worker's."""
        started = perf_counter_ns()
        self._worker.begin_step(metadata)
        self.commit_ns += perf_counter_ns() - started

    def prepare_output(self, batch: Any) -> Pending:
        """As the worker's; what it returns is timed too."""
        started = perf_counter_ns()
        pending = self._worker.prepare_output(batch)
        self.other_ns += perf_counter_ns() - started
        return Pending(self, pending)


class Pending:
    """Stands before a step whose output is pending."""

    def __init__(self, timed: Timed, pending: Any) -> None:
        self._timed = timed
        self._pending = pending

    def enqueue_cpu_copy(self, *given: Any) -> None:
        """As the step's."""
        started = perf_counter_ns()
        self._pending.enqueue_cpu_copy(*given)
        self._timed.other_ns += perf_counter_ns() - started

    def process_output(self) -> Any:
        """As the step's."""
        started = perf_counter_ns()
        outputs = self._pending.process_output()
        self._timed.commit_ns += perf_counter_ns() - started
        return outputs


class Side:
    """An engine whose worker's calls are timed, watched or not."""

    def __init__(self, address: str | None, steps: int) -> None:
        self.engine = Engine(
            LabConfig(
                num_blocks=RUNNING * (1400 + steps) // 16 + 64,
                num_layers=LAYERS,
                top_k=TOP_K,
                settle_store=False,
            )
        )
        self.attachment = None
        if address is not None:
            self.attachment = attach(
                worker=self.engine.worker, to=address, engine=f"engine {id(self)}"
            )
        self.timed = Timed(self.engine.worker)
        self.engine._runner._worker = self.timed
        self.found: list[tuple[int, int]] = []
        for number, wanted in enumerate(
            itertools.islice(groups(1200, (steps, steps), 8), RUNNING)
        ):
            self.engine.add(
                LabRequest(f"r{number}", wanted.prompt, [7] * wanted.output)
            )

    def step(self) -> None:
        """Take a step and note ns in `begin_step` and `process_output`, and in all calls."""
        timed = self.timed
        timed.commit_ns = timed.other_ns = 0
        self.engine.step()
        self.found.append((timed.commit_ns, timed.commit_ns + timed.other_ns))

    def median(self, which: int) -> float:
        """Of all steps that were noted."""
        return statistics.median(one[which] for one in self.found)

    def close(self) -> None:
        """End it."""
        if self.attachment is not None:
            self.attachment.detach()
        self.engine.close()


def pair(address: str, steps: int) -> list[tuple[float, float]]:
    """Medians in ns of an engine that nobody watches and of one that is watched."""
    warm = 150
    sides = [Side(one, steps + warm + 100) for one in (None, address)]
    from vllm.envs import enable_envs_cache

    # As vLLM's engine does once it is up.
    enable_envs_cache()
    for turn in range(steps + warm):
        if turn == warm:
            gc.collect()
            gc.freeze()
            for side in sides:
                side.found.clear()
        for side in sides if turn % 2 else reversed(sides):
            side.step()
            time.sleep(0.001)  # the GPU's turn, and that of who makes rows of notes
    for side in sides:
        side.close()
    gc.unfreeze()
    bare, watched = sides
    return [(bare.median(which), watched.median(which)) for which in (0, 1)]


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=9, help="at least 7")
    parser.add_argument("--steps", type=int, default=800, help="of each engine")
    arguments = parser.parse_args()
    if arguments.pairs < 7:
        parser.error("fewer than 7 pairs say little")
    with Collecting() as collecting:
        found = [
            pair(collecting.address, arguments.steps) for _ in range(arguments.pairs)
        ]
    added = []
    for which, what in enumerate(
        ("begin_step and process_output", "all that is watched")
    ):
        bare = statistics.mean(one[which][0] for one in found)
        shares = [one[which][1] / one[which][0] - 1 for one in found]
        error = statistics.stdev(shares) / len(shares) ** 0.5
        added.append(statistics.mean(shares))
        print(
            f"{what:32s} {bare / 1e3:6.1f} us a step, the probes add {added[which]:+.2%} "
            f"(standard error {error:.2%}, {len(shares)} pairs)"
        )
    print(f"target {TARGET:.0%}: {'met' if added[0] <= TARGET else 'MISSED'}")
    return 0 if added[0] <= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
