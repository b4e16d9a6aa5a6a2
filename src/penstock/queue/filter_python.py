"""The meaning of a filter, for one message: a closure. Pure.

Contract     compile_row(tree)(row) -> str, float, bool or None; None is NULL. SQL's three-valued
             logic: NULL with anything is NULL, except that FALSE AND NULL is FALSE and TRUE OR
             NULL is TRUE. Nothing raises: a division by zero, a result that float64 cannot hold
             and text that is no number are NULL.
             Text compares by code point. `/` divides without rounding, `%` has the sign of the
             dividend, CAST AS INT cuts the fraction off.
Invariants   filter_arrow.py gives the same for every row (tests/property/test_filter.py).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from penstock.queue.filter_like import like_matcher
from penstock.queue.filter_nodes import (
    META,
    And,
    Arithmetic,
    Between,
    Call,
    Case,
    Cast,
    Coalesce,
    Compare,
    Header,
    In,
    IsNull,
    IsTruth,
    Kind,
    Like,
    Literal,
    Meta,
    Negate,
    Node,
    Not,
    Or,
)
from penstock.queue.filter_number import finite, number_of, text_of
from penstock.queue.rows import Row

Value = str | float | bool | None
OfRow = Callable[[Row], Any]

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "%": math.fmod,
}
_UPPER = {ord(lower): ord(lower) - 32 for lower in "abcdefghijklmnopqrstuvwxyz"}
_LOWER = {upper: lower for lower, upper in _UPPER.items()}


def compile_row(node: Node) -> OfRow:
    match node:
        case Literal(value):
            return lambda row: value
        case Header(name):
            return lambda row: row.headers.get(name)
        case Meta(name):
            field = operator.attrgetter(META[name])
            return lambda row: float(field(row))
        case Negate():
            return _unless_null(compile_row(node.node), lambda number: 0.0 - number)
        case Cast():
            return _unless_null(compile_row(node.node), _caster(node))
        case Call():
            return _unless_null(compile_row(node.node), _CALLS[node.name])
        case Arithmetic():
            return _arithmetic(node)
        case Compare():
            return _compare(node)
        case Between():
            low = compile_row(Compare(">=", node.node, node.low, node.kind))
            high = compile_row(Compare("<=", node.node, node.high, node.kind))
            return _decided_by(False, (low, high))
        case In():
            return _in(node)
        case Like():
            return _unless_null(compile_row(node.node), like_matcher(node.pattern, node.escape))
        case IsNull():
            inner = compile_row(node.node)
            return lambda row: inner(row) is None
        case IsTruth(_, truth):
            inner = compile_row(node.node)
            return lambda row: inner(row) is truth
        case Not():
            return _unless_null(compile_row(node.node), operator.not_)
        case And():
            return _decided_by(False, tuple(map(compile_row, node.parts)))
        case Or():
            return _decided_by(True, tuple(map(compile_row, node.parts)))
        case Case():
            return _case(node)
        case Coalesce():
            return _coalesce(tuple(map(compile_row, node.parts)))


def _unless_null(inner: OfRow, then: Callable[[Any], Value]) -> OfRow:
    def evaluate(row: Row) -> Value:
        value = inner(row)
        return None if value is None else then(value)

    return evaluate


def _caster(node: Cast) -> Callable[[Any], Value]:
    if node.to == "TEXT":
        return text_of if node.source is Kind.NUMBER else str
    if node.source is not Kind.TEXT:
        return _whole if node.to == "INT" else float
    if node.to == "DOUBLE":
        return number_of

    def whole_of(text: str) -> float | None:
        number = number_of(text)
        return None if number is None else _whole(number)

    return whole_of


def _whole(number: float) -> float:
    return float(math.trunc(number))


_CALLS: dict[str, Callable[[str], Value]] = {
    "LOWER": lambda text: text.translate(_LOWER),
    "UPPER": lambda text: text.translate(_UPPER),
    "LENGTH": lambda text: float(len(text)),
}


def _arithmetic(node: Arithmetic) -> OfRow:
    left, right = compile_row(node.left), compile_row(node.right)
    compute, divides = _ARITHMETIC[node.operator], node.operator in "/%"

    def evaluate(row: Row) -> float | None:
        a, b = left(row), right(row)
        if a is None or b is None or (divides and not b):
            return None
        return finite(compute(a, b))

    return evaluate


def _compare(node: Compare) -> OfRow:
    left, right = compile_row(node.left), compile_row(node.right)
    compare = _COMPARE[node.operator]

    def evaluate(row: Row) -> bool | None:
        a, b = left(row), right(row)
        return None if a is None or b is None else compare(a, b)

    return evaluate


def _in(node: In) -> OfRow:
    values = frozenset(value for value in node.values if value is not None)
    # A value that is not in a list with NULL in it may still equal that NULL: nobody knows.
    otherwise = None if None in node.values else False
    return _unless_null(compile_row(node.node), lambda value: value in values or otherwise)


def _decided_by(decisive: bool, parts: tuple[OfRow, ...]) -> OfRow:
    """AND, decided by FALSE; OR, decided by TRUE. Without a decisive part, NULL wins."""

    def evaluate(row: Row) -> bool | None:
        result: bool | None = not decisive
        for part in parts:
            value: bool | None = part(row)
            if value is decisive:
                return decisive
            if value is None:
                result = None
        return result

    return evaluate


def _case(node: Case) -> OfRow:
    whens = [(compile_row(when), compile_row(then)) for when, then in node.whens]
    otherwise = compile_row(node.otherwise)

    def evaluate(row: Row) -> Any:
        for when, then in whens:
            if when(row):
                return then(row)
        return otherwise(row)

    return evaluate


def _coalesce(parts: tuple[OfRow, ...]) -> OfRow:
    def evaluate(row: Row) -> Any:
        for part in parts:
            if (value := part(row)) is not None:
                return value
        return None

    return evaluate
