"""What Prometheus remembers of an engine, read back as what was counted and what stood.

Weeks of a cluster are in Prometheus and in no ring of ours. One range query brings every
series of an engine and rank; what came to a counter between two points is taken here and not
by `rate`, since then one question does for all of them and every increase is counted once.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

import numpy as np

from auxconn.errors import AuxConnError
from auxconn.exporter.families import FAMILIES, PREFIX
from auxconn.texts import clip, shown

Values = np.ndarray[Any, np.dtype[Any]]

Name = tuple[str, str]
"""A sample's name without `auxconn:`, and the value of the label it is split by, or empty."""

ANSWER_SECONDS = 20.0
"""Prometheus has so long to answer."""

ANSWER_BYTES = 64 << 20
"""An answer that is longer is refused."""

LOOKED_BACK = "30d"
"""Engines that were heard in so long can be looked at."""


class PrometheusError(AuxConnError):
    """Prometheus cannot be asked, or does not answer as it should."""


class History:
    """A Prometheus that has scraped the exporter.

    Parameters
    ----------
    url
        Of the server, such as http://localhost:9090.

    Raises
    ------
    ValueError
        When that is no http address.
    """

    def __init__(self, url: str) -> None:
        try:
            parts = urllib.parse.urlsplit(url)
        except ValueError:
            parts = urllib.parse.urlsplit("")
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ValueError(
                f"prometheus={shown(url)}: an address like http://localhost:9090 is needed"
            )
        self.url = url.rstrip("/")

    def engines(self) -> dict[tuple[str, int], dict[str, str]]:
        """What each engine and rank said of itself last: `model_name`, `connector` ...

        Raises
        ------
        PrometheusError
            When it cannot be asked.
        """
        found: dict[tuple[str, int], dict[str, str]] = {}
        for name in ("source_up", "engine_info"):
            asked = f"last_over_time({PREFIX}{name}[{LOOKED_BACK}])"
            for series in self._ask("query", query=asked):
                labels = series["metric"]
                rank = labels.get("rank", "")
                if rank.isdigit():
                    found.setdefault((labels["engine"], int(rank)), {}).update(labels)
        return found

    def read(
        self, engine: str, rank: int, edges: Values, past: int | None = None
    ) -> Stretch:
        """Everything known of an engine between the first and the last of `edges`.

        Parameters
        ----------
        edges
            Wall clock in seconds, evenly spaced: points at which Prometheus is asked.
        past
            How many of them are not in the future; all by default.

        Raises
        ------
        PrometheusError
            When it cannot be asked.
        """
        names = "|".join(
            f"{family.exposed.removeprefix(PREFIX)}"
            + ("_(sum|count)" if family.kind == "histogram" else "")
            for family in FAMILIES.values()
        )
        asked = f'{{__name__=~"{PREFIX}({names})", engine={_quoted(engine)}, rank="{rank}"}}'
        width = float(edges[1] - edges[0])
        found = self._ask(
            "query_range",
            query=asked,
            start=f"{edges[0]:.3f}",
            end=f"{edges[(past or len(edges)) - 1] + width / 2:.3f}",
            step=f"{width:.3f}",
        )
        stretch = Stretch(len(edges))
        for series in found:
            labels = series["metric"]
            points = np.array(
                [(at, float(value)) for at, value in series["values"]], dtype=float
            )
            place = np.rint((points[:, 0] - edges[0]) / width).astype(np.int64)
            values = np.full(len(edges), np.nan)
            inside = (place >= 0) & (place < len(edges))
            values[place[inside]] = points[inside, 1]
            stretch.add(labels, values)
        return stretch

    def _ask(self, what: str, **parameters: str) -> list[dict[str, Any]]:
        body = urllib.parse.urlencode(parameters).encode()
        request = urllib.request.Request(f"{self.url}/api/v1/{what}", data=body)
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
                text = answer.read(ANSWER_BYTES + 1)
            if len(text) > ANSWER_BYTES:
                raise ValueError(f"an answer of more than {ANSWER_BYTES} B")
            found = json.loads(text)["data"]["result"]
            if not isinstance(found, list):
                raise ValueError("the result is no list of series")
            return found
        except urllib.error.HTTPError as problem:
            said = problem.read(300).decode(errors="replace")
            raise PrometheusError(self._wrong(f"{problem.code} {said}")) from None
        except (OSError, ValueError, KeyError, TypeError) as problem:
            raise PrometheusError(self._wrong(str(problem))) from None

    def _wrong(self, why: str) -> str:
        return clip(f"Prometheus at {self.url} cannot be asked: {why}", 300)


class Stretch:
    """Series of one engine over the same points.

    Parameters
    ----------
    points
        How many.
    """

    def __init__(self, points: int) -> None:
        self.points = points
        self._counted: dict[Name, Values] = {}
        self._stood: dict[Name, Values] = {}

    def add(self, labels: dict[str, str], values: Values) -> None:
        """Add one series; of several under one name, counts add up and levels follow."""
        name = labels.get("__name__", "").removeprefix(PREFIX)
        key = name, _SPLITS.get(name, "") and labels.get(_SPLITS[name], "")
        before, after = values[:-1], values[1:]
        with np.errstate(invalid="ignore"):
            # A counter that fell began anew, at 0.
            came = np.where(after < before, after, after - before)
        if key in self._counted:
            old = self._counted[key]
            self._counted[key] = np.where(
                np.isnan(old), came, old + np.nan_to_num(came)
            )
            self._stood[key] = np.where(np.isnan(values), self._stood[key], values)
        else:
            self._counted[key], self._stood[key] = came, values

    def counted(self, name: str, label: str = "") -> Values:
        """What came to a counter between each two points; NaN where it is not known."""
        found = self._counted.get((name, label))
        return np.full(self.points - 1, np.nan) if found is None else found

    def stood(self, name: str) -> Values:
        """A level at the end of each stretch between two points; NaN where unknown."""
        found = self._stood.get((name, ""))
        return np.full(self.points - 1, np.nan) if found is None else found[1:]


_SPLITS = {
    family.exposed.removeprefix(PREFIX): family.label for family in FAMILIES.values()
}
"""Label that each name is split by; empty for none."""


def _quoted(text: str) -> str:
    """A text as PromQL writes it; JSON's escapes are among Go's."""
    return json.dumps(text, ensure_ascii=False)
