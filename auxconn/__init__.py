"""See and steer vLLM's auxiliary-output (R3) connector.

Names are resolved when they are asked for: a plugin inside vLLM that finds itself switched
off must not have paid for pandas or ZeroMQ.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from auxconn.attach import attach
    from auxconn.collector import Collector
    from auxconn.frames import FrameStore
    from auxconn.recording import Recording

__all__ = ["Collector", "FrameStore", "Recording", "attach"]

_HOMES = {
    "Collector": "auxconn.collector",
    "FrameStore": "auxconn.frames",
    "Recording": "auxconn.recording",
    "attach": "auxconn.attach",
}


class _Package(ModuleType):
    """The package, in which `attach` is the function and never the module of that name.

    Importing `auxconn.attach` binds the module in the package, over whatever was there;
    `from auxconn import attach` would then depend on who imported what before.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _HOMES and isinstance(value, ModuleType):
            value = getattr(value, name)
        super().__setattr__(name, value)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(_HOMES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


sys.modules[__name__].__class__ = _Package
