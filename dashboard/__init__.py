"""The Panel side of auxconn: one page that shows an engine live and steers it.

Named `dashboard/` in the repository and `auxconn_dashboard` where it is imported
(docs/adr/0001-name-of-the-dashboard-package.md). Importing the package costs nothing:
Panel takes more than a second to import, and whoever starts a lab wants the lab's own
import to run beside it, so each name below is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "Hub": "hub",
    "Snapshot": "snapshot",
    "live": "session",
    "Dashboard": "session",
    "serve": "server",
}

__all__ = ["Dashboard", "Hub", "Snapshot", "live", "serve"]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{home}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
