"""What every test stands on: marks by folder, one Hypothesis profile, vLLM's environment.

The folder says what a test needs, so the marks follow from it and nobody has to remember
them: `tests/engine` and `tests/differential` build real vLLM objects, `tests/browser` a
browser too.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

from auxconn.lab.environment import prepare

ROOT = Path(__file__).resolve().parent.parent

MARKS = {
    "engine": ("engine",),
    "differential": ("engine", "differential"),
    "browser": ("engine", "browser"),
}
"""Marks of all tests of a folder."""

# Must be set before vLLM is imported, and be inherited by the children of a test.
prepare()

# `ci` is derandomized: a test that fails fails for everybody, and a green one stays green.
settings.register_profile(
    "ci",
    derandomize=True,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("quick", parent=settings.get_profile("ci"), max_examples=10)
settings.register_profile(
    "deep",
    parent=settings.get_profile("ci"),
    derandomize=False,
    max_examples=2000,
    phases=tuple(Phase),
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test by the folder it lives in."""
    here = Path(__file__).parent
    for item in items:
        folder = item.path.relative_to(here).parts[0]
        for mark in MARKS.get(folder, ()):
            item.add_marker(mark)


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository's root."""
    return ROOT
