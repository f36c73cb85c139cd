"""From a ring's columns to a pandas frame, with the dtypes people expect.

Apart from `frames` so that an engine process, which only ever writes, does not import pandas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from auxconn.packing import Layout, Values

_LAST_SECOND = 9.2e9
"""Seconds from 1970 that still fit a 64-bit count of nanoseconds (the year 2261)."""


def data_frame(
    plan: Layout, raw: Mapping[str, Values], engines: Sequence[str]
) -> pd.DataFrame:
    """Make a frame of the columns in `raw`, in their order.

    Parameters
    ----------
    raw
        Columns as a ring keeps them: categories and engines as codes, `t` in seconds.
    engines
        Name of each engine code.
    """
    fields = {field.column.name: field for field in plan.fields}
    data: dict[str, Any] = {}
    for name, values in raw.items():
        if name == "engine":
            data[name] = _engines(values, engines)
        elif name == "t":
            data[name] = timestamps(values)
        elif name in fields and fields[name].codes:
            kind = pd.CategoricalDtype(list(fields[name].column.categories))
            data[name] = pd.Categorical.from_codes(values.astype(np.int8), dtype=kind)
        elif name in fields and fields[name].text_limit:
            data[name] = pd.array(values, dtype="str")
        else:
            data[name] = values
    return pd.DataFrame(data, copy=False)


def timestamps(seconds: Values) -> pd.DatetimeIndex:
    """UTC timestamps of wall clock `seconds`, to the microsecond; NaT for what is none."""
    known = np.abs(seconds) < _LAST_SECOND
    micros = np.round(np.where(known, seconds, 0.0) * 1e6).astype(np.int64)
    moments = (micros * 1000).view("M8[ns]")
    moments[~known] = np.datetime64("NaT")
    return pd.DatetimeIndex(moments, tz="UTC")


def _engines(codes: Values, engines: Sequence[str]) -> pd.Categorical:
    """Only the engines with rows, in the order in which they were first seen."""
    present, places = np.unique(codes, return_inverse=True)
    kind = pd.CategoricalDtype(
        pd.Index([engines[code] for code in present], dtype="str")
    )
    return pd.Categorical.from_codes(places, dtype=kind)
