"""How much of a text from outside is kept.

A request id is chosen by whoever calls the engine, and an error's text may quote it; a
bound on rows is a bound on memory only if a row's texts are bounded too.
"""

from __future__ import annotations

NAME_LIMIT = 256
"""Characters of a request id, or another short text, that are kept."""

TEXT_LIMIT = 1024
"""Characters of an event's or an error's text that are kept."""

LONG_TEXTS = frozenset({("events", "text"), ("store", "error")})
"""Columns that are texts of `TEXT_LIMIT`; the other text columns are names."""


def limit_of(table: str, column: str) -> int:
    """Characters that are kept of a text column."""
    return TEXT_LIMIT if (table, column) in LONG_TEXTS else NAME_LIMIT


def clip(text: str, limit: int) -> str:
    """`text`, cut to `limit` characters; an ellipsis shows that it was.

    Half of a surrogate pair, which no encoder takes, becomes a question mark: one such
    text would cost the whole batch or table that it is in.
    """
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    if text.isascii():
        return text
    return text.encode("utf-8", "replace").decode("utf-8")


def shown(value: object, limit: int = 80) -> str:
    """`repr` of a value from outside, short, whatever it is: for an error's text."""
    try:
        return clip(repr(value).replace("\n", " "), limit)
    except Exception:  # noqa: BLE001 - a number of 5000 digits, or a repr of somebody else's
        return f"<{type(value).__name__} that cannot be shown>"
