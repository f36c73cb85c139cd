"""Text that changes, in a page and in a notebook alike."""

from __future__ import annotations

from typing import Any

import panel as pn


class Note(pn.pane.HTML):
    """An HTML pane whose change sends the text alone.

    Panel sends a pane's style sheets again with every new text. In a notebook with
    `pn.extension(inline=True)` those were replaced when the view was drawn, so the browser
    gets a reference it does not know, and drops the whole message it came with: figures stay
    as they were, without a word (Panel 1.9.4).
    """

    def _update(self, ref: str, model: Any) -> None:
        properties = self._get_properties(model.document)
        properties.pop("stylesheets", None)
        model.update(**properties)
