"""A real vLLM on the CPU: what auxconn shows of it is what it really returned.

One engine inside a process of its own that `attach` watches, with the host tier and without;
and one `vllm serve` started by `auxconn engine` and watched through the plugin. All of them
are asked the same, so all of them have to say the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from auxconn import Collector
from auxconn.lab import workloads
from tests.engine.real_engine_run import CONFIG, README_LINE, WORKLOAD

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]

REQUESTS = list(workloads.grpo(**WORKLOAD))
TIER = 200


def run_inside(tier: int, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.engine.real_engine_run", str(tier)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        # vLLM leaves a file there, which goes with the folder.
        env={**os.environ, "PYTHONWARNINGS": "ignore", "TMPDIR": str(folder)},
    )


def result_of(process: subprocess.Popen[str]) -> dict:
    text, _ = process.communicate(timeout=200)
    found = [line for line in text.splitlines() if line.startswith("RESULT ")]
    assert found, text[-5000:]
    return json.loads(found[0].removeprefix("RESULT "))


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, dict]:
    """What an engine said and the frames held: without the tier, and with it."""
    folder = tmp_path_factory.mktemp("inside")
    processes = [run_inside(tier, folder) for tier in (0, TIER)]
    try:
        without, with_tier = map(result_of, processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return without, with_tier


def said(answers: dict) -> dict:
    """Tokens and rows of each request."""
    return {
        name: [(one["tokens"], one["rows"], one["rows_sha256"]) for one in each]
        for name, each in answers.items()
    }


@pytest.mark.parametrize("which", [0, 1], ids=["without tier", "with tier"])
def test_rows_in_the_frames_are_those_returned_request_by_request(
    inside: tuple[dict, dict], which: int
) -> None:
    found = inside[which]
    assert not found["problems"]
    assert found["alone"] == len(REQUESTS)
    ended = {row[0]: row for row in found["ended"]}
    for request in REQUESTS:
        alone, together = found["answers"][request.id]
        prompt, output = len(request.prompt), request.max_tokens
        rows = prompt + output - 1
        assert (
            alone["rows"] == together["rows"] == [rows, CONFIG.num_layers, CONFIG.top_k]
        )
        delivered = alone["step_rows"] + alone["store_rows"] + alone["tail_rows"]
        assert delivered == rows
        _, prompt_tokens, output_tokens, local, external, _ = ended[alone["request"]]
        assert (prompt_tokens, output_tokens) == (prompt, output)
        # What was hit was not computed: its rows come from the store, at the least.
        assert alone["captured_rows"] == rows - local - external
        assert alone["store_rows"] >= local + external
    returned = sum(found["answers"][one.id][1]["rows"][0] for one in REQUESTS)
    assert found["together_rows"] == returned


def test_loads_are_true_and_change_nothing_that_is_said(
    inside: tuple[dict, dict],
) -> None:
    without, with_tier = inside
    assert said(without["answers"]) == said(with_tier["answers"])
    # A request alone says what it says among others.
    for alone, together in said(with_tier["answers"]).values():
        assert alone == together
    assert without["accepted"] == without["offered"] == without["loading_blocks"] == 0
    assert with_tier["accepted"] > 500
    assert with_tier["loading_blocks"] > 0
    assert with_tier["events"]["load_started"] == with_tier["events"]["load_ended"]
    external = sum(row[4] for row in with_tier["ended"])
    assert external == with_tier["accepted"]
    assert sum(row[5] for row in with_tier["ended"]) >= 5
    assert with_tier["facts"]["kv_tier_blocks"] == TIER


class Serving:
    """`auxconn engine` as somebody runs it in a terminal."""

    def __init__(self, collector: Collector, folder: Path, *words: str) -> None:
        self.answers = folder / "answers"
        self.log = folder / "log"
        with self.log.open("w") as log:
            program, *readme = shlex.split(README_LINE)
            readme[readme.index("--collector") + 1] = collector.address
            self.process = subprocess.Popen(
                [
                    Path(sys.executable).with_name(program), *readme, "--verbose",
                    "--name", "served", "--blocks", str(CONFIG.num_blocks),
                    "--kv-tier", str(TIER), *words,
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "VLLM_LOGGING_LEVEL": "INFO"},
            )  # fmt: skip
        self.family: dict[int, psutil.Process] = {}

    def look(self) -> None:
        """Remember every process there is below it."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for one in psutil.Process(self.process.pid).children(recursive=True):
                self.family[one.pid] = one

    def words(self) -> list[list[str]]:
        """Command lines of all processes below it."""
        self.look()
        found = []
        for one in self.family.values():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                found.append(one.cmdline())
        return found

    def until(self, reached, seconds: float, what: str):
        end = time.monotonic() + seconds
        while not (found := reached()):
            self.look()
            assert self.process.poll() is None, self.log.read_text()[-5000:]
            assert time.monotonic() < end, f"no {what}: {self.log.read_text()[-5000:]}"
            time.sleep(0.1)
        return found

    def lines(self) -> list[dict]:
        if not self.answers.exists():
            return []
        text = self.answers.read_text()
        return [
            json.loads(line)
            for line in text.splitlines(keepends=True)
            if line[-1] == "\n"
        ]


@pytest.mark.parametrize("how", ["terminal killed", "supervisor killed", "terminated"])
def test_no_process_is_left_however_it_ends(tmp_path: Path, how: str) -> None:
    with Collector() as collector:
        serving = Serving(collector, tmp_path)
        try:
            serving.until(
                lambda: any(
                    "vllm_main" in word for one in serving.words() for word in one
                ),
                60,
                "vLLM",
            )
            serving.look()
            assert len(serving.family) >= 2
            if how == "terminal killed":
                serving.process.kill()
            elif how == "terminated":
                serving.process.terminate()
            else:
                supervisor = psutil.Process(serving.process.pid).children()[0]
                supervisor.kill()
            status = serving.process.wait(30)
        finally:
            serving.process.kill()
            serving.process.wait()
            _, left = psutil.wait_procs(serving.family.values(), timeout=15)
        assert not left, left
        assert (
            status
            == {
                "terminal killed": -signal.SIGKILL,
                "supervisor killed": 1,
                "terminated": 128 + signal.SIGTERM,
            }[how]
        )


def test_a_served_engine_is_watched_loaded_and_ended(
    inside: tuple[dict, dict], tmp_path: Path
) -> None:
    params = [
        word
        for name, value in WORKLOAD.items()
        for word in ("--param", f"{name}={value}")
    ]
    with Collector() as collector:
        stages: list[tuple[str, float]] = []

        def sources(role: str) -> list:
            return [one for one in collector.sources() if one.role == role]

        def ready() -> bool:
            stages.extend(
                (one.progress.stage, one.progress.fraction)
                for one in sources("supervisor")
                if one.progress is not None
            )
            return bool(stages) and stages[-1][0] == "ready"

        serving = Serving(
            collector, tmp_path, "--answers", str(tmp_path / "answers"),
            "--workload", "grpo", *params,
        )  # fmt: skip
        try:
            serving.until(ready, 200, "engine")
            answers = serving.until(
                lambda: len(found := serving.lines()) == len(REQUESTS) and found,
                100,
                "answers",
            )
            serving.until(
                lambda: len(collector.store.requests()) == len(REQUESTS), 10, "rows"
            )
            serving.until(
                lambda: "load: 20 answered, 0 failed" in serving.log.read_text(),
                10,
                "tally",
            )
            assert serving.process.poll() is None  # it goes on serving
            serving.look()
            began = time.monotonic()
            serving.process.send_signal(signal.SIGINT)
            assert serving.process.wait(30) == 130
            took = time.monotonic() - began
        finally:
            serving.process.kill()
            serving.process.wait()
            gone, left = psutil.wait_procs(serving.family.values(), timeout=5)
        assert not left, left
        assert len(gone) >= 4  # supervisor, API server, EngineCore, worker
        assert took < 15
        fractions = [fraction for _, fraction in stages]
        assert fractions == sorted(fractions)
        seen = list(dict.fromkeys(stage for stage, _ in stages))
        assert seen[-1] == "ready"
        assert {"import", "engine", "worker", "load"} <= set(seen)

        assert sources("supervisor")[0].state == "gone"
        frames = collector.store
        scheduler, worker = sources("scheduler")[0], sources("worker")[0]
        assert scheduler.facts["connector"] == "auxconn"
        assert scheduler.facts["model"] == "toy-moe"
        assert not scheduler.rows_lost
        assert not worker.rows_lost
        # What the API returned is what the engine inside returned.
        assert {
            one["id"]: (one["tokens"], one["rows"], one["rows_sha256"])
            for one in answers
        } == {name: each[0] for name, each in said(inside[0]["answers"]).items()}
        # One request after the other: the rows up to its last step are its own.
        ended = frames.requests().set_index("request")
        rows = frames.rows()
        delivered = rows.step_rows + rows.store_rows + rows.tail_rows
        before = 0
        for answer in answers:
            own = ended.loc[answer["request"]]
            mine = (rows.step > before) & (rows.step <= own.step)
            before = own.step
            assert int(delivered[mine].sum()) == answer["rows"][0], answer
            hit = int(own.local_hit + own.external_hit)
            assert int(rows.store_rows[mine].sum()) >= hit
            assert int(rows.captured_rows[mine].sum()) == answer["rows"][0] - hit
        assert int(ended.external_hit.sum()) > 200
        kinds = frames.events().kind.astype(str).tolist()
        assert "error" not in kinds
        assert "workload" in kinds
