"""Putting a function in front of a method of one object, and taking it away again.

The probes live between vLLM's objects and must leave no trace. A hook is an attribute of
the instance that hides the class's method: the class, and every other instance, stay as
they are, and taking the attribute away restores what was there. What a hook expects of the
method it hides is checked when it is put there, because a wrapper that fails when it is
called fails in the engine.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import cache
from time import perf_counter_ns
from typing import Any

from auxconn.probes.access import UnknownConnectorError

_ABSENT: Any = object()

_HIDDEN = "_auxconn_hidden"
"""Attribute of a hook that had to stay: what it hides. The next hook passes it by."""


@cache
def price() -> int:
    """Nanoseconds a hook adds to a call, measured once.

    The hottest hooks are not timed one by one, as that would double what they cost; what
    they took is their number times this.
    """

    def bare(first: Any, second: Any) -> Any:
        return first

    noted: list[Any] = []
    times = [0]

    def hook(first: Any, second: Any) -> Any:
        started = perf_counter_ns()
        result = bare(first, second)
        times[0] += perf_counter_ns() - started
        try:
            if result is not None:
                noted.append(result)
        except Exception:  # noqa: BLE001 - as in a hook
            noted.clear()
        return result

    def best(call: Callable[[Any, Any], Any]) -> int:
        found = []
        for _ in range(5):
            noted.clear()
            started = perf_counter_ns()
            for _ in range(200):
                call(1, 2)
            found.append(perf_counter_ns() - started)
        return min(found)

    return max(best(hook) - best(bare), 0) // 200


class Hooks:
    """Hooks that were set together and are taken away together."""

    def __init__(self) -> None:
        self._set: list[tuple[Any, str, Any, Any, Any]] = []

    def wrap(
        self,
        owner: Any,
        name: str,
        make: Callable[[Any], Any],
        parameters: Sequence[str],
    ) -> None:
        """Hide `owner.name` behind `make(original)`.

        Parameters
        ----------
        parameters
            Names of the method's first parameters that the wrapper relies on.

        Raises
        ------
        UnknownConnectorError
            When there is no such method, or its parameters are others.
        """
        original = getattr(owner, name, None)
        # One that stayed below another wrapper, which has gone since: they must not pile up.
        while (hidden := getattr(original, _HIDDEN, None)) is not None:
            original = hidden
        if original is None:
            raise UnknownConnectorError(
                f"{type(owner).__name__} has no method {name!r}: this version of vLLM is "
                "not one that auxconn knows"
            )
        found = _parameters(original) if parameters else None
        if found is not None and list(found[: len(parameters)]) != list(parameters):
            raise UnknownConnectorError(
                f"{type(owner).__name__}.{name} takes ({', '.join(found)}), expected "
                f"({', '.join(parameters)}): this version of vLLM is not one that auxconn "
                "knows"
            )
        before = _ABSENT if _is_of_class(owner, name, original) else original
        wrapper = make(original)
        setattr(owner, name, wrapper)
        self._set.append((owner, name, original, before, wrapper))

    def drop(self, owner: Any) -> None:
        """Forget the hooks of an object that is no longer in use."""
        self._set = [hook for hook in self._set if hook[0] is not owner]

    def restore(self) -> int:
        """Take the hooks away, the last one first.

        Returns
        -------
        How many had to stay because another wrapper was put in front of them since. Their
        owner must have made them do nothing but call the original.
        """
        stayed = 0
        while self._set:
            owner, name, original, before, wrapper = self._set.pop()
            if getattr(owner, name, None) is not wrapper:
                setattr(wrapper, _HIDDEN, original)
                stayed += 1
            elif before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        return stayed


def _is_of_class(owner: Any, name: str, found: Any) -> bool:
    """Whether `owner.name` is the class's method and no attribute of the instance.

    The instance's `__dict__` would say so directly. But an object whose dictionary has been
    asked for keeps its attributes in it from then on, and CPython reads all of them more
    slowly: on vLLM's hottest objects that alone cost more than the hooks.
    """
    return getattr(found, "__self__", None) is owner and getattr(
        found, "__func__", None
    ) is getattr(type(owner), name, _ABSENT)


def _parameters(function: Any) -> list[str] | None:
    """Names of the parameters; None when it takes whatever it is given."""
    kinds = inspect.Parameter
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(one.kind is kinds.VAR_POSITIONAL for one in found):
        return None
    return [one.name for one in found]
