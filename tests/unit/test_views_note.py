"""A note's change sends its text alone, also once a notebook has replaced its styles."""

from __future__ import annotations

import panel as pn
from bokeh.document import Document
from panel.io.notebook import patch_inline_stylesheets
from pyviz_comms import Comm

from auxconn_dashboard.views.note import Note


class Silent(Comm):
    def init(self, *_, **__):
        """Nobody is there."""

    def send(self, *_, **__):
        """Nobody is there."""


def sent_by_a_change(pane):
    """What a change of text changes in the browser, in a notebook that brings its scripts."""
    document = Document()
    root = pn.Column(pane)._render_model(document, Silent())
    for model in root.references():
        if hasattr(model, "stylesheets"):
            patch_inline_stylesheets(model)
    sent = []
    document.on_change(lambda event: sent.append(event.attr))
    pane.object = "after"
    return sent


def test_a_change_sends_the_text_alone():
    assert sent_by_a_change(Note("before")) == ["text"]


def test_panels_own_pane_still_needs_this():
    """When this fails, Panel has mended it and `Note` can go."""
    assert "stylesheets" in sent_by_a_change(pn.pane.HTML("before"))
