"""Commands of the viewer, carried out on a lab.

A command comes from another process and may be anything, so it is checked here by name and
argument before it touches the lab. It is either carried out whole, and answered with what
was done, or refused with a ValueError whose text is the answer, and nothing has changed.
Called between two steps, with the lab's lock held.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from auxconn.checks import check_whole
from auxconn.lab.workload_specs import WorkloadSpec
from auxconn.texts import shown

if TYPE_CHECKING:
    from auxconn.lab.session import Session

MOST_STEPS = 1000
"""Steps one `step` command takes at most: they are taken before it is answered."""


def apply(lab: Session, name: Any, args: Mapping[str, Any]) -> str:
    """Carry out a command; returns what was done, in words.

    Raises
    ------
    ValueError
        When there is no such command, or its arguments are refused.
    """
    command = _COMMANDS.get(name) if isinstance(name, str) else None
    if command is None:
        raise ValueError(f"no command {shown(name)}; there are {', '.join(NAMES)}")
    return command(lab, dict(args))


def _set_capacity(lab: Session, args: dict[str, Any]) -> str:
    (blocks,) = _take("set_capacity", args, "blocks")
    before = lab.set_capacity(blocks)
    return f"capacity {before} -> {blocks} blocks"


def _reconfigure(lab: Session, args: dict[str, Any]) -> str:
    if not args:
        raise ValueError("reconfigure: name at least one setting to change")
    before = lab.config
    after = lab.reconfigure(**args)
    if after == before:
        return "nothing to change"
    return ", ".join(
        f"{name} {getattr(before, name)} -> {value}"
        for name, value in after.to_dict().items()
        if value != getattr(before, name)
    )


def _workload(lab: Session, args: dict[str, Any]) -> str:
    spec = WorkloadSpec.from_dict(args)
    lab.set_workload(spec)
    return f"workload {spec.describe()}"


def _speed(lab: Session, args: dict[str, Any]) -> str:
    (speed,) = _take("speed", args, "steps_per_s")
    lab.pacer.steps_per_s = speed
    lab.announce()
    return "as fast as it goes" if speed is None else f"{speed:g} steps/s"


def _pause(lab: Session, args: dict[str, Any]) -> str:
    _take("pause", args)
    lab.pacer.pause()
    lab.announce()
    return "paused"


def _resume(lab: Session, args: dict[str, Any]) -> str:
    _take("resume", args)
    lab.pacer.resume()
    lab.announce()
    return "running"


def _step(lab: Session, args: dict[str, Any]) -> str:
    (number,) = _take("step", {"n": 1, **args}, "n")
    number = check_whole("step: n", number, 1, MOST_STEPS)
    lab.pacer.pause()
    lab.announce()
    taken = 0
    while taken < number and not lab.done:
        lab.step()
        taken += 1
    return f"paused after {taken} step{'' if taken == 1 else 's'}"


def _reset_prefix_cache(lab: Session, args: dict[str, Any]) -> str:
    (kv_tier,) = _take("reset_prefix_cache", {"kv_tier": False, **args}, "kv_tier")
    lab.reset_prefix_cache(kv_tier=kv_tier)
    return "prefix cache reset" + (", KV tier emptied" if kv_tier else "")


def _abort(lab: Session, args: dict[str, Any]) -> str:
    (request,) = _take("abort", args, "request")
    if not isinstance(request, str) or not lab.abort(request):
        raise ValueError(f"abort: no request {shown(request)} in the engine")
    return f"aborted {request}"


def _take(name: str, args: Mapping[str, Any], *wanted: str) -> tuple[Any, ...]:
    unknown = [arg for arg in args if arg not in wanted]
    missing = [arg for arg in wanted if arg not in args]
    if unknown or missing:
        takes = ", ".join(wanted) if wanted else "nothing"
        raise ValueError(
            f"{name} takes {takes}; "
            + ", ".join(
                [f"{arg!r} is unknown" for arg in unknown]
                + [f"{arg!r} is missing" for arg in missing]
            )
        )
    return tuple(args[arg] for arg in wanted)


_COMMANDS: dict[str, Callable[[Any, dict[str, Any]], str]] = {
    "set_capacity": _set_capacity,
    "reconfigure": _reconfigure,
    "workload": _workload,
    "speed": _speed,
    "pause": _pause,
    "resume": _resume,
    "step": _step,
    "reset_prefix_cache": _reset_prefix_cache,
    "abort": _abort,
}

NAMES: tuple[str, ...] = tuple(_COMMANDS)
"""Commands a lab obeys."""
