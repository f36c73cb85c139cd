"""A collector in a process of its own, as an engine has it."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from auxconn.collector import Collector

ROOT = Path(__file__).resolve().parent.parent


def told(collector: Collector) -> dict[str, Any]:
    """Rows that came, those that were lost, and what it took."""
    sources = collector.sources()
    spent = resource.getrusage(resource.RUSAGE_SELF)
    store = collector.store
    return {
        "rows": {table: store.version(table) for table in store.limits},
        "lost": sum(sum(one.rows_lost.values()) for one in sources),
        "batches_lost": sum(one.batches_lost for one in sources),
        "cpu_s": spent.ru_utime + spent.ru_stime,
        "rss_kib": spent.ru_maxrss,
    }


def main() -> None:
    """Say the address, and answer each line of the input with what came so far."""
    bind = sys.argv[1] if len(sys.argv) > 1 else "tcp://127.0.0.1:*"
    with Collector(bind) as collector:
        print(collector.address, flush=True)
        for _ in sys.stdin:
            print(json.dumps(told(collector)), flush=True)


class Collecting:
    """A context manager; `address` is where engines send to.

    Parameters
    ----------
    bind
        Where it listens.
    """

    def __init__(self, bind: str = "tcp://127.0.0.1:*") -> None:
        self._bind = bind

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.collecting", self._bind],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.communicate()

    def kill(self) -> None:
        """End it without a chance to say so."""
        self._process.kill()
        self._process.wait()

    def told(self) -> dict[str, Any]:
        """What it says now, as in the function of that name."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found

    def rows(self, table: str) -> int:
        """Rows of `table` that came so far."""
        return int(self.told()["rows"][table])

    @contextmanager
    def asleep(self) -> Iterator[None]:
        """It takes nothing in meanwhile, as a process does that hangs."""
        os.kill(self._process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._process.pid, signal.SIGCONT)


if __name__ == "__main__":
    main()
