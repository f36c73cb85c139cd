"""The head of a card: what a plot shows, in words, colours and the newest numbers.

A legend drawn by Bokeh lives on the canvas: it does not wrap on a narrow screen, cannot be
reached with the keyboard and has no room for a number. This one is HTML, carries each
band's newest value, and toggles bands; the plot stacks what is left anew.
"""

from __future__ import annotations

from typing import Any, ClassVar

from auxconn.catalogue import METRICS

from ..theme import asset
from .component import Component, script


class CardHead(Component):
    """Title, legend, choice of units, explanation and note of one plot.

    `fixed` has title, unit, help, chips, options and height; `state` has values and note.
    """

    _esm = script("card.js")
    _stylesheets: ClassVar[list[Any]] = [asset("card.css")]


def explanation(names: tuple[str, ...]) -> list[list[str]]:
    """What the catalogue says of some metrics, as paragraphs for the `?`."""
    found: list[list[str]] = []
    tables: dict[str, None] = {}
    for name in names:
        metric = METRICS[name]
        found.append(["said", f"{metric.title}: {metric.help}"])
        by = f", by {metric.split_by}" if metric.split_by else ""
        found.append(["formula", f"{metric.formula}{by}"])
        tables.update(dict.fromkeys(metric.tables))
    if tables:
        found.append(["from", "From the tables: " + ", ".join(tables)])
    return found
