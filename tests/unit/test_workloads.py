"""Workloads: seeded, endless or bounded, as their parameters say."""

from __future__ import annotations

import inspect
import json
from collections import Counter, defaultdict
from itertools import islice
from typing import Any

import numpy as np
import pytest

from auxconn.lab import workloads
from auxconn.lab.requests import LabRequest
from auxconn.lab.workload_specs import KINDS, WorkloadSpec

MAKERS = {name: getattr(workloads, name) for name in KINDS}


def said(request: LabRequest) -> tuple[object, ...]:
    return (
        request.id,
        tuple(map(int, request.prompt)),
        tuple(map(int, request.output)),
        request.group,
        request.after,
        request.arrival_step,
    )


@pytest.mark.parametrize("name", KINDS)
def test_says_the_same_each_time_and_something_else_with_another_seed(
    name: str,
) -> None:
    workload = MAKERS[name]()
    first = [said(request) for request in islice(workload, 60)]
    assert first == [said(request) for request in islice(workload, 60)]
    assert first == [said(request) for request in islice(MAKERS[name](), 60)]
    other = [said(request) for request in islice(MAKERS[name](seed=1), 60)]
    assert not {one[1] for one in first} & {one[1] for one in other}


@pytest.mark.parametrize("name", KINDS)
def test_ids_are_unique_and_lengths_within_the_limit(name: str) -> None:
    workload = MAKERS[name]()
    prompt, output = workload.longest
    seen = list(islice(workload, 1500))
    assert len({request.id for request in seen}) == 1500
    assert max(len(request.prompt) for request in seen) <= prompt
    assert max(request.max_tokens for request in seen) <= output
    assert min(len(request.prompt) for request in seen) >= 1
    assert min(request.max_tokens for request in seen) >= (output + 1) // 2
    tokens = np.concatenate([np.asarray(request.prompt) for request in seen[:50]])
    assert tokens.min() >= 10
    assert tokens.max() < workloads.VOCABULARY


@pytest.mark.parametrize("name", KINDS)
def test_bounded_and_endless(name: str) -> None:
    assert len(list(MAKERS[name](requests=7))) == 7
    assert MAKERS[name](requests=7).requests == 7
    assert MAKERS[name]().requests is None


@pytest.mark.parametrize("name", KINDS)
def test_signature_and_specification_agree(name: str) -> None:
    signature = inspect.signature(MAKERS[name])
    defaults = {one.name: one.default for one in signature.parameters.values()}
    assert defaults == KINDS[name].defaults
    for parameter in KINDS[name].parameters:
        assert parameter.help
        assert parameter.least < parameter.most


def test_grpo_samples_every_prompt_in_a_row_in_every_epoch() -> None:
    seen = list(islice(workloads.grpo(prompts=5, samples=3, system_tokens=8), 30))
    groups = [request.group for request in seen]
    assert [len(list(one)) for one in _runs(groups)] == [3] * 10
    by_group = defaultdict(set)
    for request in seen:
        by_group[request.group].add(tuple(request.prompt))
    assert all(len(prompts) == 1 for prompts in by_group.values())
    epochs = [
        {said(request)[1] for request in seen[:15]},
        {said(request)[1] for request in seen[15:]},
    ]
    assert epochs[0] == epochs[1]
    assert len(epochs[0]) == 5
    assert len({tuple(request.prompt[:8]) for request in seen}) == 1
    assert len({tuple(request.output) for request in seen}) == 30


def _runs(values: list[str]) -> list[list[str]]:
    runs: list[list[str]] = []
    for value in values:
        if runs and runs[-1][0] == value:
            runs[-1].append(value)
        else:
            runs.append([value])
    return runs


def test_turns_contain_what_was_said_and_name_the_turn_before() -> None:
    seen = {
        request.id: request
        for request in islice(workloads.multi_turn(sessions=3, turns=4), 24)
    }
    assert sum(not request.after for request in seen.values()) == 6
    for request in seen.values():
        if request.after:
            before = seen[request.after]
            history = [*before.prompt, *before.output]
            assert list(request.prompt[: len(history)]) == history
            assert len(request.prompt) > len(history)
            assert request.group == before.group


def test_popularity_follows_the_exponent() -> None:
    def shares(zipf: float) -> list[float]:
        seen = Counter(
            request.group
            for request in islice(
                workloads.shared_prefix(
                    prefixes=4, zipf=zipf, prefix_tokens=1, suffix_tokens=1
                ),
                4000,
            )
        )
        return [seen[str(prefix)] / 4000 for prefix in range(4)]

    assert shares(0.0) == pytest.approx([0.25] * 4, abs=0.03)
    weights = np.array([1, 1 / 2, 1 / 3, 1 / 4])
    assert shares(1.0) == pytest.approx(list(weights / weights.sum()), abs=0.03)


def test_scan_takes_document_after_document() -> None:
    seen = list(islice(workloads.scan(documents=4, prompt_tokens=20), 8))
    assert [request.group for request in seen] == list("01230123")
    assert said(seen[1])[1] == said(seen[5])[1]
    assert said(seen[1])[2] != said(seen[5])[2]


def test_arrivals_come_at_the_rate_and_never_go_back() -> None:
    workload = workloads.scan(rate=0.5, requests=2000, prompt_tokens=1)
    assert workload.concurrency is None
    steps = [request.arrival_step for request in workload]
    assert steps == sorted(steps)
    assert steps[-1] == pytest.approx(4000, rel=0.1)
    assert len(set(np.diff(steps))) > 4


@pytest.mark.parametrize(
    ("name", "params", "words"),
    [
        ("chat", {}, "no workload 'chat'; there are grpo"),
        ("scan", {"samples": 2}, "scan: no parameter 'samples'; it takes documents"),
        ("grpo", {"samples": 0}, "grpo: samples=0 is out of range; give one from 1"),
        ("grpo", {"samples": 2.5}, "samples=2.5 is not a whole number"),
        ("grpo", {"samples": True}, "samples=True is not a whole number"),
        ("grpo", {"samples": None}, "samples=None is not a whole number"),
        ("grpo", {"rate": float("nan")}, "rate=nan is out of range"),
        ("grpo", {"rate": "fast"}, "rate='fast' is not a number.*, or None"),
        ("grpo", {"requests": 0}, "requests=0"),
        ("shared_prefix", {"zipf": -1}, "zipf=-1"),
        (["grpo"], {}, r"no workload \['grpo'\]"),
        ("grpo", None, "params=None are no parameters"),
        ("grpo", {"prompts": 10**5000}, "prompts=<int that cannot be shown> is out of"),
        ("grpo", {"prompts": list(range(9999))}, r"prompts=\[0, 1.*… is not a whole"),
        ("grpo", {"rate": float("inf")}, "rate=inf is out of range"),
    ],
)
def test_refuses_what_it_cannot_be(
    name: str, params: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        WorkloadSpec(name, params)


@pytest.mark.parametrize("data", [None, 5, [1], {}, {"name": None}])
def test_data_without_a_name_is_refused(data: Any) -> None:
    with pytest.raises(ValueError, match="needs a name, one of grpo"):
        WorkloadSpec.from_dict(data)


def test_numpys_numbers_are_numbers() -> None:
    spec = WorkloadSpec(
        "shared_prefix", {"prefixes": np.int64(3), "zipf": np.float32(1)}
    )
    assert json.loads(json.dumps(spec.to_dict()))["prefixes"] == 3
    assert spec.describe() == "shared_prefix(prefixes=3)"


@pytest.mark.parametrize("name", KINDS)
def test_a_function_says_what_is_known_of_its_workload(name: str) -> None:
    make, kind = MAKERS[name], KINDS[name]
    assert (make.__name__, make.__qualname__) == (name, name)
    manual = inspect.getdoc(make)
    assert manual.startswith(kind.help)
    for one in kind.parameters:
        assert f"\n{one.name}\n    {one.help}" in manual
    assert "From 1 to 4,096 requests." in manual


def test_functions_refuse_too() -> None:
    with pytest.raises(ValueError, match="scan: no parameter 'document'; it takes doc"):
        workloads.scan(document=3)
    with pytest.raises(ValueError, match="turns=0"):
        workloads.multi_turn(turns=0)


@pytest.mark.parametrize("name", KINDS)
def test_specification_survives_json(name: str) -> None:
    spec = WorkloadSpec(name, {"seed": 3, "concurrency": 5})
    back = WorkloadSpec.from_dict(json.loads(json.dumps(spec.to_dict())))
    assert back == spec
    assert back.describe() == f"{name}(concurrency=5, seed=3)"
    assert said(next(iter(back.build()))) == said(next(iter(spec.build())))


def test_a_specification_needs_a_name() -> None:
    with pytest.raises(ValueError, match="needs a name, one of grpo"):
        WorkloadSpec.from_dict({"samples": 3})


def test_longest_conversation() -> None:
    spec = WorkloadSpec(
        "multi_turn",
        {"turns": 3, "system_tokens": 10, "user_tokens": 20, "output_tokens": 5},
    )
    assert spec.longest == (10 + 3 * 20 + 2 * 5, 5)
