"""The supervisor of a real engine: `python -m auxconn.engine.child`.

It makes the toy model, starts `vllm serve`, tells a collector how the start comes along,
sends the load, and ends all of vLLM's processes when it is told to, when the server has
ended, or when its own parent has. It imports neither vLLM nor torch: it must be there at
once, and answer a signal at any time.

Lines that begin with `auxconn: ` are its own; all others are vLLM's.
"""

from __future__ import annotations

import http.client
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from typing import IO

from auxconn.channel import Channel
from auxconn.engine.ending import END_SECONDS, adopt_orphans, end_all
from auxconn.engine.job import Job
from auxconn.engine.load import Answer, Load, Tally
from auxconn.engine.model import SERVED_NAME, model_folder
from auxconn.engine.serving import HOST, command, variables
from auxconn.engine.stages import Start
from auxconn.lab.guardian import Guardian
from auxconn.records import EventKind, Events

LOOK_SECONDS = 0.2
"""How often the supervisor looks how things are."""

FIRST_FAILURES = 20
"""Failures of the load that are told one by one; of those behind them, each 100th."""

ROLE = "supervisor"
"""Of the source that it is: no step, no command, how the engine's start comes along."""


def say(text: str) -> None:
    """Write a line for the parent, which may be gone."""
    try:
        print(f"auxconn: {text}", flush=True)  # noqa: T201 - the parent reads it
    except OSError:
        # Nobody reads any more; the guardian sees to the rest.
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123


class Supervisor:
    """One engine from its start to its end."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.channel = (
            Channel(job.address, job.engine, role=ROLE) if job.address else None
        )
        self.guardian = Guardian(farewell=lambda _: None, grace=END_SECONDS)
        # There is always something to end.
        self.guardian.interruptible = False
        self.start = Start(self._progress)
        self._server: subprocess.Popen[str] | None = None
        self._folder = ""
        self._load: threading.Thread | None = None
        self._tally: Tally | None = None
        self._said = ""

    def run(self) -> int:
        """Run the engine until it ends or is told to; returns the exit status."""
        status, reason = 1, "error"
        try:
            status, reason = self._run()
        except Exception as error:  # noqa: BLE001 - told to all who watch
            traceback.print_exc()
            reason = f"error: {type(error).__name__}: {error}"
            say(reason)
        finally:
            self._end(reason)
        return status

    def _run(self) -> tuple[int, str]:
        job = self.job
        self.start.enter("spawn")
        model = model_folder(job.config)
        port = _free_port(job.port)
        self.start.enter("import")
        # What vLLM writes beside its memory goes with the engine.
        self._folder = tempfile.mkdtemp(prefix="auxconn-")
        environment = {**os.environ, "TMPDIR": self._folder}
        self._server = subprocess.Popen(
            command(job.config, model, port),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=variables(job.config, job.address, job.engine, environment),
        )
        assert self._server.stdout is not None
        threading.Thread(
            target=self._listen, args=(self._server.stdout,), daemon=True
        ).start()
        while True:
            if self.guardian.stopping.wait(LOOK_SECONDS):
                return 0, self.guardian.reason
            if self._server.poll() is not None:
                return 1, f"error: vLLM ended with exit code {self._server.returncode}"
            if self.start.stage != "ready":
                self.start.tick()
                if _answers(port):
                    self._ready(port)
            elif self._load is not None and not self._load.is_alive():
                self._load = None
                if job.once:
                    failed = self._tally is None or self._tally.failed
                    return (1 if failed else 0), "the load is over"

    def _ready(self, port: int) -> None:
        self.start.enter("ready")
        say(f"ready: model {SERVED_NAME} at http://{HOST}:{port}/v1")
        if self.job.workload is not None:
            text = f"load: {self.job.workload.describe()}"
            say(text)
            self._event("workload", text)
            self._load = threading.Thread(target=self._send, args=(port,), daemon=True)
            self._load.start()

    def _send(self, port: int) -> None:
        job = self.job
        assert job.workload is not None
        answers = Path(job.answers).open("w") if job.answers else None  # noqa: SIM115
        try:
            load = Load(
                job.workload.build(), port, lambda answer: self._take(answer, answers)
            )
            self._tally = load.tally
            load.run(self.guardian.stopping)
            text = f"load: {load.tally}"
        except Exception as error:  # noqa: BLE001 - told, and the engine goes on
            self._tally = None
            text = f"load failed: {type(error).__name__}: {error}"
        finally:
            if answers is not None:
                answers.close()
        say(text)
        failed = self._tally is None or self._tally.failed
        self._event("error" if failed else "mark", text)

    def _take(self, answer: Answer, answers: IO[str] | None) -> None:
        if answers is not None:
            answers.write(answer.to_line() + "\n")
            answers.flush()
        if not answer.problem or self._tally is None:
            return
        failed = self._tally.failed
        if failed <= FIRST_FAILURES or failed % 100 == 0:
            text = f"load: request {answer.id!r} failed: {answer.problem}"
            say(text)
            self._event("error", text)

    def _listen(self, lines: IO[str]) -> None:
        for line in lines:
            self.start.heard(line)
            try:
                sys.stdout.write(line)
            except OSError:
                continue

    def _progress(self, stage: str, fraction: float, text: str) -> None:
        if self.channel is not None:
            self.channel.progress(stage, fraction, text)
        if stage != self._said:
            self._said = stage
            say(text)

    def _event(self, kind: EventKind, text: str) -> None:
        if self.channel is not None:
            self.channel.emit("events", Events(time.time(), 0, kind, text))

    def _end(self, reason: str) -> None:
        # The load's requests fail from here on, and that is no news.
        self.guardian.stopping.set()
        if self._server is not None:
            killed = end_all(self._server)
            if killed:
                say(f"killed {killed} processes that did not end by themselves")
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
        if self._load is not None:
            self._load.join(0.5)
        say(f"ended: {reason}")
        if self.channel is not None:
            self.channel.close(reason)


def _free_port(wanted: int) -> int:
    """Return the port, any free one for 0; who listens on it already is not to be asked.

    Raises
    ------
    OSError
        When it is taken.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, wanted))
        except OSError as problem:
            raise OSError(
                problem.errno,
                f"port {wanted} of {HOST} is taken ({problem.strerror}); end what uses it, or "
                "choose another: --port 0 takes a free one",
            ) from problem
        return int(probe.getsockname()[1])


def _answers(port: int) -> bool:
    """Whether the API is there and its engine well."""
    connection = http.client.HTTPConnection(HOST, port, timeout=1.0)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def main() -> int:
    """Run the engine of the job on the input; returns the exit status."""
    try:
        job = Job.from_line(sys.stdin.readline())
    except ValueError as error:
        say(str(error))
        return 2
    if os.getsid(0) != os.getpid():
        say(
            "this process leads no session of its own: it is for EngineProcess to start"
        )
        return 2
    adopt_orphans()
    supervisor = Supervisor(job)
    supervisor.guardian.watch()
    return supervisor.run()


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    # Threads of the load may still wait for answers that never come.
    os._exit(status)
