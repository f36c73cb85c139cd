"""Numbers and reasons as people read them.

A figure is trusted when its unit stands beside it, when it does not dance as digits come
and go, and when "nothing known" cannot be taken for zero. Everything the page says in
numbers goes through this module, so that a byte is a byte and a dash a dash in all views.
Text from outside (request ids, an engine's own words) is escaped here and nowhere else.
"""

from __future__ import annotations

import html
import math
import re
from datetime import UTC, datetime

DASH = "–"
"""What is not known; never 0."""

THIN = "\N{NARROW NO-BREAK SPACE}"
"""Between a number and its unit: keeps them on one line."""

RUN_END = {
    "whole": "nothing missing",
    "never_seen": "next block never seen",
    "evicted": "left the GPU, not retained",
    "short": "rest shorter than a block",
    "last_token": "only the last token left",
}
"""Why a look-up's run of hits ended, in a few words."""

RUN_END_LONG = {
    "whole": "Every block of the request has its R3 rows.",
    "never_seen": "No request has brought this block before: it has to be computed.",
    "evicted": "The block was known, left the GPU and was not retained: a larger capacity "
    "would have kept it.",
    "short": "What is left of the request is shorter than one block, the smallest prefix "
    "that can be reused.",
    "last_token": "The last token has to be computed to sample from it.",
}
"""The same in a sentence, for a tooltip."""

REFUSAL = {
    "": "",
    "unaligned": "not a whole number of blocks",
    "not_retained": "R3 rows not retained",
    "last_token": "covers the last token",
}
"""Why an offer of external KV was refused."""

EVENT = {
    "start": "started",
    "stop": "stopped",
    "reset": "reset",
    "growth": "store grew",
    "capacity": "capacity",
    "reconfigured": "rebuilt",
    "workload": "workload",
    "gap": "gap",
    "error": "error",
    "alert": "alert",
    "mark": "mark",
    "stale": "stale",
    "back": "back",
}
"""Kinds of events."""

_SI = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_BINARY = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]"
)


def known(value: float | None) -> bool:
    """True when there is a number to show."""
    return value is not None and math.isfinite(value)


def whole(value: float | None) -> str:
    """Whole number with thousands separators: 12,345."""
    return f"{round(value):,}" if value is not None and known(value) else DASH


def short(value: float | None) -> str:
    """Three digits that matter, with an SI prefix from 10,000 on: 9,870 and 12.4 k."""
    if value is None or not known(value):
        return DASH
    if abs(value) < 9_999.5:
        if value == 0 or abs(value) >= 99.5 or float(value).is_integer():
            return f"{round(value):,}"
        return f"{value:.1f}" if abs(value) >= 9.95 else f"{value:.2f}"
    for size, prefix in _SI:
        if abs(value) >= size * 0.9995:
            return f"{_three(value / size)}{THIN}{prefix}"
    return f"{round(value):,}"


def size(value: float | None) -> str:
    """Bytes in binary units: 24 MiB."""
    if value is None or not known(value):
        return DASH
    for unit, name in _BINARY:
        if abs(value) >= unit * 0.9995:
            return f"{_three(value / unit)}{THIN}{name}"
    return f"{round(value)}{THIN}B"


def share(part: float | None, total: float | None) -> str:
    """Percentage of two counters; a dash when there is no denominator."""
    if (
        part is None
        or total is None
        or not known(part)
        or not known(total)
        or total <= 0
    ):
        return DASH
    percent = 100 * part / total
    # 99.96 % that reads 100.0 % is a lie a user acts on.
    if 99.95 <= percent < 100:
        percent = 99.9
    return f"{percent:.1f}{THIN}%" if percent < 99.95 else f"100{THIN}%"


def duration(seconds: float | None) -> str:
    """A length of time in the unit that fits: 4 ms, 3.2 s, 5 min, 2 h."""
    if seconds is None or not known(seconds):
        return DASH
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f}{THIN}µs"
    if seconds < 1:
        return f"{seconds * 1e3:.0f}{THIN}ms"
    if seconds < 10:
        return f"{seconds:.1f}{THIN}s"
    if seconds < 120:
        return f"{seconds:.0f}{THIN}s"
    if seconds < 7200:
        return f"{seconds / 60:.0f}{THIN}min"
    return f"{seconds / 3600:.1f}{THIN}h"


def span(seconds: float) -> str:
    """A window's length as its menu names it: 30 s, 5 min, 1 h, 7 d."""
    if seconds < 60:
        return f"{seconds:g}{THIN}s"
    if seconds < 3600:
        return f"{seconds / 60:g}{THIN}min"
    if seconds < 2 * 86400:
        return f"{seconds / 3600:g}{THIN}h"
    return f"{seconds / 86400:g}{THIN}d"


def clock(t: float, *, tenths: bool = False) -> str:
    """Wall-clock time of the viewer's zone: 12:03:41."""
    if not known(t):
        return DASH
    local = datetime.fromtimestamp(t, UTC).astimezone()
    text = local.strftime("%H:%M:%S")
    return f"{text}.{local.microsecond // 100_000}" if tenths else text


def plural(count: float, one: str, many: str | None = None) -> str:
    """A count with its noun: 1 block, 2,048 blocks."""
    return f"{whole(count)} {one if round(count) == 1 else many or one + 's'}"


def plain(text: object, limit: int = 500) -> str:
    """Text from outside without control and direction characters, cut at `limit`."""
    shown = _CONTROL.sub("\N{REPLACEMENT CHARACTER}", str(text))
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def escape(text: object, limit: int = 500) -> str:
    """`plain` text made safe inside HTML, attributes included."""
    return html.escape(plain(text, limit), quote=True)


def _three(value: float) -> str:
    """Three significant digits, without an exponent."""
    if abs(value) >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}"
