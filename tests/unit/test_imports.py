"""The import rule: dashboard -> auxconn, one way, and vLLM only where an engine is.

The viewer's side must run where no vLLM can be installed, and an engine must not pay for
Panel. One import at the wrong place breaks that for everybody and shows up on somebody
else's machine, so the rule is read off the source and then tried in fresh processes.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"auxconn": ROOT / "auxconn", "auxconn_dashboard": ROOT / "dashboard"}

ENGINE = {"vllm", "torch", "transformers"}
PAGE = {"panel", "bokeh", "param", "pyviz_comms"}

ENGINE_SIDE = (
    "auxconn.attach",
    "auxconn.connector",
    "auxconn.engine",
    "auxconn.installing",
    "auxconn.lab",
    "auxconn.plugin",
    "auxconn.probes",
)
"""May import vLLM, inside functions."""

LOADED_BY_VLLM = {"auxconn.engine.host_tier", "auxconn.lab.kv_tier"}
"""Derive from a class of vLLM, which loads them by path; nothing else imports them early."""

VIEWER_MAY_USE = (
    "auxconn",
    "auxconn.address",
    "auxconn.catalogue",
    "auxconn.checks",
    "auxconn.collector",
    "auxconn.engine",
    "auxconn.engine.job",
    "auxconn.engine.model",
    "auxconn.engine.process",
    "auxconn.errors",
    "auxconn.exporter.history",
    "auxconn.exporter.server",
    "auxconn.facts",
    "auxconn.frames",
    "auxconn.lab",
    "auxconn.lab.config",
    "auxconn.lab.demo",
    "auxconn.lab.process",
    "auxconn.lab.workload_specs",
    "auxconn.recording",
    "auxconn.recording.player",
    "auxconn.recording.recorder",
    "auxconn.listening",
    "auxconn.records",
    "auxconn.wire",
)
"""What the dashboard may import of auxconn."""

COMPOSER = "auxconn.cli"
"""Puts both sides together, so it alone may name the dashboard."""


def modules() -> dict[str, Path]:
    found = {}
    for package, folder in PACKAGES.items():
        for path in sorted(folder.rglob("*.py")):
            parts = [package, *path.relative_to(folder).with_suffix("").parts]
            if parts[-1] == "__init__":
                parts.pop()
            found[".".join(parts)] = path
    return found


MODULES = modules()


class Import:
    def __init__(self, name: str, line: int, where: str) -> None:
        self.name = name
        self.line = line
        self.where = where
        """`top`, `function` or `typing`."""

    @property
    def root(self) -> str:
        return self.name.split(".")[0]


def imports(name: str, path: Path) -> Iterator[Import]:
    """Every import of a module, with the place it stands at."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]

    def walk(node: ast.AST, where: str) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, where)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, *filter(None, [base])])
            yield Import(base, node.lineno, where)
            for alias in node.names:
                if f"{base}.{alias.name}" in MODULES:
                    yield Import(f"{base}.{alias.name}", node.lineno, where)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            for child in node.body:
                yield from walk(child, "typing")
            for child in node.orelse:
                yield from walk(child, where)
        else:
            inner = isinstance(
                node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
            )
            for child in ast.iter_child_nodes(node):
                yield from walk(
                    child, "function" if inner and where == "top" else where
                )

    yield from walk(ast.parse(path.read_text()), "top")


def within(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == one or name.startswith(one + ".") for one in packages)


@pytest.mark.parametrize("name", MODULES)
def test_a_module_imports_what_its_side_may(name):
    wrong = []
    for one in imports(name, MODULES[name]):
        said = f"line {one.line}: {one.name}"
        if one.root in ENGINE:
            if not within(name, ENGINE_SIDE):
                wrong.append(f"{said}: vLLM and torch are for the engine's side")
            elif one.where == "top" and name not in LOADED_BY_VLLM:
                wrong.append(f"{said}: import it inside the function that needs it")
        if one.root == "dashboard":
            wrong.append(f"{said}: the package is auxconn_dashboard")
        if name.startswith("auxconn_dashboard"):
            if one.root == "auxconn" and one.name not in VIEWER_MAY_USE:
                wrong.append(f"{said}: not for the viewer's side")
        elif one.root in PAGE:
            wrong.append(f"{said}: Panel is the dashboard's")
        elif one.root == "auxconn_dashboard" and (
            name != COMPOSER or one.where == "top"
        ):
            wrong.append(f"{said}: imports point from the dashboard to auxconn")
    assert not wrong, "\n".join(wrong)


def test_the_reader_of_imports_sees_them_all(tmp_path):
    path = tmp_path / "sample.py"
    path.write_text(
        "from __future__ import annotations\n"
        "import vllm.config\n"
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    import torch\n"
        "class A:\n    def f(self):\n        from vllm import LLM\n"
        "try:\n    import bokeh\nexcept ImportError:\n    pass\n"
        "from . import catalogue\nfrom .lab import config\n"
    )
    seen = {(one.name, one.where) for one in imports("auxconn.sample", path)}
    assert {
        ("vllm.config", "top"),
        ("torch", "typing"),
        ("vllm", "function"),
        ("bokeh", "top"),
        ("auxconn.catalogue", "top"),
        ("auxconn.lab.config", "top"),
    } <= seen


def in_a_new_process(code: str) -> list[str]:
    """Run `code` in a fresh interpreter; the top-level packages it has loaded then."""
    tell = (
        "\nimport json, sys\n"
        "print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code + tell],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


BLOCK = """
import importlib, sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"{{name}} is blocked by the test", name=name)

sys.meta_path.insert(0, Block())
"""


def import_all(names: list[str], blocked: set[str]) -> str:
    return (
        BLOCK.format(names=sorted(blocked))
        + f"for name in {names!r}:\n    importlib.import_module(name)\n"
    )


def is_importable_anywhere(name: str) -> bool:
    """All but those that need vLLM, and the file that `panel serve` runs."""
    return name not in LOADED_BY_VLLM and name != "auxconn_dashboard.app"


def test_everything_imports_where_there_is_no_vllm():
    names = list(filter(is_importable_anywhere, MODULES))
    loaded = in_a_new_process(import_all(names, ENGINE))
    assert not ENGINE & set(loaded)


def test_the_engines_side_imports_where_there_is_no_panel():
    names = [name for name in MODULES if not name.startswith("auxconn_dashboard")]
    names = list(filter(is_importable_anywhere, names))
    loaded = in_a_new_process(import_all(names, PAGE))
    assert not (PAGE | ENGINE) & set(loaded)


def test_the_viewers_side_never_loads_vllm():
    """With vLLM at hand, unlike above: nothing may take it because it is there."""
    names = [name for name in MODULES if name.startswith("auxconn_dashboard")]
    names += [name for name in VIEWER_MAY_USE if name in MODULES]
    loaded = in_a_new_process(
        import_all(list(filter(is_importable_anywhere, names)), set())
    )
    assert "panel" in loaded
    assert not ENGINE & set(loaded)


@pytest.mark.parametrize("name", ["auxconn", "auxconn.lab", "auxconn_dashboard"])
def test_a_package_costs_nothing_to_import(name):
    loaded = set(in_a_new_process(f"import {name}"))
    assert not loaded & {"numpy", "pandas", "zmq", "panel", "bokeh", "vllm", "torch"}


def test_public_names_are_there():
    code = (
        "from auxconn import Collector, FrameStore, Recording\n"
        "from auxconn.connector import AuxOutputSchedulerConnector\n"
        "from auxconn.lab import LabConfig, workloads\n"
    )
    assert not ENGINE & set(in_a_new_process(code))
