"""A lab that is given nonsense says so, and goes on with the rest."""

from __future__ import annotations

import numpy as np
import pytest

from auxconn.lab import Lab, LabConfig
from auxconn.lab.requests import LabRequest

CONFIG = LabConfig(num_blocks=64, num_layers=2, num_experts=8, top_k=2)


@pytest.mark.parametrize("empty", ["prompt", "output"])
def test_a_request_that_cannot_run_does_not_stop_the_next(empty: str) -> None:
    tokens = {"prompt": list(range(20)), "output": [1, 2]}
    bad = LabRequest("bad", **{**tokens, empty: []})
    with Lab(CONFIG, [bad, LabRequest("good", **tokens)]) as lab:
        with pytest.raises(ValueError, match=r"'bad'.*at least 1"):
            lab.run(requests=2)
        lab.run(requests=1)
        assert list(lab.frames.requests().request) == ["good"]


def test_a_capacity_is_set_wholly_or_not_at_all() -> None:
    tokens = list(range(20))
    with Lab(CONFIG, [LabRequest("a", tokens, [1, 2])]) as lab:
        lab.set_capacity(np.int64(7))  # type: ignore[arg-type]
        assert (lab.config.capacity, lab.facts["capacity"]) == (7, 7)
        with pytest.raises(ValueError, match=str(2**63)):
            lab.set_capacity(2**63)
        assert (lab.config.capacity, lab.facts["capacity"]) == (7, 7)
        lab.run(requests=1)
        assert set(lab.frames.steps().capacity) == {7}
