"""The look-ups that a user has asked for, read once each.

A filter over a ring of a hundred thousand request ids costs too much to run on every tick,
so each session keeps the newest matches and looks only at the rows that came since. Turning
to an older page pins it: rows that come later must not push the page away under the
reader's eyes.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from . import words
from .subjects import Subject

if TYPE_CHECKING:
    from auxconn.frames import FrameStore

KEEP = 2_000
"""Matches that can be paged through."""

SEARCH = 20_000
"""Newest rows that a new filter is run over."""

PAGE = 12
"""Rows of a page."""

COLUMNS = (
    "t",
    "step",
    "request",
    "query_tokens",
    "prompt_tokens",
    "resumed",
    "block_size",
    "retained_hit",
    "local_hit",
    "external_offered",
    "external_accepted",
    "external_refused",
    "refusal",
    "run_end",
    "run_end_reason",
    "attempts",
)

_READ = ("engine", "rank", *COLUMNS)

REFUSED = "refused"
"""Choice beside the reasons: every look-up with a refused offer."""


class LookupLog:
    """Newest look-ups that match a filter.

    Parameters
    ----------
    subjects
        Those whose look-ups are meant.
    """

    def __init__(self, store: FrameStore, subjects: Iterable[Subject]) -> None:
        self._store = store
        self._subjects = frozenset(subjects)
        one = next(iter(self._subjects)) if len(self._subjects) == 1 else Subject(None)
        self._engine, self._rank = one
        self._text, self._reason = "", ""
        self._version = 0
        self._found: collections.deque[dict[str, Any]] = collections.deque(maxlen=KEEP)
        self.total = 0
        """Matches ever found with this filter."""
        self._anchor = 0
        self.page = 0
        self._restart()

    def choose(self, text: str, reason: str) -> None:
        """Set the filter: a part of the request id, and a reason or `REFUSED`."""
        text = text.strip().casefold()
        if (text, reason) != (self._text, self._reason):
            self._text, self._reason = text, reason
            self._restart()

    def turn(self, page: int) -> None:
        """Go to a page; 0 follows the newest rows."""
        if page > 0 and self.page == 0:
            self._anchor = self.total
        self.page = max(0, min(page, (KEEP - 1) // PAGE))

    def advance(self) -> bool:
        """Take in new rows; True when any of them matched."""
        if self._store.version("lookups") == self._version:
            return False
        delta = self._store.since(
            "lookups",
            self._version,
            columns=_READ,
            engine=self._engine,
            rank=self._rank,
            limit=SEARCH,
        )
        self._version = delta.version
        if delta.cleared:
            self._found.clear()
            self.page = 0
        return self._take(delta.columns)

    def rows(self) -> list[dict[str, Any]]:
        """The look-ups of the present page, newest first."""
        later = self.total - self._anchor if self.page else 0
        first = later + self.page * PAGE
        newest_first = list(self._found)[::-1]
        return newest_first[first : first + PAGE]

    @property
    def older(self) -> bool:
        """True when there is another page behind this one."""
        later = self.total - self._anchor if self.page else 0
        return len(self._found) > later + (self.page + 1) * PAGE

    def _restart(self) -> None:
        self._found.clear()
        self.total, self.page, self._anchor = 0, 0, 0
        delta = self._store.tail(
            "lookups", SEARCH, columns=_READ, engine=self._engine, rank=self._rank
        )
        self._version = delta.version
        self._take(delta.columns)

    def _take(self, columns: dict[str, Any]) -> bool:
        count = len(columns["t"])
        if not count:
            return False
        keep = np.ones(count, bool)
        if len(self._subjects) > 1:
            whose = zip(columns["engine"], columns["rank"].tolist(), strict=True)
            keep = np.fromiter((one in self._subjects for one in whose), bool, count)
        if self._reason == REFUSED:
            keep &= columns["external_refused"] > 0
        elif self._reason:
            keep &= columns["run_end_reason"] == self._reason
        if self._text:
            keep &= np.array(
                [self._text in one.casefold() for one in columns["request"]]
            )
        chosen = np.flatnonzero(keep)
        self.total += len(chosen)
        for index in chosen[-KEEP:].tolist():
            self._found.append({name: columns[name][index] for name in _READ})
        return bool(len(chosen))


def shown(row: dict[str, Any], engine: str = "") -> dict[str, Any]:
    """One look-up as the table shows it: plain values, texts made harmless.

    Parameters
    ----------
    engine
        Whose it is, where several are looked at.
    """
    query, local = int(row["query_tokens"]), int(row["local_hit"])
    accepted, refused = int(row["external_accepted"]), int(row["external_refused"])
    offered = int(row["external_offered"])
    unused = max(0, min(int(row["retained_hit"]), query) - local - accepted - refused)
    reason = str(row["run_end_reason"])
    refusal = str(row["refusal"])
    offer = ""
    if offered:
        offer = (
            f"{offered:,} refused: {words.REFUSAL.get(refusal, refusal)}"
            if refused
            else f"{accepted:,} accepted"
        )
    missed = max(0, query - local - accepted - refused - unused)
    parts = [("local hit", local), ("external", accepted), ("refused", refused)]
    parts += [("rows only", unused), ("miss", missed)]
    return {
        "key": f"{engine}:{int(row['step'])}:{words.plain(row['request'], 200)}",
        "engine": words.plain(engine, 120),
        "t": float(row["t"]),
        "request": words.plain(row["request"], 200),
        "tokens": query,
        "local": local,
        "external": accepted,
        "refused": refused,
        "unused": unused,
        "missed": missed,
        "parts": ", ".join(f"{name} {count:,}" for name, count in parts if count),
        "hit": words.share(local + accepted, query),
        "run_end": int(row["run_end"]),
        "reason": reason,
        "why": words.RUN_END.get(reason, reason),
        "why_long": words.RUN_END_LONG.get(reason, ""),
        "offer": offer,
        "detail": detail(row),
    }


def detail(row: dict[str, Any]) -> list[str]:
    """One look-up told in sentences."""
    query, block = int(row["query_tokens"]), max(int(row["block_size"]), 1)
    local, offered = int(row["local_hit"]), int(row["external_offered"])
    again = " It came back from a preemption." if bool(row["resumed"]) else ""
    told = [
        f"Asked for {query:,} tokens, {words.plural(query // block, 'whole block')} of "
        f"{block} (its prompt has {int(row['prompt_tokens']):,}), in step "
        f"{int(row['step']):,}, at attempt {int(row['attempts']):,}.{again}",
        f"R3 rows exist for its first {int(row['retained_hit']):,} tokens: no hit may be "
        f"longer. {local:,} of them were found on the GPU.",
    ]
    if offered:
        refusal = words.REFUSAL.get(str(row["refusal"]), str(row["refusal"]))
        fate = (
            f"refused, {refusal}"
            if int(row["external_refused"])
            else f"{int(row['external_accepted']):,} accepted"
        )
        told.append(f"The KV connector offered {offered:,} further tokens: {fate}.")
    reason = str(row["run_end_reason"])
    told.append(
        f"The run of blocks with rows ended after {int(row['run_end']):,} tokens: "
        f"{words.RUN_END.get(reason, reason)}. {words.RUN_END_LONG.get(reason, '')}"
    )
    return told
