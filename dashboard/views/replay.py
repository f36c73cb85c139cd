"""The strip below the header that plays a recording: where it is, how fast, where to go."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

from .. import words
from ..theme import asset
from .component import Component, fixed, script

if TYPE_CHECKING:
    from auxconn.recording import Player

SHOWN_GAPS = 200
"""Gaps marked on the track."""

SHOWN_NOTES = 5
"""Problems of the recording that are told."""

_CUT_OFF = (
    "The recorder was cut off, or still runs: this is what it had written by then."
)


class Strip(Component):
    """The strip in the browser.

    `fixed` has begins, ends, speeds, gaps (time and text of each) and folder; `state` has
    place, playing, speed, notes and problem. Times are in seconds from 1970.
    """

    _esm = script("replay.js")
    _stylesheets: ClassVar[list[Any]] = [asset("replay.css")]


class ReplayView:
    """Play, pause, speed and place of a recording; all browsers see and move the same.

    Attributes
    ----------
    source
        The strip; `source.shown` is what it shows.
    """

    def __init__(self, player: Player) -> None:
        from auxconn.recording.player import SPEEDS
        from auxconn.records import TABLES

        self._player = player
        self._speeds = SPEEDS
        recording = player.recording
        gaps = [
            [gap.at_s, words.plain(f"missing: {gap.told(table)}", 300)]
            for table in TABLES
            for gap in recording.gaps_of(table)
        ]
        self.source = Strip(
            name="auxconn-replay",
            fixed=fixed(
                begins=player.begins,
                ends=player.ends,
                speeds=list(SPEEDS),
                gaps=sorted(gaps)[:SHOWN_GAPS],
                folder=str(recording.folder),
            ),
            sizing_mode="stretch_width",
            margin=0,
        )
        self.source.on_message = self._asked
        self.tell()

    def tell(self) -> bool:
        """Show where it is; False when nothing has moved."""
        player = self._player
        recording = player.recording
        notes = [words.plain(text, 300) for text in recording.problems[:SHOWN_NOTES]]
        if not recording.complete:
            notes.insert(0, _CUT_OFF)
        return self.source.show(
            place=round(player.place, 2),
            playing=player.playing,
            speed=player.speed,
            notes=notes,
            problem=words.plain(player.problem, 200),
        )

    def toggle(self) -> None:
        """Play, or stand still."""
        if self._player.playing:
            self._player.pause()
        else:
            self._player.play()
        self.tell()

    def _asked(self, said: dict[str, Any]) -> None:
        """What a browser asks for; only what makes sense is taken."""
        action, value = said.get("action"), said.get("value")
        if action == "play":
            self.toggle()
        elif isinstance(value, int | float) and math.isfinite(value):
            if action == "seek":
                self._player.seek(value)
            elif action == "speed" and value in self._speeds:
                self._player.speed = value
        self.tell()
