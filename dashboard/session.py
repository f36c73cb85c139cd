"""One browser's page: it asks the hub for snapshots and hands them to its views.

Every session has views, a window, a theme and a pace of its own, and pulls: nothing is
pushed into it from a thread, so a closed one is garbage like any other object. A tick that
fails is caught here, counted and shown, because Panel would log it and go on for ever.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
import weakref
from typing import Any, ClassVar

import panel as pn
import param
from panel.io.notebook import block_comm, push

from . import kernel, words
from .controls import Controls
from .hub import READ_ONLY, Hub
from .layout import Layout, ViewSettings
from .recorder import RecordControl
from .snapshot import LONG_WINDOWS, WINDOWS, Snapshot, Window
from .steering import Steering
from .theme import THEMES
from .together import ALL
from .views.axis import TimeAxis
from .views.banner import RESTART, BannerView
from .views.base import Plot
from .views.component import fixed
from .views.cost import CostPlot
from .views.engines import EnginesView
from .views.events import EventsView
from .views.hits import HitsPlot
from .views.indicators import IndicatorsView
from .views.loading import LoadingPlot
from .views.lookups import LookupsView
from .views.pool import PoolPlot
from .views.reasons import ReasonsView
from .views.replay import ReplayView
from .views.retained import ReleasedPlot, RetainedPlot
from .views.rows import RowsPlot
from .views.store import StorePlot
from .views.topbar import KEYS, TopBar, facts, state_words, windows

logger = logging.getLogger(__name__)

HUB_KEY = "auxconn.hub"
"""Where the server keeps its one hub."""

PLOTS: tuple[type[Plot], ...] = (
    HitsPlot,
    RetainedPlot,
    ReleasedPlot,
    LoadingPlot,
    RowsPlot,
    StorePlot,
    PoolPlot,
    CostPlot,
)
"""Plots in the order of the page."""

REFRESH = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds between two drawings, to choose from."""

TICK_SECONDS = 0.2
"""Answers, states and ages are looked at so often, whatever the refresh rate."""

UNSEEN_SECONDS = 5.0
"""A page in a hidden tab is not drawn, and reads on this seldom."""

MOST_UNHEARD = 15
"""Ticks that a browser may be behind before it is sent no more until it has caught up."""

MOST_FAILURES = 10
"""Ticks that fail one after the other before the page stops trying."""

_open: weakref.WeakSet[Dashboard] = weakref.WeakSet()


def open_sessions() -> int:
    """Pages that are open in this process; for tests and for `sessions` in the menu."""
    return len(_open)


class Dashboard(pn.viewable.Viewer):
    """The page, or the view below a notebook's cell.

    Parameters
    ----------
    hub
        Where snapshots come from.
    page
        True when it has a browser's page for itself: keys, theme of the page, address.
    chosen
        True when the theme was asked for, and is not to be the browser's preference.
    """

    engine = param.String(
        "",
        doc="Engine that is looked at; empty is the first one, `together.ALL` all of them.",
    )
    only = param.List(
        default=[],
        item_type=str,
        doc="Of all engines, those that are added up; empty is all.",
    )
    window = param.Selector(
        default=60,
        objects=[*WINDOWS, *LONG_WINDOWS[1:]],
        doc="Seconds of history shown while following.",
    )
    refresh = param.Selector(default=0.5, objects=list(REFRESH))
    paused = param.Boolean(False, doc="The view stands still; the reading goes on.")
    theme = param.Selector(default="light", objects=list(THEMES))
    controls_shown = param.Boolean(True)

    ADDRESS: ClassVar[tuple[str, ...]] = (
        "engine",
        "only",
        "window",
        "refresh",
        "theme",
    )
    """Parameters that stand in the page's address."""

    def __init__(
        self, hub: Hub, *, page: bool = False, chosen: bool = False, **params: Any
    ) -> None:
        super().__init__(**params)
        self.hub = hub
        if self.window not in hub.windows:
            self.window = hub.windows[0]
        self._page = page
        self.snapshot: Snapshot | None = None
        self.failures = 0
        self.problem = ""
        self.ticks = self.draws = 0
        self.seen = True
        """False while the browser's tab is hidden."""
        self._shown = False
        self._drawn = 0.0
        self._pinned: tuple[float, float] | None = None
        self._paused_at = 0.0
        self._callback: Any = None
        self._cells: kernel.CellTicks | None = None
        self._document: Any = None
        self._away = False
        _open.add(self)
        theme = THEMES[self.theme]
        self.axis = TimeAxis(self._pin)
        self.steering = Steering(self._send)
        self.bar = TopBar(
            name="auxconn-topbar",
            fixed=fixed(
                windows=windows(hub.windows),
                keys=KEYS,
                page=page,
                chosen=chosen,
                replay=hub.player is not None,
            ),
            sizing_mode="stretch_width",
        )
        self.bar.on_message = self._from_bar
        self.banner = BannerView(hub.address, hub.noun, self.act)
        self.indicators = IndicatorsView()
        self.engines = EnginesView(self._look_at, self._add_up)
        self.plots = {kind.key: kind(self.axis, theme) for kind in PLOTS}
        self.lookups = LookupsView(hub.store)
        self.reasons = ReasonsView()
        self.events = EventsView()
        self.controls = Controls(self.steering)
        self.settings = ViewSettings(hub, self.param.refresh, REFRESH)
        head, side = [self.bar], [self.controls.root, self.settings.root]
        self.replay: ReplayView | None = None
        self.record: RecordControl | None = None
        if hub.player is not None:
            self.replay = ReplayView(hub.player)
            head.append(self.replay.source)
        elif hub.has_rows:
            self.record = RecordControl(
                hub.tape, READ_ONLY.capitalize() if hub.read_only else ""
            )
            side.append(self.record.root)
        self.layout = Layout(
            head,
            side,
            self.banner.root,
            [self.indicators.root, *(view.root for view in self.views[1:])],
            embedded=not page,
        )
        self.param.watch(self._restyle, "theme")
        self.param.watch(self._rewindow, ["engine", "only", "window"])
        self.param.watch(self._repaced, "paused")
        self._restyle()

    def __panel__(self) -> Any:
        return self.layout.root

    # Ticks

    def start(self) -> None:
        """Begin to tick; for a notebook and for a page that has loaded."""
        if self._callback is None:
            self._document = pn.state.curdoc
            self.tick()
            self._callback = pn.state.add_periodic_callback(
                self._loop_tick, period=int(1000 * TICK_SECONDS)
            )
            shell = kernel.shell()
            if shell is not None and self._document is None:
                self._cells = kernel.CellTicks(shell, self.tick, TICK_SECONDS)

    def _loop_tick(self) -> None:
        self.tick()
        if self._cells is not None:
            self._cells.seen()

    def stop(self) -> None:
        """Tick no more. Safe to call again."""
        if self._callback is not None:
            self._callback.stop()
            self._callback = None
        if self._cells is not None:
            self._cells.stop()
            self._cells = None

    def close(self) -> None:
        """The browser is gone: let go of everything that outlives it."""
        self.stop()
        self.bar.on_message = None
        self.banner.source.on_message = None
        if self.replay is not None:
            self.replay.source.on_message = None
        _open.discard(self)

    def tick(self) -> None:
        """Look at the hub; draw when it is time. Never raises."""
        with kernel.TURN:
            self._try_tick()

    def _try_tick(self) -> None:
        if not all(_opened(ref) for ref in self.layout.root._models):
            # Panel sends a widget's change at once, open or not: it would be lost, and as
            # nothing changes any more never be sent again.
            return
        try:
            with pn.io.hold() if self._page else block_comm():
                self._tick()
            if not self._page:
                self._push()
        except Exception as problem:  # a failing tick must be seen, not only logged
            self.failures += 1
            self.problem = f"{type(problem).__name__}: {problem}"
            logger.exception("a tick of the page failed (%d in a row)", self.failures)
            self._tell_failure()
            if not self._page:
                # What could not be sent is told all the same when something can be.
                with contextlib.suppress(Exception):
                    self._push()
            if self.failures >= MOST_FAILURES:
                self.stop()

    def _push(self) -> None:
        """Over a notebook's comm nothing goes that Panel did not change itself.

        A cell that was run again or cleared has taken its view away: the ticks end with it.
        """
        if self.layout.root._models:
            self._shown = True
            for _, incoming in self.layout.root._comms.values():
                kernel.take_turns(incoming)
            for ref in self.layout.root._models:
                _send_all(ref)
        elif self._shown:
            self.close()

    def _listening(self) -> bool:
        """True while there is a browser that takes in what it is sent.

        A server keeps the session of a browser that has gone for a while, and one that
        stands still (a laptop that sleeps) would be sent all it missed: both would be drawn
        for, and the second would pile up in memory.
        """
        context = getattr(self._document, "session_context", None)
        session = getattr(context, "session", None)
        if session is None:
            return True
        gone = session.connection_count == 0
        if self._away and not gone:
            self.bar.heard = self.bar.sent
            self._drawn = 0.0
        self._away = gone
        unheard = self.bar.sent - self.bar.heard if self._page else 0
        return not gone and unheard < MOST_UNHEARD

    def _tick(self) -> None:
        self.ticks += 1
        if not self._listening():
            if time.monotonic() - self._drawn >= UNSEEN_SECONDS:
                self.hub.advance(self.snapshot)
                self._drawn = time.monotonic()
            return
        pace = self.refresh if self.seen else UNSEEN_SECONDS
        due = time.monotonic() - self._drawn >= pace - TICK_SECONDS / 2
        if due and self.seen and not self.paused:
            self.draw()
        else:
            # The state of the engine and answers to commands never wait for a drawing.
            if due:
                # Nobody looks, but what is read now cannot be overwritten unread.
                self.hub.advance(self.snapshot)
                self._drawn = time.monotonic()
            if self.snapshot is not None:
                self._head(self.snapshot, self._link(self.snapshot))
                if self.steering.busy or self.paused:
                    self.controls.update(self._status(self.snapshot))
        for part in (self.replay, self.record):
            if part is not None:
                part.tell()
        self.bar.tick()

    def draw(self) -> None:
        """Take a snapshot and show it."""
        self.draws += 1
        self._drawn = time.monotonic()
        snapshot = self._look(Window(float(self.window), self._pinned))
        before, self.snapshot = self.snapshot, snapshot
        if before is not None and before.name != snapshot.name:
            self.steering.forget()
        self._head(snapshot, snapshot.link)
        self.axis.update(snapshot)
        problem: Exception | None = None
        for view in (*self.views, self.controls):
            try:
                view.update(snapshot)
            except Exception as one:  # noqa: BLE001 - raised below, when the rest is drawn
                problem = problem or one
        self.settings.tell()
        if problem is not None:
            raise problem
        # Only a drawing clears a fault: the looks between two drawings do too little.
        self.failures = 0

    def _look(self, window: Window, *, wait: bool = False) -> Snapshot:
        if self.engine == ALL:
            return self.hub.together(self.only, window, wait=wait)
        return self.hub.snapshot(self.engine or None, window)

    def _link(self, snapshot: Snapshot) -> Any:
        """How it stands by now with what a snapshot shows."""
        if snapshot.parts:
            return self.hub.links(snapshot)
        if snapshot.name == ALL:
            return snapshot.link
        return self.hub.link(self.engine or None)

    @property
    def views(self) -> list[Any]:
        """Everything that draws snapshots; some of it needs single rows."""
        return [
            self.indicators,
            self.engines,
            *self.plots.values(),
            *([self.lookups] if self.hub.has_rows else []),
            self.reasons,
            *([self.events] if self.hub.has_rows else []),
        ]

    def _status(self, snapshot: Snapshot) -> Snapshot:
        """The kept snapshot with the engine's present facts, for the controls."""
        if snapshot.name == ALL:
            return snapshot
        source = self.hub.source(snapshot.name)
        facts_now = snapshot.facts if source is None else source.facts
        link = self.hub.link(snapshot.name)
        return dataclasses.replace(snapshot, facts=facts_now, link=link)

    # What a user does

    def act(self, action: str) -> None:
        """Do what a button, a key or the menu asks for."""
        if action == "pause" and self.replay is not None:
            self.replay.toggle()
        elif action == "pause":
            self.paused = not self.paused
        elif action == "theme":
            self.theme = "light" if self.theme == "dark" else "dark"
        elif action == "release":
            self.axis.release()
        elif action == "step":
            self.controls.one_step()
        elif action == "engine":
            self.controls.toggle_engine()
        elif action == RESTART:
            self.hub.restart_lab()
            self.draw()
        elif action == "clear" and not self.hub.read_only:
            self.hub.clear()
            self.draw()
        elif action == "controls":
            self.controls_shown = not self.controls_shown
            self.layout.side.visible = self.controls_shown

    def _from_bar(self, said: dict[str, Any]) -> None:
        """The header says what was chosen; only what can be chosen is taken."""
        action, value = str(said.get("action", "")), said.get("value")
        if action == "heard" and isinstance(value, int):
            self.bar.heard = min(value, self.bar.sent)
        elif action == "prefers" and value in THEMES:
            self.theme = value
        elif action == "window" and value in self.hub.windows:
            self.window = value
        elif action == "engine" and value in (ALL, *self.hub.names()):
            self._look_at(str(value))
        elif action == "seen":
            self.seen = bool(value)
            self._drawn = 0.0
        else:
            self.act(action)

    def _look_at(self, name: str) -> None:
        self.engine = name

    def _add_up(self, names: list[str]) -> None:
        self.only = names

    def _rewindow(self, *events: Any) -> None:
        self.axis.release()
        self._pinned = None
        if self.snapshot is None:
            return
        if self.paused and all(event.name == "window" for event in events):
            self._frozen_zoom()
        else:
            self.draw()

    def _pin(self, stretch: tuple[float, float] | None) -> None:
        """A user has zoomed, or follows again."""
        self._pinned = stretch
        if self.snapshot is None:
            return
        if self.paused:
            self._frozen_zoom()
        else:
            self.draw()

    def _frozen_zoom(self) -> None:
        """Zooming in a paused view looks closer at the same stretch; time stands still."""
        held = self.snapshot
        assert held is not None
        window = Window(
            float(self.window), self._pinned or (held.end - self.window, held.end)
        )
        snapshot = self._look(window, wait=True)
        self.axis.update(snapshot)
        for plot in self.plots.values():
            plot.update(snapshot)

    def _repaced(self, *_: Any) -> None:
        self._paused_at = time.time()
        if not self.paused:
            self.draw()
        elif self.snapshot is not None:
            self._head(self.snapshot, self.snapshot.link)

    def _send(self, command: str, **args: Any) -> Any:
        name = self.snapshot.name if self.snapshot is not None else self.engine
        return self.hub.command(name, command, **args)

    def _restyle(self, *_: Any) -> None:
        theme = THEMES[self.theme]
        for plot in self.plots.values():
            plot.restyle(theme)
        self.axis.restyle(theme)
        self.layout.restyle(self.theme)
        if self.snapshot is not None:
            self._head(self.snapshot, self._link(self.snapshot))

    # What is said in the head

    def _head(self, snapshot: Snapshot, link: Any) -> None:
        word, more = state_words(link)
        if self.paused:
            behind = self.hub.behind(snapshot)
            more = (
                f"view paused {words.clock(self._paused_at)}, "
                f"{words.plural(max(behind, 0), 'step')} behind"
            )
        if self.failures:
            more = f"the page has a fault: {words.plain(self.problem, 160)}"
        names = self.hub.names()
        self.bar.show(
            state=link.state,
            word=word,
            more=more,
            facts=facts(snapshot),
            engines=[[ALL, f"all {len(names)}, side by side"], *([n, n] for n in names)]
            if len(names) > 1
            else [],
            engine=snapshot.name,
            window=self.window,
            theme=self.theme,
            zoomed=None if self._pinned is None else list(self._pinned),
            paused=self.paused,
            menu=self._menu(),
        )
        self.banner.update(_with(snapshot, link))
        self.layout.dim(link.state in ("stale", "gone", "stopped"))

    def _menu(self) -> list[dict[str, Any]]:
        found = [
            {
                "label": "Hide controls" if self.controls_shown else "Show controls",
                "action": "controls",
            }
        ]
        if noun := self.hub.noun:
            found.append(
                {
                    "label": f"Restart {noun}",
                    "hint": "Its process is ended and started anew, with the present settings",
                    "action": RESTART,
                    "ask": f"Restart {noun}? Its caches and requests are lost; the history "
                    "on this page is kept.",
                }
            )
        # The history is everybody's: who may only look must not take it from the others.
        if self.replay is None and not self.hub.read_only:
            found.append(
                {
                    "label": "Clear history",
                    "hint": "For everybody who looks at this server",
                    "action": "clear",
                    "ask": "Forget all rows that were read so far, for everybody?",
                }
            )
        return found

    def _tell_failure(self) -> None:
        stopped = "; it has stopped" if self.failures >= MOST_FAILURES - 1 else ""
        text = f"the page has a fault{stopped}: {words.plain(self.problem, 160)}"
        self.bar.show(**{**self.bar.shown, "more": text})


def _with(snapshot: Snapshot, link: Any) -> Snapshot:
    return (
        snapshot if link is snapshot.link else dataclasses.replace(snapshot, link=link)
    )


def _wire(ref: str) -> tuple[Any, Any]:
    """The document of a view and the comm it is sent over; None for what there is not."""
    _, _, document, comm = pn.state._views.get(ref, (None,) * 4)
    return document, comm


def _opened(ref: str) -> bool:
    """True when a view's comm is open; what is sent before that is lost."""
    _, comm = _wire(ref)
    return comm is None or bool(getattr(comm, "_comm", True))


def _send_all(ref: str) -> None:
    """Send what has changed of a view since the last time, in three messages.

    Panel sends by itself, at each change of a widget, and takes two more messages for each
    column of each plot: some four hundred for a drawing. A kernel drops what a busy Jupyter
    server does not fetch in time, at a thousand messages, and a browser that has missed one
    makes nothing out any more.
    """
    document, comm = _wire(ref)
    if comm is not None:
        push(document, comm, binary=False)


def live(what: Any, *, start: bool = True, **params: Any) -> Dashboard:
    """The live view of a lab, of frames, or of a hub, for a notebook's cell.

    It moves while other cells run, too, once it has been drawn: the kernel has to be free for
    a moment after the cell that shows it, which "Run All" does not leave it. What is done in
    it (a click, a number) is carried out when the running cell has ended.

    Parameters
    ----------
    what
        A `Lab` of this process, a `FrameStore`, a `Collector` or a `Hub`.
    start
        Begin to tick at once.
    params
        Parameters of `Dashboard`, `window=300` for instance.

    Raises
    ------
    TypeError
        When it is none of these.
    """
    dashboard = Dashboard(hub_of(what), **params)
    if start:
        dashboard.start()
    return dashboard


def hub_of(what: Any) -> Hub:
    """A hub over whatever can be looked at."""
    if isinstance(what, Hub):
        return what
    if hasattr(what, "frames") and hasattr(what, "facts"):
        from .local import LocalLab

        return Hub(what.frames, LocalLab(what))
    if hasattr(what, "store") and hasattr(what, "sources"):
        return Hub(what.store, what, address=what.address)
    if hasattr(what, "since") and hasattr(what, "tail"):
        return Hub(what)
    raise TypeError(
        f"a {type(what).__name__} cannot be looked at; give a Lab, a FrameStore, a Collector "
        "or a Hub"
    )
