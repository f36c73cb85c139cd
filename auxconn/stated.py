"""What an engine states of itself, made fit to be sent.

Facts come from a configuration, stages and answers from whoever wrote the loop. A number of
numpy, half of a surrogate pair or an object without a text must neither raise into the
engine nor keep the rest of the greeting from being sent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from auxconn.texts import TEXT_LIMIT, clip
from auxconn.wire import Fact

FACTS_LIMIT = 256
"""Facts, and commands, that an engine can announce."""


def stated(facts: Mapping[str, Any]) -> dict[str, Fact]:
    """`facts` as they can be sent; a value that cannot be is None, which is not known."""
    few = islice(facts.items(), FACTS_LIMIT)
    return {text_of(name): _fact(value) for name, value in few}


def named(commands: Iterable[Any]) -> tuple[str, ...]:
    """The names of `commands`, as they can be sent."""
    return tuple(map(text_of, islice(commands, FACTS_LIMIT)))


def text_of(value: Any) -> str:
    """`value` as a text that can be sent, whatever it is."""
    try:
        return clip(str(value), TEXT_LIMIT)
    except Exception:  # noqa: BLE001 - what has no text has a type
        return f"<{type(value).__name__}>"


def _fact(value: Any) -> Fact:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return text_of(value)
    if isinstance(value, float):
        # No reader should have to think of NaN.
        return float(value) if math.isfinite(value) else None
    if isinstance(value, int):
        return int(value) if -(2**63) <= value < 2**63 else text_of(value)
    item = getattr(value, "item", None)
    if item is None:
        return text_of(value)
    try:
        return _fact(item())
    except Exception:  # noqa: BLE001 - an array of many, or what only looks like a number
        return None
