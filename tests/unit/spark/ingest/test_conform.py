"""Typed columns: cast where nothing is lost, else rescued."""

from __future__ import annotations

import datetime
import json
from typing import Any

import pyarrow as pa

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
