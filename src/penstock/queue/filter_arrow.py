"""The meaning of a filter, for a batch: Arrow kernels over columns. Pure.

Contract     compile_batch(tree, kind)(rows) -> an Arrow array as long as the batch, or a scalar if
             the value is the same for all; NULL is NULL. What it means stands in filter_python.py.
Invariants   Equal to filter_python.py, row by row (tests/property/test_filter.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.queue.filter_like import expression, like_matcher, pieces, plain
from penstock.queue.filter_nodes import (
    CALLS,
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
    names,
)
from penstock.queue.filter_number import finites, numbers_of, text_of
from penstock.queue.filter_python import compile_row
from penstock.queue.rows import Row, Rows

OfRows = Callable[[Rows], Any]

_TYPES = {
    Kind.TEXT: pa.string(),
    Kind.NUMBER: pa.float64(),
    Kind.BOOLEAN: pa.bool_(),
    # The value is NULL whatever its type.
    Kind.NULL: pa.bool_(),
}
_COMPARE = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_ARITHMETIC = {"+": pc.add, "-": pc.subtract, "*": pc.multiply, "/": pc.divide}
_UNKNOWN = pa.nulls(1, pa.bool_())[0]  # not by pa.scalar: filter_number.py says why

# Longer patterns with wildcards are matched in Python: RE2 refuses what takes it too much memory.
_REGEX_PATTERN_MAX = 256

# A constant is the same for every row, so for this one too.
_ANY_ROW = Row(0, 0, 0, 0, 0, {})


def compile_batch(node: Node, kind: Kind) -> OfRows:
    """`kind` is the node's own; it decides the type of a NULL."""
    if not names(node):
        constant = pa.scalar(compile_row(node)(_ANY_ROW), _TYPES[kind])
        return lambda rows: constant
    match node:
        case Header(name):
            return lambda rows: rows.header(name)
        case Meta(name):
            field = META[name]
            return lambda rows: rows.meta(field)
        case Negate():
            return _over(lambda numbers: pc.subtract(0.0, numbers), node.node, Kind.NUMBER)
        case Cast():
            return _cast(node)
        case Call():
            return _over(_CALLS[node.name], node.node, Kind.TEXT)
        case Arithmetic():
            left, right = (
                compile_batch(node.left, Kind.NUMBER),
                compile_batch(node.right, Kind.NUMBER),
            )
            compute = _remainder if node.operator == "%" else _ARITHMETIC[node.operator]
            return lambda rows: finites(compute(left(rows), right(rows)))
        case Compare():
            return _pair(_COMPARE[node.operator], node.left, node.right, node.kind)
        case Between():
            low = _pair(pc.greater_equal, node.node, node.low, node.kind)
            high = _pair(pc.less_equal, node.node, node.high, node.kind)
            return lambda rows: pc.and_kleene(low(rows), high(rows))
        case In():
            return _over(_in(node), node.node, node.kind)
        case Like():
            return _over(_like(node), node.node, Kind.TEXT)
        case IsNull():
            return _over(pc.is_null, node.node, node.kind)
        case IsTruth(_, truth):
            return _over(
                lambda values: pc.fill_null(pc.equal(values, truth), False), node.node, Kind.BOOLEAN
            )
        case Not():
            return _over(pc.invert, node.node, Kind.BOOLEAN)
        case And():
            return _chain(pc.and_kleene, node.parts)
        case Or():
            return _chain(pc.or_kleene, node.parts)
        case Case():
            return _case(node)
        case Coalesce():
            parts = [compile_batch(part, node.kind) for part in node.parts]
            return lambda rows: pc.coalesce(*(part(rows) for part in parts))
        case Literal():
            raise AssertionError("a literal has no names, so it was answered above")


def _over(compute: Callable[[Any], Any], node: Node, kind: Kind) -> OfRows:
    inner = compile_batch(node, kind)
    return lambda rows: compute(inner(rows))


def _pair(compute: Callable[[Any, Any], Any], left: Node, right: Node, kind: Kind) -> OfRows:
    a, b = compile_batch(left, kind), compile_batch(right, kind)
    return lambda rows: compute(a(rows), b(rows))


def _chain(compute: Callable[[Any, Any], Any], nodes: tuple[Node, ...]) -> OfRows:
    parts = [compile_batch(node, Kind.BOOLEAN) for node in nodes]
    return lambda rows: reduce(compute, (part(rows) for part in parts))


def _cast(node: Cast) -> OfRows:
    if node.to == "TEXT":
        if node.source is Kind.TEXT:
            return compile_batch(node.node, Kind.TEXT)
        return _over(_texts_of, node.node, Kind.NUMBER)
    if node.source is not Kind.TEXT:
        numbers = compile_batch(node.node, Kind.NUMBER)
    elif isinstance(node.node, Header):
        name = node.node.name
        numbers = lambda rows: rows.numbers(name)  # noqa: E731
    else:
        numbers = _over(numbers_of, node.node, Kind.TEXT)
    if node.to == "DOUBLE":
        return numbers
    return lambda rows: pc.add(pc.trunc(numbers(rows)), 0.0)


def _texts_of(numbers: Any) -> Any:
    # Arrow writes numbers in another way than Python; this one is used for both.
    return pa.array(
        [None if number is None else text_of(number) for number in numbers.to_pylist()], pa.string()
    )


def _remainder(left: Any, right: Any) -> Any:
    with np.errstate(all="ignore"):
        found = np.fmod(_floats(left), _floats(right))
    # from_pandas: NaN, which is what NULL became, is NULL again.
    return pa.array(found, pa.float64(), from_pandas=True)


def _floats(numbers: Any) -> Any:
    if isinstance(numbers, pa.Scalar):
        return np.nan if numbers.as_py() is None else numbers.as_py()
    return numbers.to_numpy(zero_copy_only=False)


_CALLS: dict[str, Callable[[Any], Any]] = {
    "LOWER": pc.ascii_lower,
    "UPPER": pc.ascii_upper,
    "LENGTH": lambda texts: pc.cast(pc.utf8_length(texts), pa.float64()),
}
assert _CALLS.keys() == CALLS.keys()


def _in(node: In) -> Callable[[Any], Any]:
    values = pa.array({value for value in node.values if value is not None}, _TYPES[node.kind])
    unknown = None in node.values

    def evaluate(column: Any) -> Any:
        found = pc.is_in(column, value_set=values)
        known = found if unknown else pc.is_valid(column)
        return pc.if_else(known, found, _UNKNOWN)

    return evaluate


def _like(node: Like) -> Callable[[Any], Any]:
    runs = pieces(node.pattern, node.escape)
    texts = [plain(run) for run in runs]
    match texts:
        case [str(whole)]:
            return lambda column: pc.equal(column, whole)
        case [str(start), ""]:
            return lambda column: pc.starts_with(column, start)
        case ["", str(end)]:
            return lambda column: pc.ends_with(column, end)
        case ["", str(inner), ""]:
            return lambda column: pc.match_substring(column, inner)
    if len(node.pattern) <= _REGEX_PATTERN_MAX:
        regex = rf"(?s)\A{'.*'.join(map(expression, runs))}\z"
        return lambda column: pc.match_substring_regex(column, regex)
    matches = like_matcher(node.pattern, node.escape)
    return lambda column: pa.array(
        [None if text is None else matches(text) for text in column.to_pylist()], pa.bool_()
    )


def _case(node: Case) -> OfRows:
    whens = [
        (compile_batch(when, Kind.BOOLEAN), compile_batch(then, node.kind))
        for when, then in node.whens
    ]
    otherwise = compile_batch(node.otherwise, node.kind)

    def evaluate(rows: Rows) -> Any:
        result = otherwise(rows)
        for when, then in reversed(whens):
            result = pc.if_else(pc.fill_null(when(rows), False), then(rows), result)
        return result

    return evaluate
