"""The command line: what it lists exists, it is quick, and it fails in plain words."""

from __future__ import annotations

import re
import resource
import socket
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from auxconn import cli, doctor
from auxconn.doctor import Finding
from auxconn.listening import Listening


@pytest.fixture
def run():
    runner = CliRunner()
    return lambda *arguments: runner.invoke(cli.app, list(arguments))


OPERATORS = "tcp://127.0.0.1:5598"


@pytest.fixture
def served(monkeypatch):
    """Stands in for the page: notes what would be served."""
    calls = []

    class Hub:
        address = "tcp://127.0.0.1:5599"
        closed = False

        @classmethod
        def demo(cls, config, workload):
            calls.append(("demo", config, workload))
            return cls()

        @classmethod
        def watch(cls, listening):
            calls.append(("watch", listening))
            return cls()

        def __enter__(self):
            return self

        def __exit__(self, *_):
            calls.append("closed")

    monkeypatch.setattr("auxconn_dashboard.hub.Hub", Hub)
    monkeypatch.setattr(
        "auxconn_dashboard.server.serve",
        lambda hub, port, show: calls.append(("page", port, show)),
    )
    monkeypatch.setattr("auxconn_dashboard.server.check_port", lambda *_: None)
    monkeypatch.setattr(doctor, "examine", lambda *_, **__: [])
    monkeypatch.setattr(cli.signal, "signal", lambda *_: None)
    return calls


def test_help_lists_what_exists_and_nothing_else(run):
    told = run("--help").output
    listed = set(re.findall(r"^. (\w+) {2,}\w", told, re.MULTILINE))
    assert listed == {
        "demo", "serve", "collect", "export", "engine", "record", "replay", "ctl", "keys", "doctor",
        "version",
    }  # fmt: skip
    for name in listed:
        assert run(name, "--help").exit_code == 0


def test_help_is_quick():
    """In seconds of CPU: the clock on the wall measures the neighbours too."""
    took = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, "-m", "auxconn.cli", "--help"],
            check=True,
            capture_output=True,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(took) < 0.5


def test_help_loads_nothing_heavy():
    code = (
        "import sys; from auxconn import cli; "
        "print({'pandas', 'numpy', 'panel', 'vllm', 'torch', 'zmq'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


def test_demo_serves_the_lab_with_what_was_asked(run, served):
    done = run(
        "demo", "--port", "5010", "--no-show", "--connector", "vllm", "--blocks", "512",
        "--block-size", "32", "--capacity", "100", "--kv-tier", "0", "--workload", "scan",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    (kind, config, workload), page, closed = served
    assert kind == "demo"
    assert config.connector == "vllm"
    assert (config.num_blocks, config.block_size) == (512, 32)
    assert (config.capacity, config.kv_tier_blocks) == (100, 0)
    assert workload.name == "scan"
    assert page == ("page", 5010, False)
    assert closed == "closed"


def test_demo_alone_takes_the_labs_demo_settings(run, served):
    from auxconn.lab.demo import CONFIG, WORKLOAD

    assert run("demo").exit_code == 0
    assert served[0] == ("demo", CONFIG, WORKLOAD)
    assert served[1] == ("page", 5006, True)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--capacity", "0"), "capacity=0"),
        (("--connector", "nixl"), "'nixl'"),
        (("--workload", "chess"), "'chess'"),
        (("--blocks", "1"), "num_blocks=1"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_in_words(run, served, arguments, told):
    done = run("demo", *arguments)
    assert done.exit_code == 1
    assert told in done.output
    assert "Traceback" not in done.output
    assert not served


def test_serve_says_where_engines_connect(run, served):
    done = run("serve", "--collector-bind", "tcp://127.0.0.1:7000")
    assert done.exit_code == 0
    assert "Engines connect to tcp://127.0.0.1:5599" in done.output
    assert served == [
        ("watch", Listening("tcp://127.0.0.1:7000", operators=OPERATORS)),
        ("page", 5006, False),
        "closed",
    ]


def test_serve_steers_only_when_it_is_allowed_to(run, served, tmp_path):
    (tmp_path / "collector.key").touch()
    done = run(
        "serve", "--allow-control", "--insecure", "--key-file", "collector.key",
        "--control-bind", "tcp://127.0.0.1:7001",
    )  # fmt: skip
    assert done.exit_code == 0
    (_, listening), *_ = served
    assert listening == Listening(
        key_file="collector.key",
        insecure=True,
        control=True,
        operators="tcp://127.0.0.1:7001",
    )


def test_ctl_tells_what_is_wrong_with_an_order(run):
    for words, told in (
        (("vllm",), "say what vllm shall do"),
        (("vllm", "set_capacity", "1000"), "'1000': write name=value"),
        (("--key-file", "nowhere.key"), "nowhere.key: No such file"),
        (("--address", "nowhere"), "neither tcp://host:port nor ipc"),
    ):
        done = run("ctl", *words)
        assert done.exit_code == 1
        assert told in done.output


def test_keys_are_made_once(run, tmp_path):
    done = run("keys", "new", str(tmp_path / "keys"))
    assert done.exit_code == 0
    assert "operator.key" in done.output
    again = run("keys", "new", str(tmp_path / "keys"))
    assert again.exit_code == 1
    assert "is there already" in again.output


def test_a_taken_port_is_told_before_the_lab_starts(run, served, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(doctor, "examine", lambda *_, **__: [])
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run("demo", "--port", str(port), "--no-show")
    assert done.exit_code == 1
    assert f"port {port}" in done.output
    assert f"--port {port + 1}" in done.output


def test_an_address_that_is_none_is_told(run, monkeypatch):
    monkeypatch.setattr(cli.signal, "signal", lambda *_: None)
    done = run("serve", "--collector-bind", "tcp//oops", "--port", "0")
    assert done.exit_code == 1
    assert "tcp//oops" in done.output
    assert "Traceback" not in done.output


def test_demo_does_not_start_what_cannot_run(run, served, monkeypatch):
    fault = Finding("blocks", "lab", "vLLM is not installed.", "make setup")
    monkeypatch.setattr(doctor, "examine", lambda *_, **__: [fault])
    done = run("demo")
    assert done.exit_code == 1
    assert "vLLM is not installed." in done.output
    assert "make setup" in done.output
    assert not served


@pytest.mark.parametrize(("level", "code"), [("ok", 0), ("note", 0), ("blocks", 1)])
def test_doctor_exits_with_1_when_something_blocks(run, monkeypatch, level, code):
    finding = Finding(level, "lab", "what it is", "" if level == "ok" else "do this")
    monkeypatch.setattr(doctor, "examine", lambda *_, **__: [finding])
    done = run("doctor", "--only", "lab")
    assert done.exit_code == code
    assert "what it is" in done.output
    assert ("do this" in done.output) == (level != "ok")
    assert ("1 thing blocks" in done.output) == (level == "blocks")


def test_doctor_looks_at_the_port(run, monkeypatch):
    monkeypatch.setattr(doctor, "examine", lambda *_, **__: [])
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = run("doctor", "--port", str(taken.getsockname()[1]))
    assert done.exit_code == 1
    assert "cannot be used" in done.output


def test_doctor_refuses_what_it_cannot_look_at(run):
    done = run("doctor", "--only", "weather")
    assert done.exit_code == 1
    assert "watch, lab, tests" in done.output


def test_version_names_both(run):
    told = run("version").output
    assert re.search(r"^auxconn \d+\.\d+\.\d+$", told, re.MULTILINE)
    assert re.search(r"^vLLM (\d+\.\d+\.\d+|is not installed)$", told, re.MULTILINE)
