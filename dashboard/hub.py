"""What all browsers of one server share: the frames, the engines, and the lab's process.

Reading an engine is the same work however many people watch, so one `Hub` owns the
collector, the ring store and one reader per engine, and each session asks it for
`Snapshot`s at its own pace. Nothing is ever pushed into a session: a closed browser leaves
nothing behind in the hub, because the hub never knew it.

No Panel in here: the hub, and with it the lab's process, starts while Panel is still being
imported.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol

from .snapshot import Link, Reader, Snapshot, State, Window

if TYPE_CHECKING:
    from auxconn.collector import Collector
    from auxconn.frames import FrameStore
    from auxconn.lab.process import LabProcess
    from auxconn.wire import Ack

DEFAULT_BIND = "tcp://127.0.0.1:*"
"""Loopback, and whatever port is free: a lab is told the address when it is started."""

BIND_VARIABLE = "AUXCONN_LISTEN"
"""Address that `panel serve dashboard/app.py` listens on for engines, instead of a lab."""

ROWS = 100_000
"""Rows of each table kept, unless the user sets another history length."""

LAB = "lab"
"""Name of the engine in the lab that a server runs itself."""

IDLE_SECONDS = 3.0
"""A live engine without a step for so long is shown as idle."""

MOST_READERS = 16
"""Engines that are read at one time; one that is looked at again is read anew."""

_RANKING: dict[str, int] = {"live": 0, "starting": 1, "stale": 2, "gone": 3}


_SETTINGS = (
    "num_blocks",
    "block_size",
    "hash_block_size",
    "kv_tier_blocks",
    "capacity",
    "connector",
)
"""Facts that are settings of `LabConfig`."""


class Engines(Protocol):
    """Whoever knows the engines: a `Collector`, or a lab of this process."""

    def sources(self) -> list[Any]:
        """Every engine as it is now, as `auxconn.collector.Source`."""

    def command(self, engine: str, name: str, /, **args: Any) -> Future[Ack]:
        """Ask an engine to do something."""


class Hub:
    """Frames and engines of one server. Any thread may call it.

    Parameters
    ----------
    store
        Where the rows are.
    engines
        Who knows the engines; None when there are only frames to look at.
    lab
        The lab's process, when this server runs one.
    address
        Where engines connect to, for the page to say.
    """

    def __init__(
        self,
        store: FrameStore,
        engines: Engines | None = None,
        *,
        lab: LabProcess | None = None,
        address: str = "",
    ) -> None:
        self.store = store
        self.engines = engines
        self.lab = lab
        """The lab's process; its engine is called `LAB`."""
        self.address = address
        self.epoch = 0
        """Raised when the rows were cleared: what was read before is of the past."""
        self._lock = threading.RLock()
        self._readers: dict[str, Reader] = {}
        self._last_step: dict[str, tuple[int, float]] = {}
        self._lab_since = time.monotonic()
        self._lab_problem = ""
        self._restarting: threading.Thread | None = None
        self._workload: dict[str, Any] = {}
        self._closers: list[Any] = []

    # Ways to make one

    @classmethod
    def demo(
        cls,
        config: Any = None,
        workload: Any = None,
        *,
        rows: int = ROWS,
        bind: str = DEFAULT_BIND,
    ) -> Hub:
        """A hub with a lab of its own, whose process is on its way when this returns.

        Parameters
        ----------
        config
            `LabConfig`; the lab's demo settings by default.
        workload
            What `LabProcess` takes; the demo's by default.
        rows
            Rows kept per table.
        """
        from auxconn.lab import demo
        from auxconn.lab.process import LabProcess

        hub = cls.watch(bind, rows=rows)
        try:
            lab = LabProcess(
                demo.CONFIG if config is None else config,
                demo.WORKLOAD if workload is None else workload,
                hub.address,
                LAB,
                steps_per_s=demo.STEPS_PER_S,
            )
            lab.start()
        except BaseException:
            hub.close()
            raise
        hub.lab = lab
        hub._closers.insert(0, lab.stop)
        return hub

    @classmethod
    def watch(cls, bind: str = DEFAULT_BIND, *, rows: int = ROWS) -> Hub:
        """A hub that waits for engines to connect to `bind`."""
        from auxconn.collector import Collector
        from auxconn.frames import FrameStore

        collector: Collector = Collector(bind, store=FrameStore(rows))
        hub = cls(collector.store, collector, address=collector.address)
        hub._closers.append(collector.close)
        return hub

    @classmethod
    def from_environment(cls) -> Hub:
        """The hub of `panel serve dashboard/app.py`: engines if told where, else a lab."""
        bind = os.environ.get(BIND_VARIABLE)
        return cls.watch(bind) if bind else cls.demo()

    def close(self) -> None:
        """Stop the lab and the collector. Safe to call again."""
        closers, self._closers = self._closers, []
        for closer in closers:
            closer()

    def __enter__(self) -> Hub:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Engines

    def names(self) -> list[str]:
        """Engines that can be looked at, those of the collector first, then of the frames."""
        found = dict.fromkeys(source.engine for source in self._sources())
        if self.lab is not None:
            found.setdefault(LAB)
        return list(found)

    def source(self, engine: str | None) -> Any:
        """The source that speaks for an engine, or None: the liveliest, lowest rank."""
        found = [
            source
            for source in self._sources()
            if engine is None or source.engine == engine
        ]
        if not found:
            return None
        return min(
            found,
            key=lambda one: (
                _RANKING.get(one.state, 9),
                # Commands go to the scheduler's side; a worker obeys none.
                one.role == "worker",
                one.rank,
                -one.last_seen,
            ),
        )

    def command(self, engine: str, name: str, /, **args: Any) -> Future[Ack]:
        """Ask an engine to do something; the future brings its answer, or an error."""
        if self.engines is None:
            failed: Future[Ack] = Future()
            failed.set_exception(
                RuntimeError("these are frames without an engine: nobody can obey")
            )
            return failed
        answer = self.engines.command(engine, name, **args)
        if name == "workload":
            answer.add_done_callback(lambda done: self._note_workload(done, args))
        return answer

    def _note_workload(self, answer: Future[Ack], args: dict[str, Any]) -> None:
        """Remember what the lab was given, for its next start."""
        if not answer.cancelled() and answer.exception() is None and answer.result().ok:
            self._workload = dict(args)

    def restart_lab(self) -> None:
        """Stop the lab if it runs, and start it anew, without making anybody wait."""
        if self.lab is None or self.restarting:
            return
        self._restarting = threading.Thread(
            target=self._restart, name="auxconn-lab-restart", daemon=True
        )
        self._restarting.start()

    @property
    def restarting(self) -> bool:
        """True while a restart has been asked for and the new process is not there yet."""
        return self._restarting is not None and self._restarting.is_alive()

    def _restart(self) -> None:
        assert self.lab is not None
        try:
            self.lab.restart(*self._settings())
            self._lab_problem = ""
        except Exception as problem:  # noqa: BLE001 - shown to the user, in the header
            self._lab_problem = f"{type(problem).__name__}: {problem}"
        self._lab_since = time.monotonic()

    def _settings(self) -> tuple[Any, Any]:
        """What the lab was last set to, so that a restart brings back what one looked at."""
        from auxconn.lab.workload_specs import WorkloadSpec

        assert self.lab is not None
        source = self.source(LAB)
        facts = {} if source is None else source.facts
        known = {name: facts[name] for name in _SETTINGS if facts.get(name) is not None}
        if known.get("hash_block_size") == known.get("block_size"):
            known["hash_block_size"] = None
        try:
            workload = (
                WorkloadSpec.from_dict(self._workload) if self._workload else None
            )
            return self.lab.config.replace(**known), workload
        except ValueError:
            return None, None

    # Reading

    def snapshot(self, engine: str | None, window: Window) -> Snapshot:
        """Take in what is new and return one moment of an engine.

        Parameters
        ----------
        engine
            None for the first there is.
        """
        source = self.source(engine)
        name = engine or (source.engine if source is not None else None)
        if name is None and self.lab is not None:
            name = LAB
        with self._lock:
            reader = self._readers.get(name or "")
            if reader is None:
                reader = self._readers[name or ""] = Reader(self.store, name)
                self._forget(name or "")
            reader.advance()
            link = self._link(name, source, reader)
            facts = self._facts(source)
            commands = frozenset(() if source is None else source.commands)
            return reader.snapshot(window, link, facts, commands, self.epoch)

    def advance(self, engine: str) -> None:
        """Read on without looking, as for a paused view."""
        with self._lock:
            reader = self._readers.get(engine)
            if reader is not None:
                reader.advance()

    def link(self, engine: str | None) -> Link:
        """How it stands with an engine, without reading its rows."""
        source = self.source(engine)
        with self._lock:
            name = engine or (source.engine if source is not None else "")
            return self._link(name, source, self._readers.get(name))

    def clear(self) -> None:
        """Forget all rows that were read so far, for all who look."""
        with self._lock:
            self.store.clear()
            self._readers.clear()
            self.epoch += 1

    def resize(self, rows: int) -> None:
        """Keep so many rows of each table from now on."""
        self.store.resize(rows)

    @property
    def rows(self) -> int:
        """Rows kept per table at most."""
        return max(self.store.limits.values())

    def _facts(self, source: Any) -> Mapping[str, Any]:
        """Facts of a source; those that a lab was started with until it speaks."""
        if source is not None and source.facts:
            return dict(source.facts)
        if self.lab is None:
            return {}
        config = self.lab.config
        facts = {name: getattr(config, name) for name in _SETTINGS}
        return {
            **facts,
            "hash_block_size": config.hash_size,
            "capacity": config.capacity or config.default_capacity,
            "bytes_per_block": config.bytes_per_block,
        }

    def _forget(self, present: str) -> None:
        """Names come and go: keep the readers of those looked at last."""
        while len(self._readers) > MOST_READERS:
            oldest = next(name for name in self._readers if name != present)
            del self._readers[oldest]
            self._last_step.pop(oldest, None)

    def _sources(self) -> list[Any]:
        return [] if self.engines is None else list(self.engines.sources())

    def _link(self, name: str | None, source: Any, reader: Reader | None) -> Link:
        lab = self.lab
        ours = lab is not None and name in (None, "", LAB)
        if lab is not None and ours:
            if self.restarting:
                return Link("starting", stage="spawn", stage_text="restarting the lab")
            if self._lab_problem:
                return Link(
                    "stopped", text=f"could not be started: {self._lab_problem}"
                )
            heard = source is not None and source.last_seen >= self._lab_since
            if not lab.alive:
                age = 0.0 if source is None else source.age_s
                return Link("stale", text=_ending(lab.returncode), age=age)
            if not heard:
                return Link("starting", stage="spawn", stage_text="starting a process")
        if source is None:
            no_engine = self.engines is None
            return Link("still", "frames without an engine") if no_engine else Link()
        if source.state == "live":
            return Link(self._liveliness(name or "", source, reader), age=source.age_s)
        progress = source.progress
        return Link(
            source.state,
            text=source.error or "",
            age=source.age_s,
            stage=progress.stage if progress is not None else "",
            fraction=progress.fraction if progress is not None else 0.0,
            stage_text=progress.text if progress is not None else "",
        )

    def _liveliness(self, name: str, source: Any, reader: Reader | None) -> State:
        """Tell an engine that works from one that waits for work or for the user."""
        if source.facts.get("paused"):
            return "paused"
        step = 0 if reader is None else reader.steps
        now = time.monotonic()
        seen = self._last_step.get(name)
        if seen is None or seen[0] != step:
            self._last_step[name] = (step, now)
            return "live"
        return "idle" if now - seen[1] > IDLE_SECONDS else "live"


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
