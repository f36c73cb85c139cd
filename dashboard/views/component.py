"""Parts of the page that are HTML: one string of JSON in, messages out.

Panel's own way to send a parameter to the browser walks through its value several times and
looks for models in it: six milliseconds for a list of cards, for each of a dozen parts, on
every tick of every browser. What we show is plain data, so it travels as one string of JSON,
set on the browser's model directly, and only when it differs from what is shown. What a user
does comes back as a message, never as a changed parameter, so nothing echoes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import msgspec
import param
from panel.custom import JSComponent

from ..theme import asset

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class Component(JSComponent):
    """A part of the page drawn by a script of `assets/`.

    Parameters
    ----------
    fixed
        JSON of what never changes.
    state
        JSON of what is shown now; set it with `show`.
    """

    fixed = param.String("{}")
    state = param.String("{}")

    __abstract = True

    _stylesheets: ClassVar[list[Any]] = []

    on_message: Callable[[dict[str, Any]], None] | None = None
    """Called with what the user did; the message is plain data from the browser."""

    @property
    def shown(self) -> dict[str, Any]:
        """What is shown now."""
        return _decode(self.state)

    def show(self, **state: Any) -> bool:
        """Show something else; False when it is what is shown already."""
        text = _encode(state).decode()
        if text == self.state:
            return False
        with param.parameterized.discard_events(self):
            self.state = text
        for model, _ in list(self._models.values()):
            model.data.state = text
        return True

    def _handle_msg(self, data: Any) -> None:
        if self.on_message is not None and isinstance(data, dict):
            self.on_message(data)


def script(name: str) -> str:
    """A script of `assets/` behind the helpers that all of them use."""
    return asset("common.js") + "\n" + asset(name)


def fixed(**values: Any) -> str:
    """JSON of what never changes."""
    return _encode(values).decode()
