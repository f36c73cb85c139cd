"""The side panel's part that begins and ends a recording, and says how it stands."""

from __future__ import annotations

from typing import Any

import panel as pn

from . import words
from .tape import Tape
from .theme import asset
from .views.note import Note

_WIDE: dict[str, Any] = {"sizing_mode": "stretch_width", "margin": 0}


class RecordControl:
    """A button and a line of text.

    Parameters
    ----------
    why_not
        Why it may not be pressed; empty when it may.

    Attributes
    ----------
    root, button, note
        What to show, and its two parts.
    """

    def __init__(self, tape: Tape, why_not: str = "") -> None:
        self._tape = tape
        self._why_not = why_not
        section = [asset("section.css")]
        self.button = pn.widgets.Button(
            label="●  Record",
            stylesheets=[asset("widgets.css")],
            css_classes=["ac-record"],
            **_WIDE,
        )
        self.button.on_click(lambda _: self._toggle())
        self.note = Note(
            "", stylesheets=section, css_classes=["ac-record-note"], **_WIDE
        )
        self.root = pn.Column(
            pn.pane.HTML("<h4>Recording</h4>", stylesheets=section, **_WIDE),
            self.button,
            self.note,
            **_WIDE,
        )
        self.tell()

    def tell(self) -> None:
        """Say how it stands."""
        tape = self._tape
        label = "■  Stop recording" if tape.running or tape.ending else "●  Record"
        off = tape.ending or bool(self._why_not)
        if self.button.label != label or self.button.disabled != off:
            self.button.param.update(label=label, disabled=off)
        text = "".join(
            f'<p class="{kind}">{words.escape(line)}</p>'
            for kind, line in self._lines()
        )
        if self.note.object != text:
            self.note.object = text

    def _lines(self) -> list[tuple[str, str]]:
        tape, status = self._tape, self._tape.status
        if self._why_not:
            return [("off", self._why_not)]
        if tape.problem:
            return [("no", tape.problem)]
        if status is None:
            return [
                (
                    "",
                    f"keeps all tables in {tape.folder}/, the history on this page included",
                )
            ]
        lost = f", {words.plural(status.lost, 'row')} missing" if status.lost else ""
        written = (
            f"{words.size(status.bytes)}, {words.plural(status.rows, 'row')}{lost}"
        )
        if status.problem:
            return [("no", status.problem), ("", written)]
        if not status.running:
            return [
                ("done", f"kept {written}"),
                ("", f"auxconn replay {status.folder}"),
            ]
        return [
            ("", f"{words.duration(status.seconds)}: {written}"),
            ("", f"in {status.folder}"),
        ]

    def _toggle(self) -> None:
        if not self._why_not:
            self._tape.toggle()
        self.tell()
