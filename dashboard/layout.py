"""Where everything stands on the page, and the controls of the view itself."""

from __future__ import annotations

from typing import Any

import panel as pn

from . import words
from .hub import Hub
from .theme import asset
from .views.note import Note

HISTORY = (10_000, 50_000, 100_000, 250_000, 500_000)
"""Rows kept per table, to choose from."""

_WIDE: dict[str, Any] = {"sizing_mode": "stretch_width", "margin": 0}
_GAPS = """
:host { gap: 12px; min-width: 0; flex: 1 1 0; }
.scroll-button { display: none !important; }
"""
_MAIN = ":host { gap: 12px; padding: 12px 16px 20px; box-sizing: border-box; }"


class ViewSettings:
    """How often the page is drawn, and how much is kept for all pages.

    Parameters
    ----------
    refresh
        The parameter that holds the seconds between two drawings.
    choices
        Seconds to choose from.
    """

    def __init__(self, hub: Hub, refresh: Any, choices: tuple[float, ...]) -> None:
        self._hub = hub
        css = [asset("widgets.css")]
        self.refresh = pn.widgets.Select.from_param(
            refresh,
            label="Refresh",
            options={f"{words.duration(seconds)}": seconds for seconds in choices},
            stylesheets=css,
            **_WIDE,
        )
        self.history = pn.widgets.Select(
            label="History, rows a table",
            options={words.whole(n): n for n in sorted({*HISTORY, hub.rows})},
            value=hub.rows,
            # Fewer rows take history from everybody: not for who may only look.
            disabled=hub.read_only,
            stylesheets=css,
            **_WIDE,
        )
        self.history.param.watch(self._resize, "value")
        section = [asset("section.css")]
        self.note = Note("", stylesheets=section, **_WIDE)
        self.root = pn.Column(
            pn.pane.HTML("<h4>View</h4>", stylesheets=section, **_WIDE),
            pn.Row(
                self.refresh,
                self.history,
                stylesheets=[":host { gap: 8px; }"],
                **_WIDE,
            ),
            self.note,
            **_WIDE,
        )

    def tell(self) -> None:
        """How far back the rows kept reach, and that all browsers share them."""
        hub, history = self._hub, self.history
        if history.value != hub.rows and hub.rows in history.options.values():
            history.value = hub.rows
        kept = hub.store.kept("steps")
        text = f"<p>{words.whole(kept)} steps kept; the history is shared by all browsers</p>"
        if self.note.object != text:
            self.note.object = text

    def _resize(self, event: Any) -> None:
        if event.new != self._hub.rows and not self._hub.read_only:
            self._hub.resize(int(event.new))
            self.tell()


class Layout:
    """What heads the page, the side panel, and at its right the banner over cards and plots.

    Attributes
    ----------
    root, side
        What to show, and the part of it that folds away.
    """

    def __init__(
        self,
        head: list[Any],
        side: list[Any],
        banner: Any,
        views: list[Any],
        *,
        embedded: bool,
    ) -> None:
        self.side = pn.Column(
            *side,
            width=272,
            margin=0,
            css_classes=["ac-side"],
            stylesheets=[asset("side.css")],
        )
        indicators, *cards = views
        grid = pn.Column(
            *cards, css_classes=["ac-grid"], stylesheets=[asset("grid.css")], **_WIDE
        )
        self._content = pn.Column(
            indicators,
            grid,
            css_classes=["ac-content"],
            stylesheets=[asset("content.css")],
            **_WIDE,
        )
        right = pn.Column(banner, self._content, stylesheets=[_GAPS], **_WIDE)
        main = pn.Row(
            self.side, right, stylesheets=[_MAIN], css_classes=["ac-main"], **_WIDE
        )
        self._classes = ["ac-root", *(["ac-embedded"] if embedded else [])]
        self.root = pn.Column(
            *head,
            main,
            css_classes=self._classes,
            stylesheets=[asset("root.css")],
            **_WIDE,
        )

    def restyle(self, theme: str) -> None:
        """Take a theme."""
        dark = ["ac-dark"] if theme == "dark" else []
        self.root.css_classes = [*self._classes, *dark]

    def dim(self, stale: bool) -> None:
        """Dim what is not of now."""
        classes = ["ac-content", *(["ac-stale"] if stale else [])]
        if self._content.css_classes != classes:
            self._content.css_classes = classes
