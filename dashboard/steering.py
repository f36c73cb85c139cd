"""What a control does, told before, and what became of it, told after.

A slider that silently changed an engine of sixteen GPUs, or silently did not, would be
worse than none. Each command that the page sends is kept here until its answer has come:
the control says "sending", then when it was applied, or why it was refused; and what was
changed can be put back. Nothing in here draws.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from . import words
from .snapshot import Snapshot

if TYPE_CHECKING:
    from auxconn.wire import Ack

UNDO_DEPTH = 50
"""Changes that can be put back, newest first."""


_FACT_OF = {"blocks": "capacity"}
"""Facts that commands have under another name."""


@dataclasses.dataclass(frozen=True)
class Change:
    """One thing a user has asked for."""

    control: str
    """Name of the control that asked."""
    what: str
    """In words: `capacity 2,048 → 205`."""
    command: str
    args: Mapping[str, Any]
    back: tuple[str, Mapping[str, Any], str] | None = None
    """Command, arguments and words that put it back; None when nothing can."""


@dataclasses.dataclass
class Outcome:
    """How a change stands."""

    change: Change
    state: str = "sending"
    """`sending`, `applied`, `refused`."""
    text: str = ""
    at: float = 0.0
    """Wall clock of the answer."""

    @property
    def told(self) -> str:
        """The outcome in a line."""
        if self.state == "sending":
            return f"sending: {self.change.what}"
        if self.state == "applied":
            return f"applied {words.clock(self.at)}: {self.change.what}"
        return f"refused: {self.text}"


class Steering:
    """Sends changes to an engine and follows what becomes of them.

    Parameters
    ----------
    send
        Takes a command's name and arguments, returns a future of its `Ack`.
    """

    def __init__(self, send: Callable[..., Future[Ack]]) -> None:
        self._send = send
        self._pending: list[tuple[Future[Ack], Outcome]] = []
        self._undo: list[Change] = []
        self.outcomes: dict[str, Outcome] = {}
        """Newest outcome of each control."""

    @property
    def busy(self) -> bool:
        """True while an answer is awaited."""
        return bool(self._pending)

    @property
    def undoable(self) -> str:
        """What an undo would put back, in words; empty when there is nothing."""
        return self._undo[-1].what if self._undo else ""

    def waits(self, control: str) -> bool:
        """True while a control's change is under way."""
        return any(one.change.control == control for _, one in self._pending)

    def ask(self, change: Change) -> None:
        """Send a change."""
        outcome = Outcome(change)
        self.outcomes[change.control] = outcome
        try:
            future = self._send(change.command, **change.args)
        except Exception as problem:  # noqa: BLE001 - told beside the control
            self._refuse(outcome, problem)
            return
        self._pending.append((future, outcome))

    def refuse(self, control: str, why: str) -> None:
        """Note that what was asked of a control cannot even be sent."""
        self.outcomes[control] = Outcome(
            Change(control, "", "", {}), "refused", why, time.time()
        )

    def undo(self) -> bool:
        """Put the newest change back; False when there is none."""
        if not self._undo:
            return False
        last = self._undo.pop()
        assert last.back is not None
        command, args, what = last.back
        self.ask(Change(last.control, what, command, args))
        return True

    def overtaken(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        """Forget changes of ours that somebody else has changed since.

        To put them back would undo what the other one did, unseen.

        Parameters
        ----------
        before
            Facts of the engine.
        now
            Those of them that are others now.
        """
        for control in {change.control for change in self._undo}:
            if self.waits(control):
                continue
            newest = next(one for one in reversed(self._undo) if one.control == control)
            asked = {_FACT_OF.get(name, name): to for name, to in newest.args.items()}
            if any(
                name in now and before.get(name) == to != now[name]
                for name, to in asked.items()
            ):
                self._undo = [one for one in self._undo if one.control != control]
                self.outcomes.pop(control, None)

    def forget(self) -> None:
        """Another engine: what was done to the one before cannot be put back here."""
        self._undo.clear()
        self.outcomes.clear()

    def poll(self) -> bool:
        """Look whether answers have come; True when one has."""
        waiting, came = [], False
        for future, outcome in self._pending:
            if not future.done():
                waiting.append((future, outcome))
                continue
            came = True
            self._settle(future, outcome)
        self._pending = waiting
        return came

    def _settle(self, future: Future[Ack], outcome: Outcome) -> None:
        try:
            ack = future.result(timeout=0)
        except Exception as problem:  # noqa: BLE001 - told beside the control
            self._refuse(outcome, problem)
            return
        outcome.at = time.time()
        if not ack.ok:
            outcome.state, outcome.text = "refused", ack.text
            return
        outcome.state, outcome.text = "applied", ack.text
        if outcome.change.back is not None:
            self._undo = [*self._undo, outcome.change][-UNDO_DEPTH:]

    def _refuse(self, outcome: Outcome, problem: Exception) -> None:
        outcome.state, outcome.at = "refused", time.time()
        outcome.text = str(problem) or type(problem).__name__


def capacity_preview(snapshot: Snapshot, blocks: int) -> str:
    """What setting the capacity to `blocks` would do now, as far as can be known."""
    retained = snapshot.level("steps", "retained")
    on_gpu = snapshot.level("steps", "retained_on_gpu")
    capacity = snapshot.level("steps", "capacity")
    if retained is None or on_gpu is None:
        return ""
    if capacity is not None and blocks == capacity:
        return "the capacity in force"
    over = retained - blocks
    if over <= 0:
        return f"nothing is released; room for {words.whole(-over)} more blocks"
    free = max(0.0, retained - on_gpu)
    released = min(over, free)
    kept = over - released
    # vLLM's own connector releases only when a request ends.
    when = (
        "" if snapshot.fact("connector") == "auxconn" else " when the next request ends"
    )
    told = []
    if released:
        told.append(f"releases about {words.plural(released, 'block')}{when}")
    if kept:
        told.append(f"{words.whole(kept)} over it stay while they are on the GPU")
    return "; ".join(told)


def capacity_words(snapshot: Snapshot, blocks: int) -> str:
    """A number of blocks as tokens, and as bytes of R3 rows."""
    told = []
    size = snapshot.fact("block_size")
    if isinstance(size, int):
        told.append(f"{words.short(blocks * size)} tokens")
    per_block = snapshot.fact("bytes_per_block")
    if isinstance(per_block, int | float):
        told.append(f"{words.size(blocks * per_block)} of R3 rows")
    return ", ".join(told)
