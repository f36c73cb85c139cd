"""Workloads as data: names, parameters and limits, for who shows or sends them.

The viewer offers a workload and its parameters as controls and sends the choice to a lab in
another process, so a workload has a form that is plain data: a name and numbers. Everything
that is known of a parameter is written here once: the functions in `auxconn.lab.workloads`
take their signatures, manuals and checks from it, the controls their limits, and no numpy
or vLLM is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from auxconn.checks import number, whole
from auxconn.texts import shown

if TYPE_CHECKING:
    from auxconn.lab.workloads import Workload

Value = int | float | None


@dataclass(frozen=True)
class Parameter:
    """One parameter of a workload.

    `default` None means that it may be left out; what that does is in `help`.
    """

    name: str
    default: Value
    least: float
    most: float
    unit: str
    help: str
    whole: bool = True

    @property
    def limits(self) -> str:
        """What it may be, in words."""
        optional = ", or None" if self.default is None else ""
        return (
            f"from {self.least:,.12g} to {self.most:,.12g} {self.unit}".rstrip()
            + optional
        )

    def check(self, value: Any, workload: str) -> Value:
        """Return `value` as the workload takes it.

        Raises
        ------
        ValueError
            When it is no number of the right kind, or out of range.
        """
        if value is None and self.default is None:
            return None
        taken = whole(value) if self.whole else number(value)
        # A NaN is in no range, so it is refused here too.
        if taken is None or not self.least <= taken <= self.most:
            kind = "a whole number" if self.whole else "a number"
            what = f"not {kind}" if taken is None else "out of range"
            raise ValueError(
                f"{workload}: {self.name}={shown(value)} is {what}; give one "
                f"{self.limits}"
            )
        return taken


@dataclass(frozen=True)
class Kind:
    """A workload that can be chosen."""

    name: str
    title: str
    help: str
    parameters: tuple[Parameter, ...]
    prompt_limit: Callable[[Mapping[str, Any]], int]
    """Tokens of the longest prompt it makes with given parameters."""

    @property
    def defaults(self) -> dict[str, Value]:
        """Parameters by name, as they are when left out."""
        return {one.name: one.default for one in self.parameters}

    @property
    def manual(self) -> str:
        """Docstring of the function that makes it."""
        lines = [self.help, "", "Parameters", "----------"]
        for one in self.parameters:
            lines += [
                one.name,
                f"    {one.help} {one.limits.replace('from', 'From', 1)}.",
            ]
        lines += ["", "Raises", "------", "ValueError"]
        lines += ["    When there is no such parameter, or a value is out of range."]
        return "\n".join(lines)


@dataclass(frozen=True)
class WorkloadSpec:
    """A workload by name and parameters; parameters left out take their defaults.

    Raises
    ------
    ValueError
        When there is no such workload or parameter, or a value is out of range.
    """

    name: str
    params: Mapping[str, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        kind = _kind(self.name)
        if not isinstance(self.params, Mapping):
            raise ValueError(
                f"{self.name}: params={shown(self.params)} are no parameters by name"
            )
        unknown = [name for name in self.params if name not in kind.defaults]
        if unknown:
            raise ValueError(
                f"{self.name}: no parameter {', '.join(map(shown, unknown[:5]))}; it takes "
                f"{', '.join(kind.defaults)}"
            )
        checked = {
            one.name: one.check(self.params.get(one.name, one.default), self.name)
            for one in kind.parameters
        }
        object.__setattr__(self, "params", checked)

    @property
    def kind(self) -> Kind:
        """What is known of the workload."""
        return _kind(self.name)

    @property
    def longest(self) -> tuple[int, int]:
        """Tokens of the longest prompt and of the longest output."""
        output = self.params["output_tokens"]
        assert isinstance(output, int)
        return self.kind.prompt_limit(self.params), output

    def build(self) -> Workload:
        """Make the workload."""
        from auxconn.lab.workloads import Workload

        return Workload(self)

    def describe(self) -> str:
        """The workload in a line: its name and what differs from the defaults."""
        changed = [
            f"{name}={value}"
            for name, value in self.params.items()
            if value != self.kind.defaults[name]
        ]
        return f"{self.name}({', '.join(changed)})"

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data, for JSON: `{"name": ..., **params}`."""
        return {"name": self.name, **self.params}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> WorkloadSpec:
        """Read `to_dict`'s data.

        Raises
        ------
        ValueError
            When it has no name, or as the constructor.
        """
        given: Any = data
        params = dict(given) if isinstance(given, Mapping) else {}
        name = params.pop("name", None)
        if not isinstance(name, str):
            raise ValueError(
                f"a workload needs a name, one of {', '.join(KINDS)}; got {shown(data)}"
            )
        return cls(name, params)


def _kind(name: Any) -> Kind:
    if not isinstance(name, str) or name not in KINDS:
        raise ValueError(f"no workload {shown(name)}; there are {', '.join(KINDS)}")
    return KINDS[name]


_MOST_TOKENS = 1 << 19

_COMMON = (
    Parameter(
        "concurrency", 32, 1, 4096, "requests", "Requests kept in the engine at once."
    ),
    Parameter(
        "rate", None, 0.001, 1000, "requests/step",
        "Requests per step, arriving at random times; None keeps `concurrency` of them in "
        "the engine instead.", whole=False,
    ),
    Parameter(
        "requests", None, 1, 10**9, "requests", "Ends after so many; None is endless."
    ),
    Parameter("seed", 0, 0, 2**31 - 1, "", "Of all that is drawn."),
)  # fmt: skip


def _tokens(name: str, default: int, least: int, help: str) -> Parameter:
    return Parameter(name, default, least, _MOST_TOKENS, "tokens", help)


_GRPO = Kind(
    "grpo",
    "GRPO rollouts",
    "Reinforcement learning: every prompt of a data set is sampled several times in a row, "
    "epoch after epoch. The case R3 is made for.",
    (
        Parameter("prompts", 96, 1, 10**6, "prompts", "Prompts of the data set."),
        Parameter("samples", 8, 1, 1024, "requests", "Samples per prompt."),
        _tokens("system_tokens", 64, 0, "Tokens that all prompts begin with."),
        _tokens(
            "prompt_tokens", 640, 1,
            "Tokens of the longest prompt after those; the shortest has half as many.",
        ),
        _tokens(
            "output_tokens", 64, 1, "Tokens of the longest output; the shortest has half."
        ),
        *_COMMON,
    ),
    lambda params: params["system_tokens"] + params["prompt_tokens"],
)  # fmt: skip

_MULTI_TURN = Kind(
    "multi_turn",
    "Conversations",
    "Conversations of several turns; each turn's prompt is all that was said before and "
    "some more, and arrives when the turn before has ended.",
    (
        Parameter(
            "sessions", 24, 1, 4096, "conversations", "Conversations under way at once."
        ),
        Parameter("turns", 6, 1, 1000, "turns", "Turns of a conversation."),
        _tokens("system_tokens", 128, 0, "Tokens that all conversations begin with."),
        _tokens(
            "user_tokens", 160, 1,
            "Tokens a turn adds at most; at least it adds half as many.",
        ),
        _tokens(
            "output_tokens", 96, 1, "Tokens of the longest output; the shortest has half."
        ),
        *_COMMON,
    ),
    lambda params: (
        params["system_tokens"]
        + params["turns"] * params["user_tokens"]
        + (params["turns"] - 1) * params["output_tokens"]
    ),
)  # fmt: skip

_SHARED_PREFIX = Kind(
    "shared_prefix",
    "Shared prefixes",
    "Long shared prefixes, such as documents or system prompts, whose popularity follows a "
    "Zipf law, each with a question of its own behind it.",
    (
        Parameter("prefixes", 64, 1, 10**6, "prefixes", "Different prefixes."),
        Parameter(
            "zipf", 1.0, 0.0, 5.0, "",
            "Exponent of the popularity: 0 is uniform, higher favours the first ones more.",
            whole=False,
        ),
        _tokens("prefix_tokens", 768, 1, "Tokens of a prefix."),
        _tokens(
            "suffix_tokens", 96, 1,
            "Tokens of the longest question; the shortest has half as many.",
        ),
        _tokens(
            "output_tokens", 32, 1, "Tokens of the longest output; the shortest has half."
        ),
        *_COMMON,
    ),
    lambda params: params["prefix_tokens"] + params["suffix_tokens"],
)  # fmt: skip

_SCAN = Kind(
    "scan",
    "Scan",
    "Different documents one after the other, round and round: nothing that a least "
    "recently used order keeps is wanted before it is gone, unless all of it fits.",
    (
        Parameter("documents", 128, 1, 10**6, "documents", "Documents in a round."),
        _tokens("prompt_tokens", 768, 1, "Tokens of a document."),
        _tokens(
            "output_tokens", 16, 1, "Tokens of the longest output; the shortest has half."
        ),
        *_COMMON,
    ),
    lambda params: params["prompt_tokens"],
)  # fmt: skip

KINDS: dict[str, Kind] = {
    kind.name: kind for kind in (_GRPO, _MULTI_TURN, _SHARED_PREFIX, _SCAN)
}
"""Workloads that can be chosen, by name."""
