"""What stands above the plots when there are no live numbers, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import panel as pn

from .. import words
from ..snapshot import Snapshot
from ..theme import asset
from .component import Component, script

STAGES = (
    ("spawn", "process"),
    ("import", "import vLLM"),
    ("engine", "build engine"),
    ("workload", "workload"),
    ("ready", "first step"),
)
"""Stages of a lab's start and what they are called."""

VLLM_STAGES = (
    ("spawn", "toy model"),
    ("import", "import vLLM"),
    ("engine", "engine process"),
    ("worker", "worker process"),
    ("load", "load model"),
    ("serve", "HTTP server"),
    ("ready", "first step"),
)
"""Those of a real engine's start, as its supervisor tells them."""

RESTART = "restart"


class Notice(Component):
    """The banner in the browser.

    `state` has kind (`wait`, `bad`, `info`; empty hides it), title, text, code, action (name
    and label of a button), stages (pairs of a name and done, now or later) and fraction.
    """

    _esm = script("banner.js")
    _stylesheets: ClassVar[list[Any]] = [asset("banner.css")]


class BannerView:
    """Says why numbers are missing or old.

    Parameters
    ----------
    address
        Where engines connect to.
    own
        What the engine is called that this server runs, `the lab` for instance; empty
        when it runs none.
    """

    def __init__(
        self, address: str, own: str, on_action: Callable[[str], None]
    ) -> None:
        self._address = address
        self._own = own
        self.source = Notice(name="auxconn-banner", sizing_mode="stretch_width")
        self.source.on_message = lambda said: on_action(str(said.get("action", "")))
        self.root = pn.Column(
            self.source,
            css_classes=["ac-banner"],
            sizing_mode="stretch_width",
            margin=0,
            visible=False,
        )

    def update(self, snapshot: Snapshot) -> bool:
        """Say how it stands; False when it stands as before."""
        said = self.says(snapshot)
        if not self.source.show(**said):
            return False
        if self.root.visible != bool(said["kind"]):
            self.root.visible = bool(said["kind"])
        return True

    def says(self, snapshot: Snapshot) -> dict[str, Any]:
        """The banner's words for a snapshot."""
        link = snapshot.link
        said: dict[str, Any] = {
            "kind": "", "title": "", "text": "", "code": "", "action": [], "stages": [],
            "fraction": 0.0,
        }  # fmt: skip
        if link.state == "starting":
            vllm = self._own == "vLLM" or link.stage in _ONLY_VLLM
            said.update(
                kind="wait",
                title=_STARTING_TITLES.get(self._own, "An engine is starting"),
                text=_STARTING_VLLM if vllm else _STARTING,
                stages=stages(link.stage, VLLM_STAGES if vllm else STAGES),
                fraction=round(link.fraction, 2),
            )
        elif link.state == "none":
            said.update(
                kind="info",
                title="No engine has connected yet",
                text="Start vLLM with the plugin switched on, or an engine of the lab:",
                code=f"AUXCONN_COLLECTOR={self._address} vllm serve …  "
                "--enable-return-routed-experts",
            )
        elif link.state in ("stale", "gone", "stopped"):
            ended = words.plain(link.text, 200)
            said.update(
                kind="bad",
                title="The engine does not answer",
                text=(f"{ended[:1].upper()}{ended[1:]}. " if ended else "")
                + "What is shown is the last it said; it goes on by itself when the engine "
                "comes back.",
                action=[RESTART, f"Restart {self._own}"] if self._own else [],
            )
        return said


def stages(now: str, known: tuple[tuple[str, str], ...] = STAGES) -> list[list[str]]:
    """Stages of a start: those done, the present one, those to come."""
    names = [name for name, _ in known]
    at = names.index(now) if now in names else 0
    return [
        [label, "done" if index < at else "now" if index == at else "later"]
        for index, (_, label) in enumerate(known)
    ]


_ONLY_VLLM = {name for name, _ in VLLM_STAGES} - {name for name, _ in STAGES}

_STARTING_TITLES = {"the lab": "The lab is starting", "vLLM": "vLLM is starting"}
_STARTING = (
    "vLLM's scheduler is being imported and built; it takes some seconds. The page goes live "
    "by itself."
)
_STARTING_VLLM = (
    "vLLM's processes are being started, a model loaded and its HTTP server opened; it takes "
    "about a minute. The page goes live by itself."
)
