"""How an engine that keeps its sizes could be had with others: lines for a shell.

A running vLLM cannot change its block size. What a user can do is start it anew, or try the
sizes in the lab first, so the page writes both lines with what it knows of the engine.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from auxconn import facts as names


def serve_line(facts: Mapping[str, Any]) -> str:
    """The start of the same vLLM, with the block size to change; empty when unknown."""
    model, size = facts.get(names.MODEL), facts.get(names.BLOCK_SIZE)
    if facts.get(names.SOURCE) != "vllm" or not isinstance(model, str) or not size:
        return ""
    words = [
        "vllm", "serve", model, "--enable-return-routed-experts", "--block-size",
        str(size),
    ]  # fmt: skip
    return shlex.join(words)


def lab_line(facts: Mapping[str, Any]) -> str:
    """The lab with the engine's sizes; empty when they are unknown."""
    options = {
        "--blocks": facts.get(names.NUM_BLOCKS),
        "--block-size": facts.get(names.BLOCK_SIZE),
        "--capacity": facts.get(names.CAPACITY),
        "--kv-tier": facts.get(names.KV_TIER_BLOCKS),
    }
    known = {name: value for name, value in options.items() if value is not None}
    if "--blocks" not in known or "--block-size" not in known:
        return ""
    words = ["auxconn", "demo"]
    for name, value in known.items():
        words += [name, str(value)]
    return shlex.join(words)
