"""`auxconn ctl`: see who is there and have an engine do something, from a shell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from auxconn.keys import load
from auxconn.operators import Answer, Ask, Engine, Order, ask
from auxconn.texts import shown

HEADINGS = ("engine", "rank", "role", "state", "capacity", "obeys")


def arguments(pairs: Sequence[str]) -> dict[str, Any]:
    """Read `name=value` pairs: numbers, true, false and null as such, the rest as text.

    Raises
    ------
    ValueError
        When one has no `=`, or a name comes twice.
    """
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ValueError(f"{shown(pair)}: write name=value, as in blocks=1000")
        if name in found:
            raise ValueError(f"{name} is given twice")
        try:
            found[name] = msgspec.json.decode(value)
        except msgspec.DecodeError:
            found[name] = value
    return found


def run(
    address: str,
    key_file: str,
    engine: str,
    command: str,
    rank: int | None,
    pairs: Sequence[str],
) -> Answer:
    """Ask who is there, or have `engine` obey a command.

    Raises
    ------
    ValueError
        When an argument or an address is none, or the key file will not do.
    NoAnswerError
        When no collector answers.
    """
    keys = load(key_file, "operator") if key_file else None
    if not engine:
        return ask(Ask(), address, keys=keys)
    return ask(Order(engine, command, rank, arguments(pairs)), address, keys=keys)


def plain(name: str) -> str:
    """A name as a terminal may show it: it is text from outside."""
    return shown(name)[1:-1]


def table(engines: Sequence[Engine]) -> str:
    """Engines in aligned columns; what is not known is a dash."""
    rows = [HEADINGS]
    for one in engines:
        capacity = "-" if one.capacity is None else f"{one.capacity:,}"
        rows.append(
            (
                plain(one.engine),
                str(one.rank),
                one.role,
                one.state,
                capacity,
                ", ".join(one.commands) or "-",
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in rows
    )
