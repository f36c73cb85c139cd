"""Keys of a collector and its engines, for sockets that other machines can reach.

ZeroMQ's CURVE encrypts a connection and knows both ends by their keys: an engine talks to
no collector but the one whose public key it was given, and the collector takes nothing in
from a peer whose key it does not know, nor tells it anything. One file for each end has
all it needs:

    auxconn keys new keys/        writes keys/{collector,engine,operator}.key

The first stays with the collector, the second goes to every machine on which engines run,
the third to those who may steer them. Whoever has one can speak as that end, so nobody but
its owner may be able to read it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

if TYPE_CHECKING:
    import zmq

End = Literal["collector", "engine", "operator"]

ENDS: tuple[End, ...] = ("collector", "engine", "operator")


class KeyFileError(ValueError):
    """A key file is not there, is none, or can be read by others."""


class Keys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a key file has, all keys as the 40 characters of Z85."""

    end: End
    """Which end of the connection it is for."""
    public: str
    secret: str
    others: dict[str, str]
    """Public keys of the ends that it speaks with."""

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
    for end, (public, secret) in pairs.items():
        others: dict[str, str] = {
            other: pairs[other][0]
            for other in ENDS
            if (other == "collector") != (end == "collector")
        }
        text = msgspec.json.format(
            msgspec.json.encode(Keys(end, public, secret, others))
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
    for key in keys.public, keys.secret, *keys.others.values():
        if not _is_key(key):
            raise KeyFileError(f"{path}: a key in it is not 40 characters of Z85")
    if keys.end != end:
        raise KeyFileError(
            f"{path} is the key file of the {keys.end}; here {end}.key is needed"
        )
    return keys


def speak(socket: zmq.Socket[bytes], keys: Keys) -> None:
    """Have `socket`, which will connect, speak with the collector of these keys alone."""
    socket.curve_publickey = keys.public.encode()
    socket.curve_secretkey = keys.secret.encode()
    socket.curve_serverkey = keys.others["collector"].encode()


class Door:
    """Lets those in to a socket of the collector that have the key of one end.

    Parameters
    ----------
    context
        Of the socket.
    keys
        The collector's.
    end
        Who may come in.

    Attributes
    ----------
    foreign
        Connections refused because their key was another.
    """

    def __init__(self, context: zmq.Context[Any], keys: Keys, end: End) -> None:
        from zmq.auth.thread import ThreadAuthenticator

        self.foreign = 0
        self._keys = keys
        self._known = keys.others[end].encode()
        self._keeper = ThreadAuthenticator(context)
        self._keeper.start()
        self._keeper.configure_curve_callback("*", self)

    def guard(self, socket: zmq.Socket[bytes]) -> None:
        """Guard a socket that will listen."""
        socket.curve_server = True
        socket.curve_publickey = self._keys.public.encode()
        socket.curve_secretkey = self._keys.secret.encode()

    def callback(self, _domain: str, key: bytes) -> bool:
        """Whether a peer with this key comes in; ZeroMQ asks it in a thread of its own."""
        known = key == self._known
        self.foreign += not known
        return known

    def close(self) -> None:
        """End the thread; before the context."""
        self._keeper.stop()


def _is_key(key: str) -> bool:
    from zmq.utils import z85

    try:
        return len(key) == 40 and len(z85.decode(key)) == 32
    except (KeyError, ValueError):
        return False
