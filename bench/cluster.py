"""A cluster's rows through one collector, and what happens while the collector hangs.

64 ranks, each with its channel, take 100 steps a second; each step brings a row of `steps`,
`rows` and `store` and an event for each of 28 blocks: together about 200,000 rows a second,
in the batches that so many engines would send. All ranks are in one process and so share
one core, as the collector has one of its own. Nothing may be lost.

Then one engine emits as fast while the collector's process is stopped: what the engine
holds must stay bounded, every row must arrive or be counted as lost, and it must go on.

Last the same 64 ranks send to `auxconn serve`, and a page looks at all of them together.
It must answer all the time.

Exit status 1 when rows are missing, memory grows or the page falls silent.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import numpy as np

from auxconn.channel import Channel
from auxconn.records import Blocks, Rows, Steps, Store
from bench.collecting import ROOT, Collecting

RANKS, STEPS_PER_S, BLOCKS = 64, 100, 28
PER_STEP = 3 + BLOCKS
"""Rows of one rank's step."""

MOST_SILENT_S, MOST_UNDRAWN_S = 1.0, 5.0
"""A page that answers nobody for longer is felt to hang; one not drawn, to be broken."""

MOST_MIB = 128
"""What an engine may grow by while nobody listens to it."""


def step(t: float, number: int) -> list[tuple[str, msgspec.Struct]]:
    """What one rank's step brings."""
    hashes = np.arange(number, number + BLOCKS, dtype="<u8").tobytes()
    quarter = np.full(BLOCKS, 0.25, "<f4").tobytes()
    ones = np.ones(BLOCKS, "<u4").tobytes()
    return [
        ("steps", Steps(t, number, *range(1000, 998 + len(Steps.__struct_fields__)))),
        ("rows", Rows(t, number, *(64,) * 11, ms_copy=0.2, ms_commit=1.4)),
        ("store", Store(t, number, *(4096,) * 9, error="")),
        ("blocks", Blocks(t, number, "retained", "r", hashes, quarter, quarter, ones)),
    ]


def ranks(address: str) -> list[Channel]:
    """A channel of each rank, connected."""
    channels = [Channel(address, "cluster", rank=rank) for rank in range(RANKS)]
    for channel in channels:
        channel.hello({}, ())
        if not channel.wait_connected(20):
            raise RuntimeError("the collector did not take all ranks")
    return channels


def send(channels: list[Channel], steps: int) -> float:
    """Take `steps` steps of every rank, as the clock goes; returns when it began."""
    start, clock = time.perf_counter(), time.time()
    for number in range(steps):
        for channel in channels:
            for table, record in step(clock + number / STEPS_PER_S, number):
                channel.emit(table, record)
        # Behind the clock it goes on at once: the rate is the demand, not a limit.
        time.sleep(max(0.0, start + (number + 1) / STEPS_PER_S - time.perf_counter()))
    return start


def cluster(collecting: Collecting, seconds: float) -> bool:
    """Send from all ranks; False when a row is missing."""
    channels = ranks(collecting.address)
    steps = int(seconds * STEPS_PER_S)
    before, cpu = collecting.told(), time.process_time()
    start = send(channels, steps)
    sent = steps * RANKS * PER_STEP
    for channel in channels:
        channel.close(timeout=10)
    took = time.perf_counter() - start
    cpu = time.process_time() - cpu
    after = collecting.told()
    for _ in range(200):
        if came(after) - came(before) >= sent:
            break
        time.sleep(0.05)
        after = collecting.told()
    arrived = came(after) - came(before)
    dropped = sum(sum(channel.dropped.values()) for channel in channels)
    print(
        f"{RANKS} ranks at {STEPS_PER_S} steps/s for {seconds:g} s: {sent:,} rows sent, "
        f"{arrived:,} arrived, {dropped:,} dropped; {arrived / took:,.0f} rows/s\n"
        f"  CPU: all ranks {cpu / took:.0%} of a core, collector "
        f"{(after['cpu_s'] - before['cpu_s']) / took:.0%} of a core, which holds "
        f"{after['rss_kib'] / 1024:.0f} MiB"
    )
    return arrived == sent and not dropped


def came(told: dict[str, dict[str, int]]) -> int:
    """Rows that came, but for the collector's own `events`."""
    return sum(rows for table, rows in told["rows"].items() if table != "events")


def asleep(collecting: Collecting, seconds: float) -> bool:
    """Emit to a collector that hangs; False when memory grows or a row is not accounted for."""
    channel = Channel(collecting.address, "asleep")
    channel.hello({}, ())
    if not channel.wait_connected(20):
        raise RuntimeError("the collector did not come up")
    rate = RANKS * STEPS_PER_S
    before = collecting.told()
    resident = [rss_mib()]
    sent = slowest = 0
    with collecting.asleep():
        start = time.perf_counter()
        while time.perf_counter() < start + seconds:
            for _ in range(rate // 100):
                records = step(1.7e9, sent)
                began = time.perf_counter_ns()
                for table, record in records:
                    channel.emit(table, record)
                slowest = max(slowest, time.perf_counter_ns() - began)
                sent += 1
            resident.append(rss_mib())
            time.sleep(0.01)
    channel.close(timeout=20)
    dropped = sum(channel.dropped.values())
    after = collecting.told()
    for _ in range(200):
        if came(after) - came(before) + dropped >= sent * PER_STEP:
            break
        time.sleep(0.05)
        after = collecting.told()
    arrived = came(after) - came(before)
    grown = max(resident) - resident[0]
    print(
        f"collector stopped for {seconds:g} s: {sent * PER_STEP:,} rows emitted, {arrived:,} "
        f"arrived, {dropped:,} dropped and counted; the engine grew by {grown:.0f} MiB at "
        f"most, its slowest step took {slowest / 1e6:.2f} ms"
    )
    return arrived + dropped == sent * PER_STEP and grown <= MOST_MIB


def watched(seconds: float) -> bool:
    """Send from all ranks while a page looks at them; False when it falls silent."""
    served = subprocess.Popen(
        [
            *(sys.executable, "-m", "auxconn.cli", "serve", "--port", "0"),
            *("--collector-bind", "tcp://127.0.0.1:*"),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert served.stdout is not None
        said = ""
        while "tcp://" not in said or "http://" not in said:
            line = served.stdout.readline()
            if not line:
                raise RuntimeError(f"auxconn serve said nothing of use:\n{said}")
            said += line
        (page,) = re.findall(r"http://[^\s/]+/", said)[:1]
        (address,) = re.findall(r"tcp://[\w.:]+\d", said)[:1]
        channels = ranks(address)
        send(channels, 2 * STEPS_PER_S)
        watching = subprocess.Popen(
            [sys.executable, "-m", "bench.watching", f"{page}?engine=*", str(seconds)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        while watching.poll() is None:
            send(channels, STEPS_PER_S)
        answer = watching.communicate()[0].splitlines()
        for channel in channels:
            channel.close(timeout=10)
        dropped = sum(sum(channel.dropped.values()) for channel in channels)
    finally:
        served.terminate()
        served.wait(30)
    found = json.loads(answer[-1])
    print(
        f"a page that adds up {RANKS} ranks, in Chromium: open after "
        f"{found['opened_s']:.1f} s, drawn every "
        f"{found['drawings']['median_s']:.2f} s in the median; its beat of 0.2 s came every "
        f"{found['beats']['median_s']:.2f} s, at longest after "
        f"{found['beats']['longest_s']:.2f} s; {dropped:,} rows dropped"
    )
    drawn = found["drawings"]["count"] > seconds / MOST_UNDRAWN_S
    return drawn and found["beats"]["longest_s"] <= MOST_SILENT_S and not dropped


def rss_mib() -> float:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0)
    arguments = parser.parse_args()
    met = True
    for part in cluster, asleep:
        with Collecting() as collecting:
            met &= part(collecting, arguments.seconds)
    met &= watched(arguments.seconds)
    print(
        "met" if met else "MISSED: rows are missing, memory grew or the page was silent"
    )
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
