"""Errors of ours, so that callers can tell them from Python's and from vLLM's.

vLLM's connector checks its contract with bare asserts and dictionary look-ups: what reaches
the log of a dead engine is a KeyError with a request id, or nothing but a line number. Each
error here names the request and the ranges that do not fit, as those are what one needs to
find the caller that went wrong. Request ids come from outside, so they are always quoted.
"""

from __future__ import annotations

from auxconn.texts import shown


class AuxConnError(Exception):
    """Anything that auxconn raises on purpose."""


class ContractError(AuxConnError):
    """What the scheduler, the worker or the pool handed over cannot be.

    Parameters
    ----------
    message
        What does not fit, with its ranges.
    request_id
        The request it was about; None when it was about none.

    Attributes
    ----------
    request_id
        As given.
    """

    def __init__(self, message: str, *, request_id: str | None = None) -> None:
        named = message if request_id is None else f"request {request_id!r}: {message}"
        super().__init__(named)
        self.request_id = request_id


MOST_CAPACITY = 2**53
"""Blocks that no capacity may exceed: beyond it a figure on a page is no longer exact."""


class CapacityError(AuxConnError, ValueError):
    """A capacity that is not a positive whole number of KV blocks.

    Attributes
    ----------
    value
        What was asked for.
    """

    def __init__(self, value: object) -> None:
        super().__init__(
            f"capacity={shown(value)} ({type(value).__name__}) is not a number of KV blocks: "
            f"give a whole number from 1 to {MOST_CAPACITY}"
        )
        self.value = value


class PlatformError(AuxConnError, RuntimeError):
    """vLLM runs in this process, on something other than the CPU.

    Parameters
    ----------
    platform
        vLLM's class of it.
    """

    def __init__(self, platform: str) -> None:
        super().__init__(
            f"vLLM was imported before the lab and runs on {platform} in this process; the "
            "lab needs it on the CPU. Restart the kernel and make the Lab first (or import "
            "auxconn.lab.environment and call prepare() before vLLM is imported), or give "
            "the lab a process of its own: LabProcess, `auxconn demo`"
        )
