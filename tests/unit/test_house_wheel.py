"""What an installed wheel carries: both packages, their assets, and no bare `dashboard`."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile

import pytest

PARTS = ("pyproject.toml", "README.md", "LICENSE", "auxconn", "dashboard")


@pytest.fixture(scope="module")
def wheel(root, tmp_path_factory):
    """A wheel of a copy, so that no build folder is left in the checkout."""
    here = tmp_path_factory.mktemp("wheel")
    for part in PARTS:
        source = root / part
        if source.is_dir():
            shutil.copytree(
                source, here / part, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(source, here / part)
    subprocess.run(
        [
            sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index",
            "--no-build-isolation", "--wheel-dir", str(here / "out"), str(here),
        ],
        check=True,
        capture_output=True,
    )  # fmt: skip
    (made,) = (here / "out").glob("*.whl")
    with zipfile.ZipFile(made) as archive:
        yield archive


def test_the_wheel_claims_our_names_alone(wheel):
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {
        "auxconn",
        "auxconn_dashboard",
    }


def test_the_wheel_has_every_file_of_the_packages(wheel, root):
    named = set(wheel.namelist())
    for package, folder in (("auxconn", "auxconn"), ("auxconn_dashboard", "dashboard")):
        for path in (root / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                assert f"{package}/{path.relative_to(root / folder)}" in named


def test_the_wheel_has_its_command_and_its_licence(wheel):
    (info,) = {n.split("/")[0] for n in wheel.namelist() if ".dist-info/" in n}
    entries = wheel.read(f"{info}/entry_points.txt").decode()
    assert "auxconn = auxconn.cli:main" in entries
    assert b"END OF TERMS" in wheel.read(f"{info}/licenses/LICENSE")
    metadata = wheel.read(f"{info}/METADATA").decode()
    assert "License-Expression: Apache-2.0" in metadata
    for extra in ("dashboard", "lab", "cpu", "gpu", "notebooks", "test"):
        assert f"Provides-Extra: {extra}" in metadata
