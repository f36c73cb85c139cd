"""Addresses, looked at before a thread is started on them.

ZeroMQ accepts nearly any text and then fails in its own thread, or never connects. A wrong
address is a person's typing, so it is refused where it was typed, with what is wrong.
"""

from __future__ import annotations

import ipaddress
import re

from auxconn.texts import shown

_TCP = re.compile(
    r"tcp://(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^:/\s\[\]]+):(?P<port>[^:/\s]+)"
)
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?\.?")
_IPC_LIMIT = 100
"""Characters of the path: a Unix socket's name is at most 107 bytes long."""

ENGINE_LIMIT = 128
"""Characters of an engine's name."""

ROLES = ("engine", "scheduler", "worker", "supervisor")
"""Sides of an engine that speak; a supervisor tells how the start of another comes along."""


def check_connect(address: str) -> str:
    """Return `address` if an engine can connect to it.

    Raises
    ------
    ValueError
        Naming the address, what is wrong and what would be right.
    """
    found = _parts(address)
    if found is not None:
        host, port = found
        if host == "*":
            raise _wrong(address, "`*` is for the collector; name the host it runs on")
        if port in ("*", "0"):
            raise _wrong(
                address,
                "the port must be a number; `Collector.address` has the one in use",
            )
    return address


def check_bind(address: str) -> str:
    """Return `address` if a collector can listen at it; the port may be `*` for any free.

    Raises
    ------
    ValueError
        As `check_connect`.
    """
    _parts(address)
    return address


def check_local(address: str) -> None:
    """Raise `ValueError` when others than this machine can reach what listens there."""
    found = _parts(address)
    if found is None:
        return
    host = found[0].strip("[]")
    try:
        local = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = False  # `*`, a name, or an interface: who knows
    if not local:
        raise ValueError(
            f"address {address!r} can be reached from other machines, and without keys by "
            "anybody on them: make some (`auxconn keys new`), or say that it is meant to "
            "be open (insecure)"
        )


def check_engine(engine: object, rank: object, role: object = "engine") -> None:
    """Raise `ValueError` unless these can name a source."""
    if isinstance(engine, str) and len(engine) > ENGINE_LIMIT:
        raise ValueError(
            f"engine={engine[:20]!r}...: {len(engine)} characters, the limit is "
            f"{ENGINE_LIMIT}"
        )
    if not isinstance(engine, str) or not engine.strip() or not engine.isprintable():
        raise ValueError(
            f"engine={shown(engine)}: a name of at most {ENGINE_LIMIT} printable characters is "
            "needed"
        )
    if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < 2**31:
        raise ValueError(
            f"rank={shown(rank)}: a whole number from 0 to 2147483647 is needed"
        )
    if role not in ROLES:
        raise ValueError(f"role={shown(role)}: it is one of {', '.join(ROLES)}")


def is_ipv6(address: str) -> int:
    """1 for an address with an IPv6 host, else 0, as ZeroMQ's option takes it.

    With the option on, a machine without IPv6 cannot listen at all, and one that has it
    reports 127.0.0.1 as ::ffff:127.0.0.1.
    """
    return int(address.startswith("tcp://["))


def _parts(address: object) -> tuple[str, str] | None:
    """Host and port of a tcp address, None for an ipc one."""
    if not isinstance(address, str):
        raise ValueError(
            f"address {address!r}: a text like tcp://127.0.0.1:5599 is needed"
        )
    if address.startswith("ipc://"):
        path = address.removeprefix("ipc://")
        if not path or "\0" in path:
            raise _wrong(address, "it lacks the path of the socket")
        if len(path.encode()) > _IPC_LIMIT:
            raise _wrong(address, f"the path is longer than {_IPC_LIMIT} bytes")
        return None
    match = _TCP.fullmatch(address)
    if match is None:
        raise _wrong(address, "it is neither tcp://host:port nor ipc:///path")
    host, port = match["host"], match["port"]
    if host != "*" and not host.startswith("[") and not _HOST.fullmatch(host):
        raise _wrong(address, f"{host!r} is no host name or IP address")
    if port != "*" and not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise _wrong(address, f"{port!r} is no port: 1 to 65535")
    return host, port


def _wrong(address: str, why: str) -> ValueError:
    return ValueError(f"address {address!r}: {why} (for example tcp://127.0.0.1:5599)")
