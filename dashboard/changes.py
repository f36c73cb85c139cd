"""What each control asks of the engine, as a change that can be told, sent and put back.

A control knows a number; the engine wants a command, the user wants words, and an undo wants
what was before. Each function here makes all of them out of the engine's facts, and None
when the engine is as it is wanted already.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from auxconn.lab.workload_specs import KINDS, WorkloadSpec

from . import words
from .steering import Change

Facts = Mapping[str, Any]

SPEEDS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 0.0)
"""Steps per second to choose from; 0 is as fast as it goes, which engines call None."""

KV_TIER_FACTOR = 4
"""A KV tier that is switched on is so many times the pool, unless it had a size before."""

_CALL = re.compile(r"^([a-z_]+)\((.*)\)$")


def capacity(facts: Facts, blocks: int) -> Change | None:
    """Another capacity."""
    before = facts.get("capacity")
    if blocks == before:
        return None
    back = (
        "set_capacity",
        {"blocks": before},
        f"capacity back to {words.whole(before)}",
    )
    return Change(
        "capacity",
        f"capacity {words.whole(before)} → {words.whole(blocks)}",
        "set_capacity",
        {"blocks": blocks},
        back if before else None,
    )


def block_size(facts: Facts, size: int) -> Change | None:
    """Another block size; a finer hashing that does not divide it is given up."""
    changes: dict[str, Any] = {"block_size": size}
    hashed = facts.get("hash_block_size")
    if hashed and size % int(hashed):
        changes["hash_block_size"] = None
    return _rebuild(facts, "block_size", changes, f"block size {size} tokens")


def hash_block_size(facts: Facts, size: int) -> Change | None:
    """Finer hashing; 0 hashes by whole blocks."""
    what = f"hash block size {size}" if size else "hashing by whole blocks"
    return _rebuild(facts, "hash_block_size", {"hash_block_size": size or None}, what)


def num_blocks(facts: Facts, blocks: int) -> Change | None:
    """Another pool."""
    what = f"pool of {words.whole(blocks)} blocks"
    return _rebuild(facts, "num_blocks", {"num_blocks": blocks}, what)


def kv_tier(facts: Facts, on: bool, before: int) -> Change | None:
    """The tier on, as large as it was before, or off."""
    size = before or KV_TIER_FACTOR * int(facts.get("num_blocks") or 1024)
    return kv_tier_blocks(facts, size if on else 0, "kv_tier")


def kv_tier_blocks(
    facts: Facts, blocks: int, control: str = "kv_tier_blocks"
) -> Change | None:
    """Another size of the tier; 0 is off."""
    what = f"KV tier of {words.whole(blocks)} blocks" if blocks else "KV tier off"
    return _rebuild(facts, control, {"kv_tier_blocks": blocks}, what)


def connector(facts: Facts, name: str) -> Change | None:
    """The other connector."""
    return _rebuild(facts, "connector", {"connector": name}, f"connector {name}")


def workload(facts: Facts, name: str, values: Mapping[str, Any]) -> Change:
    """Another workload, or other parameters of it.

    Raises
    ------
    ValueError
        When a parameter is not what the workload takes; the text says what it takes.
    """
    kind = KINDS[name]
    spec = WorkloadSpec(name, values)
    differs = {
        key: value for key, value in spec.params.items() if value != kind.defaults[key]
    }
    listed = ", ".join(f"{label(key)} {value}" for key, value in differs.items())
    before = parse_workload(str(facts.get("workload") or ""))
    return Change(
        "workload",
        f"workload {kind.title}" + (f": {listed}" if listed else ""),
        "workload",
        {"name": name, **differs},
        None if before is None else ("workload", before, "workload as before"),
    )


def speed(facts: Facts, steps_per_s: float) -> Change | None:
    """Another speed; 0 is as fast as it goes."""
    before = facts.get("steps_per_s")
    if nearest(before) == steps_per_s:
        return None
    back = ("speed", {"steps_per_s": before}, f"speed back to {speed_words(before)}")
    return Change(
        "speed",
        f"speed {speed_words(steps_per_s)}",
        "speed",
        {"steps_per_s": steps_per_s or None},
        back,
    )


def _rebuild(
    facts: Facts, control: str, changes: dict[str, Any], what: str
) -> Change | None:
    if all(facts.get(name) == value for name, value in changes.items()):
        return None
    back = {name: facts.get(name) for name in changes}
    if back.get("hash_block_size") == facts.get("block_size"):
        back["hash_block_size"] = None
    undo = ("reconfigure", back, f"undo: {what}")
    return Change(control, what, "reconfigure", changes, undo)


def parse_workload(text: str) -> dict[str, Any] | None:
    """Name and parameters of a workload from the fact's words; None for what is not one."""
    found = _CALL.match(text)
    if found is None:
        return None
    known: dict[str, Any] = {"name": found[1]}
    for part in filter(None, (part.strip() for part in found[2].split(","))):
        name, _, value = part.partition("=")
        known[name] = number(value)
        if isinstance(known[name], str):
            return None
    return known


def number(text: str) -> int | float | str:
    """The number a text says; the text itself when it says none."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        value = float(text)
    except ValueError:
        return text
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def label(name: str) -> str:
    """Name of a parameter as it is shown."""
    return name.replace("_", " ")


def nearest(speed: float | None) -> float:
    """The speed to choose from that is nearest; 0 for as fast as it goes."""
    if speed is None:
        return 0.0
    known = [one for one in SPEEDS if one]
    return min(known, key=lambda one: abs(np.log(one / max(speed, 1e-6))))


def speed_words(speed: float | None) -> str:
    """A speed in words."""
    return f"{speed:g} steps/s" if speed else "as fast as it goes"
