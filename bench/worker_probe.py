"""What the probes cost on the worker's side.

Two lab engines decode the same requests, one watched (the collector is another process) and
one not. Timed are the calls of vLLM's worker connector that a step makes: `begin_step` and
`process_output`, and beside them `prepare_output` and the copy it hands out, which are
watched too. Steps alternate, as the machine's mood changes in seconds.

Exit status 1 when the probes add more than `TARGET` to `begin_step` and `process_output`.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import statistics
import sys
import time
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from auxconn.attach import attach
from auxconn.lab.config import LabConfig
from auxconn.lab.engine import Engine
from auxconn.lab.requests import LabRequest
from bench.collecting import Collecting
from bench.loop import LAYERS, TOP_K, Wanted, groups

TARGET = 0.01
"""Share of `begin_step` and `process_output` that the probes may add."""

RUNNING = 64
WATCHED = ("begin_step", "process_output", "prepare_output")


class Side:
    """An engine whose worker's calls are timed."""

    def __init__(self, address: str | None, steps: int) -> None:
        config = LabConfig(
            num_blocks=RUNNING * (1400 + steps) // 16 + 64,
            num_layers=LAYERS,
            top_k=TOP_K,
            settle_store=False,
        )
        self.engine = Engine(config)
        self.attachment = None
        if address is not None:
            self.attachment = attach(
                worker=self.engine.worker, to=address, engine="worker"
            )
        from vllm.envs import enable_envs_cache

        # As vLLM's engine does once it is up.
        enable_envs_cache()
        self.ns = dict.fromkeys((*WATCHED, "copy"), 0)
        for name in WATCHED:
            timed = self._timed(name, getattr(self.engine.worker, name))
            setattr(self.engine.worker, name, timed)
        for number, wanted in enumerate(
            itertools.islice(groups(1200, (steps, steps), 8), RUNNING)
        ):
            self.engine.add(request(number, wanted))

    def _timed(self, name: str, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
        ns = self.ns

        def timed(given: Any) -> Any:
            started = perf_counter_ns()
            result = call(given)
            ns[name] += perf_counter_ns() - started
            if name == "prepare_output":
                copy = result.enqueue_cpu_copy

                def timed_copy(*args: Any) -> None:
                    started = perf_counter_ns()
                    copy(*args)
                    ns["copy"] += perf_counter_ns() - started

                result.enqueue_cpu_copy = timed_copy
            return result

        return timed

    def step(self) -> tuple[int, int]:
        """A step: ns in `begin_step` and `process_output`, and in all that is watched."""
        before = dict(self.ns)
        self.engine.step()
        spent = {name: self.ns[name] - ns for name, ns in before.items()}
        return spent["begin_step"] + spent["process_output"], sum(spent.values())

    def close(self) -> None:
        """End it."""
        if self.attachment is not None:
            self.attachment.detach()
        self.engine.close()


def request(number: int, wanted: Wanted) -> LabRequest:
    """A request of the lab."""
    return LabRequest(f"r{number}", wanted.prompt, [7] * wanted.output)


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3000, help="of each engine")
    arguments = parser.parse_args()
    warm = 200
    with Collecting() as collecting:
        sides = [
            Side(address, arguments.steps + warm + 200)
            for address in (None, collecting.address)
        ]
        for _ in range(warm):
            for side in sides:
                side.step()
        gc.collect()
        gc.freeze()
        found: list[list[tuple[int, int]]] = [[], []]
        for turn in range(arguments.steps):
            for at in (0, 1) if turn % 2 else (1, 0):
                found[at].append(sides[at].step())
                time.sleep(0.002)  # the GPU's turn, and that of who makes rows of notes
        for side in sides:
            side.close()
    added = []
    for at, what in enumerate(("begin_step and process_output", "all that is watched")):
        bare, watched = (statistics.median(one[at] for one in of) for of in found)
        added.append(watched / bare - 1)
        print(
            f"{what:32s} {bare / 1e3:8.1f} us a step, watched {watched / 1e3:8.1f} us: "
            f"{watched / bare - 1:+.2%}"
        )
    print(f"target {TARGET:.0%}: {'met' if added[0] <= TARGET else 'MISSED'}")
    return 0 if added[0] <= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
