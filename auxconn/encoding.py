"""How messages are encoded, on both sides.

A probe reads numbers off tensors and arrays, and a widget hands over what its library calls
a number. Those look like numbers everywhere but here, so they are made plain on the way.
"""

from __future__ import annotations

from typing import Any

import msgspec


def encoder() -> msgspec.msgpack.Encoder:
    """A msgpack encoder that takes numpy's and torch's scalars too."""
    return msgspec.msgpack.Encoder(enc_hook=_plain)


def _plain(value: Any) -> Any:
    item = getattr(value, "item", None)
    if item is None:
        raise TypeError(f"{type(value).__name__} cannot be sent")
    return item()
