"""Whatever the settings' checks let through is built, runs to its end and delivers its rows."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from auxconn.lab.config import LabConfig
from auxconn.lab.engine import Engine
from auxconn.lab.requests import LabRequest


@st.composite
def configs(draw: st.DrawFn) -> LabConfig:
    hash_size = draw(st.sampled_from([1, 2, 3, 4, 8, 16]))
    hashes_per_block = draw(st.sampled_from([1, 1, 2, 3, 4]))
    seqs = draw(st.integers(1, 12))
    experts = draw(st.sampled_from([1, 2, 8, 60, 256, 257]))
    chosen: dict[str, Any] = {
        "num_blocks": draw(st.integers(2, 120)),
        "block_size": hash_size * hashes_per_block,
        "hash_block_size": draw(st.sampled_from([hash_size, hash_size, None])),
        "hybrid": draw(st.sampled_from([None, None, True])),
        "capacity": draw(st.one_of(st.none(), st.integers(1, 150))),
        "kv_tier_blocks": draw(st.sampled_from([0, 1, 30, 500])),
        "kv_load_steps": draw(st.integers(1, 9)),
        "kv_tier_offer": draw(st.sampled_from(["blocks", "all_but_last"])),
        "connector": draw(st.sampled_from(["auxconn", "vllm"])),
        "max_num_seqs": seqs,
        "max_num_batched_tokens": draw(st.integers(seqs, 200)),
        "num_layers": draw(st.integers(1, 5)),
        "num_experts": experts,
        "top_k": draw(st.integers(1, min(experts, 4))),
        "async_scheduling": draw(st.booleans()),
        "settle_store": draw(st.booleans()),
        "seed": draw(st.integers(0, 3)),
    }
    try:
        return LabConfig(**chosen)
    except ValueError:
        assume(False)
        raise


@settings(max_examples=40)
@given(config=configs(), seed=st.integers(0, 1000))
def test_any_valid_configuration_runs(config: LabConfig, seed: int) -> None:
    rng = np.random.default_rng(seed)
    longest = min(config.max_request_tokens, 400)
    assume(longest >= 2)
    prompts = [
        rng.integers(10, 1000, int(rng.integers(1, longest))).tolist() for _ in range(4)
    ]
    engine = Engine(config)
    try:
        tokens: dict[str, list[int]] = {}
        rows: dict[str, list[np.ndarray]] = defaultdict(list)
        ended = 0
        for step in range(30_000):
            if len(tokens) < 16 and engine.num_requests < 6:
                prompt = prompts[rng.integers(4)]
                room = longest - len(prompt)
                output = rng.integers(10, 1000, int(rng.integers(1, min(room, 12) + 1)))
                name = f"r{len(tokens)}"
                tokens[name] = [*prompt, *output.tolist()]
                engine.add(LabRequest(name, prompt, output))
            results = [engine.step()]
            if step == 40:
                results.append(engine.reset_prefix_cache(kv_tier=seed % 2 == 0))
            for result in results:
                for one in result.outputs:
                    if one.routed_experts is not None:
                        rows[one.request_id].append(one.routed_experts)
                for name in result.finished:
                    ended += 1
                    np.testing.assert_array_equal(
                        np.concatenate(rows.pop(name)),
                        engine.routes.rows(tokens[name][:-1]),
                    )
            if engine.stuck:
                rows.pop(engine.give_up(), None)
                ended += 1
            if ended == 16:
                break
        assert ended == 16
    finally:
        engine.close()
