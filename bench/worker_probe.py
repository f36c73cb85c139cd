"""What the probes cost on the worker's side.

Lab engines decode the same requests, half of them watched (the collector is another
process). Two engines that do the same differ by a percent, as their objects lie elsewhere
in memory, and a percent is what is to be measured; so there are several of each kind, and
each figure is the mean of the engines' medians, with what the engines of a kind differ by.
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


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", type=int, default=7, help="of each kind")
    parser.add_argument("--steps", type=int, default=600, help="of each engine")
    arguments = parser.parse_args()
    warm = 100
    with Collecting() as collecting:
        sides = [
            Side(address, arguments.steps + warm + 100)
            for _ in range(arguments.engines)
            for address in (None, collecting.address)
        ]
        from vllm.envs import enable_envs_cache

        # As vLLM's engine does once it is up.
        enable_envs_cache()
        for turn in range(arguments.steps + warm):
            if turn == warm:
                gc.collect()
                gc.freeze()
                for side in sides:
                    side.found.clear()
            # Each takes each place in turn: who runs first would else have an advantage.
            first = turn % len(sides)
            for side in sides[first:] + sides[:first]:
                side.step()
                time.sleep(0.001)  # the GPU's turn, and that of who makes rows of notes
        for side in sides:
            side.close()
    added = []
    for which, what in enumerate(
        ("begin_step and process_output", "all that is watched")
    ):
        bare, watched = (
            [side.median(which) / 1e3 for side in sides[kind::2]] for kind in (0, 1)
        )
        added.append(statistics.mean(watched) / statistics.mean(bare) - 1)
        print(
            f"{what:32s} {statistics.mean(bare):6.1f} us a step (engines differ by "
            f"{statistics.stdev(bare):.1f}), watched {statistics.mean(watched):6.1f} "
            f"({statistics.stdev(watched):.1f}): {added[which]:+.2%}"
        )
    print(f"target {TARGET:.0%}: {'met' if added[0] <= TARGET else 'MISSED'}")
    return 0 if added[0] <= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
