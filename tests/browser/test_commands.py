"""The ways to start the page: one command each, from nothing to live numbers."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

UP_SECONDS = 5.0
"""On a machine of its own the page is up after so long. Tests have none, so what is held to
it is the server's CPU time, of which a crowded machine takes up to half as much again."""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def running(command, root, tmp_path):
    log = tmp_path / "log"
    with log.open("w") as out:
        process = subprocess.Popen(
            command,
            cwd=root,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=os.environ.copy(),
        )
    try:
        yield process, log
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)


def listening(port, process, log, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert process.poll() is None, log.read_text()
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise AssertionError(log.read_text())


@pytest.mark.parametrize(
    ("command", "path"),
    [
        (["-m", "auxconn.cli", "demo", "--no-show", "--port"], ""),
        (["-m", "panel", "serve", "dashboard/app.py", "--port"], "app"),
    ],
    ids=["auxconn demo", "panel serve"],
)
def test_one_command_opens_the_page_on_a_lab(command, path, root, tmp_path, open_page):
    port = free_port()
    began = time.monotonic()
    with running([sys.executable, *command, f"{port}"], root, tmp_path) as (
        process,
        log,
    ):
        listening(port, process, log)
        page = open_page(f"http://127.0.0.1:{port}/{path}")
        spent = psutil.Process(process.pid).cpu_times()
        cpu = spent.user + spent.system
        print(
            f"\nup after {time.monotonic() - began:.1f} s, {cpu:.1f} s of the server's CPU"
        )
        assert cpu < 1.5 * UP_SECONDS
        # The start is told while it lasts, stage by stage.
        assert page.word in ("starting", "live")
        page.live(120)
        print(f"live after {time.monotonic() - began:.1f} s")
        assert page.page.locator(".banner").is_hidden()
        assert page.faults == []
        labs = [
            one
            for one in psutil.Process(process.pid).children(recursive=True)
            if "auxconn.lab.child" in " ".join(one.cmdline())
        ]
        assert len(labs) == 1
    _, alive = psutil.wait_procs(labs, timeout=15)
    assert alive == [], "the lab ends with the page"
    told = log.read_text()
    assert "Traceback" not in told, told


def test_a_page_without_an_engine_says_how_to_connect_one(root, tmp_path, open_page):
    port, engines = free_port(), free_port()
    command = [
        sys.executable, "-m", "auxconn.cli", "serve", "--no-show", "--port", f"{port}",
        "--collector-bind", f"tcp://127.0.0.1:{engines}",
    ]  # fmt: skip
    with running(command, root, tmp_path) as (process, log):
        listening(port, process, log)
        page = open_page(f"http://127.0.0.1:{port}/")
        assert page.word == "no engine"
        banner = page.page.locator(".banner").inner_text()
        assert f"AUXCONN_COLLECTOR=tcp://127.0.0.1:{engines}" in banner
        assert page.page.locator(".ac-control-capacity input").is_disabled()
        assert page.card("retained")["value"] == "–"


def test_a_workloads_parameters_are_set_and_a_bad_one_is_refused(page):
    form = page.page.locator("details.parameters")
    form.locator("summary").click()
    prompts = form.locator("input[name=prompts]")
    prompts.fill("0")
    form.get_by_role("button", name="Apply").click()
    refused = page.page.get_by_text("refused: grpo: prompts=0 is out of range")
    refused.wait_for(timeout=20_000)
    prompts.fill("24")
    prompts.press("Enter")
    page.page.get_by_text("workload GRPO rollouts: prompts 24").first.wait_for(
        timeout=20_000
    )
    page.until(lambda: "prompts 24" in form.locator(".changed").text_content(), 20)
    assert not refused.count()
