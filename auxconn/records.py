"""The schema: what the probes say, one struct per table.

Every figure that leaves an engine is a field of a struct in this file. The same structs
are what crosses the process boundary (msgpack arrays, no pickle), what `FrameStore` turns
into columns, what a recording writes and what `docs/tables.md` describes, so each column's
meaning and unit is written here and nowhere else.

A struct is a row of its table, save `Blocks`, which carries many rows: the events of one
kind that one step brought, its columns packed, because a single admission can touch
thousands of blocks and the engine's thread must not build an object for each.

`engine` and `rank` are not fields: they belong to the source of a record and are added by
the one who receives it.
"""

from __future__ import annotations

from typing import Annotated, Literal, get_args, get_type_hints

import msgspec

SCHEMA_VERSION = 1
"""Raised whenever a struct here gains, loses or re-orders a field."""

Refusal = Literal["", "unaligned", "not_retained", "last_token"]
"""Why an external offer was refused; empty when there was none or it was accepted."""

RunEnd = Literal["whole", "never_seen", "evicted", "short", "last_token"]
"""Why the leading run of hits of a look-up ended."""

BlockEvent = Literal[
    "retained", "released", "load_started", "load_ended", "gpu_evicted", "wanted_again"
]

EventKind = Literal[
    "start", "stop", "reset", "growth", "capacity", "reconfigured", "workload", "gap",
    "error", "alert", "mark", "stale", "back",
]  # fmt: skip


def _column(unit: str, help: str, dtype: str | None = None) -> msgspec.Meta:
    """Describe a column: its unit, one sentence, and the dtype if the default won't do."""
    return msgspec.Meta(extra={"unit": unit, "help": help, "dtype": dtype})


T = Annotated[float, _column("s", "Wall clock of the engine when the row was made.")]
Step = Annotated[
    int,
    _column("1", "Scheduler steps since the connector was attached, from 1.", "int64"),
]
RequestId = Annotated[
    str,
    _column("", "Request id, as the engine knows it. Text from outside: escape it."),
]


def count(unit: str, help: str) -> msgspec.Meta:
    """Describe a whole number of `unit`."""
    return _column(unit, help, "int64")


def amount(unit: str, help: str) -> msgspec.Meta:
    """Describe a real number of `unit`; NaN when it is not known."""
    return _column(unit, help, "float64")


class Steps(msgspec.Struct, array_like=True, gc=False):
    """One `build_connector_meta`: the scheduler's step as the connector saw it."""

    t: T
    step: Step
    generation: Annotated[
        int,
        count(
            "1", "Generation of the auxiliary outputs; a prefix-cache reset adds one."
        ),
    ]
    scheduled_requests: Annotated[
        int, count("requests", "Requests scheduled in this step.")
    ]
    scheduled_tokens: Annotated[int, count("tokens", "Tokens scheduled in this step.")]
    waiting: Annotated[
        int,
        count("requests", "Requests waiting, those that wait for a KV load included."),
    ]
    running: Annotated[int, count("requests", "Requests in the running queue.")]
    kv_in_use: Annotated[
        int, count("blocks", "KV blocks of the pool that a request refers to.")
    ]
    kv_cached_free: Annotated[
        int,
        count(
            "blocks", "KV blocks no request refers to whose content is still cached."
        ),
    ]
    kv_free: Annotated[
        int,
        count("blocks", "KV blocks no request refers to and that hold nothing cached."),
    ]
    retained: Annotated[
        int, count("blocks", "KV blocks whose R3 rows the connector retains.")
    ]
    retained_on_gpu: Annotated[
        int, count("blocks", "Retained blocks whose KV is still on the GPU.")
    ]
    capacity: Annotated[
        int, count("blocks", "Blocks the connector keeps before it releases.")
    ]
    loading_blocks: Annotated[
        int, count("blocks", "Distinct blocks protected because a KV load needs them.")
    ]
    loading_requests: Annotated[
        int, count("requests", "Requests whose KV load is under way.")
    ]
    hashes_sent: Annotated[
        int, count("hashes", "Block hashes of requests in this step's metadata.")
    ]
    hashes_retained: Annotated[
        int, count("hashes", "Block hashes to retain in this step's metadata.")
    ]
    hashes_released: Annotated[
        int, count("hashes", "Block hashes to release in this step's metadata.")
    ]
    ns_build_connector_meta: Annotated[
        int, count("ns", "Time in build_connector_meta in this step.")
    ]
    ns_max_cache_hit: Annotated[
        int, count("ns", "Time in max_cache_hit since the row before.")
    ]
    ns_cap_external_hit: Annotated[
        int, count("ns", "Time in cap_external_hit since the row before.")
    ]
    ns_request_loading: Annotated[
        int, count("ns", "Time in request_loading since the row before.")
    ]
    ns_take_output: Annotated[
        int,
        count(
            "ns",
            "Time in take_output since the row before. Timed in one step of 16; in the "
            "others the newest time of a call, times the requests of the step before.",
        ),
    ]
    ns_request_finished: Annotated[
        int, count("ns", "Time in request_finished since the row before.")
    ]
    ns_probe: Annotated[
        int,
        count("ns", "Time the probe itself took on this thread since the row before."),
    ]


class Lookups(msgspec.Struct, array_like=True, gc=False):
    """One admission: what a request asked of the prefix cache and what it got.

    A look-up that did not lead to an admission (no room in the pool, no budget left) is not
    a row, as in vLLM's own prefix cache statistics; `attempts` counts those before it.
    """

    t: T
    step: Step
    request: RequestId
    query_tokens: Annotated[
        int, count("tokens", "Tokens of the request when it was looked up.")
    ]
    prompt_tokens: Annotated[int, count("tokens", "Tokens of its prompt.")]
    resumed: Annotated[bool, _column("", "True when it comes back from a preemption.")]
    block_size: Annotated[
        int,
        count(
            "tokens", "Tokens of a KV block: the smallest prefix that can be reused."
        ),
    ]
    retained_hit: Annotated[
        int, count("tokens", "Leading tokens whose rows exist: the cap on the hit.")
    ]
    local_hit: Annotated[
        int, count("tokens", "Leading tokens found in the GPU's prefix cache.")
    ]
    external_offered: Annotated[
        int, count("tokens", "Further tokens the KV connector offered.")
    ]
    external_accepted: Annotated[int, count("tokens", "Of those, accepted.")]
    external_refused: Annotated[int, count("tokens", "Of those, refused.")]
    refusal: Annotated[Refusal, _column("", "Why the offer was refused.")]
    run_end: Annotated[
        int, count("tokens", "Where the leading run of blocks with rows ended.")
    ]
    run_end_reason: Annotated[RunEnd, _column("", "Why it ended there.")]
    attempts: Annotated[int, count("1", "Look-ups this admission took, from 1.")]


class Blocks(msgspec.Struct, array_like=True, gc=False):
    """Events of one kind of KV blocks in one step; each row is one event of one block.

    `hash`, `age`, `idle` and `uses` are packed little-endian arrays of equal length: uint64,
    float32, float32, uint32. The scalars hold for all of them.
    """

    t: T
    step: Step
    event: Annotated[BlockEvent, _column("", "What happened to the block.")]
    request: RequestId
    hash: Annotated[
        bytes,
        _column(
            "", "Low 64 bits of the block's hash, as in vLLM's KV events.", "uint64"
        ),
    ]
    age: Annotated[
        bytes,
        _column("s", "Since it was first retained; NaN when it was not.", "float32"),
    ]
    idle: Annotated[
        bytes,
        _column(
            "s", "Since a look-up last touched it; NaN when it was not.", "float32"
        ),
    ]
    uses: Annotated[
        bytes, _column("1", "Look-ups that hit it while retained.", "uint32")
    ]


class Rows(msgspec.Struct, array_like=True, gc=False):
    """One worker step: the R3 rows it captured and those it delivered, by source."""

    t: T
    step: Step
    requests: Annotated[int, count("requests", "Requests in the step's batch.")]
    captured_rows: Annotated[
        int, count("rows", "Rows captured from the routers, rejected ones left out.")
    ]
    captured_bytes: Annotated[int, count("B", "Bytes of the captured rows.")]
    rejected_rows: Annotated[
        int, count("rows", "Rows of tokens that speculative decoding rejected.")
    ]
    delivered_requests: Annotated[
        int, count("requests", "Requests that got rows in this step.")
    ]
    step_rows: Annotated[
        int, count("rows", "Delivered rows that this very step captured.")
    ]
    store_rows: Annotated[int, count("rows", "Delivered rows read from the store.")]
    tail_rows: Annotated[
        int, count("rows", "Delivered rows read from the incomplete last block.")
    ]
    step_bytes: Annotated[int, count("B", "Bytes of step_rows.")]
    store_bytes: Annotated[int, count("B", "Bytes of store_rows.")]
    tail_bytes: Annotated[int, count("B", "Bytes of tail_rows.")]
    ms_copy: Annotated[
        float,
        amount(
            "ms",
            "Time to put the copy from the GPU on its stream; timed in one step of 16, not "
            "a number in the others.",
        ),
    ]
    ms_commit: Annotated[
        float, amount("ms", "Time in process_output: publish, look up, build the rows.")
    ]


class Store(msgspec.Struct, array_like=True, gc=False):
    """One worker step: the R3 store's slots and its writer."""

    t: T
    step: Step
    slots_used: Annotated[int, count("slots", "Slots that hold a hash block's rows.")]
    slots_referenced: Annotated[
        int,
        count(
            "slots", "Of the keys with a slot, those a request or the connector holds."
        ),
    ]
    slots_unreferenced: Annotated[
        int, count("slots", "Of them, those kept only until room is needed.")
    ]
    slots_free: Annotated[int, count("slots", "Slots without rows.")]
    slots_total: Annotated[int, count("slots", "Slots of the arena.")]
    arena_bytes: Annotated[int, count("B", "Bytes of the arena.")]
    growths: Annotated[
        int, count("1", "Times the arena has grown since the probe was attached.")
    ]
    evictions: Annotated[
        int, count("slots", "Slots evicted to make room since the probe was attached.")
    ]
    backlog: Annotated[
        int, count("batches", "Batches that wait for the writer thread.")
    ]
    error: Annotated[
        str, _column("", "The writer's first error; sticky. Empty when it is well.")
    ]


class Requests(msgspec.Struct, array_like=True, gc=False):
    """One request, when it ends."""

    t: T
    step: Step
    request: RequestId
    arrival: Annotated[float, amount("s", "Wall clock of its arrival.")]
    first_scheduled: Annotated[
        float, amount("s", "Wall clock of its first step; NaN when it never ran.")
    ]
    prompt_tokens: Annotated[int, count("tokens", "Tokens of its prompt.")]
    output_tokens: Annotated[int, count("tokens", "Tokens it generated.")]
    local_hit: Annotated[
        int, count("tokens", "Tokens of its admissions found on the GPU.")
    ]
    external_hit: Annotated[
        int, count("tokens", "Tokens of its admissions loaded from the KV connector.")
    ]
    loads: Annotated[int, count("1", "KV loads begun for it.")]
    preemptions: Annotated[int, count("1", "Times it was preempted.")]
    reason: Annotated[
        str, _column("", "Why it ended: stopped, length_capped, aborted ...")
    ]


class Events(msgspec.Struct, array_like=True, gc=False):
    """Anything rare. `t` is the engine's clock, or the collector's for what only it can see."""

    t: T
    step: Step
    kind: Annotated[EventKind, _column("", "What kind of event.")]
    text: Annotated[
        str, _column("", "What happened, in words. Text from outside: escape it.")
    ]


Record = Steps | Lookups | Blocks | Rows | Store | Requests | Events

TABLES: dict[str, type[msgspec.Struct]] = {
    "steps": Steps,
    "lookups": Lookups,
    "blocks": Blocks,
    "rows": Rows,
    "store": Store,
    "requests": Requests,
    "events": Events,
}
"""Name of each table, as in `FrameStore`, and the struct that carries its rows."""


class Column(msgspec.Struct, frozen=True):
    """What is known of one column of a table."""

    name: str
    dtype: str
    """A numpy dtype; 'str' for free text, 'category' for one of `categories`."""
    unit: str
    help: str
    packed: bool = False
    """True when the record carries it as a packed array: many rows in one record."""
    categories: tuple[str, ...] = ()


def columns(table: str) -> tuple[Column, ...]:
    """The columns of `table` in the order of the struct's fields.

    Raises `KeyError` when there is no such table.
    """
    struct = TABLES[table]
    hints = get_type_hints(struct, include_extras=True)
    found = []
    for name in struct.__struct_fields__:
        kind, meta = get_args(hints[name])
        extra = meta.extra
        categories = (
            tuple(get_args(kind)) if kind not in (int, float, str, bool, bytes) else ()
        )
        dtype = extra["dtype"] or (
            "category"
            if categories
            else {float: "float64", str: "str", bool: "bool"}[kind]
        )
        found.append(
            Column(name, dtype, extra["unit"], extra["help"], kind is bytes, categories)
        )
    return tuple(found)
