"""Every command and every piece of Python in the README does what it says.

A README is tried by everybody and read by nobody who could mend it. Its Python blocks run
one after another, its shell lines are run, or started until they answer; a line of a kind
this file does not know fails, so that nobody adds one unseen.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import socket
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from pathlib import Path

import prometheus  # scripts/prometheus.py
import pytest

from auxconn import keys, plugin
from auxconn.installing import Plan
from tests.engine.real_engine_run import README_LINE as REAL_ENGINE

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
PYTHON = [text for kind, text in BLOCKS if kind == "python"]
LINES = [
    line for kind, text in BLOCKS if kind == "sh" for line in text.splitlines() if line
]
ENVIRONMENT = {
    **os.environ,
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
}


def test_all_blocks_are_of_a_known_kind():
    assert {kind for kind, _ in BLOCKS} == {"python", "sh"}
    assert README.count("```") == 2 * len(BLOCKS)
    assert README.index("make demo") < README.index("## ")


@pytest.fixture(scope="module")
def engine():
    """A scheduler and a worker to attach to, as the README's reader has them."""
    from auxconn.lab import LabConfig
    from auxconn.lab.engine import Engine

    engine = Engine(LabConfig(num_blocks=64))
    yield engine
    engine.close()


@pytest.mark.parametrize("number", range(len(PYTHON)))
def test_python(number, engine, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in re.findall(r'Recording\("(.+?)"\)', PYTHON[number]):
        record_some(tmp_path / folder)
    names = {"scheduler": engine.scheduler, "worker": engine.worker}
    before = engine.scheduler.aux_output_connector
    exec("\n".join(["from auxconn import attach", PYTHON[number]]), names)
    if "attach(" in PYTHON[number]:
        assert engine.scheduler.aux_output_connector is before
    engine.scheduler.aux_output_connector = before


def run(command):
    return subprocess.run(
        command,
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def answers(command, address, tmp_path, seconds=45.0):
    """Start a server, wait for its page, stop it; it must end when it is told to."""
    log = tmp_path / "log"
    with log.open("w") as file:
        server = subprocess.Popen(
            command, cwd=ROOT, env=ENVIRONMENT, stdout=file, stderr=subprocess.STDOUT
        )
        try:
            until = time.monotonic() + seconds
            while True:
                assert server.poll() is None, log.read_text()
                assert time.monotonic() < until, log.read_text()
                try:
                    with urllib.request.urlopen(address, timeout=20) as page:
                        return page.read().decode()
                except (urllib.error.URLError, OSError):
                    time.sleep(0.2)
        finally:
            server.terminate()
            server.wait(20)


def ended(command, tmp_path, until, seconds=45.0):
    """Start a command, stop it when it has said `until`; return all that it said."""
    log = tmp_path / "log"
    with log.open("w") as file:
        process = subprocess.Popen(
            command, cwd=ROOT, env=ENVIRONMENT, stdout=file, stderr=subprocess.STDOUT
        )
        end = time.monotonic() + seconds
        try:
            while until not in log.read_text():
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < end, log.read_text()
                time.sleep(0.05)
        finally:
            process.terminate()
            status = process.wait(20)
    assert status == 0, log.read_text()
    return log.read_text()


@contextlib.contextmanager
def steered():
    """A collector that takes orders, with an engine that obeys; and what it was asked."""
    from auxconn.channel import Channel
    from auxconn.collector import Collector
    from auxconn.operators import Operators

    asked = []

    def obey(command):
        asked.append((command.name, command.args))
        channel.ack(command, True, "so be it")

    with (
        Collector() as collector,
        Operators(collector, "tcp://127.0.0.1:*") as operators,
    ):
        channel = Channel(collector.address, "vllm", on_command=obey)
        channel.hello({}, ("set_capacity",))
        collector.wait(lambda all_: bool(all_ and all_[0].commands), 20)
        yield operators.address, asked
        channel.close()


def record_some(folder):
    """A recording as the README's reader has it, of one step."""
    from auxconn import FrameStore
    from auxconn.recording import Recorder
    from tests.unit.stream_made import steps

    store = FrameStore()
    with Recorder(store, folder):
        store.append("steps", [steps(1)], "mine")


def with_port(words, option, port):
    """The command with `port` in place of the README's."""
    if option in words:
        place = words.index(option) + 1
        return [*words[:place], str(port), *words[place + 1 :]]
    return [*words, option, str(port)]


@pytest.mark.parametrize("line", LINES)
def test_command(line, tmp_path):
    words = shlex.split(line)
    port = free_port()
    page = f"http://127.0.0.1:{port}/"
    match words:
        case ["make", target]:
            # That they work is what CI itself shows; here, that they exist.
            done = run(["make", "--dry-run", target])
            assert done.returncode == 0, done.stderr
        case ["make", "demo", "ENGINE=vllm"]:
            done = run(["make", "--dry-run", *words[1:]])
            assert "auxconn demo --engine vllm --port" in done.stdout
        case ["auxconn", "engine", *_]:
            # It takes a minute to start: the test of the real engine runs it.
            assert line == REAL_ENGINE
        case ["export", setting]:
            name, _, value = setting.partition("=")
            Plan({name: value})  # raises when it says what cannot be
            assert name in (plugin.COLLECTOR, plugin.CONNECTOR)
        case ["vllm", "serve", "MODEL", *options]:
            # The tests of the plugin and of the real engine run it.
            assert options == ["--enable-return-routed-experts"]
        case ["auxconn", "keys", "new", folder]:
            done = run([*words[:3], str(tmp_path / folder)])
            assert done.returncode == 0, done.stderr
            assert "operator.key" in done.stdout
        case ["auxconn", "ctl", *order]:
            with steered() as (address, asked):
                done = run([*words, "--address", address])
            assert done.returncode == 0, done.stdout + done.stderr
            if order:
                assert asked == [("set_capacity", {"blocks": 1000})]
            else:
                assert "set_capacity" in done.stdout
        case ["auxconn", "doctor", *_]:
            done = run([*words, "--port", str(port)])
            assert done.returncode == 0, done.stdout + done.stderr
            assert "All well." in done.stdout
        case ["auxconn", "serve" | "demo" | "export" as name, *_]:
            command = with_port(words, "--port", port)
            bind = "--collector-bind"
            if bind in command:
                command[command.index(bind) + 1] = f"tcp://127.0.0.1:{free_port()}"
            if "--key-file" in command:
                keys.new(tmp_path / "keys")
                at = command.index("--key-file") + 1
                command[at] = str(tmp_path / command[at])
            if "--allow-control" in command:
                command += ["--control-bind", f"tcp://127.0.0.1:{free_port()}"]
            if name == "export":
                assert "auxconn:sources" in answers(command, f"{page}metrics", tmp_path)
            else:
                assert "auxconn" in answers(command, page, tmp_path)
        case ["prometheus", *options]:
            found = prometheus.find(Path(sys.prefix))
            if found is None:
                pytest.skip(prometheus.ADVICE)
            command = [
                found[0], *options, f"--storage.tsdb.path={tmp_path / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ]  # fmt: skip
            assert "auxconn" in answers(command, f"{page}api/v1/rules", tmp_path)
        case [
            "auxconn",
            "collect",
            "--bind",
            _,
            "--record",
            folder,
            "--metrics",
            _,
            steer,
        ]:
            assert steer == "--allow-control"
            bind, orders = (f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
            command = [
                "auxconn", "collect", "--bind", bind, "--record", str(tmp_path / folder),
                "--metrics", str(port), steer, "--control-bind", orders,
            ]  # fmt: skip
            assert "auxconn:sources" in answers(command, f"{page}metrics", tmp_path)
            assert (tmp_path / folder / "recording.json").exists()
        case ["auxconn", "record", folder, bind, _]:
            made = tmp_path / folder
            command = ["auxconn", "record", str(made), bind, f"tcp://127.0.0.1:{port}"]
            told = ended(command, tmp_path, "Recording into")
            assert f"Engines connect to tcp://127.0.0.1:{port}" in told
            assert "rows: steps 0" in told
            assert (made / "recording.json").exists()
        case ["auxconn", "replay", folder]:
            record_some(tmp_path / folder)
            command = [
                *words[:2],
                str(tmp_path / folder),
                "--no-show",
                "--port",
                str(port),
            ]
            assert "auxconn" in answers(command, page, tmp_path)
        case ["panel", "serve", path]:
            command = [*words, "--port", str(port)]
            assert "auxconn" in answers(command, f"{page}{Path(path).stem}", tmp_path)
        case ["jupyter", "lab", path]:
            assert (ROOT / path).exists()
            command = [
                *words, "--no-browser", "--allow-root", f"--ServerApp.port={port}",
                "--IdentityProvider.token=",
            ]  # fmt: skip
            name = Path(path).name
            assert "JupyterLab" in answers(command, f"{page}lab/tree/{name}", tmp_path)
        case ["pip", "install", requirement]:
            extra = re.fullmatch(r"auxconn\[(\w+)\]", requirement).group(1)
            project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
            assert extra in project["optional-dependencies"]
        case ["conda", "env", "create", "-f", path]:
            assert (ROOT / path).exists()
        case _:
            raise AssertionError(f"nobody has said how to check this command: {line}")


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_inline_commands_exist():
    from typer.testing import CliRunner

    from auxconn.cli import app

    for command in re.findall(r"`auxconn (\w+)", README):
        assert CliRunner().invoke(app, [command, "--help"]).exit_code == 0
    targets = (ROOT / "Makefile").read_text()
    for target in re.findall(r"`make (\w+)", README):
        assert re.search(rf"^{target}:", targets, re.MULTILINE), target


def test_panels_login_stands_before_the_page(tmp_path):
    """As docs/security.md has it."""
    port = free_port()
    command = [
        "panel", "serve", "dashboard/app.py", "--port", str(port), "--basic-auth", "secret",
        "--cookie-secret", "c",
    ]  # fmt: skip
    page = answers(command, f"http://127.0.0.1:{port}/app", tmp_path)
    assert "Login" in page
    assert "auxconn" not in page
