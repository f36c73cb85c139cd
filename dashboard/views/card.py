"""The head of a card: what a plot shows, in words, colours and the newest numbers.

A legend drawn by Bokeh lives on the canvas: it does not wrap on a narrow screen, cannot be
reached with the keyboard and has no room for a number. This one is HTML, carries each
band's newest value, and toggles bands; the plot stacks what is left anew.
"""

from __future__ import annotations

from typing import Any, ClassVar

from ..theme import asset
from .component import Component, script


class CardHead(Component):
    """Title, legend, choice of units, explanation and note of one plot.

    `fixed` has title, unit, help, chips, options and height; `state` has values and note.
    """

    _esm = script("card.js")
    _stylesheets: ClassVar[list[Any]] = [asset("card.css")]
