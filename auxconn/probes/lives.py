"""Requests from admission to end, summed up in one row each.

`request_finished` is called at every preemption too; only a request whose status says that
it is finished has ended.
"""

from __future__ import annotations

import math
from typing import Any

from auxconn.probes.lookups import Admission
from auxconn.records import Requests


class _Life:
    __slots__ = ("external", "first_scheduled", "loads", "local")

    def __init__(self) -> None:
        self.first_scheduled = math.nan
        self.local = 0
        self.external = 0
        self.loads = 0


class LifeLog:
    """What is summed up over the life of each request that runs."""

    def __init__(self) -> None:
        self._lives: dict[str, _Life] = {}

    def __len__(self) -> int:
        """Requests that were seen and have not ended."""
        return len(self._lives)

    def admitted(self, one: Admission) -> None:
        """Tokens of an admission were found on the GPU, or accepted of the KV connector."""
        life = self._life(one.request_id)
        life.local += one.local
        life.external += one.accepted

    def loading(self, request_id: str) -> None:
        """A KV load begins."""
        self._life(request_id).loads += 1

    def scheduled(self, new: Any, t: float) -> None:
        """`new`, the scheduler output's new requests, have their first step at `t` (s)."""
        for one in new:
            life = self._life(one.req_id)
            if math.isnan(life.first_scheduled):
                life.first_scheduled = t

    def ended(self, request: Any, t: float, step: int) -> Requests:
        """Make the row of a request that has ended."""
        life = self._lives.pop(request.request_id, None) or _Life()
        return Requests(
            t,
            step,
            request.request_id,
            float(request.arrival_time),
            life.first_scheduled,
            request.num_prompt_tokens,
            request.num_output_tokens,
            life.local,
            life.external,
            life.loads,
            request.num_preemptions,
            request.status.name.removeprefix("FINISHED_").lower(),
        )

    def _life(self, request_id: str) -> _Life:
        life = self._lives.get(request_id)
        if life is None:
            life = self._lives[request_id] = _Life()
        return life
