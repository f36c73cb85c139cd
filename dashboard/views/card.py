"""The head of a card: what a plot shows, in words, colours and the newest numbers.

A legend drawn by Bokeh lives on the canvas: it does not wrap on a narrow screen, cannot be
reached with the keyboard and has no room for a number. This one is HTML, carries each
band's newest value, and toggles bands; the plot stacks what is left anew.
"""

from __future__ import annotations

from typing import Any, ClassVar

import param
from panel.custom import JSComponent

from ..theme import asset


class CardHead(JSComponent):
    """Title, legend, choice of units, explanation and note of one plot."""

    title = param.String()
    unit = param.String()
    help = param.List(doc="Pairs of a class name and a text, one paragraph each.")
    chips = param.List(doc="Bands: dicts of key, label, color, look and tip.")
    values = param.Dict({}, doc="Newest value of each band, as text.")
    hidden = param.List([], doc="Keys of the bands that are switched off.")
    options = param.List([], doc="Units to choose from; none shows no choice.")
    option = param.String("")
    note = param.String("", doc="What would fill the plot, while it is empty.")
    note_height = param.Integer(190, doc="Height of the plot below, in pixels.")

    _esm = asset("card.js")
    _stylesheets: ClassVar[list[Any]] = [asset("card.css")]
