"""What all browsers of one server share: the frames, the engines, an engine's process.

Reading an engine is the same work however many people watch, so one `Hub` owns the
collector, the ring store and one reader per engine, and each session asks it for
`Snapshot`s at its own pace. Nothing is ever pushed into a session: a closed browser leaves
nothing behind in the hub, because the hub never knew it.

No Panel in here: the hub, and with it the process of its engine, starts while Panel is
still being imported.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol

from .crowd import Crowd, Found
from .keeper import Keeper, Process
from .reader import About, Reader, Standing
from .snapshot import WINDOWS, Link, Snapshot, State, Window
from .subjects import InFrames, Subject, named
from .tape import Tape
from .together import ALL, joined_link

if TYPE_CHECKING:
    from auxconn.engine.job import Job
    from auxconn.frames import FrameStore
    from auxconn.listening import Listening
    from auxconn.recording import Player, Recording
    from auxconn.wire import Ack

DEFAULT_BIND = "tcp://127.0.0.1:*"
"""Loopback, and whatever port is free: a lab is told the address when it is started."""

BIND_VARIABLE = "AUXCONN_LISTEN"
"""Address that `panel serve dashboard/app.py` listens on for engines, instead of a lab."""

KEY_VARIABLE = "AUXCONN_LISTEN_KEY_FILE"
"""The collector's key file then; without one it listens on this machine alone."""

CONTROL_VARIABLE = "AUXCONN_ALLOW_CONTROL"
"""1 lets that page steer the engines; else it only looks."""

READ_ONLY = "this page only looks: it was served without --allow-control"

ROWS = 100_000
"""Rows of each table kept, unless the user sets another history length."""

LAB = "lab"
"""Name of the engine in the lab that a server runs itself."""

IDLE_SECONDS = 3.0
"""A live engine without a step for so long is shown as idle."""

MOST_READERS = 16
"""Engines that are read at one time; one that is looked at again is read anew."""

MOST_TOGETHER = 64
"""Engines, or ranks, that are looked at together."""

_RANKING: dict[str, float] = {"live": 0, "starting": 1, "stale": 2, "gone": 3}


def _rank_of(source: Any) -> float:
    """How much a source's word counts, of all who speak for one engine; least first."""
    if source.role == "supervisor" and source.state != "starting":
        # It may be well while its engine is not.
        return len(_RANKING)
    if source.role == "worker" and source.state == "live":
        # It is there before its scheduler is: the engine is still starting then.
        return 1.5
    return _RANKING.get(source.state, len(_RANKING))


class Engines(Protocol):
    """Whoever knows the engines: a `Collector`, or a lab of this process."""

    def sources(self) -> list[Any]:
        """Every engine as it is now, as `auxconn.collector.Source`."""

    def command(
        self, engine: str, name: str, /, *, rank: int | None = None, **args: Any
    ) -> Future[Ack]:
        """Ask one rank of an engine to do something."""


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

    windows = WINDOWS
    """Seconds of history to choose from."""

    has_rows = True
    """Whether single rows are there, and can be recorded."""

    def __init__(
        self,
        store: FrameStore,
        engines: Engines | None = None,
        *,
        lab: Process | None = None,
        address: str = "",
    ) -> None:
        self.store = store
        self.engines = engines
        self.keeper = None if lab is None else Keeper(lab, LAB)
        """Keeps the process of the lab, or of the real engine, that this server runs."""
        self.address = address
        self.player: Player | None = None
        """Plays a recording, when it is one that is looked at."""
        self.tape = Tape(store, None if engines is None else engines.sources)
        """Records what is looked at, when somebody asks for it."""
        self.read_only = False
        """True when engines are looked at and not steered."""
        self.epoch = 0
        """Raised when the rows were cleared: what was read before is of the past."""
        self._lock = threading.RLock()
        self._readers: dict[str, Reader] = {}
        self._last_step: dict[str, tuple[int, float]] = {}
        self._in_frames = InFrames(store)
        self._crowd = Crowd(store, self._clock, self._whom, self._about)
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
        from auxconn.listening import Listening

        hub = cls.watch(Listening(bind, control=True), rows=rows)
        with hub._closed_unless_made():
            lab = LabProcess(
                demo.CONFIG if config is None else config,
                demo.WORKLOAD if workload is None else workload,
                hub.address,
                LAB,
                steps_per_s=demo.STEPS_PER_S,
            )
            lab.start()
        hub.keeper = Keeper(lab, LAB)
        hub._closers.insert(0, lab.stop)
        return hub

    @classmethod
    def engine(cls, job: Job, *, rows: int = ROWS, bind: str = DEFAULT_BIND) -> Hub:
        """A hub with a real vLLM of its own, on its way when this returns.

        Parameters
        ----------
        job
            What to run; it reports here, whatever the job says.
        rows
            Rows kept per table.
        """
        from auxconn.engine.process import EngineProcess
        from auxconn.listening import Listening

        hub = cls.watch(Listening(bind, control=True), rows=rows)
        with hub._closed_unless_made():
            process = EngineProcess(dataclasses.replace(job, address=hub.address))
            process.start()
        hub.keeper = Keeper(process, job.engine, "vLLM")
        hub._closers.insert(0, process.stop)
        return hub

    @classmethod
    def watch(cls, listening: Listening, *, rows: int = ROWS) -> Hub:
        """A hub that waits for engines to connect, and steers them if it may.

        Raises
        ------
        ValueError, OSError
            When it cannot listen so.
        """
        from auxconn.frames import FrameStore

        collector = listening.collector(store=FrameStore(rows))
        hub = cls(collector.store, collector, address=collector.address)
        hub._closers.append(collector.close)
        hub.read_only = not listening.control
        with hub._closed_unless_made():
            operators = listening.operating(collector)
        if operators is not None:
            hub._closers.insert(0, operators.close)
        return hub

    @classmethod
    def replay(
        cls, recording: Recording, *, speed: float = 1.0, rows: int = ROWS
    ) -> Hub:
        """A hub over a recording, which plays from its beginning.

        Parameters
        ----------
        recording
            What is played.
        speed
            Seconds of the recording per second.
        rows
            Rows kept per table: what can be seen of the time before the present place.
        """
        from auxconn.frames import FrameStore
        from auxconn.recording import Player

        player = Player(recording, FrameStore(rows), speed=speed, start=False)
        hub = cls(player.store, player)
        hub.player = player
        player.renewing = hub.renewing
        player.start()
        hub._closers.append(player.close)
        return hub

    @classmethod
    def from_environment(cls) -> Hub:
        """The hub of `panel serve dashboard/app.py`: engines if told where, else a lab."""
        bind = os.environ.get(BIND_VARIABLE)
        if not bind:
            return cls.demo()
        from auxconn.listening import Listening

        key_file = os.environ.get(KEY_VARIABLE, "")
        control = os.environ.get(CONTROL_VARIABLE) == "1"
        return cls.watch(Listening(bind, key_file, control=control))

    def on_close(self, closer: Callable[[], None]) -> None:
        """Have `closer` called before the collector ends."""
        self._closers.insert(0, closer)

    @contextlib.contextmanager
    def _closed_unless_made(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop the engine, if one runs here, and the collector. Safe to call again."""
        closers, self._closers = self._closers, []
        for closer in closers:
            closer()
        self._crowd.close()
        # After the collector, whose last words are worth keeping too.
        self.tape.close()

    def __enter__(self) -> Hub:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Engines

    @property
    def lab(self) -> Process | None:
        """The process of the lab or the real engine that this server runs, if it does."""
        return None if self.keeper is None else self.keeper.process

    @property
    def noun(self) -> str:
        """What the engine that this server runs is called; empty when it runs none."""
        return "" if self.keeper is None else self.keeper.noun

    def names(self) -> list[str]:
        """Names of what can be looked at: engines, and ranks of those that have several."""
        return list(self._subjects(self._sources()))

    def source(self, name: str | None) -> Any:
        """The source that speaks for a name, or None."""
        return self._find(name)[2]

    def command(self, name: str, command: str, /, **args: Any) -> Future[Ack]:
        """Ask an engine to do something; the future brings its answer, or an error."""
        if self.engines is None:
            failed: Future[Ack] = Future()
            failed.set_exception(
                RuntimeError("these are frames without an engine: nobody can obey")
            )
            return failed
        if self.read_only:
            failed = Future()
            failed.set_exception(RuntimeError(READ_ONLY))
            return failed
        _, subject, _ = self._find(name)
        answer = self.engines.command(
            subject.engine or name, command, rank=subject.rank, **args
        )
        keeper = self.keeper
        own = keeper is not None and keeper.engine == subject.engine
        if command == "workload" and keeper is not None and own:
            answer.add_done_callback(lambda done: keeper.note_workload(done, args))
        return answer

    def restart_lab(self) -> None:
        """Stop this server's engine if it runs, and start it anew; nobody has to wait."""
        keeper = self.keeper
        if keeper is not None:
            keeper.restart(lambda: self.source(keeper.engine))

    @property
    def restarting(self) -> bool:
        """True while a restart has been asked for and the new process is not there yet."""
        return self.keeper is not None and self.keeper.restarting

    def _subjects(self, sources: list[Any]) -> dict[str, Subject]:
        found = [Subject(source.engine, source.rank) for source in sources]
        if self.engines is None:
            found += self._in_frames.subjects()
        own = None if self.keeper is None else self.keeper.engine
        if own is not None and all(one.engine != own for one in found):
            found.append(Subject(own, 0))
        return named(found)

    def _find(
        self,
        name: str | None,
        sources: list[Any] | None = None,
        subjects: dict[str, Subject] | None = None,
    ) -> Found:
        """What a name means now: its full name, the subject, and the source of it.

        No name means the liveliest engine, and the name of an engine with several ranks its
        liveliest rank; of equals the lowest.
        """
        sources = self._sources() if sources is None else sources
        if subjects is None:
            subjects = self._subjects(sources)
        exact = subjects.get(name or "")
        mine = [
            source
            for source in sources
            if exact == (source.engine, source.rank)
            or (exact is None and name in (None, "", source.engine))
        ]
        speaker = min(
            mine,
            key=lambda one: (
                _rank_of(one),
                # Commands go to the scheduler's side; a worker obeys none.
                one.role == "worker",
                one.rank,
                -one.last_seen,
            ),
            default=None,
        )
        if speaker is not None:
            exact = Subject(speaker.engine, speaker.rank)
        for known, subject in subjects.items():
            if exact == subject or (
                exact is None and name in (None, "", subject.engine)
            ):
                return known, subject, speaker
        return name or "", Subject(name or None), None

    # Reading

    def snapshot(self, name: str | None, window: Window) -> Snapshot:
        """Take in what is new and return one moment of an engine.

        Parameters
        ----------
        name
            One of `names`, or of an engine; None for the first there is.
        """
        return self._snapshot(self._find(name), window)

    def together(
        self, only: Collection[str], window: Window, *, wait: bool = True
    ) -> Snapshot:
        """One moment of several engines, one beside the other and added up.

        Parameters
        ----------
        only
            Those of `names` to add up; all when there is none among them.
        wait
            False takes what was read last when there are many.
        """
        return self._crowd.look(only, window, self.epoch, wait=wait)

    def _whom(self) -> list[Found]:
        """Those who are looked at together."""
        sources = self._sources()
        subjects = self._subjects(sources)
        names = list(subjects)[:MOST_TOGETHER]
        return [self._find(name, sources, subjects) for name in names]

    def _snapshot(self, found: Found, window: Window) -> Snapshot:
        known, subject, _ = found
        with self._lock:
            reader = self._readers.get(known)
            if reader is None:
                reader = Reader(self.store, *subject, known, clock=self._clock)
                self._readers[known] = reader
                self._forget(known)
            reader.advance()
            return reader.snapshot(
                window, self._about(found, reader.standing), self.epoch
            )

    def _about(self, found: Found, standing: Standing) -> About:
        """What is to be said of an engine beside its rows."""
        known, subject, source = found
        with self._lock:
            link = self._link(known, subject, source, standing)
        if self.read_only:
            link = dataclasses.replace(link, read_only=True)
        able = source is not None and not self.read_only
        commands = frozenset(source.commands if source is not None and able else ())
        return About(link, self._facts(source), commands)

    def advance(self, snapshot: Snapshot | None) -> None:
        """Read on without looking, as for a paused view of `snapshot`."""
        if snapshot is None:
            return
        if snapshot.name == ALL:
            self.together((), snapshot.window, wait=False)
            return
        with self._lock:
            reader = self._readers.get(snapshot.name)
            if reader is not None:
                reader.advance()

    def behind(self, snapshot: Snapshot) -> int:
        """Steps that were read since a snapshot was taken."""
        if snapshot.parts:
            return self._crowd.behind(snapshot)
        with self._lock:
            reader = self._readers.get(snapshot.name)
            return 0 if reader is None else reader.standing.behind(snapshot)

    def link(self, name: str | None) -> Link:
        """How it stands with an engine, without reading its rows."""
        return self._link_of(self._find(name))

    def links(self, snapshot: Snapshot) -> Link:
        """How it stands by now with those whose sum a snapshot is, or with its engine."""
        sources = self._sources()
        subjects = self._subjects(sources)
        found = [
            self._link_of(self._find(part.name, sources, subjects))
            for part in snapshot.parts or (snapshot,)
            if not snapshot.summed or part.subject in snapshot.summed
        ]
        return joined_link(found) if snapshot.parts else found[0]

    def _link_of(self, found: Found) -> Link:
        known, subject, source = found
        with self._lock:
            reader = self._readers.get(known)
            standing = (
                self._crowd.standing(subject) if reader is None else reader.standing
            )
            return self._link(known, subject, source, standing)

    def clear(self) -> None:
        """Forget all rows that were read so far, for all who look."""
        with self.renewing():
            self.store.clear()

    @contextlib.contextmanager
    def renewing(self) -> Iterator[None]:
        """Nobody reads meanwhile, and then everybody anew."""
        with self._lock:
            yield
            self._readers.clear()
            self.epoch += 1
        self._crowd.forget()

    def _clock(self) -> float:
        """Wall clock of what is shown: of now, or of the place in a recording."""
        return time.time() if self.player is None else self.player.place

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
        return {} if self.keeper is None else self.keeper.facts()

    def _forget(self, present: str) -> None:
        """Names come and go: keep the readers of those looked at last."""
        while len(self._readers) > MOST_READERS:
            oldest = next(name for name in self._readers if name != present)
            del self._readers[oldest]
            self._last_step.pop(oldest, None)

    def _sources(self) -> list[Any]:
        return [] if self.engines is None else list(self.engines.sources())

    def _link(
        self, name: str, subject: Subject, source: Any, standing: Standing | None
    ) -> Link:
        if self.keeper is not None and subject.engine == self.keeper.engine:
            link = self.keeper.link(source)
            if link is not None:
                return link
        if self.player is not None:
            state = "live" if source is None else source.state
            return Link("replay", "" if state == "live" else f"the engine was {state}")
        if source is None:
            no_engine = self.engines is None
            return Link("still", "frames without an engine") if no_engine else Link()
        if source.state == "live":
            return Link(self._liveliness(name, source, standing), age=source.age_s)
        progress = source.progress
        return Link(
            source.state,
            text=source.error or "",
            age=source.age_s,
            stage=progress.stage if progress is not None else "",
            fraction=progress.fraction if progress is not None else 0.0,
            stage_text=progress.text if progress is not None else "",
        )

    def _liveliness(self, name: str, source: Any, standing: Standing | None) -> State:
        """Tell an engine that works from one that waits for work or for the user."""
        if source.facts.get("paused"):
            return "paused"
        step = 0 if standing is None else standing.steps
        now = time.monotonic()
        seen = self._last_step.get(name)
        if seen is None or seen[0] != step:
            self._last_step[name] = (step, now)
            return "live"
        return "idle" if now - seen[1] > IDLE_SECONDS else "live"
