"""JSON lines: the quick way and the careful way give the same rows, and nothing is lost."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.spark.ingest import jsonlines
from penstock.spark.ingest.lines import cut, split_lines, without_blank
from penstock.spark.ingest.schema import delta_type, merge_types, settle

calm = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])

NAMES = ["a", "b", "é"]
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
    st.sampled_from(["2026-01-01T00:00:00Z", "2026-01-01", "1.5", "2026-01-01 10:00:00.123"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3)
    ),
    max_leaves=6,
)
OBJECTS = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=3)
LINES = st.one_of(
    OBJECTS.map(lambda value: json.dumps(value).encode()),
    OBJECTS.map(lambda value: json.dumps(value, ensure_ascii=False, indent=1).encode()),
    st.binary(max_size=12),
    st.sampled_from([b"", b" ", b"null", b"{}", b"{} {}", b"[{}]", b"{", b"}", b'"{}"', b"\r"]),
)
TYPES = st.recursive(
    st.sampled_from(
        [
            pa.int64(),
            pa.int8(),
            pa.float64(),
            pa.float32(),
            pa.bool_(),
            pa.string(),
            pa.date32(),
            pa.timestamp("us", tz="UTC"),
            pa.decimal128(12, 3),
        ]
    ),
    lambda inner: (
        inner.map(lambda kind: pa.list_(pa.field("element", kind)))
        | inner.map(lambda kind: pa.struct([("a", kind), ("b", pa.int64())]))
    ),
    max_leaves=3,
)
SCHEMAS = st.dictionaries(st.sampled_from(NAMES), TYPES, min_size=1, max_size=3).map(
    lambda fields: pa.schema(list(fields.items()))
)


def rows(table: pa.Table) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table.to_pylist()
    return found


@calm
@given(st.lists(LINES, max_size=8), SCHEMAS)
def test_both_ways_give_the_same_rows(lines: list[bytes], columns: pa.Schema) -> None:
    found = split_lines(b"\n".join(lines))
    table = jsonlines.parse(found, columns)
    table.validate(full=True)
    careful = jsonlines._slow(without_blank(found), columns)
    for quick, slow in zip(rows(table), rows(careful), strict=True):
        quick.pop("_position")
        # They may differ in a way that keeps the line: what one could not read, it has rescued.
        if "_rescued_data" not in quick or quick["_rescued_data"] is None:
            assert quick == slow
    # What a line was is in its columns or in its rescued text; no line is left out.
    wanted = [each for each in b"\n".join(lines).split(b"\n") if each.strip(b" \t\r")]
    assert len(table) == len(wanted)


@calm
@given(st.lists(OBJECTS, max_size=6))
def test_what_a_schema_was_inferred_from_fits_it(objects: list[dict[str, Any]]) -> None:
    found = split_lines(b"\n".join(json.dumps(each).encode() for each in objects))
    columns = settle(jsonlines.infer(found))
    table = jsonlines.parse(found, columns)
    for value, row in zip(objects, rows(table), strict=True):
        if row["_rescued_data"] is not None:
            # Only half of a surrogate pair, or a number beyond all types, cannot be kept.
            assert "\\ud" in json.dumps(value) or _beyond(value), (value, columns)


def _beyond(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_beyond, value.values()))
    return isinstance(value, list) and any(map(_beyond, value))


@calm
@given(TYPES, TYPES, TYPES)
def test_merging_types_does_not_depend_on_the_order(a: Any, b: Any, c: Any) -> None:
    assert merge_types(a, a) == a
    left = merge_types(merge_types(a, b), c)
    right = merge_types(a, merge_types(b, c))
    assert delta_type(left) == delta_type(right)


@calm
@given(st.binary(max_size=40).map(lambda raw: raw.replace(b"x", b"\n")))
def test_lines_are_those_of_the_text(data: bytes) -> None:
    found = split_lines(data)
    wanted = data.split(b"\n")
    if wanted[-1] == b"":
        wanted.pop()
    assert [found.line(at) for at in range(found.count)] == [
        each.removesuffix(b"\r") for each in wanted
    ]
    assert cut(data) == data.rfind(b"\n") + 1
