"""A method for each table, for whatever can give a table as pandas by its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


class ByTable:
    """Has the tables as methods; `frame` is what they call."""

    if TYPE_CHECKING:
        frame: Callable[..., pd.DataFrame]

    def steps(self, **how: Any) -> pd.DataFrame:
        """The table `steps`; arguments as for `frame`."""
        return self.frame("steps", **how)

    def lookups(self, **how: Any) -> pd.DataFrame:
        """The table `lookups`; arguments as for `frame`."""
        return self.frame("lookups", **how)

    def blocks(self, **how: Any) -> pd.DataFrame:
        """The table `blocks`; arguments as for `frame`."""
        return self.frame("blocks", **how)

    def rows(self, **how: Any) -> pd.DataFrame:
        """The table `rows`; arguments as for `frame`."""
        return self.frame("rows", **how)

    def store(self, **how: Any) -> pd.DataFrame:
        """The table `store`; arguments as for `frame`."""
        return self.frame("store", **how)

    def requests(self, **how: Any) -> pd.DataFrame:
        """The table `requests`; arguments as for `frame`."""
        return self.frame("requests", **how)

    def events(self, **how: Any) -> pd.DataFrame:
        """The table `events`; arguments as for `frame`."""
        return self.frame("events", **how)
