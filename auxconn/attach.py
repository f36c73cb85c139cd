"""Putting the probes on an engine, and taking them off.

    attachment = attach(scheduler=scheduler, worker=worker, to=store)
    ...
    attachment.detach()

Until then nothing of auxconn runs in the engine, and afterwards nothing is left. What is
attached may be one side alone: in a real deployment scheduler and worker live in different
processes, and each attaches what it has under the engine's name.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from auxconn import facts as names
from auxconn.address import check_engine
from auxconn.sink import Sink, StoreSink
from auxconn.wire import Command, Fact

if TYPE_CHECKING:
    from auxconn.channel import Channel
    from auxconn.frames import FrameStore
    from auxconn.probes.scheduler import SchedulerProbe
    from auxconn.probes.ticker import Ticker
    from auxconn.probes.worker import WorkerProbe

COMMANDS = ("set_capacity",)
"""Commands an attached scheduler obeys by itself."""

_MARK = "_auxconn_attachment"
"""Attribute by which a watched object names its attachment, until that is detached."""


class Attachment:
    """Probes on an engine; made by `attach`.

    Attributes
    ----------
    sink
        Where the records go.
    channel
        The channel that `attach` opened because it was given an address, else None.
    scheduler_probe, worker_probe
        The probes, None for a side that was not attached.
    """

    def __init__(
        self,
        sink: Sink,
        channel: Channel | None,
        scheduler_probe: SchedulerProbe | None,
        worker_probe: WorkerProbe | None,
        facts: dict[str, Fact],
        watched: Sequence[Any] = (),
    ) -> None:
        self.sink = sink
        self.channel = channel
        self.scheduler_probe = scheduler_probe
        self.worker_probe = worker_probe
        self.facts = facts
        """What the engine announces of itself; names in `auxconn.facts`."""
        self._attached = True
        self._ticker: Ticker | None = None
        self._watched = watched
        for one in watched:
            setattr(one, _MARK, self)

    @property
    def commands(self) -> tuple[str, ...]:
        """Commands that `apply` carries out."""
        return COMMANDS if self.scheduler_probe is not None else ()

    def apply(self, command: Command) -> str:
        """Carry out a command, in the scheduler's thread.

        Returns
        -------
        What was done, in words.

        Raises
        ------
        ValueError
            When there is no such command, or its arguments are refused; nothing has
            changed then.
        """
        probe = self.scheduler_probe
        if probe is None or command.name not in COMMANDS:
            there = ", ".join(self.commands) or "none"
            raise ValueError(
                f"no command {command.name!r} here; this engine obeys {there}"
            )
        if set(command.args) != {"blocks"}:
            given = ", ".join(map(repr, sorted(command.args))) or "nothing"
            raise ValueError(
                f"set_capacity takes 'blocks', a number of KV blocks; got {given}"
            )
        before, after = probe.view.set_capacity(command.args["blocks"])
        self.facts[names.CAPACITY] = after
        self._announce()
        return f"capacity {before} -> {after} blocks"

    def apply_commands(self) -> int:
        """Carry out what has come over the attachment's own channel, and answer it.

        The scheduler's probe calls this before metadata are built, so that a lowered
        capacity releases with them; an engine that takes no steps calls it itself.

        Returns
        -------
        Commands that were answered.
        """
        if self.channel is None:
            return 0
        commands = self.channel.poll_commands()
        for command in commands:
            try:
                text, ok = self.apply(command), True
            except ValueError as refused:
                text, ok = str(refused), False
            except Exception as problem:  # noqa: BLE001 - the engine's thread goes on
                text, ok = f"{type(problem).__name__}: {problem}", False
            self.channel.ack(command, ok, text)
        return len(commands)

    def flush(self) -> None:
        """Write the rows of all steps so far; needed with `deferred` alone."""
        for probe in (self.scheduler_probe, self.worker_probe):
            if probe is not None:
                probe.flush()

    def detach(self) -> None:
        """Restore everything as it was before, and close the channel; safe to call twice.

        Call it between two steps.
        """
        self._end("detached")

    def _end(self, reason: str) -> None:
        if not self._attached:
            return
        self._attached = False
        for probe in (self.worker_probe, self.scheduler_probe):
            if probe is not None:
                probe.detach()
        if self._ticker is not None:
            self._ticker.close()
        self.flush()
        if self.channel is not None:
            self.channel.close(reason)
        for one in self._watched:
            delattr(one, _MARK)

    def _defer(self) -> None:
        from auxconn.probes.ticker import Ticker

        probes = [self.scheduler_probe, self.worker_probe]
        self._ticker = Ticker([probe.flush for probe in probes if probe is not None])

    def _announce(self) -> None:
        self.sink.hello(self.facts, self.commands)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.detach()


def attach(
    *,
    scheduler: Any = None,
    worker: Any = None,
    to: FrameStore | str | Sink,
    engine: str = "engine",
    rank: int = 0,
    deferred: bool | None = None,
    replace: bool = False,
    key_file: str | Path | None = None,
) -> Attachment:
    """Watch a scheduler, a worker connector, or both of one process.

    Call it between two steps, before the first one if the rows of the worker are to bear
    the scheduler's step numbers in two processes.

    Parameters
    ----------
    scheduler
        vLLM's scheduler, with vLLM's auxiliary-output connector or ours.
    worker
        vLLM's `AuxOutputWorkerConnector`, or the model runner that has it.
    to
        A `FrameStore` of this process, the address of a collector (`tcp://host:port`), or
        a sink. Commands are only obeyed of a collector whose address was given; whoever
        gives a channel of his own polls it himself and calls `Attachment.apply`.
    engine, rank
        Under which name the rows appear.
    deferred
        True makes the rows in a thread of their own, `auxconn.probes.ticker.SECONDS`
        later, which spares the engine's threads most of the work; `Attachment.flush` has
        them now. False makes them within the step. By default it is True with an address
        and False otherwise.
    replace
        True ends an attachment that watches one of them already, such as one whose name
        was lost in a notebook; by default it stays and the new one is refused.
    key_file
        The engines' key file, for the address of a collector that has keys
        (`auxconn.keys`).

    Raises
    ------
    ValueError
        When there is nothing to attach to, it is watched already, a name or number cannot
        be, or it is not what auxconn knows (then it is an `UnknownConnectorError`); nothing
        was changed, save that with `replace` the former attachment may have ended.
    """
    from auxconn.probes.access import ConnectorView
    from auxconn.probes.clock import StepClock
    from auxconn.probes.engine_facts import engine_facts

    if scheduler is None and worker is None:
        raise ValueError("attach: give a scheduler, a worker, or both")
    check_engine(engine, rank)
    watched = []
    if worker is not None:
        worker = _worker_connector(worker)
        watched.append(worker)
    if scheduler is not None:
        # The manager too: its hooks stay when a scheduler is given another connector.
        watched += [ConnectorView(scheduler).connector, scheduler.kv_cache_manager]
    former = _former(watched)
    if former and not replace:
        raise ValueError(
            "attach: there is an attachment that watches this already: call its detach() "
            "first, or pass replace=True, which does so"
        )
    sink, channel = _sink(
        to,
        engine,
        rank,
        "worker" if scheduler is None else "scheduler" if worker is None else "engine",
        key_file,
    )
    for one in former:
        one._end("replaced by another attachment")
    if deferred is None:
        deferred = channel is not None
    clock = StepClock() if scheduler is not None and worker is not None else None
    attachment = Attachment(sink, channel, None, None, {}, watched)
    try:
        if worker is not None:
            from auxconn.probes.worker import WorkerProbe

            attachment.worker_probe = WorkerProbe(
                worker, sink, clock, deferred=deferred
            )
            attachment.worker_probe.attach()
        if scheduler is not None:
            from auxconn.probes.scheduler import SchedulerProbe

            attachment.scheduler_probe = SchedulerProbe(
                scheduler,
                sink,
                clock,
                None if channel is None else attachment.apply_commands,
                () if channel is None else channel.orders,
                deferred=deferred,
            )
            attachment.scheduler_probe.attach()
        if deferred:
            attachment._defer()
        attachment.facts.update(
            engine_facts(scheduler, attachment.scheduler_probe, attachment.worker_probe)
        )
        attachment._announce()
    except BaseException:
        attachment.detach()
        raise
    return attachment


def _former(watched: Sequence[Any]) -> list[Attachment]:
    """Attachments that watch one of these objects."""
    found = (getattr(one, _MARK, None) for one in watched)
    return list(dict.fromkeys(one for one in found if one is not None))


def _worker_connector(worker: Any) -> Any:
    found = worker
    if not hasattr(found, "begin_step"):
        found = getattr(worker, "aux_output_connector", None)
    if found is None or not hasattr(found, "begin_step"):
        raise ValueError(
            f"{type(worker).__name__} is no auxiliary-output worker connector and has none: "
            "start vLLM with --enable-return-routed-experts"
        )
    return found


def _sink(
    to: Any, engine: str, rank: int, role: str, key_file: str | Path | None
) -> tuple[Sink, Channel | None]:
    if isinstance(to, str):
        from auxconn.channel import Channel
        from auxconn.keys import load

        keys = None if key_file is None else load(key_file, "engine")
        channel = Channel(to, engine, rank, role, keys=keys)
        return channel, channel
    if key_file is not None:
        raise ValueError("attach: key_file is for the address of a collector")
    from auxconn.frames import FrameStore

    if isinstance(to, FrameStore):
        return StoreSink(to, engine, rank), None
    if isinstance(to, Sink):
        return to, None
    raise ValueError(
        f"attach: to={to!r} is no FrameStore, no address such as tcp://127.0.0.1:5555 and "
        "no sink"
    )
