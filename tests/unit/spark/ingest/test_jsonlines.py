"""JSON lines: what fits is in columns, and what does not is not lost."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import InvalidError
from penstock.spark.ingest import jsonlines
from penstock.spark.ingest.lines import split_lines
from penstock.spark.ingest.schema import as_stored, given_schema, settle

COLUMNS = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("nested", pa.struct([("x", pa.int64())])),
        ("tags", pa.list_(pa.field("element", pa.struct([("k", pa.string())])))),
    ]
)


def parse(text: bytes, columns: pa.Schema = COLUMNS) -> list[dict[str, Any]]:
    table = jsonlines.parse(split_lines(text), columns)
    assert table.schema.names == [*columns.names, "_rescued_data", "_position"]
    return [{k: v for k, v in row.items() if v is not None} for row in table.to_pylist()]


def infer(text: bytes) -> dict[str, str]:
    return {each.name: str(each.type) for each in settle(jsonlines.infer(split_lines(text)))}


def test_rows_have_the_offset_of_their_line_and_blank_lines_have_none() -> None:
    assert parse(b'{"id":1}\n\n \t\n{"id":2}\r\n{"id":3}') == [
        {"id": 1, "_position": 0},
        {"id": 2, "_position": 13},
        {"id": 3, "_position": 23},
    ]


def test_a_line_that_is_no_object_is_rescued_and_its_neighbours_are_read() -> None:
    bad = [b"not json", b"[1]", b"null", b"5", b'{"id":1} x', b'{"id":1}{"id":2}', b'{"id":', b"}"]
    for line in bad:
        rows = parse(b'{"id":7}\n' + line + b'\n{"id":8}\n')
        assert [row.get("id") for row in rows] == [7, None, 8], line
        assert rows[1]["_rescued_data"] == line.decode()
        assert "_rescued_data" not in rows[0] | rows[2]


def test_an_object_over_two_lines_is_two_bad_lines() -> None:
    rows = parse(b'{"id":\n1}\n{"id":2} {"id":3}\n')
    assert [row["_rescued_data"] for row in rows] == ['{"id":', "1}", '{"id":2} {"id":3}']


def test_a_mistyped_value_is_null_and_the_others_of_its_row_are_kept() -> None:
    line = '{"id":"x","name":"n","nested":{"x":1}}'
    assert parse(line.encode()) == [
        {"name": "n", "nested": {"x": 1}, "_rescued_data": line, "_position": 0}
    ]


@pytest.mark.parametrize(
    "value",
    ['"1"', "1.5", "1e3", "9223372036854775808", "true", "[1]", '{"a":1}'],
)
def test_an_integer_column_takes_integers_only(value: str) -> None:
    (row,) = parse(f'{{"id":{value}}}'.encode())
    assert row == {"_rescued_data": f'{{"id":{value}}}', "_position": 0}


def test_a_text_column_takes_any_value_as_its_json_text() -> None:
    lines = [b'{"name":1.10}', b'{"name":{"a":[true,null,"\xc3\xa9"]}}', b'{"name":false}']
    assert [row["name"] for row in parse(b"\n".join(lines))] == [
        "1.10",
        '{"a":[true,null,"é"]}',
        "false",
    ]


def test_fields_without_a_column_rescue_the_line_unless_they_are_null() -> None:
    lines = [
        b'{"id":1,"new":null}',
        b'{"id":2,"new":0}',
        b'{"id":3,"nested":{"x":1,"y":2}}',
        b'{"id":4,"nested":{"x":1,"y":null}}',
        b'{"id":5,"tags":[{"k":"a"},{"k":"b","z":[]}]}',
        b'{"id":6,"tags":[{"k":"a"}]}',
    ]
    rows = parse(b"\n".join(lines))
    assert [row["id"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row["id"] for row in rows if "_rescued_data" in row] == [2, 3, 5]
    assert rows[2]["nested"] == {"x": 1}
    assert rows[4]["tags"] == [{"k": "a"}, {"k": "b"}]


def test_the_same_field_twice_keeps_the_last_and_rescues_the_line() -> None:
    assert parse(b'{"id":1,"id":2}') == [
        {"id": 2, "_rescued_data": '{"id":1,"id":2}', "_position": 0}
    ]


def test_bytes_that_are_no_text_are_rescued_as_escapes() -> None:
    rows = parse(b'{"name":"ok"}\n{"name":"\xff"}\n{"name":"\\ud800"}')
    assert rows[0]["name"] == "ok"
    assert [row["_rescued_data"] for row in rows[1:]] == ['{"name":"\\xff"}', '{"name":"\\ud800"}']


def test_brackets_too_deep_are_rescued_instead_of_ending_the_process() -> None:
    deep = b'{"name":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    rows = parse(b'{"id":1}\n' + deep + b'\n{"id":2}')
    assert [row.get("id") for row in rows] == [1, None, 2]
    assert rows[1]["_rescued_data"] == deep.decode()
    assert infer(b'{"id":1}\n' + deep) == {"id": "int64"}


def test_one_bad_line_among_many_does_not_touch_the_others() -> None:
    lines = [json.dumps({"id": n, "name": str(n)}).encode() for n in range(1000)]
    lines[417] = b'{"id":"bad"}'
    lines[900] = b"worse"
    rows = parse(b"\n".join(lines))
    assert [n for n, row in enumerate(rows) if "_rescued_data" in row] == [417, 900]
    assert [row["id"] for row in rows if "_rescued_data" not in row] == [
        n for n in range(1000) if n not in (417, 900)
    ]


def test_times_days_decimals_bytes_and_maps_are_read_as_spark_reads_them() -> None:
    columns = pa.schema(
        [
            ("t", pa.timestamp("us", tz="UTC")),
            ("d", pa.date32()),
            ("x", pa.decimal128(10, 2)),
            ("b", pa.binary()),
            ("m", pa.map_(pa.string(), pa.int64())),
            ("f", pa.float32()),
        ]
    )
    (row,) = parse(
        b'{"t":"2026-01-01T02:00:00+02:00","d":"2026-02-03","x":1.25,"b":"aGk=","m":{"k":1},'
        b'"f":0.5}',
        columns,
    )
    assert row["t"].isoformat() == "2026-01-01T00:00:00+00:00"
    assert str(row["d"]) == "2026-02-03"
    assert str(row["x"]) == "1.25"
    assert row["b"] == b"hi"
    assert row["m"] == [("k", 1)]
    for bad in ('"t":5', '"d":"2026-13-01"', '"x":1.255', '"x":123456789', '"b":"?"', '"m":1'):
        (row,) = parse(f"{{{bad}}}".encode(), columns)
        assert row == {"_rescued_data": f"{{{bad}}}", "_position": 0}
    (row,) = parse(b'{"f":1e50}', columns)
    assert row == {"_rescued_data": '{"f":1e50}', "_position": 0}


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.float64(), "1e400"),
        (pa.float32(), "1e50"),
        (pa.list_(pa.field("element", pa.float32())), "[1e50]"),
        (pa.struct([("x", pa.float32())]), '{"x":1e50}'),
        (pa.decimal128(5, 2), "99999"),
        (pa.decimal128(18, 10), '"9999999999999999"'),
        (pa.list_(pa.field("element", pa.decimal128(5, 2))), "[99999]"),
        (pa.struct([("x", pa.decimal128(5, 2))]), '{"x":99999}'),
        # Arrow makes 8.69, 0 and others of these.
        (pa.decimal128(38, 37), "70"),
        (pa.decimal128(38, 18), "7e20"),
        (pa.decimal128(38, 0), f"{10**39}"),
        (pa.decimal128(38, 0), f"{10**300}"),
    ],
)
def test_a_number_too_large_for_its_type_is_rescued_not_infinite(
    kind: pa.DataType, value: str
) -> None:
    line = f'{{"f":{value},"id":1}}'
    (row,) = parse(line.encode(), pa.schema([("f", kind), ("id", pa.int64())]))
    assert (row["id"], row["_rescued_data"]) == (1, line)
    assert "inf" not in str(row.get("f"))
    assert not pa.types.is_decimal(kind) or "f" not in row
    assert "99" not in str(row.get("f"))


@pytest.mark.parametrize("kind", [pa.decimal128(5, 2), pa.decimal128(38, 0)])
@pytest.mark.parametrize(
    "number", ["7e-41", "1e-322", "1e-999999999", f"0.{'0' * 40}1", f"0.{'0' * 200}1"]
)
def test_a_number_too_small_for_its_decimal_is_rescued_too(kind: pa.DataType, number: str) -> None:
    """Arrow makes 0 of some, and of others an end of the process."""
    for value in (number, f'"{number}"', f'"\\u00{ord(number[0]):x}{number[1:]}"'):
        line = f'{{"f":[{value}],"id":1}}'.encode()
        (row,) = parse(line, pa.schema([("f", pa.list_(kind)), ("id", pa.int64())]))
        assert (row["f"], row["_rescued_data"]) == ([None], line.decode())
    head = b'{"f":100000000000000000000}\n' * 64
    assert infer(head + b'{"f":%s}' % number.encode()) == {"f": "string"}


def test_decimals_of_every_length_are_read_whatever_stands_beside_them() -> None:
    columns = pa.schema([("a", pa.decimal128(38, 0)), ("b", pa.decimal128(38, 38))])
    line = b'{"a":%s,"b":0.%s}' % (b"9" * 38, b"9" * 38)
    for text in (line, b"nonsense\n" + line):
        row = parse(text, columns)[-1]
        assert (str(row["a"]), str(row["b"])) == ("9" * 38, "0." + "9" * 38)
    for same in (b"0e39", b"0e-39", b"0.000", b"-0"):
        for text in (b'{"a":%s}' % same, b'nonsense\n{"a":%s}' % same):
            row = parse(text, pa.schema([("a", pa.decimal128(5, 2))]))[-1]
            assert (str(row["a"]), "_rescued_data" in row) == ("0.00", False)


@pytest.mark.parametrize("line", [b"{}", b"nonsense"])
def test_a_time_with_a_zone_is_no_local_time_whatever_stands_beside_it(line: bytes) -> None:
    columns = pa.schema([("at", pa.timestamp("us")), ("l", pa.list_(pa.timestamp("us")))])
    good = b'{"at":"2026-01-01T00:00:00","l":["2026-01-01 00:00"]}'
    bad = b'{"at":"2026-01-01T00:00:00Z","l":["2026-01-01T00:00:00+01:00"]}'
    first, second, _ = parse(b"\n".join([good, bad, line]), columns)
    assert (first["at"], first["l"]) == (datetime(2026, 1, 1), [datetime(2026, 1, 1)])  # noqa: DTZ001
    assert "_rescued_data" not in first
    assert "at" not in second
    assert (second["l"], second["_rescued_data"]) == ([None], bad.decode())


def test_the_narrowest_types_are_inferred_and_texts_stay_texts() -> None:
    assert infer(
        b'{"i":1,"f":1,"t":"2026-01-01T00:00:00Z","n":null,"l":[],"o":{},"b":true}\n'
        b'{"f":2.5,"l":[1],"s":{"x":null}}\n'
        b'{"mixed":1,"l":[2.5]}\n{"mixed":"a"}'
    ) == {
        "i": "int64",
        "f": "double",
        "t": "string",
        "n": "string",
        "l": "list<element: double>",
        "o": "string",
        "b": "bool",
        "s": "struct<x: string>",
        "mixed": "string",
    }


@pytest.mark.parametrize("many", [1, 300])
def test_integers_keep_their_digits_however_many_they_are(many: int) -> None:
    lines = [b'{"a":%d,"b":1,"c":[1],"d":0.5,"e":1}' % -(2**63)] * many
    lines += [
        b'{"a":%d,"b":%d,"c":[%d],"d":%d,"e":%d}' % (2**63 - 1, 2**63, 10**20, 10**20, 10**38)
    ]
    for text in (b"\n".join(lines), b"\n".join(reversed(lines))):
        assert infer(text) == {
            "a": "int64",
            "b": "decimal128(19, 0)",
            "c": "list<element: decimal128(21, 0)>",
            "d": "string",
            "e": "double",  # as no decimal has so many
        }
    assert parse(lines[-1], settle(jsonlines.infer(split_lines(lines[-1]))))[0]["b"] == 2**63


def test_an_integer_of_thousands_of_digits_is_rescued_like_others() -> None:
    """Python does not read it: an error here would end every run that comes by the file."""
    line = b'{"a":%s,"id":1}' % (b"9" * 5000)
    assert infer(line) == {"a": "double", "id": "int64"}
    (row,) = parse(line, pa.schema([("a", pa.int64()), ("id", pa.int64())]))
    assert row == {"id": 1, "_rescued_data": line.decode(), "_position": 0}


def test_inference_passes_over_what_cannot_be_read() -> None:
    good = [json.dumps({"id": n}).encode() for n in range(200)]
    assert infer(b"\n".join([*good[:50], b"nonsense", b"null", *good[50:]])) == {"id": "int64"}
    assert infer(b"") == {}


def test_our_own_names_and_names_that_differ_by_case_are_not_inferred() -> None:
    assert infer(b'{"_file":1,"A":1,"a":2,"_Position":3}') == {"A": "int64"}
    line = b'{"l":[{"A":1,"a":2,"_file":3}]}'
    assert infer(line) == {"l": "list<element: struct<A: int64, _file: int64>>"}
    (row,) = parse(line, as_stored(settle(jsonlines.infer(split_lines(line)))))
    assert (row["l"], row["_rescued_data"]) == ([{"A": 1, "_file": 3}], line.decode())
    with pytest.raises(InvalidError, match="the field 'a' of a struct"):
        given_schema(pa.schema([("s", pa.struct([("A", pa.int8()), ("a", pa.int8())]))]))
