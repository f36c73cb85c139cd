"""The package's own names, and the description of the tables."""

from __future__ import annotations

import subprocess
import sys

import pytest

import auxconn
from auxconn import tabledoc
from auxconn.records import TABLES, columns


def test_the_committed_description_of_the_tables_is_that_of_the_schema(root):
    text = (root / "docs" / "tables.md").read_text(encoding="utf-8")
    assert text == tabledoc.markdown(), "run `make docs`"


def test_every_column_is_described_with_its_type_and_unit():
    lines = tabledoc.markdown().splitlines()
    for table in TABLES:
        part = lines[lines.index(f"## {table}") :]
        for column in columns(table):
            start = f"| `{column.name}` | "
            row = next(line for line in part if line.startswith(start))
            assert column.help in row
            if column.name != "t":
                assert row.startswith(f"{start}{column.dtype} | {column.unit} | ")
    assert "One of: empty, `unaligned`, `not_retained`, `last_token`." in " ".join(
        lines
    )


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_importing_the_package_loads_nothing():
    libraries = "{'pandas', 'numpy', 'zmq', 'msgspec', 'vllm', 'torch'}"
    assert run(f"import sys, auxconn; print({libraries} & set(sys.modules))") == "set()"


def test_attach_is_the_function_whoever_imported_its_module_before():
    code = (
        "{first}; from auxconn import attach; import auxconn, inspect;"
        "print(inspect.isfunction(attach), inspect.isfunction(auxconn.attach))"
    )
    for first in ("import auxconn.attach", "from auxconn.attach import attach", "pass"):
        assert run(code.format(first=first)) == "True True"


def test_the_names_of_the_package():
    assert {"Collector", "FrameStore", "attach"} <= set(dir(auxconn))
    assert auxconn.FrameStore.__module__ == "auxconn.frames"
    with pytest.raises(AttributeError, match="no attribute 'Frames'"):
        auxconn.Frames  # noqa: B018
