"""vLLM's worker connector takes our metadata and delivers the same rows.

The lockstep compares what a scheduler decides. Here the real worker connector and its store
live on that: one engine with vLLM's connector and one with ours serve the same requests, and
every row handed out is compared, byte for byte, with the other's and with the model's.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

from auxconn.connector import AuxOutputSchedulerConnector
from auxconn.lab.config import LabConfig
from auxconn.lab.engine import Engine
from auxconn.lab.requests import LabRequest

REQUESTS = 60
STEPS = 600


def requests(seed: int, size: int) -> list[LabRequest]:
    """Conversations and samples: prefixes that come back after they have left the GPU."""
    draw = random.Random(seed)
    roots = [[draw.randrange(900) for _ in range(3 * size)] for _ in range(8)]
    made = []
    for number in range(REQUESTS):
        prompt = draw.choice(roots)[: draw.randint(size, 3 * size)]
        prompt = prompt + [draw.randrange(900) for _ in range(draw.randint(0, size))]
        output = [draw.randrange(900) for _ in range(draw.randint(1, 12))]
        start = draw.choice((0, 0, len(prompt) // 2, len(prompt)))
        made.append(LabRequest(f"r{number}", prompt, output, prompt_start=start))
    return made


def serve(config: LabConfig, met: Counter) -> list[Any]:
    """Every output of the run, with its rows."""
    engine = Engine(config)
    expected = config.connector == "auxconn"
    connector = engine.scheduler.aux_output_connector
    assert isinstance(connector, AuxOutputSchedulerConnector) is expected
    waiting = requests(config.seed, config.block_size)[::-1]
    served: list[Any] = []
    starts: dict[str, int] = {}
    whole = {one.id: [*one.prompt, *one.output] for one in waiting}
    try:
        for step in range(STEPS):
            if waiting and engine.num_requests < 5 and step % 3 == 0:
                request = waiting.pop()
                starts[request.id] = request.prompt_start
                engine.add(request)
            if step == 90:
                engine.set_capacity(2)
            if step == 120:
                engine.set_capacity(2 * config.num_blocks)
            outputs = engine.reset_prefix_cache().outputs if step == 150 else []
            if not waiting and not engine.has_work:
                break
            if expected:
                met["loading"] += bool(connector.loading())
            for one in outputs + engine.step().outputs:
                rows = one.routed_experts
                served.append(
                    (step, one.request_id, one.new_token_ids, one.finish_reason, rows)
                )
                if rows is not None and len(rows):
                    # The rows are those of the model for these very tokens.
                    at = starts[one.request_id]
                    of_model = engine.routes.rows(whole[one.request_id])
                    np.testing.assert_array_equal(rows, of_model[at : at + len(rows)])
                    starts[one.request_id] = at + len(rows)
                    met["rows"] += len(rows)
        assert not waiting
        assert not engine.has_work
        return served
    finally:
        engine.close()


@pytest.mark.parametrize("tier", [0, 300])
@pytest.mark.parametrize("sizes", [(8, None), (32, 8)])
@pytest.mark.parametrize("overlapped", [False, True])
def test_same_rows(tier: int, sizes: tuple[int, int | None], overlapped: bool) -> None:
    met: Counter = Counter()
    runs = [
        serve(
            LabConfig(
                num_blocks=20 if sizes[1] is None else 40,
                block_size=sizes[0],
                hash_block_size=sizes[1],
                sliding_window=None if sizes[1] is None else 2 * sizes[0],
                kv_tier_blocks=tier,
                connector=connector,
                max_num_seqs=4,
                max_num_batched_tokens=3 * sizes[0],
                num_layers=2,
                num_experts=16,
                top_k=2,
                async_scheduling=overlapped,
                seed=7,
            ),
            met,
        )
        for connector in ("vllm", "auxconn")
    ]
    assert len(runs[0]) == len(runs[1])
    for theirs, ours in zip(*runs, strict=True):
        assert theirs[:4] == ours[:4]
        np.testing.assert_array_equal(theirs[4], ours[4])
    assert met["rows"] > 1000
    assert bool(met["loading"]) is bool(tier)
