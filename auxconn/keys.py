"""Keys of a collector and its engines, for sockets that other machines can reach.

ZeroMQ's CURVE encrypts a connection and knows both ends by their keys: an engine talks to
no collector but the one whose public key it was given, and the collector takes nothing in
from a peer whose key it does not know, nor tells it anything. One file for each end has
all it needs:

    auxconn keys new keys/        writes keys/collector.key and keys/engine.key

The first stays with the collector; the second goes to every machine on which engines run.
Whoever has one can speak as that end, so nobody but its owner may be able to read it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Literal

import msgspec

End = Literal["collector", "engine"]

ENDS: tuple[End, ...] = ("collector", "engine")


class KeyFileError(ValueError):
    """A key file is not there, is none, or can be read by others."""


class Keys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a key file has, all keys as the 40 characters of Z85."""

    end: End
    """Which end of the connection it is for."""
    public: str
    secret: str
    other: str
    """Public key of the other end."""

    def __repr__(self) -> str:
        # The secret must not get into a log or a traceback.
        return f"Keys(end={self.end!r}, public={self.public!r})"


def new(folder: Path) -> list[Path]:
    """Make the keys of a collector and of its engines.

    Returns
    -------
    The files, which only their owner can read.

    Raises
    ------
    KeyFileError
        When one of them is there already: whoever has the keys of now would be locked out.
    """
    import zmq

    paths = {end: folder / f"{end}.key" for end in ENDS}
    for path in paths.values():
        if path.exists():
            raise KeyFileError(
                f"{path} is there already: engines that have its keys would be locked out; "
                "choose another folder, or delete it first"
            )
    folder.mkdir(parents=True, exist_ok=True)
    pairs = {end: [part.decode() for part in zmq.curve_keypair()] for end in ENDS}
    for end, other in zip(ENDS, reversed(ENDS), strict=True):
        public, secret = pairs[end]
        text = msgspec.json.format(
            msgspec.json.encode(Keys(end, public, secret, pairs[other][0]))
        )
        # Never readable by others, not even for a moment.
        handle = os.open(paths[end], os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(text + b"\n")
    return list(paths.values())


def load(path: str | Path, end: End) -> Keys:
    """Read a key file.

    Parameters
    ----------
    end
        Which end it has to be for.

    Raises
    ------
    KeyFileError
        When there is no such file, it is none or for the other end, or others can read it.
    """
    path = Path(path)
    try:
        mode = path.stat().st_mode
        text = path.read_bytes()
    except OSError as problem:
        raise KeyFileError(
            f"{path}: {problem.strerror}; `auxconn keys new` makes the files"
        ) from None
    if stat.S_IMODE(mode) & 0o077:
        raise KeyFileError(
            f"{path} can be read by others (mode {stat.S_IMODE(mode):04o}): make new keys "
            f"if they may have been, and `chmod 600 {path}`"
        )
    try:
        keys = msgspec.json.decode(text, type=Keys)
    except msgspec.MsgspecError as problem:
        raise KeyFileError(f"{path} is no key file of auxconn: {problem}") from None
    for key in keys.public, keys.secret, keys.other:
        if not _is_key(key):
            raise KeyFileError(f"{path}: a key in it is not 40 characters of Z85")
    if keys.end != end:
        raise KeyFileError(
            f"{path} is the key file of {_who(keys.end)}; here {end}.key is needed"
        )
    return keys


def _is_key(key: str) -> bool:
    from zmq.utils import z85

    try:
        return len(key) == 40 and len(z85.decode(key)) == 32
    except (KeyError, ValueError):
        return False


def _who(end: End) -> str:
    return "the collector" if end == "collector" else "engines"
