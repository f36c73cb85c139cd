"""The page: what `panel serve dashboard/app.py` and `auxconn demo` show.

One session per browser, one hub per server. Imported by the CLI as
`auxconn_dashboard.app`; run by `panel serve` as a script, hence absolute imports.
"""

from __future__ import annotations

import atexit
import functools
from typing import Any

import panel as pn

from auxconn_dashboard.hub import Hub
from auxconn_dashboard.session import HUB_KEY, Dashboard
from auxconn_dashboard.theme import THEMES, asset

pn.extension(reconnect=True, notifications=False, loading_indicator=False)


def hub() -> Hub:
    """The one hub of this server; a lab or a collector is started for the first page."""

    def start() -> Hub:
        made = Hub.from_environment()
        atexit.register(made.close)
        return made

    found: Hub = pn.state.as_cached(HUB_KEY, start)
    return found


def page() -> Any:
    """Build the page of one browser."""
    dashboard = Dashboard(hub(), page=True)
    _from_address(dashboard)
    pn.state.onload(dashboard.start)
    pn.state.on_session_destroyed(lambda _: dashboard.close())
    # A template set on the document, not `pn.Template`, which renders all models twice.
    if pn.state.curdoc is not None:
        pn.state.curdoc.template = _template()
    return dashboard


@functools.cache
def _template() -> Any:
    from panel.io.resources import _env

    return _env.from_string(asset("page.html"))


def _from_address(dashboard: Dashboard) -> None:
    """Take what the address says, and keep it there; nonsense in it is left aside."""
    location = pn.state.location
    if location is None:
        return
    asked = location.query_params
    if asked.get("theme") in THEMES:
        dashboard.bar.chosen = True
    for name in Dashboard.ADDRESS:
        if name in asked:
            objects = getattr(dashboard.param[name], "objects", None)
            if objects is not None and asked[name] not in objects:
                continue
            setattr(dashboard, name, type(getattr(dashboard, name))(asked[name]))


if pn.state.served:
    page().servable(title="auxconn")
