"""The quickstart in a real JupyterLab: its live view is drawn below the cell and moves.

What a person does: open the notebook, run all cells, look. Panel reaches a notebook over
Jupyter's comms instead of its own server, so a page that works when served can still stay
empty here.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import Error as PlaywrightError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

SETTINGS = {
    # Every cell stays in the page, so that all outputs can be looked at.
    "@jupyterlab/notebook-extension/tracker": {
        "windowingMode": "none",
        "autoStartDefaultKernel": True,
    },
    "@jupyterlab/apputils-extension/notification": {
        "fetchNews": "false",
        "checkForUpdates": False,
    },
}

PICTURES = os.environ.get("AUXCONN_PICTURES")
"""Folder to keep a picture in even when all is well."""

NEWEST = """() => {
  // The newest point of the plot of retained blocks, as the page has it.
  const names = ["x", "retained_on_gpu", "retained_off_gpu", "capacity"];
  for (const drawn of window.Bokeh?.documents ?? [])
    for (const model of drawn._all_models.values())
      if (model.name === "auxconn-retained") {
        const columns = names.map((name) => Array.from(model.data[name]));
        const last = columns[0].findLastIndex(
          (_, i) => columns.every((column) => Number.isFinite(column[i])));
        if (last >= 0)
          return Object.fromEntries(names.map((name, i) => [name, columns[i][last]]));
      }
  return null;
}"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def jupyterlab(root, tmp_path_factory):
    """A JupyterLab with the notebook, and nothing of the user's settings."""
    home = tmp_path_factory.mktemp("jupyterlab")
    shutil.copy(root / "notebooks" / "00_quickstart.ipynb", home)
    nbformat.write(running_cell(), home / "running.ipynb")
    for name, values in SETTINGS.items():
        path = home / "settings" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))
    port = free_port()
    log = (home / "log").open("w")
    server = subprocess.Popen(
        [
            sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root",
            f"--ServerApp.port={port}", "--ServerApp.ip=127.0.0.1",
            "--IdentityProvider.token=", "--ServerApp.port_retries=0",
            f"--ServerApp.root_dir={home}",
        ],
        stdout=log,
        stderr=subprocess.STDOUT,
        env={
            **os.environ,
            "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
            "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
            "JUPYTER_CONFIG_DIR": str(home / "config"),
            "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
            "IPYTHONDIR": str(home / "ipython"),
        },
    )  # fmt: skip
    address = f"http://127.0.0.1:{port}"
    try:
        wait_for(address + "/api", server, home / "log")
        yield address
    finally:
        server.terminate()
        server.wait(20)
        log.close()


def wait_for(address, server, log, seconds=60):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert server.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise AssertionError(f"{address} did not come up:\n{log.read_text()}")


END_KERNELS = """async () => {
  const token = document.cookie.match(/_xsrf=([^;]*)/)[1]
  const kernels = await (await fetch("/api/kernels")).json()
  for (const { id } of kernels)
    await fetch(`/api/kernels/${id}`, { method: "DELETE", headers: { "X-XSRFToken": token } })
}"""
"""A view goes on in its kernel, and takes a core, when its page is closed."""


def open_notebook(page, jupyterlab, name):
    """Open a notebook in a workspace of its own, which knows of no other notebook."""
    page.goto(f"{jupyterlab}/lab/workspaces/{Path(name).stem}/tree/{name}")
    page.wait_for_selector(".jp-Notebook .jp-CodeCell", timeout=60_000)
    assert page.locator(".jp-NotebookPanel").count() == 1


@pytest.fixture
def page(chromium, root, request):
    """A page of its own; when the test fails, its picture and what its console said."""
    context = chromium.new_context(viewport={"width": 1600, "height": 1100})
    page = context.new_page()
    page.told = told = []
    page.on("console", lambda message: told.append(message.text))
    page.on("requestfailed", lambda asked: told.append(f"failed: {asked.url}"))
    page.on("pageerror", lambda error: told.append(f"error: {error}"))
    yield page
    failed = getattr(request.node, "report_call", None)
    if failed is None or failed.failed or PICTURES:
        folder = Path(PICTURES or root / "out" / "failures")
        folder.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=folder / "quickstart-jupyterlab.png")
        print("\n".join(told[-40:]))
    page.evaluate(END_KERNELS)
    context.close()


def running_cell():
    """A notebook whose last cell keeps the kernel's loop from everything else."""
    cells = [
        "import panel as pn\n"
        "from auxconn.lab import Lab, LabConfig, workloads\n"
        "from auxconn_dashboard import live\n"
        "pn.extension(inline=True)\n"
        "lab = Lab(LabConfig(num_blocks=512, kv_tier_blocks=2048, capacity=800))\n"
        "lab.run(requests=50)",
        'view = live(lab, theme="dark")\nview',
        "import time\n"
        "runs = globals().get('runs', 0) + 1\n"
        "until = time.monotonic() + (0 if runs == 1 else 40)\n"
        "while time.monotonic() < until:\n"
        "    lab.run(steps=5)\n"
        'print("cell", "ended", runs)',
    ]
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(cell) for cell in cells]
    return notebook


def run_all(page):
    """Run all cells, once the kernel takes them: JupyterLab drops what comes before."""
    page.locator("#jp-main-statusbar", has_text="| Idle").wait_for(timeout=60_000)
    begun = page.locator(".jp-InputPrompt").filter(has_text=re.compile(r"\[[*1]\]"))
    for _ in range(3):
        page.get_by_role("menuitem", name="Run", exact=True).click()
        page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
        try:
            begun.first.wait_for(timeout=10_000)
        except PlaywrightError:
            continue
        return
    raise AssertionError("the kernel takes no cells")


def test_the_live_view_moves_below_its_cell(jupyterlab, page):
    open_notebook(page, jupyterlab, "00_quickstart.ipynb")
    run_all(page)

    live = page.locator(".jp-CodeCell", has_text="view = live(lab)")
    error = page.locator(".jp-OutputArea-output[data-mime-type*=error]")
    live.locator("canvas").or_(error).first.wait_for(timeout=240_000)
    assert not error.count(), error.first.inner_text()[-2000:]

    page.wait_for_function(f"({NEWEST})() !== null", timeout=60_000)
    first = page.evaluate(NEWEST)
    page.wait_for_function(
        f"(before) => ({NEWEST})().x > before", arg=first["x"], timeout=60_000
    )

    change = page.locator(".jp-CodeCell", has_text="lab.set_capacity(160)")
    table = change.locator(".jp-OutputArea-output table")
    table.wait_for(timeout=60_000)
    assert table.locator("tbody tr").last.locator("td").last.inner_text() == "160"
    assert not error.count(), error.first.inner_text()[-2000:]

    page.wait_for_function(f"({NEWEST})().capacity === 160", timeout=60_000)
    after = page.evaluate(NEWEST)
    assert after["retained_off_gpu"] <= 160
    # Text changes by another way than plots do.
    live.get_by_text(re.compile(r"^2,560 tokens, .* of R3 rows$")).wait_for(
        timeout=60_000
    )
    # Nothing is fetched from elsewhere, and no message was lost on its way.
    assert not [line for line in page.told if line.startswith(("failed:", "error:"))]
    assert not [line for line in page.told if "isn't known" in line]
    live.locator(".jp-Cell-inputWrapper").scroll_into_view_if_needed()
    page.wait_for_timeout(1000)


def test_the_live_view_moves_while_a_cell_runs(jupyterlab, page):
    open_notebook(page, jupyterlab, "running.ipynb")
    run_all(page)
    live = page.locator(".jp-CodeCell", has_text="view = live(lab")
    busy = page.locator(".jp-CodeCell", has_text="lab.run(steps=5)")
    error = page.locator(".jp-OutputArea-output[data-mime-type*=error]")
    live.locator("canvas").or_(error).first.wait_for(timeout=240_000)
    assert not error.count(), error.first.inner_text()[-2000:]
    page.wait_for_function(f"({NEWEST})() !== null", timeout=60_000)
    # The kernel has to be free for a moment once the view is there, to open its comm.
    page.wait_for_timeout(4000)
    busy.locator(".cm-content").click()
    page.keyboard.press("Shift+Enter")

    ended = page.get_by_text("cell ended 2", exact=True)
    for _ in range(3):
        before = page.evaluate(NEWEST)["x"]
        page.wait_for_function(
            f"(before) => ({NEWEST})().x > before", arg=before, timeout=30_000
        )
        assert not ended.count(), "it moved only when the cell had ended"
    tooltip = page.locator(".bk-Tooltip")
    plot = live.locator(".ac-plot-retained canvas").first
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    page.mouse.move(box["x"] + box["width"] - 60, box["y"] + box["height"] / 2)
    tooltip.first.wait_for(timeout=15_000)
    colour = tooltip.first.evaluate("(node) => getComputedStyle(node).backgroundColor")
    assert colour == "rgb(35, 42, 52)"
    page.screenshot(path=Path(PICTURES) / "running.png") if PICTURES else None

    # What is asked for and what is drawn after the cell are as they always are.
    ended.wait_for(timeout=120_000)
    before = page.evaluate(NEWEST)["x"]
    assert not error.count(), error.first.inner_text()[-2000:]
    assert not [line for line in page.told if line.startswith(("failed:", "error:"))]
    assert not [line for line in page.told if "isn't known" in line]
    assert before > 0
