"""Which queue takes which message: all filters at once, over a batch. Pure.

Contract     Matcher(filters).route(rows) -> for each key that takes something, the positions of
             those rows, ascending. A key without a filter takes everything. Arrays are read-only:
             keys with the same filter share one.
How          Equal filters are one. A filter with a part `header = 'text'`, `header = 5` or `header
             IN (...)` that must hold (the whole, or a part of its outermost AND) can only take
             rows with one of those values. Such filters stand in a dictionary under these values,
             so a batch asks it once per value it holds, and only filters that answer see only the
             rows in question. A constant filter is decided when it is added. What remains is
             evaluated: on few rows with the Python back end, on more with Arrow.
Invariants   The same as asking each filter about each row (tests/property/test_filter_matcher.py).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock.queue.filter import Filter
from penstock.queue.filter_nodes import And, Cast, Compare, Header, In, Kind, Literal, Node, names
from penstock.queue.filter_number import number_of
from penstock.queue.rows import Row, Rows

K = TypeVar("K", bound=Hashable)

Positions = NDArray[np.intp]

# Up to as many rows the Python back end is quicker than the fixed cost of Arrow's kernels. They
# break even at 16 to 40 rows if the columns exist already, at 20 to 100 if they do not (measured).
PYTHON_ROWS_MAX = 32


_ANY_ROW = Row(0, 0, 0, 0, 0, {})
_NOTHING = np.empty(0, np.intp)


class Anchor:
    """What must hold for a filter to take a row: a header has one of some values."""

    def __init__(self, name: str, kind: Kind, values: frozenset[str | float]) -> None:
        self.name = name
        self.kind = kind
        self.values = values


class _Group(Generic[K]):
    """Keys that have the same filter."""

    def __init__(self, filter: Filter) -> None:
        self.filter = filter
        self.keys: list[K] = []
        self.whole = False  # the anchor is all of the filter: nothing is left to evaluate


class Matcher(Generic[K]):
    def __init__(self, filters: Mapping[K, Filter | None]) -> None:
        self._everything: list[K] = []
        self._evaluated: list[_Group[K]] = []
        # (header, TEXT or NUMBER) -> value -> the groups that may take rows with it.
        self._anchored: dict[tuple[str, Kind], dict[str | float, list[_Group[K]]]] = {}
        groups: dict[str, _Group[K]] = {}
        for key, filter in filters.items():
            if filter is None or not names(filter.node):
                # A constant is the same for every row, so for this one too.
                if filter is None or filter.matches(_ANY_ROW):
                    self._everything.append(key)
                continue
            group = groups.get(filter.text)
            if group is None:
                group = groups[filter.text] = _Group(filter)
                self._add(group)
            group.keys.append(key)

    def _add(self, group: _Group[K]) -> None:
        node = group.filter.node
        found = anchors(node)
        if not found:
            self._evaluated.append(group)
            return
        best = min(found, key=lambda anchor: len(anchor.values))
        group.whole = not isinstance(node, And)
        index = self._anchored.setdefault((best.name, best.kind), {})
        for value in best.values:
            index.setdefault(value, []).append(group)

    def route(self, rows: Rows) -> dict[K, Positions]:
        taken: dict[K, Positions] = {}
        if not len(rows):
            return taken
        if self._everything:
            all_rows = _frozen(np.arange(len(rows), dtype=np.intp))
            taken.update(dict.fromkeys(self._everything, all_rows))
        for group in self._evaluated:
            _give(taken, group, _chosen(group.filter, rows, range(len(rows))))
        for (name, kind), index in self._anchored.items():
            self._route_anchored(taken, rows, _values(rows, name, kind), index)
        return taken

    def _route_anchored(
        self,
        taken: dict[K, Positions],
        rows: Rows,
        values: Sequence[str | float | None],
        index: dict[str | float, list[_Group[K]]],
    ) -> None:
        by_value: dict[str | float, list[int]] = {}
        for i, value in enumerate(values):
            # A missing header is NULL, which equals nothing.
            if value is not None:
                by_value.setdefault(value, []).append(i)
        candidates: dict[_Group[K], list[int]] = {}
        for value, positions in by_value.items():
            for group in index.get(value, ()):
                before = candidates.get(group)
                candidates[group] = positions if before is None else sorted(before + positions)
        for group, positions in candidates.items():
            found = np.array(positions, np.intp)
            _give(taken, group, found if group.whole else _chosen(group.filter, rows, positions))


def _values(rows: Rows, name: str, kind: Kind) -> Sequence[str | float | None]:
    if kind is Kind.TEXT:
        return rows.texts(name)
    if len(rows) > PYTHON_ROWS_MAX:
        numbers: list[float | None] = rows.numbers(name).to_pylist()
        return numbers
    return [None if text is None else number_of(text) for text in rows.texts(name)]


def _chosen(filter: Filter, rows: Rows, candidates: Sequence[int]) -> Positions:
    if len(candidates) <= PYTHON_ROWS_MAX:
        matches = filter.matches
        found = [i for i in candidates if matches(rows.row(i))]
        return np.array(found, np.intp) if found else _NOTHING
    # All rows, though only some are in question: the columns exist once for all filters.
    chosen = filter.select(rows)
    if len(candidates) == len(rows):
        return np.flatnonzero(chosen)
    positions = np.array(candidates, np.intp)
    return positions[chosen[positions]]


def _give(taken: dict[K, Positions], group: _Group[K], positions: Positions) -> None:
    if len(positions):
        taken.update(dict.fromkeys(group.keys, _frozen(positions)))


def _frozen(positions: Positions) -> Positions:
    positions.flags.writeable = False
    return positions


def anchors(node: Node) -> list[Anchor]:
    """Conditions that must all hold for the filter to be true and that a dictionary can answer."""
    if isinstance(node, And):
        return [anchor for part in node.parts for anchor in anchors(part)]
    match node:
        case Compare("=", of, Literal(str() | float() as value), kind):
            return _anchor(of, kind, (value,))
        case Compare("=", Literal(str() | float() as value), of, kind):
            return _anchor(of, kind, (value,))
        case In(of, values, kind):
            return _anchor(of, kind, values)
    return []


def _anchor(node: Node, kind: Kind, values: tuple[str | float | None, ...]) -> list[Anchor]:
    # NULL in a list never makes it true.
    known = frozenset(value for value in values if value is not None)
    match node:
        case Header(name) if kind is Kind.TEXT:
            return [Anchor(name, kind, known)]
        case Cast(Header(name), Kind.TEXT, "DOUBLE") if kind is Kind.NUMBER:
            return [Anchor(name, kind, known)]
    return []
