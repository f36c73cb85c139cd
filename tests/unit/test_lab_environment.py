"""vLLM's platform in this process: found anew, made the CPU's, or refused in words."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from auxconn.errors import AuxConnError, PlatformError
from auxconn.lab import environment


class OnGpu:
    def is_cpu(self) -> bool:
        return False

    def is_unspecified(self) -> bool:
        return False


def with_platform(monkeypatch: pytest.MonkeyPatch, platform: Any) -> None:
    module = SimpleNamespace(_current_platform=platform)
    monkeypatch.setitem(sys.modules, "vllm.platforms", module)  # type: ignore[arg-type]
    monkeypatch.setattr(os, "environ", {})


def test_a_vllm_on_a_gpu_is_refused_and_left_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_platform(monkeypatch, OnGpu())
    with pytest.raises(PlatformError, match=r"runs on OnGpu .* Restart the kernel"):
        environment.load()
    assert os.environ == {}
    assert issubclass(PlatformError, AuxConnError)


def test_a_vllm_that_has_not_looked_yet_finds_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_platform(monkeypatch, None)
    monkeypatch.setattr(os, "environ", {"OMP_NUM_THREADS": "4"})
    environment.prepare()
    assert os.environ["VLLM_TARGET_DEVICE"] == "cpu"
    assert os.environ["OMP_NUM_THREADS"] == "4"


def test_a_vllm_that_has_its_platform_gets_what_it_reads_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_platform(monkeypatch, OnGpu())
    assert environment.prepare() == {"VLLM_USE_V2_MODEL_RUNNER": "1"}
    assert os.environ == {"VLLM_USE_V2_MODEL_RUNNER": "1"}
