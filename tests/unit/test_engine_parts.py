"""A real engine's parts, without it: settings, model, command, start, load."""

import base64
import http.server
import io
import json
import os
import signal
import socket
import threading
import time
from pathlib import Path

import numpy as np
import psutil  # type: ignore[import-untyped]
import pytest
from typer.testing import CliRunner

from auxconn.children import Child
from auxconn.cli import app
from auxconn.engine.command import config_of, demo_job, run, workload_of
from auxconn.engine.config import DEMO_WORKLOAD, EngineConfig
from auxconn.engine.job import Job
from auxconn.engine.load import Load, tokens_of
from auxconn.engine.model import FIRST_TOKEN, VOCABULARY, model_folder
from auxconn.engine.serving import command, variables
from auxconn.engine.stages import STAGES, Start
from auxconn.lab import workloads
from auxconn.lab.workload_specs import WorkloadSpec
from auxconn_dashboard.hub import Hub


def test_settings_that_cannot_be_are_refused_in_words():
    for wrong, words in (
        ({"block_size": 48}, "not a multiple of 32"),
        ({"num_blocks": 1}, "num_blocks=1 is out of range"),
        ({"connector": "other"}, "take one of auxconn, vllm"),
        ({"top_k": 17}, "exceeds num_experts"),
        ({"max_num_batched_tokens": 4}, "below max_num_seqs"),
    ):
        with pytest.raises(ValueError, match=words):
            EngineConfig(**wrong)
    config = EngineConfig()
    with pytest.raises(ValueError, match="unknown setting 'capacity'"):
        config.replace(capacity=5)
    assert config.replace(num_blocks=40).max_request_tokens == 39 * 32
    assert config.bytes_per_block == 32 * 4 * 4
    with pytest.raises(ValueError, match="longer than the engine takes"):
        config.check_workload(WorkloadSpec("scan", {"prompt_tokens": 4000}))


def test_words_become_a_job_and_a_job_survives_its_line():
    job = Job(
        config_of({"num_blocks": 64, "connector": None}),
        workload=workload_of("scan", ("documents=3", "rate=0.5")),
        once=True,
    )
    assert job.workload.params["documents"] == 3
    assert job.workload.params["rate"] == 0.5
    assert job.workload.params["prompt_tokens"] == 256
    assert Job.from_line(job.to_line()) == job
    assert workload_of(None, ()) == DEMO_WORKLOAD
    assert demo_job(None, connector="vllm").config.connector == "vllm"
    for name in ("grpo", "multi_turn", "shared_prefix", "scan"):
        demo_job(name)  # it fits
    with pytest.raises(ValueError, match="--capacity is the lab's"):
        demo_job(None, capacity=7)
    for wrong in ("documents", "documents=x"):
        with pytest.raises(ValueError, match="is no"):
            workload_of("scan", (wrong,))
    with pytest.raises(ValueError, match="no answers"):
        Job(EngineConfig(), once=True)
    with pytest.raises(ValueError, match="no job"):
        Job.from_line("{}")


def test_the_model_is_made_once_and_mended_when_half_of_it_is_gone(tmp_path):
    config = EngineConfig(num_layers=2, num_experts=4, top_k=2)
    folder = model_folder(config, tmp_path)
    settings = json.loads((folder / "config.json").read_text())
    assert settings["num_experts_per_tok"] == 2
    kept = {path.name: path.read_bytes() for path in folder.iterdir()}
    before = (folder / "config.json").stat().st_mtime_ns
    assert model_folder(config.replace(num_blocks=40), tmp_path) == folder
    assert (folder / "config.json").stat().st_mtime_ns == before
    (folder / "model.safetensors").unlink()
    assert model_folder(config, tmp_path) == folder
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == kept
    assert model_folder(config.replace(seed=1), tmp_path) != folder
    assert len(list(tmp_path.iterdir())) == 2  # nothing half-made is left
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == VOCABULARY
    text = "retained blocks, released rows"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_vllm_is_called_with_what_it_needs():
    config = EngineConfig(num_blocks=40, kv_tier_blocks=7)
    words = command(config, Path("/model"), 8123)
    assert "--enable-return-routed-experts" in words
    assert words[words.index("--num-gpu-blocks-override") + 1] == "40"
    tier = json.loads(words[words.index("--kv-transfer-config") + 1])
    assert tier["kv_connector_extra_config"]["blocks"] == 7
    assert "--kv-transfer-config" not in command(
        config.replace(kv_tier_blocks=0), Path("/model"), 8123
    )
    base = {"AUXCONN_COLLECTOR": "tcp://127.0.0.1:1", "VLLM_LOGGING_LEVEL": "DEBUG"}
    found = variables(config, "", "mine", base)
    assert "AUXCONN_COLLECTOR" not in found
    assert found["AUXCONN_ENGINE"] == "mine"
    assert found["VLLM_LOGGING_LEVEL"] == "DEBUG"
    assert found["VLLM_USE_V2_MODEL_RUNNER"] == "1"
    address = "tcp://127.0.0.1:5599"
    assert variables(config, address, "a", {})["AUXCONN_COLLECTOR"] == address


def test_the_start_moves_on_and_never_back():
    now = 0.0
    told = []
    start = Start(lambda *what: told.append(what), lambda: now)
    start.tick()
    start.enter("spawn")
    start.enter("import")
    for _ in range(30):
        now += 2.0
        start.tick()
    start.heard("something of no interest")
    start.heard("(Worker pid=7) INFO Loading model from scratch...")
    start.heard("Initializing a V1 LLM engine")  # comes late: past already
    assert start.stage == "load"
    now += 100
    start.tick()
    start.enter("ready")
    start.tick()
    fractions = [fraction for _, fraction, _ in told]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    load = next(stage for stage in STAGES if stage.name == "load")
    assert max(f for name, f, _ in told if name == "import") < load.fraction


class Api(http.server.BaseHTTPRequestHandler):
    """Answers as vLLM does; `wrong` says for which requests it does not, and how."""

    asked: list = []  # noqa: RUF012
    wrong: dict = {}  # noqa: RUF012

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name = self.headers["X-Request-Id"]
        self.asked.append((name, body))
        how = self.wrong.get(name)
        if how == "hangs up":
            return
        tokens = [
            (len(self.asked) * 7 + n) % 900 + 4 for n in range(body["max_tokens"])
        ]
        rows = np.zeros((len(body["prompt"]) + len(tokens) - 1, 2, 2), np.uint8)
        if how == "a row less":
            rows = rows[1:]
        packed = io.BytesIO()
        np.save(packed, rows)
        choice = {
            "token_ids": tokens[1:] if how == "a token less" else tokens,
            "finish_reason": "stop" if how == "a token less" else "length",
            "routed_experts": None
            if how == "no rows"
            else base64.b64encode(packed.getvalue()).decode(),
        }
        text = json.dumps({"choices": [choice]}).encode()
        self.send_response(500 if how == "error" else 200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


@pytest.fixture
def api(monkeypatch):
    monkeypatch.setattr("auxconn.engine.load.PAUSE_SECONDS", 0.0)
    Api.asked, Api.wrong = [], {}
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Api) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def test_every_request_is_sent_under_its_name_and_failures_are_told(api):
    Api.wrong = {
        "scan-0-1": "hangs up", "scan-0-2": "error", "scan-0-3": "no rows",
        "scan-0-4": "a row less", "scan-0-5": "a token less",
    }  # fmt: skip
    answers = {}
    workload = workloads.scan(documents=8, prompt_tokens=9, output_tokens=2, requests=8)
    load = Load(workload, api, lambda answer: answers.update({answer.id: answer}))
    tally = load.run(threading.Event())
    assert (tally.sent, tally.answered, tally.failed) == (8, 3, 5)
    assert sorted(answers) == [f"scan-0-{n}" for n in range(8)]
    assert answers["scan-0-0"].engine_id == "cmpl-scan-0-0-0"
    for name, words in {
        "scan-0-1": "RemoteDisconnected", "scan-0-2": "HTTP 500",
        "scan-0-3": "no routed experts", "scan-0-4": "rows of routed experts instead of",
        "scan-0-5": "ended by 'stop'",
    }.items():  # fmt: skip
        assert words in answers[name].problem
    line = json.loads(answers["scan-0-7"].to_line())
    assert line["rows"][0] == line["prompt_tokens"] + len(line["tokens"]) - 1
    asked = dict(Api.asked)["scan-0-7"]
    request = next(one for one in workload if one.id == "scan-0-7")
    assert asked["prompt"] == tokens_of(request.prompt).tolist()
    assert FIRST_TOKEN <= min(asked["prompt"]) <= max(asked["prompt"]) < VOCABULARY


def test_a_later_turn_has_what_the_model_said(api):
    workload = workloads.multi_turn(
        sessions=1, turns=3, system_tokens=4, user_tokens=6, output_tokens=5, requests=3
    )
    answers = []
    Load(workload, api, answers.append).run(threading.Event())
    prompts = [body["prompt"] for _, body in Api.asked]
    assert [len(one) for one in prompts] == [len(one.prompt) for one in workload]
    for before, after, answer in zip(prompts, prompts[1:], answers, strict=False):
        said = before + answer.tokens
        assert after[: len(said)] == said


def test_a_load_stops_when_it_is_told_to(api):
    stop = threading.Event()
    load = Load(workloads.scan(prompt_tokens=5), api, lambda _: stop.set())
    tally = load.run(stop)
    assert tally.answered == 1


def test_the_command_line_refuses_what_cannot_be_before_anything_starts():
    runner = CliRunner()
    for words, said in (
        (["engine", "--load", "--workload", "nothing"], "no workload 'nothing'"),
        (["engine", "--block-size", "16"], "not a multiple of 32"),
        (["engine", "--once"], "without a workload"),
        (["engine", "--collector", "nowhere"], "neither tcp://host:port"),
        (["engine", "--load", "--param", "prompts"], "give one as name=value"),
        (["demo", "--engine", "vllm", "--capacity", "5"], "--capacity is the lab's"),
        (["demo", "--engine", "gpu"], "one of lab, vllm"),
    ):
        done = runner.invoke(app, words)
        assert done.exit_code == 1
        assert said in done.output


def test_a_page_runs_an_engine_that_reports_to_it(monkeypatch):
    made = []

    class Process:
        alive, returncode, config = True, None, EngineConfig()

        def __init__(self, job):
            self.job, self.stopped = job, 0
            made.append(self)

        def start(self):
            if self.job.engine == "broken":
                raise OSError("no more processes")

        def stop(self):
            self.stopped += 1

    monkeypatch.setattr("auxconn.engine.process.EngineProcess", Process)
    with Hub.engine(Job(EngineConfig(), engine="mine")) as hub:
        assert made[0].job.address == hub.address
        assert hub.names() == ["mine"]
        link = hub.link(None)
        assert (link.state, link.stage) == ("starting", "spawn")
    assert made[0].stopped == 1
    with pytest.raises(OSError, match="no more"):
        Hub.engine(Job(EngineConfig(), engine="broken"))


def test_a_port_that_is_taken_is_said_at_once():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = []
        assert run(Job(EngineConfig(), port=port), said.append) == 1
    assert f"port {port} of 127.0.0.1 is taken" in "\n".join(said)
    assert "--port 0" in "\n".join(said)


class Echo(Child):
    """Says what it was told, leaves a process behind, and ends when it is told to."""

    def __init__(self):
        super().__init__("tests.unit.engine_child")

    def _line(self):
        return "the job"

    def _variables(self):
        return dict(os.environ)


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_what_a_child_leaves_behind_is_ended_with_it(how):
    child = Echo()
    with child:
        end = time.monotonic() + 20
        while len(lines := child.output.splitlines()) < 3:
            assert time.monotonic() < end, child.output
            time.sleep(0.02)
        said, left, memory = lines
        assert said == "the job"
        assert Path("/dev/shm", memory).exists()
        grandchild = psutil.Process(int(left))
        assert grandchild.is_running()
        if how == "killed":
            os.kill(child.pid, signal.SIGKILL)
        else:
            assert child.stop() == -signal.SIGTERM
        gone, _ = psutil.wait_procs([grandchild], timeout=10)
        assert gone
        # Its tracker was let give it back, which takes a moment.
        while Path("/dev/shm", memory).exists():
            assert time.monotonic() < end
            time.sleep(0.02)
    assert not child.alive
