"""The process a viewer's lab runs in: `python -m auxconn.lab.child`.

It speaks the protocol of a live engine. Importing vLLM takes long enough that a viewer must
see it move, and the machine may be slow, so the stages of the start are reported with how
far the import has come. Commands are obeyed between two steps, in the engine's thread.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
import time
import traceback
from typing import Any

from auxconn.channel import Channel
from auxconn.lab.guardian import Guardian
from auxconn.lab.job import Job
from auxconn.wire import Command

MODULES_OF_VLLM = 5300
"""About how many modules are there once vLLM is imported; only the bar depends on it."""

STAGES: dict[str, tuple[float, str]] = {
    "spawn": (0.0, "process started"),
    "import": (0.03, "importing vLLM"),
    "engine": (0.9, "building scheduler, worker connector and store"),
    "workload": (0.97, "preparing the workload"),
    "ready": (1.0, "running"),
}
"""Stage -> how far the start is when it begins, and what is said of it."""

IDLE_SECONDS = 0.02
"""How long a command can wait for its answer while nothing is due."""


def main() -> int:
    """Run the lab of the job on the input until told to stop; returns the exit status."""
    try:
        job = Job.from_line(sys.stdin.readline())
    except ValueError as error:
        print(error, file=sys.stderr)  # noqa: T201 - the parent keeps this output
        return 2
    channel = Channel(job.address, job.engine)
    guardian = Guardian(farewell=channel.close)
    guardian.watch()
    report = _Report(channel)
    try:
        return _run(job, channel, guardian, report)
    except Exception as error:  # noqa: BLE001 - told to the viewer, and to who reads the log
        traceback.print_exc()
        channel.close(f"error: {type(error).__name__}: {error}")
        return 1


def _run(job: Job, channel: Channel, guardian: Guardian, report: _Report) -> int:
    report.stage("spawn")
    from auxconn.lab import environment
    from auxconn.lab.lab import Lab

    report.stage("import")
    environment.load()
    # What was imported stays: the collector need not walk it again and again. The engine
    # is not there yet, as one that is replaced must be collected.
    gc.collect()
    gc.freeze()
    lab = Lab(
        job.config,
        job.workload.build(),
        sink=channel,
        name=job.engine,
        steps_per_s=job.steps_per_s,
        progress=report.stage,
        paused=job.paused,
    )
    guardian.interruptible = False
    try:
        while not guardian.stopping.is_set():
            for command in channel.poll_commands(
                IDLE_SECONDS if lab.pacer.paused or lab.done else 0.0
            ):
                _obey(lab, channel, command)
            if not lab.done and lab.pacer.wait(IDLE_SECONDS):
                # A request that cannot run is left out, and an event says so.
                with contextlib.suppress(ValueError):
                    lab.step()
    finally:
        try:
            lab.close()
        finally:
            if sys.exc_info()[0] is None:
                channel.close(guardian.reason)
    return 0


def _obey(lab: Any, channel: Channel, command: Command) -> None:
    try:
        channel.ack(command, True, lab.command(command.name, **command.args))
    except (ValueError, TypeError) as error:
        channel.ack(command, False, str(error))
    except Exception as error:
        channel.ack(command, False, f"the engine failed: {error}")
        raise


class _Report:
    """Tells how far the start has come, and lets the bar move while vLLM is imported."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._reached = -1.0
        self._imported = threading.Event()
        self._counting: threading.Thread | None = None

    def stage(self, name: str) -> None:
        """A stage of `STAGES` begins; one that has begun before is not told again."""
        fraction, text = STAGES[name]
        if fraction <= self._reached:
            return
        self._reached = fraction
        if self._counting is not None:
            # The bar must not fall back to the import.
            self._imported.set()
            self._counting.join()
            self._counting = None
        self._channel.progress(name, fraction, text)
        if name == "import":
            self._counting = threading.Thread(target=self._count, daemon=True)
            self._counting.start()

    def _count(self) -> None:
        low, high = STAGES["import"][0], STAGES["engine"][0]
        began = time.monotonic()
        while not self._imported.wait(0.2):
            done = min(len(sys.modules) / MODULES_OF_VLLM, 1.0)
            self._channel.progress(
                "import",
                low + (high - low) * done,
                f"importing vLLM, {time.monotonic() - began:.0f} s",
            )


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # All is closed. Taking vLLM's modules down one by one would take a second, and write
    # pages of what they leak over the output that is kept for error reports.
    os._exit(status)
