"""Settings that cannot be built are refused with the value, the limit and the way out."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from auxconn.checks import check_capacity
from auxconn.errors import CapacityError
from auxconn.lab.config import LabConfig


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num_blocks": 0}, ["num_blocks=0", "at least 2"]),
        ({"num_blocks": 10**9}, ["num_blocks=1000000000", "at most 1000000"]),
        ({"num_blocks": "many"}, ["num_blocks='many'", "whole number"]),
        ({"num_blocks": True}, ["num_blocks=True", "whole number"]),
        ({"block_size": 16.0}, ["block_size=16.0", "whole number"]),
        ({"block_size": -16}, ["block_size=-16", "at least 1"]),
        ({"capacity": 0}, ["capacity=0", "from 1 to"]),
        ({"kv_tier_blocks": -1}, ["kv_tier_blocks=-1", "at least 0"]),
        ({"seed": -1}, ["seed=-1"]),
        ({"kv_load_steps": 0}, ["kv_load_steps=0", "at least 1"]),
        (
            {"block_size": 24, "hash_block_size": 16},
            ["block_size=24", "not a multiple of hash_block_size=16", "24, 12, 8"],
        ),
        (
            {"block_size": 16, "hash_block_size": 32},
            ["block_size=16", "hash_block_size=32"],
        ),
        (
            {"hash_block_size": 8, "hybrid": False},
            ["hash_block_size=8", "block_size=16", "hybrid pool", "hybrid at None"],
        ),
        ({"sliding_window": 64}, ["sliding_window=64", "hybrid=True"]),
        ({"hybrid": 1}, ["hybrid=1", "True or False"]),
        ({"top_k": 129}, ["top_k=129", "num_experts=128"]),
        ({"connector": "lmcache"}, ["connector='lmcache'", "auxconn, vllm"]),
        ({"kv_tier_offer": "half"}, ["kv_tier_offer='half'", "blocks"]),
        (
            {"max_num_seqs": 64, "max_num_batched_tokens": 32},
            ["max_num_batched_tokens=32", "max_num_seqs=64"],
        ),
        (
            {"num_blocks": 2, "hash_block_size": 8},
            ["num_blocks=2", "too small", "raise num_blocks"],
        ),
        (
            {"num_blocks": 10**6, "block_size": 1024},
            ["GiB", "1000000 blocks", "the limit is 64 GiB"],
        ),
        (
            {"num_layers": 1024, "num_experts": 512, "top_k": 512},
            ["R3 rows of a step", "8.0 GiB", "lower max_num_batched_tokens=8192"],
        ),
        ({"top_k": 2000, "num_experts": 4096}, ["top_k=2000", "at most 1024"]),
        ({"num_blocks": float("nan")}, ["num_blocks=nan", "whole number"]),
        ({"num_blocks": 10**5000}, ["num_blocks=<int that cannot be shown>"]),
        ({"num_blocks": list(range(10**5))}, ["num_blocks=[0, 1, 2", "…"]),
        ({"num_blocks": None}, ["num_blocks=None", "whole number"]),
        ({"sliding_window": 2**60, "hybrid": True}, [f"sliding_window={2**60}"]),
        ({"hash_block_size": 0}, ["hash_block_size=0", "None for the block size"]),
        ({"connector": ["vllm"]}, ["connector=['vllm']", "auxconn, vllm"]),
        ({"connector": np.array(["vllm", "x"])}, ["connector=array"]),
        ({"connector": None}, ["connector=None"]),
        ({"settle_store": "no"}, ["settle_store='no'", "True or False"]),
    ],
)
def test_refuses_what_cannot_be_built(
    settings: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the words are compared below
        LabConfig(**settings)
    for word in words:
        assert word in str(caught.value)


def test_errors_about_settings_stay_short() -> None:
    with pytest.raises(ValueError, match="num_blocks") as caught:
        LabConfig(num_blocks=list(range(10**5)))  # type: ignore[arg-type]
    assert len(str(caught.value)) < 250


def test_numpys_whole_numbers_become_pythons() -> None:
    config = LabConfig(num_blocks=np.int64(100), capacity=np.uint16(7))  # type: ignore[arg-type]
    assert config == LabConfig(num_blocks=100, capacity=7)
    assert json.loads(json.dumps(config.to_dict()))["num_blocks"] == 100


@pytest.mark.parametrize("value", [0, -1, True, 1.5, "7", math.nan, 2**53 + 1])
def test_a_capacity_is_refused_in_the_same_words_everywhere(value: Any) -> None:
    with pytest.raises(CapacityError) as by_config:
        LabConfig(capacity=value)
    with pytest.raises(CapacityError) as by_check:
        check_capacity(value)
    assert str(by_config.value) == str(by_check.value)
    assert f"capacity={value!r}" in str(by_check.value)


def test_unknown_settings_are_named_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"unknown setting 'blocks'.*num_blocks"):
        LabConfig().replace(blocks=3)
    with pytest.raises(ValueError, match="unknown setting 'blocks'"):
        LabConfig.from_dict({"blocks": 3})
    with pytest.raises(ValueError, match="unknown setting 'self'"):
        LabConfig().replace(self=3)
    with pytest.raises(ValueError, match="7 is no settings"):
        LabConfig.from_dict(7)  # type: ignore[arg-type]


def test_a_prompt_longer_than_the_pool_is_refused() -> None:
    config = LabConfig(num_blocks=11, block_size=16)
    config.check_request(150, 10, "request 'a'")
    with pytest.raises(
        ValueError, match=r"request 'a': a prompt of 151 .* 160 tokens .*10|raise"
    ):
        config.check_request(151, 10, "request 'a'")


def test_derived_sizes() -> None:
    config = LabConfig(num_blocks=100, block_size=32, num_layers=4, num_experts=300)
    assert config.row_dtype == "uint16"
    assert config.row_shape == (4, 8)
    assert config.row_bytes == 64
    assert config.bytes_per_block == 2048
    assert config.store_bytes == 204_800
    assert config.max_request_tokens == 99 * 32
    assert config.default_capacity == 100
    assert config.replace(kv_tier_blocks=1).default_capacity == 200
    assert LabConfig(num_experts=256).row_dtype == "uint8"
    assert not config.is_hybrid


def test_hybrid_pool_shares_its_blocks_with_the_window() -> None:
    config = LabConfig(
        num_blocks=200, block_size=32, hash_block_size=16, max_num_batched_tokens=64
    )
    assert config.is_hybrid
    assert config.window == 128
    # 199 usable blocks, of which the window's group takes ceil((127 + 64) / 16) + 1 = 13.
    assert config.max_request_tokens == (199 - 13) * 32
    assert LabConfig(hybrid=True).hash_size == 16


def test_survives_json() -> None:
    config = LabConfig(capacity=7, hash_block_size=4, connector="vllm", hybrid=True)
    assert LabConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_is_frozen() -> None:
    with pytest.raises(AttributeError):
        LabConfig().num_blocks = 3  # type: ignore[misc]


def test_the_viewers_part_of_the_lab_imports_no_engine() -> None:
    code = (
        "import sys\n"
        "from auxconn.lab import LabConfig, LabProcess, WorkloadSpec, workloads\n"
        "from auxconn.lab import demo\n"
        "import auxconn.lab.child, auxconn.lab.lab\n"
        "print(sorted({'vllm', 'torch', 'panel'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
