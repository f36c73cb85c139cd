"""How far the start of `vllm serve` has come, read off what it writes.

vLLM says nothing that is meant for programs, so its log lines are taken as hints: each moves
the start on to a stage, never back, and a line that a version words differently costs
nothing but a bar that waits. Between two of them the bar creeps on with the time, since an
import of 20 s without a move looks like a hang. That the engine is ready is not read but
asked: its API answers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """A stage of the start.

    Attributes
    ----------
    fraction
        How far the start is when it begins.
    seconds
        How long it takes, about, on two cores.
    hints
        Words in a line of vLLM that say that it has begun.
    """

    name: str
    fraction: float
    text: str
    seconds: float
    hints: tuple[str, ...] = ()


STAGES = (
    Stage("spawn", 0.0, "making the toy model", 2.0),
    Stage("import", 0.02, "importing vLLM", 12.0),
    Stage(
        "engine",
        0.3,
        "starting the engine's process",
        13.0,
        ("non-default args", "Resolved architecture"),
    ),
    Stage(
        "worker",
        0.6,
        "starting the worker's process",
        14.0,
        ("Initializing a V1 LLM engine",),
    ),
    Stage(
        "load",
        0.92,
        "loading the model",
        3.0,
        ("Loading model", "Loading safetensors", "Loading weights"),
    ),
    Stage(
        "serve",
        0.98,
        "starting the HTTP server",
        1.0,
        ("Starting vLLM server", "Started server process"),
    ),
    Stage("ready", 1.0, "running", 1.0),
)


class Start:
    """Follows one start.

    Parameters
    ----------
    tell
        Called with stage, fraction and words whenever there is something to say.
    """

    def __init__(
        self,
        tell: Callable[[str, float, str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tell = tell
        self._clock = clock
        self._at = -1
        self._since = clock()

    @property
    def stage(self) -> str:
        """Name of the stage it is in; empty before the first."""
        return STAGES[self._at].name if self._at >= 0 else ""

    def enter(self, name: str) -> None:
        """A stage begins; one that has begun or is past is not told again."""
        at = next(index for index, stage in enumerate(STAGES) if stage.name == name)
        if at > self._at:
            self._at = at
            self._since = self._clock()
            self._tell(name, STAGES[at].fraction, STAGES[at].text)

    def heard(self, line: str) -> None:
        """Take a line of vLLM's output as a hint."""
        for stage in reversed(STAGES[self._at + 1 :]):
            if any(hint in line for hint in stage.hints):
                self.enter(stage.name)
                return

    def tick(self) -> None:
        """Let the bar creep on; it never reaches the next stage by itself."""
        if not 0 <= self._at < len(STAGES) - 1:
            return
        stage, following = STAGES[self._at], STAGES[self._at + 1]
        spent = self._clock() - self._since
        done = 0.95 * (1 - math.exp(-1.5 * spent / stage.seconds))
        fraction = stage.fraction + (following.fraction - stage.fraction) * done
        self._tell(stage.name, round(fraction, 3), f"{stage.text}, {spent:.0f} s")
