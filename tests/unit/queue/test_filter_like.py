"""LIKE with patterns that would stop a backtracking matcher, or that RE2 would refuse."""

from __future__ import annotations

import pytest

from penstock.queue.filter import Rows, parse_filter
from unit.queue.test_filter import rows_of


def both(rows: Rows, pattern: str) -> list[bool]:
    found = parse_filter(f"a LIKE '{pattern}'")
    chosen: list[bool] = found.select(rows).tolist()
    assert chosen == [found.matches(rows.row(i)) for i in range(len(rows))]
    return chosen


def test_many_wildcards_end() -> None:
    rows = rows_of({"a": "a" * 5000}, {"a": "a" * 5000 + "b"})
    # A backtracking matcher needs longer than anybody waits for the first one.
    assert both(rows, "%a" * 30 + "%b") == [False, True]
    assert both(rows, "%a_" * 30 + "%b") == [False, True]


@pytest.mark.parametrize("size", [255, 256, 257, 8000])
def test_long_patterns_are_matched(size: int) -> None:
    rows = rows_of({"a": "é" * size}, {"a": "é" * (size + 1)}, {"a": "é" * (size - 1)}, {})
    assert both(rows, "_" * size) == [True, False, False, False]
    assert both(rows, "_" * (size - 1) + "%") == [True, True, True, False]


def test_pieces_are_not_used_twice() -> None:
    rows = rows_of({"a": "aba"}, {"a": "ababa"}, {"a": "ab"}, {"a": ""})
    assert both(rows, "aba%aba") == [False, False, False, False]
    assert both(rows, "ab%ba") == [False, True, False, False]
    assert both(rows, "%ab%ab%") == [False, True, False, False]
    assert both(rows, "a_%_a") == [False, True, False, False]
    assert both(rows, "%ab%b") == [False, False, False, False]
    assert both(rows, "%_b%a") == [True, True, False, False]
    assert both(rows, "%_%_%") == [True, True, True, False]
