"""The metric catalogue: what each figure on the page means, said once.

A column of a table is a reading; a metric is what people are shown: a ratio, a rate, a
level. A figure whose meaning has to be guessed is not trusted, so every one has an entry
here with its unit, a sentence, the formula and the columns it is made of. The dashboard's
"?" and `docs/metrics.md` are made from these entries, and a test holds the columns to the
schema in `auxconn.records`.

Formulas name columns as `table.column`. `sum` runs over the rows in the window shown,
`last` is the newest row, and a rate is a sum divided by the window's seconds, counted from
the rows' own clock `t`.
"""

from __future__ import annotations

import re

import msgspec

from auxconn.records import TABLES

_COLUMN = re.compile(r"\b(" + "|".join(TABLES) + r")\.([a-z_]+)")


class Metric(msgspec.Struct, frozen=True):
    """One figure or one curve of the page."""

    name: str
    title: str
    """What stands beside the figure."""
    unit: str
    """`%`, a counted thing (`blocks`), `B`, `s`, `ms`, `ns`, or one of them with `/s`."""
    group: str
    help: str
    """What it says and why one would look, in a sentence or two."""
    formula: str
    split_by: str = ""
    """Column whose values are shown apart, when it is shown by reason or by kind."""

    @property
    def columns(self) -> tuple[tuple[str, str], ...]:
        """The (table, column) pairs of the formula and the split, each once, in order."""
        found = _COLUMN.findall(f"{self.formula} {self.split_by}")
        return tuple(dict.fromkeys((table, column) for table, column in found))

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables it comes from, each once."""
        return tuple(dict.fromkeys(table for table, _ in self.columns))


_RATIO_NOTE = "Both counters are shown with it, so that a ratio of nothing is seen."

_HITS = (
    Metric(
        "hit_ratio",
        "Hit tokens",
        "%",
        "hits",
        "Share of the looked-up tokens that did not have to be computed. "
        + _RATIO_NOTE,
        "sum(lookups.local_hit + lookups.external_accepted) / sum(lookups.query_tokens)",
    ),
    Metric(
        "hit_tokens",
        "Hit",
        "tokens",
        "hits",
        "Tokens found in the GPU's prefix cache or loaded by the KV connector.",
        "sum(lookups.local_hit + lookups.external_accepted)",
    ),
    Metric(
        "query_tokens",
        "Queried",
        "tokens",
        "hits",
        "Tokens that admitted requests asked the prefix cache for: the denominator.",
        "sum(lookups.query_tokens)",
    ),
    Metric(
        "local_tokens",
        "Local",
        "tokens",
        "hits",
        "Tokens found in the GPU's prefix cache, as far as their R3 rows exist.",
        "sum(lookups.local_hit)",
    ),
    Metric(
        "retained_tokens",
        "Retained",
        "tokens",
        "hits",
        "Leading tokens whose R3 rows exist. No hit may be longer, whatever KV there is.",
        "sum(lookups.retained_hit)",
    ),
    Metric(
        "external_tokens",
        "External accepted",
        "tokens",
        "hits",
        "Tokens the KV connector offered and the R3 connector accepted.",
        "sum(lookups.external_accepted)",
    ),
    Metric(
        "offered_tokens",
        "External offered",
        "tokens",
        "hits",
        "Tokens the KV connector offered beyond the local hit.",
        "sum(lookups.external_offered)",
    ),
    Metric(
        "refused_tokens",
        "External refused",
        "tokens",
        "hits",
        "Offered tokens that were refused and had to be computed, by reason: not a whole "
        "number of blocks, R3 rows not retained, or the last token, which has to be computed "
        "anyway.",
        "sum(lookups.external_refused)",
        split_by="lookups.refusal",
    ),
    Metric(
        "rows_only_tokens",
        "Rows only",
        "tokens",
        "hits",
        "Looked-up tokens that had to be computed although their R3 rows exist: their KV has "
        "left the GPU and nobody offered it.",
        "sum(max(0, min(lookups.retained_hit, lookups.query_tokens) - lookups.local_hit - "
        "lookups.external_accepted - lookups.external_refused))",
    ),
    Metric(
        "missed_tokens",
        "Miss",
        "tokens",
        "hits",
        "Looked-up tokens of which neither rows nor KV were there: computed. With the refused "
        "ones and those with rows only, it is all that the model had to compute.",
        "sum(max(0, lookups.query_tokens - max(min(lookups.retained_hit, "
        "lookups.query_tokens), lookups.local_hit + lookups.external_accepted + "
        "lookups.external_refused)))",
    ),
    Metric(
        "lookups",
        "Look-ups",
        "requests",
        "hits",
        "Admissions: requests that were looked up and got their place in a step.",
        "count(lookups.request)",
    ),
    Metric(
        "run_end",
        "Why look-ups ended",
        "requests",
        "hits",
        "Where the leading run of blocks with R3 rows ended and why: nothing was missing, "
        "the block was never seen, it was released, the rest is shorter than a block, or "
        "only the last token is left.",
        "count(lookups.run_end)",
        split_by="lookups.run_end_reason",
    ),
    Metric(
        "attempts",
        "Attempts",
        "1",
        "hits",
        "Look-ups one admission took. More than one means that the pool or the budget was "
        "full when the request was first tried.",
        "mean(lookups.attempts)",
    ),
)

_BLOCKS = (
    Metric(
        "retained",
        "Retained",
        "blocks",
        "blocks",
        "KV blocks whose R3 rows the connector keeps after their request has ended.",
        "last(steps.retained)",
    ),
    Metric(
        "retained_on_gpu",
        "Retained, on the GPU",
        "blocks",
        "blocks",
        "Retained blocks whose KV is still on the GPU. They are never released, so "
        "retained can be over capacity by as many.",
        "last(steps.retained_on_gpu)",
    ),
    Metric(
        "retained_off_gpu",
        "Retained, off the GPU",
        "blocks",
        "blocks",
        "Retained blocks whose KV has left the GPU: their rows wait for the KV to come "
        "back from elsewhere.",
        "last(steps.retained - steps.retained_on_gpu)",
    ),
    Metric(
        "capacity",
        "Capacity",
        "blocks",
        "blocks",
        "Blocks the connector keeps before it releases the oldest that it may release.",
        "last(steps.capacity)",
    ),
    Metric(
        "over_capacity",
        "Over capacity",
        "blocks",
        "blocks",
        "Retained blocks beyond capacity. Normal: what is on the GPU or loading stays.",
        "max(0, last(steps.retained - steps.capacity))",
    ),
    Metric(
        "retained_rate",
        "Newly retained",
        "blocks/s",
        "blocks",
        "KV blocks per second that became retained, whatever the number of hashes of each.",
        "count(blocks.hash where blocks.event = retained) / s",
    ),
    Metric(
        "released_rate",
        "Released",
        "blocks/s",
        "blocks",
        "KV blocks per second that lost their R3 rows: the evictions of this cache. A block "
        "of a hybrid pool has several hashes and counts once.",
        "count(blocks.hash where blocks.event = released) / s",
    ),
    Metric(
        "block_events",
        "Block events",
        "blocks",
        "blocks",
        "Events of KV blocks by kind. `wanted_again` is a block that a look-up missed "
        "after it had been released: the price of too small a capacity.",
        "count(blocks.hash)",
        split_by="blocks.event",
    ),
    Metric(
        "release_age",
        "Age at release",
        "s",
        "blocks",
        "Seconds from first retained to released.",
        "median(blocks.age where blocks.event = released)",
    ),
    Metric(
        "release_idle",
        "Idle at release",
        "s",
        "blocks",
        "Seconds since a look-up last touched a block, when it was released.",
        "median(blocks.idle where blocks.event = released)",
    ),
    Metric(
        "release_uses",
        "Uses before release",
        "1",
        "blocks",
        "Look-ups that hit a block while it was retained. Many released with none: the "
        "capacity holds what nobody asks for.",
        "mean(blocks.uses where blocks.event = released)",
    ),
    Metric(
        "kv_in_use",
        "KV in use",
        "blocks",
        "blocks",
        "KV blocks of the pool that a request refers to.",
        "last(steps.kv_in_use)",
    ),
    Metric(
        "kv_cached_free",
        "KV cached and free",
        "blocks",
        "blocks",
        "KV blocks nobody refers to whose content can still be hit.",
        "last(steps.kv_cached_free)",
    ),
    Metric(
        "kv_free",
        "KV free",
        "blocks",
        "blocks",
        "KV blocks that hold nothing.",
        "last(steps.kv_free)",
    ),
)

_LOADING = (
    Metric(
        "loading_blocks",
        "Loading",
        "blocks",
        "loading",
        "Distinct blocks protected from release because a KV load under way needs them.",
        "last(steps.loading_blocks)",
    ),
    Metric(
        "loading_requests",
        "Requests loading",
        "requests",
        "loading",
        "Requests whose KV load is under way.",
        "last(steps.loading_requests)",
    ),
)

_ROWS = (
    Metric(
        "rows_rate",
        "R3 rows",
        "rows/s",
        "rows",
        "Rows per second delivered to requests, from all sources.",
        "sum(rows.step_rows + rows.store_rows + rows.tail_rows) / s",
    ),
    Metric(
        "rows_bytes_rate",
        "R3 bytes",
        "B/s",
        "rows",
        "Bytes per second of the delivered rows, before they leave the worker.",
        "sum(rows.step_bytes + rows.store_bytes + rows.tail_bytes) / s",
    ),
    Metric(
        "rows_step",
        "From this step",
        "rows",
        "rows",
        "Delivered rows that the very step captured.",
        "sum(rows.step_rows)",
    ),
    Metric(
        "rows_store",
        "From the store",
        "rows",
        "rows",
        "Delivered rows read from the store: what a prefix hit did not compute.",
        "sum(rows.store_rows)",
    ),
    Metric(
        "rows_tail",
        "From the tail",
        "rows",
        "rows",
        "Delivered rows read from a request's incomplete last block.",
        "sum(rows.tail_rows)",
    ),
    Metric(
        "captured_rate",
        "Captured",
        "rows/s",
        "rows",
        "Rows per second captured from the routers.",
        "sum(rows.captured_rows) / s",
    ),
    Metric(
        "captured_bytes_rate",
        "Captured bytes",
        "B/s",
        "rows",
        "Bytes per second of the captured rows.",
        "sum(rows.captured_bytes) / s",
    ),
    Metric(
        "rejected_rows",
        "Rejected",
        "rows",
        "rows",
        "Rows of tokens that speculative decoding ran and rejected.",
        "sum(rows.rejected_rows)",
    ),
    Metric(
        "copy_time",
        "Copy",
        "ms",
        "rows",
        "Time a step takes to put the copy from the GPU on its stream.",
        "mean(rows.ms_copy)",
    ),
    Metric(
        "commit_time",
        "Commit",
        "ms",
        "rows",
        "Time a step takes to publish rows, look others up and build what it delivers.",
        "mean(rows.ms_commit)",
    ),
)

_STORE = (
    Metric(
        "store_used",
        "Store used",
        "slots",
        "store",
        "Slots of the store's arena that hold the rows of a hash block.",
        "last(store.slots_used)",
    ),
    Metric(
        "store_total",
        "Store total",
        "slots",
        "store",
        "Slots of the arena. It doubles when everything in it is referenced, and never "
        "shrinks.",
        "last(store.slots_total)",
    ),
    Metric(
        "store_fill",
        "Store",
        "%",
        "store",
        "Share of the arena's slots in use.",
        "last(store.slots_used / store.slots_total)",
    ),
    Metric(
        "store_referenced",
        "Referenced",
        "slots",
        "store",
        "Slots a request or the connector holds. They cannot be evicted.",
        "last(store.slots_referenced)",
    ),
    Metric(
        "store_unreferenced",
        "Unreferenced",
        "slots",
        "store",
        "Slots kept only until their room is needed.",
        "last(store.slots_unreferenced)",
    ),
    Metric(
        "store_free",
        "Free",
        "slots",
        "store",
        "Slots without rows.",
        "last(store.slots_free)",
    ),
    Metric(
        "store_bytes",
        "Arena",
        "B",
        "store",
        "Bytes of the arena in host memory.",
        "last(store.arena_bytes)",
    ),
    Metric(
        "store_growths",
        "Growths",
        "1",
        "store",
        "Times the arena has grown since the probe was attached.",
        "last(store.growths)",
    ),
    Metric(
        "store_evictions",
        "Store evictions",
        "slots",
        "store",
        "Unreferenced slots evicted to make room since the probe was attached.",
        "last(store.evictions)",
    ),
    Metric(
        "store_backlog",
        "Writer backlog",
        "batches",
        "store",
        "Batches that wait for the store's writer thread. Growing means that it cannot "
        "keep up.",
        "last(store.backlog)",
    ),
)

_ENGINE = (
    Metric(
        "steps_rate",
        "Steps",
        "1/s",
        "engine",
        "Scheduler steps per second.",
        "count(steps.step) / s",
    ),
    Metric(
        "scheduled_tokens",
        "Scheduled tokens",
        "tokens",
        "engine",
        "Tokens scheduled in a step.",
        "last(steps.scheduled_tokens)",
    ),
    Metric(
        "running",
        "Running",
        "requests",
        "engine",
        "Requests in the running queue.",
        "last(steps.running)",
    ),
    Metric(
        "waiting",
        "Waiting",
        "requests",
        "engine",
        "Requests that wait, those that wait for a KV load included.",
        "last(steps.waiting)",
    ),
    Metric(
        "generation",
        "Generation",
        "1",
        "engine",
        "Generation of the auxiliary outputs. A reset of the prefix cache adds one and "
        "makes all rows before it void.",
        "last(steps.generation)",
    ),
    Metric(
        "finish_reasons",
        "Why requests ended",
        "requests",
        "engine",
        "Requests that ended, by reason.",
        "count(requests.request)",
        split_by="requests.reason",
    ),
    Metric(
        "queue_time",
        "Queue time",
        "s",
        "engine",
        "Seconds from a request's arrival to its first step.",
        "median(requests.first_scheduled - requests.arrival)",
    ),
    Metric(
        "preemptions",
        "Preemptions",
        "1",
        "engine",
        "Times requests lost their blocks to others and had to start again.",
        "sum(requests.preemptions)",
    ),
    Metric(
        "connector_cost",
        "Connector cost",
        "ns",
        "engine",
        "Time a step spends in the connector's methods, on the scheduler's thread.",
        "mean(steps.ns_build_connector_meta + steps.ns_max_cache_hit + "
        "steps.ns_cap_external_hit + steps.ns_request_loading + steps.ns_take_output + "
        "steps.ns_request_finished)",
    ),
    Metric(
        "probe_cost",
        "Probe cost",
        "ns",
        "engine",
        "Time a step spends in the probe: what watching costs the engine.",
        "mean(steps.ns_probe)",
    ),
    Metric(
        "events",
        "Events",
        "1",
        "engine",
        "Anything rare, by kind: resets, growths, changed sizes, gaps, errors.",
        "count(events.kind)",
        split_by="events.kind",
    ),
)

METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (*_HITS, *_BLOCKS, *_LOADING, *_ROWS, *_STORE, *_ENGINE)
}
"""Every metric by name, in the order in which they are documented."""

GROUPS: dict[str, str] = {
    "hits": "Prefix-cache hits",
    "blocks": "Blocks: retained and released",
    "loading": "KV loads",
    "rows": "R3 rows",
    "store": "The R3 store",
    "engine": "Engine, requests and the cost of watching",
}
"""Title of each group of metrics."""


def explain(name: str) -> str:
    """One metric in plain text: sentence, formula and tables, for a tooltip.

    Raises `KeyError` when there is no such metric.
    """
    metric = METRICS[name]
    by = f", by {metric.split_by}" if metric.split_by else ""
    tables = ", ".join(metric.tables)
    return f"{metric.help}\n{metric.formula}{by} [{metric.unit}]\nFrom: {tables}"


def markdown() -> str:
    """The text of `docs/metrics.md`."""
    lines = [
        "# Metrics",
        "",
        "Made from `auxconn/catalogue.py` by `make docs`; a test compares the two.",
        "",
        "`sum` runs over the rows in the window shown, `last` is the newest row, `/ s` "
        "divides by the window's seconds.",
        "What has no rows yet is shown as a dash, never as 0.",
    ]
    for group, title in GROUPS.items():
        lines += ["", f"## {title}", ""]
        lines += [
            "| metric | unit | what it says | formula |",
            "| --- | --- | --- | --- |",
        ]
        for metric in METRICS.values():
            if metric.group != group:
                continue
            by = f", by `{metric.split_by}`" if metric.split_by else ""
            lines.append(
                f"| {metric.title} (`{metric.name}`) | {metric.unit} "
                f"| {metric.help} | `{metric.formula}`{by} |"
            )
    return "\n".join(lines) + "\n"
