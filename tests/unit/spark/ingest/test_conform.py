"""Typed columns: cast where nothing is lost, else rescued."""

from __future__ import annotations

import datetime
import decimal
import itertools
import json
from typing import Any

import pyarrow as pa
import pytest

from penstock.spark.ingest.conform import conform
from penstock.spark.ingest.schema import delta_type, from_text, merge_types, settle, to_text


def rows(table: pa.Table) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if v is not None} for row in table.to_pylist()]


def test_columns_are_cast_added_and_rescued() -> None:
    given = pa.table({"id": pa.array([1, 2], pa.int32()), "more": ["a", None]})
    columns = pa.schema([("id", pa.int64()), ("missing", pa.string())])
    table = conform(given, columns)
    assert table.schema.names == ["id", "missing", "_rescued_data"]
    assert rows(table) == [{"id": 1, "_rescued_data": '{"more": "a"}'}, {"id": 2}]


def test_a_column_whose_values_would_not_survive_is_rescued() -> None:
    given = pa.table({"id": pa.array([2**40, None], pa.int64())})
    assert rows(conform(given, pa.schema([("id", pa.int32())]))) == [
        {"_rescued_data": json.dumps({"id": 2**40})},
        {},
    ]


def test_nanoseconds_become_microseconds_and_zones_are_kept_apart() -> None:
    at = pa.array([1_700_000_000_123_456_789], pa.timestamp("ns", tz="Europe/Paris"))
    column = pa.schema([("at", pa.timestamp("us", tz="UTC"))])
    (row,) = rows(conform(pa.table({"at": at}), column))
    assert row["at"] == datetime.datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=datetime.UTC)
    local = pa.table({"at": pa.array([0], pa.timestamp("us"))})
    (row,) = rows(conform(local, column))
    assert row == {"_rescued_data": '{"at": "1970-01-01T00:00:00"}'}


def test_types_that_delta_has_not_are_widened_or_written_as_text() -> None:
    given = pa.table(
        {
            "u": pa.array([2**64 - 1], pa.uint64()),
            "t": pa.array([datetime.time(1, 2)], pa.time64("us")),
            "d": pa.array(["x"]).dictionary_encode(),
            "l": pa.array([[1]], pa.large_list(pa.uint8())),
            "n": pa.nulls(1),
        }
    )
    columns = settle(given.schema)
    assert [str(each.type) for each in columns] == [
        "decimal128(20, 0)",
        "string",
        "string",
        "list<element: int16>",
        "string",
    ]
    (row,) = rows(conform(given, columns))
    assert (str(row["u"]), row["t"], row["d"], row["l"]) == (str(2**64 - 1), "01:02:00", "x", [1])
    assert "_rescued_data" not in row


def test_a_schema_reads_back_from_its_text() -> None:
    columns = pa.schema(
        [
            ("a b", pa.int8()),
            ("é", pa.list_(pa.field("element", pa.struct([("x", pa.decimal128(5, 2))])))),
            ("m", pa.map_(pa.string(), pa.timestamp("us", tz="UTC"))),
        ]
    )
    assert from_text(to_text(columns)) == columns


def test_types_merge_to_the_narrowest_that_holds_both() -> None:
    struct = pa.struct
    assert merge_types(pa.int64(), pa.float64()) == pa.float64()
    assert merge_types(pa.int32(), pa.int64()) == pa.int64()
    assert merge_types(pa.bool_(), pa.int64()) == pa.string()
    assert merge_types(pa.null(), pa.bool_()) == pa.bool_()
    assert merge_types(struct([("a", pa.int64())]), struct([("b", pa.bool_())])) == struct(
        [("a", pa.int64()), ("b", pa.bool_())]
    )
    assert delta_type(pa.duration("s")) == pa.string()


ONE_OF_DELTA: list[tuple[pa.DataType, pa.DataType, pa.DataType]] = [
    (pa.list_(pa.int64()), pa.large_list(pa.int64()), pa.list_(pa.int64())),
    (pa.list_(pa.int64()), pa.list_(pa.int64(), 3), pa.list_(pa.int64())),
    (pa.list_(pa.int64()), pa.list_view(pa.int64()), pa.list_(pa.int64())),
    (
        pa.map_(pa.string(), pa.int64()),
        pa.map_(pa.large_string(), pa.int32()),
        pa.map_(pa.string(), pa.int64()),
    ),
    (pa.binary(), pa.large_binary(), pa.binary()),
    (pa.binary(), pa.binary(16), pa.binary()),
    (pa.string(), pa.dictionary(pa.int32(), pa.large_string()), pa.string()),
    (pa.timestamp("us"), pa.timestamp("ns"), pa.timestamp("us")),
    (
        pa.timestamp("us", "UTC"),
        pa.timestamp("ms", "Europe/Berlin"),
        pa.timestamp("us", "UTC"),
    ),
    (pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.string()),
    (pa.date32(), pa.date64(), pa.date32()),
    (pa.decimal128(10, 2), pa.decimal128(12, 2), pa.decimal128(12, 2)),
    (pa.decimal128(10, 2), pa.decimal128(9, 4), pa.decimal128(12, 4)),
    (pa.decimal128(38, 0), pa.decimal128(4, 2), pa.string()),
    (pa.decimal128(10, 2), pa.int32(), pa.decimal128(12, 2)),
    (pa.decimal128(10, 2), pa.float64(), pa.string()),
    (pa.uint64(), pa.int64(), pa.decimal128(20, 0)),
    (pa.uint32(), pa.int32(), pa.int64()),
    (pa.null(), pa.large_list(pa.null()), pa.list_(pa.string())),
    (pa.large_list(pa.null()), pa.list_(pa.uint8()), pa.list_(pa.int16())),
    (
        pa.struct([("a", pa.large_string())]),
        pa.struct([("a", pa.string()), ("b", pa.null())]),
        pa.struct([("a", pa.string()), ("b", pa.string())]),
    ),
]


@pytest.mark.parametrize(("left", "right", "both"), ONE_OF_DELTA)
def test_types_that_are_one_in_delta_merge_to_it(
    left: pa.DataType, right: pa.DataType, both: pa.DataType
) -> None:
    for found in (merge_types(left, right), merge_types(right, left)):
        assert delta_type(found) == delta_type(both)


def test_the_merged_type_does_not_depend_on_the_order() -> None:
    kinds = {kind for left, right, _ in ONE_OF_DELTA for kind in (left, right)}
    flat = [kind for kind in kinds if not pa.types.is_struct(kind)]
    for left, middle, right in itertools.product(flat, repeat=3):
        one = merge_types(merge_types(left, middle), right)
        other = merge_types(left, merge_types(middle, right))
        assert delta_type(one) == delta_type(other), (left, middle, right)


# -- a value is as it was, or it is rescued


def conformed(given: pa.Array, kind: pa.DataType) -> list[tuple[Any, Any]]:
    """-> of each row what is in the column, and what was rescued of it"""
    table = conform(pa.table({"x": given}), pa.schema([("x", kind)]))
    table.validate(full=True)
    found = []
    for row in table.to_pylist():
        text = row["_rescued_data"]
        found.append((row["x"], None if text is None else json.loads(text)["x"]))
    return found


TIME = pa.timestamp("us", tz="UTC")
DAY = datetime.datetime.fromisoformat("2024-01-01T05:00:00")
MIDNIGHT = datetime.datetime.fromisoformat("2024-01-01")
D = decimal.Decimal
LOST: list[tuple[Any, pa.DataType, list[Any]]] = [
    (pa.array([5]), pa.bool_(), [5]),
    (pa.array([True]), pa.int64(), [True]),
    (pa.array([1e300, 0.1, 5e-324]), pa.float32(), [1e300, 0.1, 5e-324]),
    (pa.array([1.239, 1e30, float("inf")]), pa.decimal128(10, 2), [1.239, 1e30, "inf"]),
    (pa.array([1.5, 2.0**63, -(2.0**63), 1e300]), pa.int64(), [1.5, 2.0**63, -(2.0**63), 1e300]),
    (pa.array([2**53 + 1]), pa.float64(), [2**53 + 1]),
    (pa.array([2**63], pa.uint64()), pa.int64(), [2**63]),
    (pa.array([10**8]), pa.decimal128(9, 2), [10**8]),
    (pa.array([D("1.567")]), pa.decimal128(5, 2), ["1.567"]),
    (pa.array([D(7 * 10**20)], pa.decimal128(38, 0)), pa.decimal128(38, 18), [f"{7 * 10**20}"]),
    (pa.array([70]), pa.decimal128(38, 37), [70]),
    (pa.array([D("123456789012345678901.1")]), pa.float64(), ["123456789012345678901.1"]),
    (pa.array([1_700_000_000]), TIME, [1_700_000_000]),
    (pa.array([5], pa.int32()), pa.date32(), [5]),
    (pa.array([DAY]), pa.int64(), ["2024-01-01T05:00:00"]),
    (pa.array([DAY]), pa.date32(), ["2024-01-01T05:00:00"]),
    (
        pa.array([10**13], pa.timestamp("s", "UTC")),
        TIME,
        ["10000000000000 seconds since 1970-01-01"],
    ),
    (pa.array(["12", "x"]), pa.int64(), ["12", "x"]),
    (pa.array([b"\xff"]), pa.string(), ["/w=="]),
    (pa.array([{"a": 1}]), pa.string(), [{"a": 1}]),
    (
        pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
        pa.struct([("a", pa.int64())]),
        [[["a", 1]]],
    ),
]


@pytest.mark.parametrize(("given", "kind", "rescued"), LOST)
def test_a_value_that_would_be_another_one_is_rescued(
    given: pa.Array, kind: pa.DataType, rescued: list[Any]
) -> None:
    assert conformed(given, kind) == [(None, each) for each in rescued]


KEPT: list[tuple[Any, pa.DataType, list[Any]]] = [
    (pa.array([1, -(2**31)], pa.int32()), pa.int64(), [1, -(2**31)]),
    (pa.array([127, 5]), pa.int8(), [127, 5]),
    (pa.array([2**53, -7]), pa.float64(), [2.0**53, -7.0]),
    (pa.array([12, -(10**7)]), pa.decimal128(10, 2), [D("12.00"), D("-10000000.00")]),
    (pa.array([2**64 - 1], pa.uint64()), pa.decimal128(20, 0), [D(2**64 - 1)]),
    (pa.array([3.0, None]), pa.int64(), [3, None]),  # integers with nulls, as pandas has them
    (pa.array([0.5, float("inf"), -0.0]), pa.float32(), [0.5, float("inf"), -0.0]),
    (pa.array([3.0, None], pa.float32()), pa.int8(), [3, None]),
    (pa.array([0.5], pa.float16()), pa.float64(), [0.5]),
    (pa.array([1.25, 0.1]), pa.decimal128(10, 2), [D("1.25"), D("0.10")]),
    (pa.array([D("1.50")]), pa.decimal128(5, 1), [D("1.5")]),
    (pa.array([D(10**19)], pa.decimal128(38, 0)), pa.decimal128(38, 18), [D(10**19)]),
    (pa.array([D("7.00")]), pa.int64(), [7]),
    (pa.array([D("1.1")]), pa.float64(), [1.1]),
    (pa.array([12, None]), pa.string(), ["12", None]),
    (pa.array([0.1]), pa.string(), ["0.1"]),
    (pa.array([True]), pa.string(), ["true"]),
    (pa.array([b"abc"]), pa.string(), ["abc"]),
    (pa.array(["é"]), pa.binary(), ["é".encode()]),
    (pa.array([MIDNIGHT.date()]), pa.timestamp("us"), [MIDNIGHT]),
    (pa.array([1], pa.time64("ns")), pa.string(), ["00:00:00.000000001"]),
    (pa.nulls(1), pa.int64(), [None]),
]


@pytest.mark.parametrize(("given", "kind", "kept"), KEPT)
def test_a_value_that_stays_the_same_is_kept(
    given: pa.Array, kind: pa.DataType, kept: list[Any]
) -> None:
    assert conformed(given, kind) == [(each, None) for each in kept]


def test_only_the_rows_that_do_not_fit_are_rescued() -> None:
    given = pa.array([1, 2**40, None, 3])
    assert conformed(given, pa.int32()) == [(1, None), (None, 2**40), (None, None), (3, None)]


def test_a_field_that_the_struct_has_not_is_rescued_and_the_others_are_kept() -> None:
    rows = [{"name": "x"}, {"name": "y", "email": "y@z"}, None, {"name": 5 * "z", "email": None}]
    kind = pa.struct([("id", pa.int64()), ("name", pa.string())])
    assert conformed(pa.array(rows), kind) == [
        ({"id": None, "name": "x"}, None),
        ({"id": None, "name": "y"}, {"name": "y", "email": "y@z"}),
        (None, None),
        ({"id": None, "name": "zzzzz"}, None),
    ]


def test_what_lies_below_a_null_is_no_value() -> None:
    inner = pa.array([1, 2])
    given = pa.StructArray.from_arrays(
        [inner, inner], names=["a", "b"], mask=pa.array([True, False])
    )
    assert conformed(given, pa.struct([("a", pa.int64())])) == [
        (None, None),
        ({"a": 2}, {"a": 2, "b": 2}),
    ]


@pytest.mark.parametrize("wrap", [pa.list_, pa.large_list, lambda kind: pa.list_(kind, 2)])
def test_the_elements_of_lists_are_looked_at(wrap: Any) -> None:
    kind = pa.list_(pa.field("element", pa.struct([("k", pa.int8())])))
    rows = [
        [{"k": 0}, {"k": 0}],
        [{"k": 1}, None],
        None,
        [{"k": 1}, {"k": 1, "v": 2}],
        [{"k": 300}] * 2,
    ]
    given = pa.array(rows, wrap(pa.struct([("k", pa.int64()), ("v", pa.int64())])))[1:]
    full = {"k": 1, "v": None}
    assert conformed(given, kind) == [
        ([{"k": 1}, None], None),
        (None, None),
        ([{"k": 1}, {"k": 1}], [full, {"k": 1, "v": 2}]),
        ([{"k": None}] * 2, [{"k": 300, "v": None}] * 2),
    ]


def test_the_keys_and_items_of_maps_are_looked_at() -> None:
    rows = [[(0, 0)], [(1, 5), (2, None)], None, [], [(3, 300)], [(2**40, 1), (4, 1)], [(5, 6)]]
    given = pa.array(rows, pa.map_(pa.int64(), pa.int64()))[1:]
    assert conformed(given, pa.map_(pa.int32(), pa.int8())) == [
        ([(1, 5), (2, None)], None),
        (None, None),
        ([], None),
        ([(3, None)], [[3, 300]]),
        (None, [[2**40, 1], [4, 1]]),  # there is no entry without a key
        ([(5, 6)], None),
    ]


def test_what_python_has_no_value_for_is_rescued_too() -> None:
    far = pa.array([10**7], pa.int32())
    given = {
        "day": far.cast(pa.date32()),
        "time": pa.array([10**13], pa.timestamp("s")),
        "fine": pa.array([1], pa.timestamp("ns", "UTC")),
        "zone": pa.array([0], pa.timestamp("us", "No/Where")),
        "clock": pa.array([1], pa.time64("ns")),
        "long": pa.array([2**62], pa.duration("s")),
        "short": pa.array([1], pa.duration("ns")),
        "within": pa.array([[{"a": 1}]]),
        "days": pa.ListArray.from_arrays([0, 1], far.cast(pa.date32())),
    }
    (row,) = rows(conform(pa.table(given), pa.schema([("id", pa.int64())])))
    assert json.loads(row["_rescued_data"]) == {
        "day": "10000000 days since 1970-01-01",
        "time": "10000000000000 seconds since 1970-01-01",
        "fine": "1970-01-01T00:00:00.000000001Z",
        "zone": "0 microseconds since 1970-01-01",
        "clock": "00:00:00.000000001",
        "long": "4611686018427387904 seconds",
        "short": "1 nanoseconds",
        "within": [{"a": 1}],
        "days": ["10000000 days since 1970-01-01"],
    }


def octets(*values: bytes) -> pa.Array:
    """A column of text as some writers leave it: nobody looked whether it is any."""
    offsets = [0, *itertools.accumulate(map(len, values))]
    return pa.Array.from_buffers(
        pa.string(),
        len(values),
        [None, pa.array(offsets, pa.int32()).buffers()[1], pa.py_buffer(b"".join(values))],
    )


def test_text_that_is_no_utf_8_is_rescued_so_that_the_table_can_be_read() -> None:
    text = octets(b"a", b"\xff!", b"b")
    given = pa.table(
        {
            "t": text,
            "s": pa.StructArray.from_arrays([text, pa.array([1, 2, 3])], ["t", "n"]),
            "l": pa.ListArray.from_arrays([0, 1, 3, 3], text),
            "d": pa.DictionaryArray.from_arrays([0, 1, 2], text),
            "other": text,
        }
    )
    columns = settle(given.select(["t", "s", "l", "d"]).schema)
    table = conform(given, columns)
    table.validate(full=True)
    bad = {"t": "\\xff!", "s": {"t": "\\xff!", "n": 2}, "l": ["\\xff!", "b"], "d": "\\xff!"}
    rescued = [json.loads(each) for each in table["_rescued_data"].to_pylist()]
    assert rescued == [{"other": "a"}, {**bad, "other": "\\xff!"}, {"other": "b"}]
    assert rows(table.drop_columns("_rescued_data")) == [
        {"t": "a", "s": {"t": "a", "n": 1}, "l": ["a"], "d": "a"},
        {"s": {"t": None, "n": 2}, "l": [None, "b"]},
        {"t": "b", "s": {"t": "b", "n": 3}, "l": [], "d": "b"},
    ]
