"""What the page adds up and follows, from the columns of each table.

The tables carry readings; the page shows parts of a whole (where each token of a look-up
came from) and counts by kind (blocks released). That arithmetic is here, on whole arrays
of new rows, so that a plot, an indicator and a test all mean the same by a name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Values = np.ndarray[Any, np.dtype[Any]]
Columns = Mapping[str, Values]

METHODS = (
    "build_connector_meta",
    "max_cache_hit",
    "cap_external_hit",
    "request_loading",
    "take_output",
    "request_finished",
)
"""Methods of the connector on the scheduler's critical path."""

REFUSALS = ("unaligned", "not_retained", "last_token")
RUN_ENDS = ("whole", "never_seen", "evicted", "short", "last_token")
BLOCK_EVENTS = (
    "retained",
    "released",
    "load_started",
    "load_ended",
    "gpu_evicted",
    "wanted_again",
)


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a table is read: the columns to ask for, and what becomes of them."""

    read: tuple[str, ...]
    sums: tuple[str, ...]
    levels: tuple[str, ...]
    derive: Callable[[Columns], dict[str, Values]]
    """Adds to the columns read those that are computed from them."""
    also: tuple[str, ...] = ()
    """Columns of which only the newest reading is of interest."""


def _steps(columns: Columns) -> dict[str, Values]:
    return {
        "retained_off_gpu": columns["retained"] - columns["retained_on_gpu"],
        "over": np.maximum(columns["retained"] - columns["capacity"], 0),
    }


def _lookups(columns: Columns) -> dict[str, Values]:
    """Share out each look-up's tokens: every token goes to exactly one source.

    A refused token counts as refused although it may be retained: the refusal is what the
    user can act on. `retained_unused` are the leading tokens whose R3 rows exist, but
    whose KV was neither on the GPU nor offered.
    """
    query = columns["query_tokens"]
    local = columns["local_hit"]
    accepted = columns["external_accepted"]
    refused = columns["external_refused"]
    reached = local + accepted + refused
    unused = np.clip(
        columns["retained_hit"] - reached, 0, np.maximum(query - reached, 0)
    )
    found = {
        "hit_tokens": local + accepted,
        "retained_unused": unused,
        "missed": np.maximum(query - reached - unused, 0),
    }
    for reason in REFUSALS:
        found[f"refused_{reason}"] = np.where(columns["refusal"] == reason, refused, 0)
    for reason in RUN_ENDS:
        ended = columns["run_end_reason"] == reason
        found[f"ended_{reason}"] = ended.astype(np.int64)
        missed = np.maximum(query - columns["run_end"], 0)
        found[f"missed_{reason}"] = np.where(ended, missed, 0)
    return found


def _blocks(columns: Columns) -> dict[str, Values]:
    event = columns["event"]
    return {kind: (event == kind).astype(np.int64) for kind in BLOCK_EVENTS}


def _rows(columns: Columns) -> dict[str, Values]:
    return {
        "rows": columns["step_rows"] + columns["store_rows"] + columns["tail_rows"],
        "bytes": columns["step_bytes"] + columns["store_bytes"] + columns["tail_bytes"],
    }


def _store(columns: Columns) -> dict[str, Values]:
    total = np.maximum(columns["slots_total"], 1)
    return {"used_bytes": columns["arena_bytes"] * (columns["slots_used"] / total)}


_STEP_LEVELS = (
    "retained",
    "retained_on_gpu",
    "capacity",
    "loading_blocks",
    "loading_requests",
    "kv_in_use",
    "kv_cached_free",
    "kv_free",
    "waiting",
    "running",
)
_STEP_SUMS = ("scheduled_tokens", *(f"ns_{name}" for name in METHODS), "ns_probe")
_LOOKUP_READ = (
    "query_tokens",
    "retained_hit",
    "local_hit",
    "external_offered",
    "external_accepted",
    "external_refused",
    "refusal",
    "run_end",
    "run_end_reason",
)
_ROW_READ = (
    "step_rows",
    "store_rows",
    "tail_rows",
    "step_bytes",
    "store_bytes",
    "tail_bytes",
    "captured_rows",
    "captured_bytes",
    "rejected_rows",
)
_STORE_READ = (
    "slots_used",
    "slots_referenced",
    "slots_unreferenced",
    "slots_free",
    "slots_total",
    "arena_bytes",
    "growths",
    "evictions",
    "backlog",
)

PLANS: dict[str, Plan] = {
    "steps": Plan(
        (*_STEP_LEVELS, *_STEP_SUMS),
        _STEP_SUMS,
        (*_STEP_LEVELS, "retained_off_gpu", "over"),
        _steps,
        ("step", "generation"),
    ),
    "lookups": Plan(
        _LOOKUP_READ,
        (
            "query_tokens",
            "local_hit",
            "external_offered",
            "external_accepted",
            "external_refused",
            "hit_tokens",
            "retained_unused",
            "missed",
            *(f"refused_{reason}" for reason in REFUSALS),
            *(f"ended_{reason}" for reason in RUN_ENDS),
            *(f"missed_{reason}" for reason in RUN_ENDS),
        ),
        (),
        _lookups,
    ),
    "blocks": Plan(("event",), BLOCK_EVENTS, (), _blocks),
    "rows": Plan(_ROW_READ, (*_ROW_READ, "rows", "bytes"), (), _rows),
    "store": Plan(_STORE_READ, (), (*_STORE_READ, "used_bytes"), _store, ("error",)),
}
"""Every table that is folded into buckets."""
