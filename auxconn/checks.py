"""Numbers that come from outside, taken or refused in the same way everywhere.

Whole numbers come from Python, numpy and JSON. A bool is one in Python, and True blocks is
nobody's intention; 16.0 and NaN are none.
"""

from __future__ import annotations

import math
import operator
from numbers import Real
from typing import Any

from auxconn.errors import MOST_CAPACITY, CapacityError
from auxconn.texts import shown


def whole(value: Any) -> int | None:
    """Return `value` as Python's int, or None when it is no whole number."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def number(value: Any) -> float | None:
    """Return `value` as Python's float, or None when it is no number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def check_bool(name: str, value: Any) -> bool:
    """Return a switch.

    Raises
    ------
    ValueError
        When it is neither True nor False.
    """
    if not isinstance(value, bool):
        raise ValueError(f"{name}={shown(value)} is not a switch; give True or False")
    return value


def check_whole(
    name: str, value: Any, least: int, most: int | None = None, default: str = ""
) -> int:
    """Return `value` as Python's int.

    Parameters
    ----------
    name
        What it is, for the error.
    default
        What None stands for where it is allowed, for the error alone.

    Raises
    ------
    ValueError
        When it is no whole number, or out of range.
    """
    wanted = f"at least {least}" + ("" if most is None else f" and at most {most}")
    if default:
        wanted += f" (or None for {default})"
    number = whole(value)
    if number is None:
        raise ValueError(
            f"{name}={shown(value)} is not a whole number; give one of {wanted}"
        )
    if number < least or (most is not None and number > most):
        raise ValueError(f"{name}={shown(number)} is out of range; it must be {wanted}")
    return number


def check_capacity(value: Any) -> int:
    """Return a capacity as Python's int.

    Raises
    ------
    CapacityError
        When it isn't a whole number from 1 to `MOST_CAPACITY`.
    """
    number = whole(value)
    if number is None or not 1 <= number <= MOST_CAPACITY:
        raise CapacityError(value)
    return number
