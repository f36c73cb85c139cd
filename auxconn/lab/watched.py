"""An engine of the lab with probes on it: built whole or not at all, let go of at once."""

from __future__ import annotations

from auxconn.attach import attach
from auxconn.errors import AuxConnError
from auxconn.lab.config import LabConfig
from auxconn.lab.engine import Engine
from auxconn.sink import Sink


class Watched:
    """An engine and what watches it.

    Parameters
    ----------
    config
        What to build.
    sink
        Where the probes write.
    name
        The engine's, in the frames.
    deferred
        See `attach`.

    Raises
    ------
    ValueError
        When vLLM refuses to build it.
    """

    def __init__(
        self, config: LabConfig, sink: Sink, name: str, *, deferred: bool
    ) -> None:
        try:
            self.engine = Engine(config)
        except AuxConnError:
            raise
        except Exception as error:
            # Some of vLLM's refusals are ValueErrors, in words of its own.
            raise ValueError(
                f"vLLM could not build this engine: {type(error).__name__}: {error}"
            ) from error
        self.sink = sink
        try:
            self._attachment = attach(
                scheduler=self.engine.scheduler,
                worker=self.engine.worker,
                to=sink,
                engine=name,
                deferred=deferred,
            )
        except BaseException:
            self.engine.close()
            raise

    def close(self) -> None:
        """Take the probes off and end the engine."""
        self._attachment.detach()
        self.engine.close()
