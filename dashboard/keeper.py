"""The process of the engine that a server runs itself: how it is, and its restart.

It is a lab, or a real vLLM with its supervisor. One that has died cannot say so, and a user
who restarts it wants back what was looked at, not the settings of an hour ago. So somebody
outside of it knows both.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol

from .snapshot import Link

if TYPE_CHECKING:
    from auxconn.wire import Ack


class Process(Protocol):
    """What is kept: a `LabProcess` or an `EngineProcess`."""

    @property
    def config(self) -> Any:
        """Its settings, under the names of `LabConfig`."""

    @property
    def alive(self) -> bool:
        """True while it runs."""

    @property
    def returncode(self) -> int | None:
        """Exit status; None while it runs, or before it ever did."""

    @property
    def pid(self) -> int | None:
        """Process id; None before it ever ran."""

    @property
    def output(self) -> str:
        """End of what it has written."""

    def restart(self, config: Any = None, workload_spec: Any = None, /) -> Any:
        """Start it anew, with other settings where given."""


SETTINGS = (
    "num_blocks",
    "block_size",
    "hash_block_size",
    "kv_tier_blocks",
    "capacity",
    "connector",
)
"""Facts that are settings of `LabConfig`; a real engine has some of them."""


class Keeper:
    """Keeps one engine's process. Any thread may call it.

    Parameters
    ----------
    process
        What is kept.
    engine
        The engine's name.
    noun
        What it is called, in words.
    """

    def __init__(
        self, process: Process, engine: str = "lab", noun: str = "the lab"
    ) -> None:
        self.process = process
        self.engine = engine
        self.noun = noun
        self._since = time.monotonic()
        self._problem = ""
        self._thread: threading.Thread | None = None
        self._workload: dict[str, Any] = {}

    @property
    def restarting(self) -> bool:
        """True while a restart has been asked for and the new process is not there yet."""
        return self._thread is not None and self._thread.is_alive()

    def restart(self, source: Callable[[], Any]) -> None:
        """Stop the engine if it runs, and start it anew, without making anybody wait.

        Parameters
        ----------
        source
            Returns what the engine says of itself.
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
        """Remember what the engine was given, for its next start."""
        if not answer.cancelled() and answer.exception() is None and answer.result().ok:
            self._workload = dict(args)

    def facts(self) -> dict[str, Any]:
        """What the engine was started with, until it speaks."""
        config = self.process.config
        return {
            **{name: getattr(config, name) for name in SETTINGS},
            "hash_block_size": config.hash_size,
            "capacity": config.capacity or config.default_capacity,
            "bytes_per_block": config.bytes_per_block,
        }

    def link(self, source: Any) -> Link | None:
        """How it stands with the process; None when the engine speaks for itself."""
        if self.restarting:
            return Link("starting", stage="spawn", stage_text=f"restarting {self.noun}")
        if self._problem:
            return Link("stopped", text=f"could not be started: {self._problem}")
        if not self.process.alive:
            age = 0.0 if source is None else source.age_s
            return Link("stale", text=_ending(self.process.returncode), age=age)
        if source is None or source.last_seen < self._since:
            return Link("starting", stage="spawn", stage_text="starting a process")
        return None

    def _restart(self, source: Callable[[], Any]) -> None:
        try:
            self.process.restart(*self._settings(source()))
            self._problem = ""
        except Exception as problem:  # noqa: BLE001 - shown to the user, in the header
            self._problem = f"{type(problem).__name__}: {problem}"
        self._since = time.monotonic()

    def _settings(self, source: Any) -> tuple[Any, Any]:
        """What the engine was last set to, so that a restart brings back what one looked at."""
        from auxconn.lab.workload_specs import WorkloadSpec

        facts = {} if source is None else source.facts
        config = self.process.config
        known = {
            name: facts[name]
            for name in SETTINGS
            if facts.get(name) is not None and name in config.to_dict()
        }
        if known.get("hash_block_size") == known.get("block_size"):
            known["hash_block_size"] = None
        try:
            workload = (
                WorkloadSpec.from_dict(self._workload) if self._workload else None
            )
            return config.replace(**known), workload
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
