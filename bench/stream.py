"""The stream: what a record costs the engine, and how many rows a second reach the frames.

Four figures, each the median of `RUNS` runs with its range:

- `emit`: ns on the engine's thread for a record, in bursts as a step makes them, without a
  collector and with one in another process;
- rows/s from `emit` in one process through the socket into the frames of another, the
  engine emitting as fast as nothing is dropped (checked);
- a million rows appended in batches and the newest 10,000 read as pandas, beside the same
  with `pandas.concat` from the same records;
- a sum over a window of time, by bins, after each batch, beside the same.

Run as `python -m bench.stream` on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from auxconn.channel import Channel
from auxconn.collector import Collector
from auxconn.frames import FrameStore
from auxconn.records import Blocks, Lookups, Steps

RUNS = 9
PATIENCE = 120.0
ROWS = {"steps": 200_000, "lookups": 200_000, "blocks": 2_000_000}
"""Rows of one run; `blocks` in records of `BLOCKS` as an admission makes them."""
BLOCKS = 512


def steps(i: int) -> Steps:
    """A row of `steps`, its numbers as large as they are in practice."""
    others = len(Steps.__struct_fields__) - 2
    return Steps(1.7e9 + i / 50, i, *range(i, i + others))


def lookups(i: int) -> Lookups:
    """A row of `lookups` with the request id of an API server."""
    return Lookups(
        1.7e9 + i / 50, i, f"chatcmpl-{i:032x}", 4096, 4000, False, 16, 2048, 1024,
        1024, 0, 1024, "unaligned", 2048, "evicted", 1,
    )  # fmt: skip


def blocks(i: int) -> Blocks:
    """A record of `BLOCKS` blocks that one request released."""
    numbers = np.arange(BLOCKS) + i
    return Blocks(
        1.7e9 + i / 50,
        i,
        "released",
        f"chatcmpl-{i:032x}",
        numbers.astype("<u8").tobytes(),
        numbers.astype("<f4").tobytes(),
        numbers.astype("<f4").tobytes(),
        numbers.astype("<u4").tobytes(),
    )


MAKERS: dict[str, Callable[[int], msgspec.Struct]] = {
    "steps": steps,
    "lookups": lookups,
    "blocks": blocks,
}


def engine(address: str) -> None:
    """The other process: emit what it is told to, and say how long each record took."""
    channel = Channel(address, "bench", capacity_rows=10_000_000)
    channel.hello({"pid": 0}, ("emit", "burst", "stop"))
    ready: dict[str, list[msgspec.Struct]] = {}
    while True:
        for command in channel.poll_commands(timeout=1.0):
            if command.name == "stop":
                channel.ack(command, True)
                channel.close()
                return
            table, n = command.args["table"], command.args["n"]
            if len(ready.get(table, ())) != n:
                ready[table] = [MAKERS[table](i) for i in range(n)]
            if command.args.get("prepare"):
                channel.ack(command, True)
                continue
            if command.name == "burst":
                channel.ack(command, True, str(burst_ns(channel, table, ready[table])))
            else:
                pour(channel, table, ready[table])
                channel.ack(command, True)


def emit_ns(channel: Channel, table: str, records: list[msgspec.Struct]) -> float:
    """Nanoseconds a record for `records` in one go."""
    emit = channel.emit
    start = time.perf_counter_ns()
    for record in records:
        emit(table, record)
    return (time.perf_counter_ns() - start) / len(records)


def pour(channel: Channel, table: str, records: list[msgspec.Struct]) -> None:
    """Emit `records` in bursts, with pauses only while many wait to be sent."""
    for first in range(0, len(records), 1000):
        emit_ns(channel, table, records[first : first + 1000])
        while channel.waiting.get(table, 0) > 8000:
            time.sleep(0.0005)


def burst_ns(channel: Channel, table: str, records: list[msgspec.Struct]) -> float:
    """Nanoseconds a record, in bursts of 100 with a pause as between steps."""
    spent = 0.0
    for first in range(0, len(records), 100):
        spent += 100 * emit_ns(channel, table, records[first : first + 100])
        time.sleep(0.005)
    return spent / len(records)


@contextmanager
def other_process(collector: Collector) -> Iterator[None]:
    """An engine in another process that obeys `collector`."""
    command = [sys.executable, __file__, "--engine", collector.address]
    with subprocess.Popen(command) as child:
        try:
            collector.wait(lambda all_: bool(all_ and all_[0].commands), PATIENCE)
            yield
            collector.command("bench", "stop").result(PATIENCE)
        finally:
            child.kill()


def told(collector: Collector, name: str, **args: Any) -> str:
    """Tell the engine and wait for its answer."""
    return (
        collector.command("bench", name, timeout=PATIENCE, **args).result(PATIENCE).text
    )


def measure_emit() -> None:
    """ns per `emit`."""
    for table, make in MAKERS.items():
        n = 200 if table == "blocks" else 2000
        alone = Channel("tcp://127.0.0.1:9", "bench")
        records = [make(i) for i in range(n)]
        show(
            f"emit {table}, no collector",
            [burst_ns(alone, table, records) for _ in range(RUNS)],
            "ns",
        )
        alone.close(timeout=0)
        with Collector() as collector, other_process(collector):
            told(collector, "emit", table=table, n=n, prepare=True)
            found = [
                float(told(collector, "burst", table=table, n=n)) for _ in range(RUNS)
            ]
            show(f"emit {table}, collector elsewhere", found, "ns")


def measure_rows() -> None:
    """Rows a second from one process into the frames of another."""
    for table, wanted in ROWS.items():
        n = wanted // BLOCKS if table == "blocks" else wanted
        rows = n * BLOCKS if table == "blocks" else n
        found = []
        with Collector() as collector, other_process(collector):
            told(collector, "emit", table=table, n=n, prepare=True)
            for _ in range(RUNS):
                version = collector.store.version(table) + rows
                start = time.perf_counter()
                done = collector.command(
                    "bench", "emit", timeout=PATIENCE, table=table, n=n
                )
                if not collector.store.wait(table, version, PATIENCE):
                    raise SystemExit(f"{table}: {version} rows did not arrive")
                found.append(rows / (time.perf_counter() - start))
                done.result(PATIENCE)
            (source,) = collector.sources()
            if source.rows_lost or source.batches_lost:
                raise SystemExit(f"rows were lost: {source}")
        show(f"{table} into frames", found, "rows/s")


BATCH, KEEP, LAST, WINDOW_S, BIN = 5_000, 100_000, 10_000, 200, "10s"


class Ours:
    """A `FrameStore`."""

    def __init__(self) -> None:
        self._store = FrameStore(KEEP)

    def append(self, records: list[Steps]) -> None:
        """Take a batch in."""
        self._store.append("steps", records, "bench", typed=True)

    def last(self) -> pd.DataFrame:
        """The newest rows."""
        return self._store.steps(last=LAST)

    def window(self, end: float) -> pd.Series:
        """Hashes retained in the last seconds, by bins."""
        frame = self._store.steps(since_t=end - WINDOW_S)
        return frame.resample(BIN, on="t")["hashes_retained"].sum()


class Plain:
    """A frame to which each batch is concatenated, or a frame a batch until one asks."""

    def __init__(self, *, each: bool) -> None:
        self._each = each
        self._kept: deque[pd.DataFrame] = deque(maxlen=KEEP // BATCH)

    def append(self, records: list[Steps]) -> None:
        """Take a batch in."""
        tuples = list(map(msgspec.structs.astuple, records))
        made = pd.DataFrame.from_records(tuples, columns=Steps.__struct_fields__)
        made["t"] = pd.to_datetime(made["t"], unit="s", utc=True)
        if self._each and self._kept:
            made = pd.concat([self._kept.pop(), made], ignore_index=True).tail(KEEP)
        self._kept.append(made)

    def _whole(self) -> pd.DataFrame:
        if len(self._kept) == 1:
            return self._kept[0]
        return pd.concat(list(self._kept), ignore_index=True)

    def last(self) -> pd.DataFrame:
        """The newest rows."""
        return self._whole().tail(LAST)

    def window(self, end: float) -> pd.Series:
        """Hashes retained in the last seconds, by bins."""
        frame = self._whole()
        frame = frame[frame["t"] >= pd.Timestamp(end - WINDOW_S, unit="s", tz="UTC")]
        return frame.resample(BIN, on="t")["hashes_retained"].sum()


WAYS: dict[str, Callable[[], Ours | Plain]] = {
    "FrameStore": Ours,
    "concat of each batch": lambda: Plain(each=True),
    "frames of batches, concat when asked": lambda: Plain(each=False),
}


def measure_append() -> None:
    """A million rows appended and the newest 10,000 as pandas, beside `concat`."""
    records = [steps(i) for i in range(BATCH)]
    for name, make in WAYS.items():
        found = []
        for _ in range(RUNS):
            start = time.perf_counter()
            kept = make()
            for _ in range(1_000_000 // BATCH):
                kept.append(records)
            assert len(kept.last()) == LAST
            found.append(time.perf_counter() - start)
        show(f"1e6 rows, last 10,000: {name}", found, "s")


def measure_window() -> None:
    """A windowed aggregate after each of 40 batches, beside the same in plain pandas."""
    batches = [
        [steps(i) for i in range(first, first + BATCH)]
        for first in range(0, 40 * BATCH, BATCH)
    ]
    ends = [batch[-1].t for batch in batches]
    results: list[list[pd.Series]] = []
    for name, make in WAYS.items():
        found = []
        for _ in range(RUNS):
            kept, sums = make(), []
            start = time.perf_counter()
            for batch, end in zip(batches, ends, strict=True):
                kept.append(batch)
                sums.append(kept.window(end))
            found.append(time.perf_counter() - start)
        results.append(sums)
        show(f"{WINDOW_S} s window by {BIN} after each batch: {name}", found, "s")
    for other in results[1:]:
        for one, same in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(one.to_numpy(), same.to_numpy())


def show(name: str, values: list[float], unit: str) -> None:
    """Print a median and the range it is from."""
    middle, low, high = statistics.median(values), min(values), max(values)
    digits = 2 if middle < 100 else 0
    print(
        f"{name:<56} {middle:>12,.{digits}f} {unit:<7}"
        f" ({low:,.{digits}f} to {high:,.{digits}f}, {len(values)} runs)",
        flush=True,
    )


def main() -> None:
    """Measure all, or be the engine of a measurement."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--engine", metavar="ADDRESS", help="be the other process")
    parser.add_argument(
        "--only", choices=("emit", "rows", "append", "window"), help="measure one"
    )
    arguments = parser.parse_args()
    if arguments.engine:
        engine(arguments.engine)
        return
    parts = {
        "emit": measure_emit,
        "rows": measure_rows,
        "append": measure_append,
        "window": measure_window,
    }
    for name, measure in parts.items():
        if arguments.only in (None, name):
            measure()


if __name__ == "__main__":
    main()
