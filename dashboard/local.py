"""A lab or a store of this very process, seen as the hub sees engines elsewhere.

In a notebook there is no collector: the lab's probes write into its frames directly, and a
command is a method call. This module gives both the shape the hub knows, so that the page
has one kind of source.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from auxconn.lab import Lab
    from auxconn.wire import Ack, Fact


@dataclasses.dataclass(frozen=True)
class LocalSource:
    """What a hub wants to know of an engine, as `auxconn.collector.Source` has it."""

    engine: str
    facts: Mapping[str, Fact]
    commands: tuple[str, ...]
    state: str = "live"
    rank: int = 0
    role: str = "engine"
    last_seen: float = 0.0
    age_s: float = 0.0
    progress: Any = None
    error: str = ""


class LocalLab:
    """The engines of a hub over a `Lab` of this process."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        # A command waits for the lab's step to end; the page must not wait with it.
        self._hands = ThreadPoolExecutor(1, thread_name_prefix="auxconn-command")
        self._number = 0

    def sources(self) -> list[LocalSource]:
        """The lab, as the one engine there is."""
        lab = self._lab
        facts = dict(lab.facts)
        if not lab.running and not facts.get("paused"):
            # Driven cell by cell: it stands still between two of them.
            facts["paused"] = True
        return [
            LocalSource(
                lab.name, facts, tuple(lab.commands), last_seen=time.monotonic()
            )
        ]

    def command(
        self, engine: str, name: str, /, *, rank: int | None = None, **args: Any
    ) -> Future[Ack]:
        """Carry out a command between two steps of the lab."""
        self._number += 1
        return self._hands.submit(self._obey, self._number, name, args)

    def close(self) -> None:
        """Take no more commands."""
        self._hands.shutdown(wait=False)

    def _obey(self, number: int, name: str, args: dict[str, Any]) -> Ack:
        from auxconn.wire import Ack

        try:
            if name == "workload":
                text = self._change_workload(args)
            else:
                text = self._lab.command(name, **args)
        except ValueError as refusal:
            return Ack(number, False, str(refusal), time.time())
        return Ack(number, True, text, time.time())

    def _change_workload(self, args: dict[str, Any]) -> str:
        from auxconn.lab.workload_specs import WorkloadSpec

        spec = WorkloadSpec.from_dict(args)
        self._lab.set_workload(spec.build())
        return f"workload {spec.describe()}"
