"""A collector in a process of its own, as an engine has it."""

from __future__ import annotations

import subprocess
import sys
from types import TracebackType
from typing import Self

_PROGRAM = """
import sys
from auxconn.collector import Collector
with Collector() as collector:
    print(collector.address, flush=True)
    sys.stdin.read()
"""


class Collecting:
    """A context manager; `address` is where engines send to."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM],
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
