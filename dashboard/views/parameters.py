"""The parameters of a workload: what each is, what it may be, and what it is now."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from auxconn.lab.workload_specs import KINDS, Parameter

from .. import words
from ..changes import label, number
from ..theme import asset
from .component import Component, fixed, script

MOST_TEXT = 40
"""Letters of a value that are looked at."""


class ParametersForm(Component):
    """The form in the browser; `state` has kind, values and disabled."""

    _esm = script("parameters.js")
    _stylesheets: ClassVar[list[Any]] = [asset("parameters.css")]


class ParametersView:
    """A form that is filled in at leisure and applied as a whole.

    Parameters
    ----------
    apply
        Called with the workload's name and the values that were entered, unchecked.
    """

    def __init__(self, apply: Callable[[str, dict[str, Any]], None]) -> None:
        self._apply = apply
        kinds = {
            name: [_field(one) for one in kind.parameters]
            for name, kind in KINDS.items()
        }
        self.source = ParametersForm(
            name="auxconn-parameters",
            fixed=fixed(kinds=kinds),
            sizing_mode="stretch_width",
            margin=0,
        )
        self.source.on_message = self.ask
        self.root = self.source

    def show(self, kind: str, values: Mapping[str, Any], disabled: bool) -> bool:
        """Show what is in force; parameters left out are at their defaults."""
        return self.source.show(
            kind=kind,
            values={name: f"{value}" for name, value in values.items()},
            disabled=disabled,
        )

    def ask(self, said: dict[str, Any]) -> None:
        """Take what was entered; what was left empty is left out."""
        kind, entered = said.get("kind"), said.get("values")
        if kind not in KINDS or not isinstance(entered, dict):
            return
        known = KINDS[kind].defaults
        texts = {
            name: str(text).strip()[:MOST_TEXT]
            for name, text in entered.items()
            if name in known
        }
        self._apply(kind, {name: number(text) for name, text in texts.items() if text})


def _field(one: Parameter) -> dict[str, Any]:
    """What the form has to know of a parameter."""
    least, most = (_limit(limit) for limit in (one.least, one.most))
    nothing = "nothing" if one.default is None else f"{one.default}"
    return {
        "name": one.name,
        "label": label(one.name),
        # "prompt tokens" says it already.
        "unit": "" if label(one.name).endswith(one.unit) else one.unit,
        "default": "" if one.default is None else f"{one.default}",
        "hint": f"{one.help} {least} to {most}{f' {one.unit}' if one.unit else ''}; "
        f"left empty: {nothing}.",
    }


def _limit(value: float) -> str:
    return words.whole(value) if value == int(value) else f"{value:g}"
