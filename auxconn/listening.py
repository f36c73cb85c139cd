"""Opening a collector as the command line is told to: where, and with which keys."""

from __future__ import annotations

from typing import Any

import msgspec

from auxconn.collector import Collector
from auxconn.keys import Keys, load
from auxconn.operators import Operators

DEFAULT_BIND = "tcp://127.0.0.1:5599"


class Listening(msgspec.Struct, frozen=True):
    """Where engines connect to, and who may."""

    bind: str = DEFAULT_BIND
    key_file: str = ""
    """The collector's key file; empty for none."""
    insecure: bool = False
    """Listen beyond this machine without keys."""
    control: bool = False
    """Let whoever looks on steer the engines."""
    operators: str = ""
    """Where operators' orders are taken, if `control`; empty for nowhere."""

    def collector(self, **how: Any) -> Collector:
        """Open the collector; `how` goes to it.

        Raises
        ------
        ValueError, OSError
            As `Collector` and `auxconn.keys.load`.
        """
        return Collector(self.bind, keys=self._keys(), insecure=self.insecure, **how)

    def operating(self, collector: Collector) -> Operators | None:
        """Take operators' orders for `collector`, if any are taken; raises as before."""
        if not (self.control and self.operators):
            return None
        return Operators(
            collector, self.operators, keys=self._keys(), insecure=self.insecure
        )

    def _keys(self) -> Keys | None:
        return load(self.key_file, "collector") if self.key_file else None
