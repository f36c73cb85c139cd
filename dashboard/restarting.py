"""How an engine that keeps its sizes could be had with others: lines for a shell.

A running vLLM cannot change its block size. What a user can do is start it anew, or try the
sizes in the lab first, so the page writes both lines with what it knows of the engine.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from auxconn import facts as names
from auxconn.engine.model import SERVED_NAME


def serve_line(facts: Mapping[str, Any]) -> str:
    """The start of the same engine, with the block size to change; empty when unknown."""
    model, size = facts.get(names.MODEL), facts.get(names.BLOCK_SIZE)
    if facts.get(names.SOURCE) != "vllm" or not isinstance(model, str) or not size:
        return ""
    if model == SERVED_NAME:
        return shlex.join(["auxconn", "engine", *_options(facts, _ENGINE)])
    words = [
        "vllm", "serve", model, "--enable-return-routed-experts", "--block-size",
        str(size),
    ]  # fmt: skip
    return shlex.join(words)


def lab_line(facts: Mapping[str, Any]) -> str:
    """The lab with the engine's sizes; empty when they are unknown."""
    words = _options(facts, _LAB)
    if "--blocks" not in words or "--block-size" not in words:
        return ""
    return shlex.join(["auxconn", "demo", *words])


_ENGINE = {
    "--blocks": names.NUM_BLOCKS,
    "--kv-tier": names.KV_TIER_BLOCKS,
    "--block-size": names.BLOCK_SIZE,
}
"""Options of `auxconn engine`, the one to change last."""

_LAB = {
    "--blocks": names.NUM_BLOCKS,
    "--block-size": names.BLOCK_SIZE,
    "--capacity": names.CAPACITY,
    "--kv-tier": names.KV_TIER_BLOCKS,
}
"""Options of `auxconn demo`."""


def _options(facts: Mapping[str, Any], options: Mapping[str, str]) -> list[str]:
    """Those that are known, with their values."""
    found = []
    for option, name in options.items():
        if facts.get(name) is not None:
            found += [option, str(facts[name])]
    return found
