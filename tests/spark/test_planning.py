"""Which part of a log is read, and by how many tasks. No Spark is started."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from penstock.errors import InvalidError
from penstock.spark.options import Source, read_options
from penstock.spark.planning import OFFSET_MAX, Chosen, _edges, check_lost

STREAM = Source("stream", "s")
OPTIONS = read_options({"location": "d", "stream": "s"}, streaming=False)


def chosen(*filters: Filter, source: Source = STREAM) -> Chosen:
    found = Chosen()
    for each in filters:
        found.add(source, each)
    return found


def test_offsets_are_answered_wholly() -> None:
    found = chosen(GreaterThan(("offset",), 4), LessThanOrEqual(("offset",), 9))
    assert (found.low, found.high, found.left) == (5, 10, [])
    found = chosen(GreaterThanOrEqual(("offset",), 4), LessThan(("offset",), 9))
    assert (found.low, found.high, found.left) == (4, 9, [])
    found = chosen(EqualTo(("offset",), 7))
    assert (found.low, found.high) == (7, 8)


def test_tags_are_answered_wholly_and_together() -> None:
    found = chosen(EqualTo(("tag",), "ü"))
    assert (found.tags, found.left) == (frozenset({"ü".encode()}), [])
    found = chosen(In(("tag",), ("a", "b")), EqualTo(("tag",), "b"))
    assert found.tags == frozenset({b"b"})


def test_what_a_tag_may_not_really_be_is_left_to_spark() -> None:
    """Bytes that are not UTF-8 are shown as U+FFFD; a comparison of bytes would miss them."""
    shown = EqualTo(("tag",), "a\N{REPLACEMENT CHARACTER}")
    found = chosen(shown)
    assert (found.tags, found.left) == (None, [shown])
    nothing = In(("tag",), ("a", None))
    assert chosen(nothing).left == [nothing]


def test_times_prune_and_spark_looks_again() -> None:
    at = datetime(2026, 1, 1, 0, 0, 0, 1500, tzinfo=UTC)  # one and a half milliseconds
    later = GreaterThan(("time",), at)
    before = LessThan(("time",), at + timedelta(seconds=1))
    found = chosen(later, before)
    base = int(at.timestamp() * 1000)
    assert (found.time_low_ms, found.time_high_ms) == (base, base + 1001)
    assert found.left == [later, before]
    # Without a zone it is UTC, as in Spark's session here.
    assert chosen(GreaterThan(("time",), at.replace(tzinfo=None))).time_low_ms == base


@pytest.mark.parametrize(
    "each",
    [IsNotNull(("data",)), Not(EqualTo(("offset",), 3)), EqualTo(("data",), b"x"),
     EqualTo(("offset", "x"), 3), EqualTo(("offset",), "3"), GreaterThan(("tag",), "a")],
)  # fmt: skip
def test_other_filters_are_spark_s(each: Filter) -> None:
    found = chosen(each)
    assert (found.low, found.high, found.tags, found.left) == (0, OFFSET_MAX, None, [each])


def test_a_queue_takes_no_filter() -> None:
    each = EqualTo(("offset",), 3)
    assert chosen(each, source=Source("queue", "q")).left == [each]


@given(
    low=st.integers(0, 5_000_000),
    rows=st.integers(1, 3_000_000),
    least=st.none() | st.integers(1, 50),
    size=st.integers(1, 1_000_000),
)
def test_parts_cover_a_range_once(low: int, rows: int, least: int | None, size: int) -> None:
    rows = min(rows, 2000 * size)
    options = msgspec.structs.replace(OPTIONS, min_partitions=least, rows_per_partition=size)
    edges = _edges(options, low, low + rows)
    assert edges[0] == low
    assert edges[-1] == low + rows
    assert edges == sorted(set(edges))
    parts = len(edges) - 1
    assert parts >= min(rows, least or 1)
    assert max(high - low for low, high in pairwise(edges)) <= max(size, 1)


def test_full_nodes_are_not_cut() -> None:
    options = read_options(
        {"location": "d", "stream": "s", "rowsPerPartition": "2500"}, streaming=False
    )
    assert _edges(options, 500, 10_000) == [500, 2000, 4000, 6000, 8000, 10_000]


def test_what_was_evicted_is_an_error_or_is_counted() -> None:
    with pytest.raises(InvalidError, match="95 entries of stream s from offset 5 on"):
        check_lost(OPTIONS, 5, 100)
    assert check_lost(OPTIONS, 100, 100) == 0
    assert check_lost(OPTIONS, 200, 100) == 0
    skipping = read_options(
        {"location": "d", "stream": "s", "failOnDataLoss": "false"}, streaming=False
    )
    assert check_lost(skipping, 5, 100) == 95
