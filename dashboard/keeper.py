"""The process of the lab that a server runs itself: how it is, and its restart.

A lab that has died cannot say so, and a user who restarts it wants back what was looked at,
not the settings of an hour ago. So somebody outside of it knows both.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from .snapshot import Link

if TYPE_CHECKING:
    from auxconn.lab.process import LabProcess
    from auxconn.wire import Ack

SETTINGS = (
    "num_blocks",
    "block_size",
    "hash_block_size",
    "kv_tier_blocks",
    "capacity",
    "connector",
)
"""Facts that are settings of `LabConfig`."""


class Keeper:
    """Keeps one lab's process. Any thread may call it."""

    def __init__(self, lab: LabProcess) -> None:
        self.lab = lab
        self._since = time.monotonic()
        self._problem = ""
        self._thread: threading.Thread | None = None
        self._workload: dict[str, Any] = {}

    @property
    def restarting(self) -> bool:
        """True while a restart has been asked for and the new process is not there yet."""
        return self._thread is not None and self._thread.is_alive()

    def restart(self, source: Callable[[], Any]) -> None:
        """Stop the lab if it runs, and start it anew, without making anybody wait.

        Parameters
        ----------
        source
            Returns what the lab says of itself.
        """
        if self.restarting:
            return
        self._thread = threading.Thread(
            target=self._restart,
            args=(source,),
            name="auxconn-lab-restart",
            daemon=True,
        )
        self._thread.start()

    def note_workload(self, answer: Future[Ack], args: dict[str, Any]) -> None:
        """Remember what the lab was given, for its next start."""
        if not answer.cancelled() and answer.exception() is None and answer.result().ok:
            self._workload = dict(args)

    def facts(self) -> dict[str, Any]:
        """What the lab was started with, until it speaks."""
        config = self.lab.config
        return {
            **{name: getattr(config, name) for name in SETTINGS},
            "hash_block_size": config.hash_size,
            "capacity": config.capacity or config.default_capacity,
            "bytes_per_block": config.bytes_per_block,
        }

    def link(self, source: Any) -> Link | None:
        """How it stands with the process; None when the lab speaks for itself."""
        if self.restarting:
            return Link("starting", stage="spawn", stage_text="restarting the lab")
        if self._problem:
            return Link("stopped", text=f"could not be started: {self._problem}")
        if not self.lab.alive:
            age = 0.0 if source is None else source.age_s
            return Link("stale", text=_ending(self.lab.returncode), age=age)
        if source is None or source.last_seen < self._since:
            return Link("starting", stage="spawn", stage_text="starting a process")
        return None

    def _restart(self, source: Callable[[], Any]) -> None:
        try:
            self.lab.restart(*self._settings(source()))
            self._problem = ""
        except Exception as problem:  # noqa: BLE001 - shown to the user, in the header
            self._problem = f"{type(problem).__name__}: {problem}"
        self._since = time.monotonic()

    def _settings(self, source: Any) -> tuple[Any, Any]:
        """What the lab was last set to, so that a restart brings back what one looked at."""
        from auxconn.lab.workload_specs import WorkloadSpec

        facts = {} if source is None else source.facts
        known = {name: facts[name] for name in SETTINGS if facts.get(name) is not None}
        if known.get("hash_block_size") == known.get("block_size"):
            known["hash_block_size"] = None
        try:
            workload = (
                WorkloadSpec.from_dict(self._workload) if self._workload else None
            )
            return self.lab.config.replace(**known), workload
        except ValueError:
            return None, None


def _ending(returncode: int | None) -> str:
    """How a process ended, in words."""
    if returncode is None:
        return "its process is not running"
    if returncode < 0:
        name = f"signal {-returncode}"
        with contextlib.suppress(ValueError):
            name = signal.Signals(-returncode).name
        return f"its process was ended by {name}"
    return f"its process ended with exit code {returncode}"
