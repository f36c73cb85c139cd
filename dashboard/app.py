"""The page: what `panel serve dashboard/app.py` and `auxconn demo` show.

One session per browser, one hub per server. Imported by the CLI as
`auxconn_dashboard.app`; run by `panel serve` as a script, hence absolute imports.
"""

from __future__ import annotations

import atexit
import functools
import logging
from typing import Any

import panel as pn
import param

from auxconn_dashboard.hub import Hub
from auxconn_dashboard.session import HUB_KEY, Dashboard
from auxconn_dashboard.theme import asset

pn.extension(reconnect=True, notifications=False, loading_indicator=False)
# Two lines for each tick of each browser are no news.
logging.getLogger("panel.io.callbacks").setLevel(logging.WARNING)


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
    asked = _from_address()
    dashboard = Dashboard(hub(), page=True, chosen="theme" in asked, **asked)
    _keep_address(dashboard)
    pn.state.onload(dashboard.start)
    pn.state.on_session_destroyed(lambda _: dashboard.close())
    # A template set on the document, not `pn.Template`, which renders all models twice.
    if pn.state.curdoc is not None:
        pn.state.curdoc.template = _template()
    return dashboard


def _keep_address(dashboard: Dashboard) -> None:
    """Write what is looked at into the address, so that it can be sent to somebody."""
    location = pn.state.location
    if location is not None:
        dashboard.param.watch(
            lambda *events: location.update_query(
                **{one.name: one.new for one in events}
            ),
            list(Dashboard.ADDRESS),
        )


@functools.cache
def _template() -> Any:
    from panel.io.resources import _env

    return _env.from_string(asset("page.html"))


def _from_address() -> dict[str, Any]:
    """What the address says of the view; nonsense in it is left aside."""
    said = pn.state.location.query_params if pn.state.location is not None else {}
    found: dict[str, Any] = {}
    for name in Dashboard.ADDRESS:
        value = said.get(name)
        kind = Dashboard.param[name]
        allowed = getattr(kind, "objects", None)
        if isinstance(kind, param.List):
            if isinstance(value, list):
                found[name] = [str(one) for one in value]
        elif allowed is not None:
            if value in allowed:
                found[name] = value
        elif value is not None:
            found[name] = str(value)
    return found


if pn.state.served:
    page().servable(title="auxconn")
