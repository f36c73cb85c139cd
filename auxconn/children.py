"""A child process with a job: started, watched and ended from here.

A viewer must not import vLLM and must go on drawing when an engine dies, so engines run in
children that connect out to the viewer's collector. The job goes down the child's input, a
pipe that stays open for as long as this process lives, which is how the child knows. A child
has a session of its own: what it leaves behind, even when it was killed, is ended with it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections import deque
from types import TracebackType
from typing import IO, Self

from auxconn.sessions import kill

TAIL_LINES = 200
"""Lines of the child's output that are kept for error reports."""

KILL_SECONDS = 2.5
"""How long the end of what a child left behind may take."""

STOP_SECONDS = 8.0
"""How long `stop` waits for an orderly end; the child gives itself less."""


class Child(ABC):
    """A Python module run as a child process.

    Parameters
    ----------
    module
        Its name; run with `python -m`.
    """

    def __init__(self, module: str) -> None:
        self._module = module
        self._process: subprocess.Popen[str] | None = None
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._reader: threading.Thread | None = None
        self._lock = threading.RLock()

    @abstractmethod
    def _line(self) -> str:
        """The job, as one line for the child's input."""

    @abstractmethod
    def _variables(self) -> dict[str, str]:
        """The child's environment."""

    def _heard(self, line: str) -> None:
        """Called with each line of the child's output, in a thread."""
        self._tail.append(line[:2000])

    @property
    def alive(self) -> bool:
        """True while the child runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def returncode(self) -> int | None:
        """Exit status of the child; None while it runs, or before it ever did."""
        return None if self._process is None else self._process.poll()

    @property
    def pid(self) -> int | None:
        """Process id of the child; None before it ever ran."""
        return None if self._process is None else self._process.pid

    @property
    def output(self) -> str:
        """End of what the child has written, for error reports. Text from outside."""
        return "\n".join(list(self._tail))

    def start(self) -> Self:
        """Start the child and return at once; does nothing while it runs."""
        with self._lock:
            if self.alive:
                return self
            self._reap()
            self._tail.clear()
            process = self._process = subprocess.Popen(
                [sys.executable, "-u", "-m", self._module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env=self._variables(),
                # Ctrl-C in the terminal is for the parent, which ends the child itself.
                start_new_session=True,
            )
            assert process.stdin is not None
            assert process.stdout is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(self._line() + "\n")
                process.stdin.flush()
            self._reader = threading.Thread(
                target=self._read,
                args=(process.stdout,),
                name=f"{self._module}-output",
                daemon=True,
            )
            self._reader.start()
            threading.Thread(
                target=_sweep,
                args=(process.pid,),
                name=f"{self._module}-end",
                daemon=True,
            ).start()
        return self

    def stop(self, timeout: float = STOP_SECONDS) -> int | None:
        """End the child and return its exit status; None when it never ran.

        One that hasn't ended after `timeout` seconds is killed.
        """
        with self._lock:
            process = self._process
            if process is None:
                return None
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(timeout)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
                _end_group(process.pid)
            self._reap()
            return process.returncode

    def _read(self, lines: IO[str]) -> None:
        for line in lines:
            self._heard(line.rstrip("\n"))

    def _reap(self) -> None:
        """Close what is left of a child that has ended."""
        process, reader = self._process, self._reader
        if process is None:
            return
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError, OSError):
                process.stdin.close()
        if reader is not None:
            # A grandchild could hold the pipe open; its output is of no interest.
            reader.join(1.0)
        if process.stdout is not None and (reader is None or not reader.is_alive()):
            process.stdout.close()
        self._reader = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def _sweep(pid: int) -> None:
    """Wait for a child's end, without taking its exit status, and end what it left."""
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    _end_group(pid)


def _end_group(pid: int) -> None:
    """End what is left of the processes of a child that has ended."""
    # The number is not given to another process while the session has members.
    kill(pid, KILL_SECONDS)
