"""A load on a real engine's HTTP API: the requests of a workload, and what became of them.

The lab decides what a request generates; here a model does. So a later turn of a
conversation is given what the model really said, at the place where the workload has what
the lab would have said: the lengths are the same. Each answer is checked for what R3
promises, a row of experts for every token but the last, and whatever is not as asked is a
failure that is told, not a number that is missing.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import io
import json
import queue
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from auxconn.engine.model import FIRST_TOKEN, SERVED_NAME, VOCABULARY
from auxconn.engine.serving import HOST
from auxconn.lab.feeder import Feeder
from auxconn.lab.requests import LabRequest

STEP_SECONDS = 0.1
"""What counts as a step for workloads whose requests arrive at steps."""

TIMEOUT_SECONDS = 300.0
"""A request without an answer for so long has failed."""

PAUSE_SECONDS = 0.5
"""After a failure a request's place stays empty so long: the engine may be in trouble."""

MOST_SAID = 4096
"""Answers that are kept for the requests that follow them."""


@dataclass(frozen=True)
class Answer:
    """What the API answered to one request; `problem` is empty when it is as asked."""

    id: str
    prompt_tokens: int
    tokens: list[int] = field(default_factory=list)
    rows: np.ndarray | None = None
    seconds: float = 0.0
    problem: str = ""

    @property
    def engine_id(self) -> str:
        """The request's name within the engine, as in the frames."""
        return f"cmpl-{self.id}-0"

    def to_line(self) -> str:
        """Write it as a line of JSON; of the rows their shape and digest."""
        rows = self.rows
        return json.dumps(
            {
                "id": self.id,
                "request": self.engine_id,
                "prompt_tokens": self.prompt_tokens,
                "tokens": self.tokens,
                "rows": None if rows is None else list(rows.shape),
                "rows_sha256": None if rows is None else digest(rows),
                "seconds": round(self.seconds, 3),
                "problem": self.problem,
            }
        )


@dataclass
class Tally:
    """How many requests were sent, and what became of them."""

    sent: int = 0
    answered: int = 0
    failed: int = 0
    rows: int = 0
    tokens: int = 0

    def __str__(self) -> str:
        return (
            f"{self.answered} answered, {self.failed} failed of {self.sent} requests sent; "
            f"{self.tokens:,} tokens generated, {self.rows:,} R3 rows"
        )


def digest(rows: np.ndarray) -> str:
    """SHA-256 of rows, their shape and dtype included."""
    head = f"{rows.shape}{rows.dtype.str}".encode()
    return hashlib.sha256(head + rows.tobytes()).hexdigest()


class Load:
    """Sends a workload's requests.

    Parameters
    ----------
    workload
        Requests of the lab; as many at a time as it says.
    port
        Of the API on this machine.
    on_answer
        Called with each answer, failures too, in the thread of `run`.
    """

    def __init__(
        self,
        workload: Iterable[LabRequest],
        port: int,
        on_answer: Callable[[Answer], None] = lambda _: None,
    ) -> None:
        self.tally = Tally()
        self._feeder = Feeder(workload)
        self._port = port
        self._on_answer = on_answer
        self._said: OrderedDict[str, np.ndarray] = OrderedDict()
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()

    def run(self, stop: threading.Event) -> Tally:
        """Send until the workload is over, or told to stop; what is under way is left then.

        Raises
        ------
        ValueError
            When the workload brings something that is no request.
        """
        due = time.monotonic()
        while not stop.is_set() and not self._feeder.done:
            if time.monotonic() >= due:
                due = max(due + STEP_SECONDS, time.monotonic())
                for request in self._feeder.due():
                    self._send(request, stop)
            try:
                answer = self._answers.get(timeout=max(due - time.monotonic(), 0.001))
            except queue.Empty:
                continue
            if not stop.is_set():
                self._take(answer)
            if self._feeder.concurrency is not None:
                # Its place is free now; only who arrives by himself waits for his step.
                due = time.monotonic()
        return self.tally

    def _send(self, request: LabRequest, stop: threading.Event) -> None:
        prompt = tokens_of(request.prompt)
        before = self._said.get(request.after)
        if before is not None and len(before) <= len(prompt):
            prompt[: len(before)] = before
        self.tally.sent += 1

        def work() -> None:
            answer = ask(self._port, request, prompt)
            if answer.problem:
                stop.wait(PAUSE_SECONDS)
            self._answers.put(answer)

        # A daemon: an answer that never comes must not keep the process.
        threading.Thread(target=work, name="auxconn-load", daemon=True).start()
        self._said[request.id] = prompt
        while len(self._said) > MOST_SAID:
            self._said.popitem(last=False)

    def _take(self, answer: Answer) -> None:
        tally = self.tally
        if answer.problem:
            tally.failed += 1
        else:
            tally.answered += 1
        tally.tokens += len(answer.tokens)
        tally.rows += 0 if answer.rows is None else len(answer.rows)
        prompt = self._said.pop(answer.id, None)
        if prompt is not None and not answer.problem:
            self._said[answer.id] = np.concatenate((prompt, answer.tokens))
        self._feeder.ended(answer.id)
        self._on_answer(answer)


def tokens_of(tokens: Any) -> np.ndarray:
    """Tokens of the lab as tokens of the toy: the same ones become the same ones."""
    spread = VOCABULARY - FIRST_TOKEN
    return FIRST_TOKEN + np.asarray(tokens, dtype=np.int64) % spread


def ask(port: int, request: LabRequest, prompt: np.ndarray) -> Answer:
    """Send one request and wait for its answer. Never raises: a failure is an answer."""
    began = time.monotonic()
    body = {
        "model": SERVED_NAME,
        "prompt": prompt.tolist(),
        "max_tokens": request.max_tokens,
        "ignore_eos": True,
        "temperature": 1.0,
        # The same request says the same in any order and beside any others.
        "seed": zlib.crc32(request.id.encode()),
        "return_token_ids": True,
        "routed_experts_prompt_start": request.prompt_start,
    }
    answer = Answer(request.id, len(prompt))
    try:
        status, text = _post(port, request.id, json.dumps(body))
        if status != 200:
            problem = f"HTTP {status}: {text[:300]}"
        else:
            answer = _read(request, len(prompt), json.loads(text))
            problem = answer.problem
    except Exception as error:  # noqa: BLE001 - whatever it is, the request has failed
        problem = f"{type(error).__name__}: {error}"
    return Answer(
        answer.id,
        answer.prompt_tokens,
        answer.tokens,
        answer.rows,
        time.monotonic() - began,
        problem,
    )


def _post(port: int, name: str, body: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(HOST, port, timeout=TIMEOUT_SECONDS)
    try:
        headers = {"Content-Type": "application/json", "X-Request-Id": name}
        connection.request("POST", "/v1/completions", body, headers)
        response = connection.getresponse()
        return response.status, response.read().decode("utf-8", "replace")
    finally:
        connection.close()


def _read(request: LabRequest, prompt_tokens: int, body: Any) -> Answer:
    """Take an answer apart and say what is not as asked."""
    choice = body["choices"][0]
    tokens = [int(token) for token in choice["token_ids"]]
    packed = choice.get("routed_experts")
    rows = None if packed is None else _unpack(packed)
    expected = prompt_tokens + len(tokens) - 1 - request.prompt_start
    if choice["finish_reason"] != "length" or len(tokens) != request.max_tokens:
        problem = (
            f"{len(tokens)} of {request.max_tokens} tokens, ended by "
            f"{choice['finish_reason']!r}"
        )
    elif rows is None:
        problem = "no routed experts"
    elif len(rows) != expected:
        problem = f"{len(rows)} rows of routed experts instead of {expected}"
    else:
        problem = ""
    return Answer(request.id, prompt_tokens, tokens, rows, problem=problem)


def _unpack(packed: str) -> np.ndarray:
    rows = np.load(io.BytesIO(base64.b64decode(packed)), allow_pickle=False)
    if not isinstance(rows, np.ndarray) or rows.ndim != 3:
        raise ValueError("routed experts of an unknown form")
    return rows
