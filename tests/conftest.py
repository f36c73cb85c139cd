"""What every test stands on: marks by folder, one Hypothesis profile, vLLM's environment.

The folder says what a test needs, so the marks follow from it and nobody has to remember
them: `tests/engine` and `tests/differential` build real vLLM objects, `tests/browser` a
browser too.
"""

from __future__ import annotations

import os
import re
from collections import Counter
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
    """Mark each test by the folder it lives in.

    When tests run side by side (`-n 2 --dist loadgroup`), those of a file stay together:
    they share an engine or a kernel that takes seconds to make. The lockstep's chunks are
    long and share nothing, so they are handed to whoever is free.
    """
    here = Path(__file__).parent
    for item in items:
        folder = item.path.relative_to(here).parts[0]
        for mark in MARKS.get(folder, ()):
            item.add_marker(mark)
        if folder != "differential":
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what the lockstep met: a comparison that met no case proves nothing.

    Lines of the form `count case`, printed by tests in `tests/differential`, are summed.
    """
    met: Counter[str] = Counter()
    for report in terminalreporter.getreports("passed"):
        if report.nodeid.startswith("tests/differential/") and report.when == "call":
            for count, case in re.findall(r"^ *(\d+) (.+)$", report.capstdout, re.M):
                met[case] += int(count)
    if met:
        terminalreporter.section("cases met in lockstep with vLLM's connector")
        for case, count in sorted(met.items()):
            terminalreporter.write_line(f"{count:12,d} {case}")


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository's root."""
    return ROOT
