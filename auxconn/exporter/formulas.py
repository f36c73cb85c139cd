"""The catalogue's formulas, read as what they are: small programs over columns.

A metric that is written down twice, once for people and once for Prometheus, will differ
some day. So the formula that `docs/metrics.md` shows is the one that is computed here, on
whole arrays of new rows.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from functools import cache, reduce
from typing import Any, Literal

import msgspec
import numpy as np

Values = np.ndarray[Any, np.dtype[Any]]

Kind = Literal["sum", "count", "mean", "median", "last", "ratio"]

_WHERE = re.compile(r"\s+where\s+(\w+)\.(\w+)\s*=\s*(\w+)")

_OPERATORS: dict[type[ast.operator], Callable[..., Values]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Div: np.divide,
}
_FUNCTIONS: dict[str, Callable[..., Values]] = {"max": np.maximum, "min": np.minimum}


class FormulaError(ValueError):
    """A formula of the catalogue that is not of a form known here."""


class Formula(msgspec.Struct, frozen=True):
    """What one formula does with the rows of a table."""

    kind: Kind
    table: str
    value: str
    """Expression of columns, one number per row; for a ratio, of what is divided."""
    where: tuple[str, str] | None = None
    """Column and the value it has in the rows that count; None for all rows."""
    divisor: str = ""
    """For a ratio, the expression of what is divided by."""
    per_second: bool = False
    floored: bool = False
    """Whether less than 0 is 0."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that have to be read, each once."""
        tree = _tree(self.value)
        named = [
            node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)
        ]
        if self.where is not None:
            named.append(self.where[0])
        return tuple(dict.fromkeys(named))

    def values(self, columns: Mapping[str, Values]) -> Values:
        """The number of each row, float64; 1 for a count."""
        if self.kind == "count":
            return np.ones(len(next(iter(columns.values()))))
        with np.errstate(divide="ignore", invalid="ignore"):
            found = _evaluate(_tree(self.value), columns).astype(np.float64)
        return np.maximum(found, 0.0) if self.floored else found

    def chosen(self, columns: Mapping[str, Values]) -> Values | None:
        """Which rows count; None when all do."""
        if self.where is None:
            return None
        name, wanted = self.where
        return np.asarray(columns[name] == wanted, dtype=bool)


def parse(text: str) -> Formula:
    """Read a formula of the catalogue; `FormulaError` when it is of no known form."""
    found = _WHERE.search(text)
    where = (found[2], found[3]) if found else None
    try:
        tree = ast.parse(_WHERE.sub("", text), mode="eval").body
    except SyntaxError as problem:
        raise FormulaError(f"{text!r} is no formula: {problem.msg}") from None
    match tree:
        case ast.BinOp(left=ast.Call() as call, op=ast.Div(), right=ast.Name(id="s")):
            return _call(text, call, where, per_second=True)
        case ast.BinOp(
            left=ast.Call(func=ast.Name(id="sum"), args=[value]),
            op=ast.Div(),
            right=ast.Call(func=ast.Name(id="sum"), args=[divisor]),
        ):
            over = ast.unparse(divisor)
            return Formula(
                "ratio", _table(text, value), ast.unparse(value), where, over
            )
        case ast.Call(
            func=ast.Name(id="max"), args=[ast.Constant(value=0), ast.Call() as call]
        ):
            return _call(text, call, where, floored=True)
        case ast.Call() as call:
            return _call(text, call, where)
    raise FormulaError(
        f"{text!r}: a formula begins with sum, count, mean, median, last"
    )


def _call(
    text: str,
    call: ast.Call,
    where: tuple[str, str] | None,
    *,
    per_second: bool = False,
    floored: bool = False,
) -> Formula:
    match call:
        case ast.Call(
            func=ast.Name(id="sum" | "count" | "mean" | "median" | "last" as kind),
            args=[value],
        ):
            return Formula(
                kind,
                _table(text, value),
                ast.unparse(value),
                where,
                per_second=per_second,
                floored=floored,
            )
    raise FormulaError(
        f"{text!r}: {ast.unparse(call)!r} is none of sum, count, mean, median, last"
    )


def _table(text: str, value: ast.expr) -> str:
    tables = {
        node.value.id
        for node in ast.walk(value)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    if len(tables) != 1:
        raise FormulaError(f"{text!r} is of {len(tables)} tables; it can be of one")
    return tables.pop()


@cache
def _tree(value: str) -> ast.expr:
    return ast.parse(value, mode="eval").body


def _evaluate(node: ast.expr, columns: Mapping[str, Values]) -> Values:
    match node:
        case ast.Attribute(attr=name):
            return columns[name]
        case ast.Constant(value=int() | float() as number):
            return np.asarray(number)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](
                _evaluate(left, columns), _evaluate(right, columns)
            )
        case ast.Call(func=ast.Name(id=name), args=args) if name in _FUNCTIONS:
            parts = [_evaluate(part, columns) for part in args]
            return reduce(_FUNCTIONS[name], parts)
    raise FormulaError(f"{ast.unparse(node)!r} cannot be computed")
