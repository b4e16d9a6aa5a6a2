"""CSV records: columns by name, quotes as RFC 4180 has them, and nothing lost."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import InvalidError
from penstock.spark.ingest import csvrows
from penstock.spark.ingest.csvrows import Dialect
from penstock.spark.ingest.lines import Quoting, cut, split_lines

COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string())])
COMMA = Quoting(ord('"'), ord(","))


def parse(
    text: bytes,
    header: list[str] | None = None,
    columns: pa.Schema = COLUMNS,
    dialect: Dialect | None = None,
) -> list[dict[str, Any]]:
    dialect = dialect or Dialect()
    records = split_lines(text, dialect.quoting)
    table = csvrows.parse(records, header or ["id", "name"], columns, dialect)
    table.validate(full=True)
    return [{k: v for k, v in row.items() if v is not None} for row in table.to_pylist()]


def infer(text: bytes, header: list[str]) -> dict[str, str]:
    schema = csvrows.infer(split_lines(text, COMMA), header, Dialect())
    return {each.name: str(each.type) for each in schema}


def test_records_have_their_offsets_also_over_several_lines() -> None:
    assert parse(b'1,a\r\n\r\n2,"b\nc"\n3,"say ""hi"""\n') == [
        {"id": 1, "name": "a", "_position": 0},
        {"id": 2, "name": "b\nc", "_position": 7},
        {"id": 3, "name": 'say "hi"', "_position": 15},
    ]


def test_an_inch_sign_is_a_letter_and_swallows_nothing() -> None:
    rows = parse(b'1,5" pipe\n2,b\n3,"c"\n')
    assert [row.get("name") for row in rows] == ['5" pipe', "b", "c"]


def test_empty_is_null_and_quoted_empty_is_empty() -> None:
    assert parse(b'1,\n2,""\n') == [
        {"id": 1, "_position": 0},
        {"id": 2, "name": "", "_position": 3},
    ]


def test_a_carriage_return_alone_ends_no_record() -> None:
    rows = parse(b'1,a\rb\r\n2,""\r\n3,"c\rd"x\r\n4,\r\n')
    assert [row.get("name") for row in rows] == ["a\rb", "", "c\rdx", None]
    assert all("_rescued_data" not in row for row in rows)


def test_a_quote_that_stays_open_is_rescued_with_all_behind_it() -> None:
    rows = parse(b'1,a\n2,"b\n3,c\n')
    assert [row.get("_rescued_data") for row in rows] == [None, '2,"b\n3,c\n']


def test_fields_go_to_columns_by_name() -> None:
    (row,) = parse(b"x,7\n", header=["name", "id"])
    assert (row["id"], row["name"]) == (7, "x")
    (row,) = parse(b"7\n", header=["id"])
    assert row == {"id": 7, "_position": 0}


def test_what_does_not_fit_leaves_its_record() -> None:
    rows = parse(b"x,a\n1\n1,2,3\n2,b\n")
    assert [row.get("_rescued_data") for row in rows] == ["x,a", "1", "1,2,3", None]
    assert rows[0]["name"] == "a"
    assert rows[3] == {"id": 2, "name": "b", "_position": 12}
    (row,) = parse(b"1,a,surplus\n", header=["id", "name", "other"])
    assert row == {"id": 1, "name": "a", "_rescued_data": "1,a,surplus", "_position": 0}
    (row,) = parse(b"1,a,\n", header=["id", "name", "other"])
    assert "_rescued_data" not in row


def test_bytes_that_are_no_text_leave_their_record() -> None:
    rows = parse(b"1,a\n2,\xff\n")
    assert rows[0] == {"id": 1, "name": "a", "_position": 0}
    assert rows[1]["_rescued_data"] == "2,\\xff"


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (pa.int8(), {"1": 1, " -5 ": -5, "+7": 7}, ["128", "1.0", "0x1", "9" * 5000, "x"]),
        (pa.float64(), {"1.5": 1.5, " 2 ": 2.0, "1e3": 1000.0}, ["1e400", "1_0", "x"]),
        (pa.bool_(), {"true": True, "FALSE": False, " True": True}, ["yes", "2"]),
        (
            pa.decimal128(5, 2),
            {"1.25": "1.25", " 3": "3.00", "7.5000": "7.50"},
            ["1.255", "12345", "1_0", "7e-41", "x"],
        ),
        (pa.decimal128(38, 18), {"1e3": f"1000.{'0' * 18}"}, ["7e20", f"{10**300}"]),
        (pa.date32(), {"2026-01-31": "2026-01-31"}, ["2026-02-31", "31.1.2026"]),
        (
            pa.timestamp("us", tz="UTC"),
            {
                "2026-01-01T00:00:00Z": "2026-01-01 00:00:00+00:00",
                "2026-01-01 02:00:00+02:00": "2026-01-01 00:00:00+00:00",
                "2026-01-01 05:00:00": "2026-01-01 05:00:00+00:00",
            },
            ["2026-01-01T25:00:00Z", "now"],
        ),
    ],
)
def test_texts_become_values(kind: pa.DataType, good: dict[str, Any], bad: list[str]) -> None:
    columns = pa.schema([("v", kind)])

    def of(texts: list[str]) -> list[dict[str, Any]]:
        return parse("\n".join(f'"{t}"' for t in texts).encode(), ["v"], columns)

    # All of them, each alone, and each next to one that does not fit: three ways through the code.
    for texts in (list(good), *([each] for each in good), [*good, bad[0]]):
        for text, row in zip(texts, of(texts), strict=True):
            if text in good:
                assert str(row["v"]) == str(good[text]), text
                assert "_rescued_data" not in row
    for text in bad:
        (row,) = of([text])
        assert row == {"_rescued_data": f'"{text}"', "_position": 0}


def test_types_are_inferred_but_digits_with_a_leading_zero_stay_text() -> None:
    assert infer(b"1,1,true,01234,,x,1e3\n-2,2.5,False,5,,,.5\n", list("abcdefg")) == {
        "a": "int64",
        "b": "double",
        "c": "bool",
        "d": "string",
        "e": "null",
        "f": "string",
        "g": "double",
    }


def test_integers_keep_their_digits_however_many_they_are() -> None:
    texts = b"%d,%d,%d,%d\n%d,1,2.5,1\n"
    large = texts % (2**63 - 1, 2**63, 10**20, 10**38, -(2**63))
    assert infer(large, list("abcd")) == {
        "a": "int64",
        "b": "decimal128(19, 0)",
        "c": "string",
        "d": "double",  # as no decimal has so many
    }


def test_a_header_names_columns_and_not_one_of_them_twice() -> None:
    assert csvrows.header_of(b'id," name ",', Dialect()) == ["id", "name", "_c2"]
    assert csvrows.header_of(b"1,2", Dialect(header=False)) == ["_c0", "_c1"]
    with pytest.raises(InvalidError, match="twice: a"):
        csvrows.header_of(b"a,a", Dialect())


@pytest.mark.parametrize(
    ("text", "why"),
    [(b"id,name\r1,a\r2,b", "carriage return"), (b'id,"name\n1,a\n2,b', "never closed")],
)
def test_a_header_that_is_the_whole_file_is_no_header(text: bytes, why: str) -> None:
    # Else all of it would be names, and the file loaded without a row.
    with pytest.raises(InvalidError, match=why):
        csvrows.header_of(text, Dialect())
    with pytest.raises(InvalidError, match="never closed"):
        csvrows.header_of(b'"1,a\n2,b', Dialect(header=False))
    assert len(csvrows.header_of(b'id,"two\r\nlines"', Dialect())) == 2


def test_only_whole_records_are_cut_off() -> None:
    assert cut(b'1,a\n2,"b\n', COMMA) == 4
    assert cut(b'1,a\n2,"b\n"\n', COMMA) == 11
    assert cut(b'1,a\n2,"b""\n', COMMA) == 4
    assert cut(b'1,a"\n2,b\nrest', COMMA) == 9


def test_other_dialects() -> None:
    dialect = Dialect(delimiter=";", quote="'")
    assert parse(b"1;'a;b'\n", dialect=dialect)[0]["name"] == "a;b"
    assert parse(b'1|"a\n', dialect=Dialect(delimiter="|", quote=""))[0]["name"] == '"a'


def test_a_header_of_very_many_columns_is_looked_at_once() -> None:
    names = [f"gene_{n}" for n in range(100_000)]  # name by name it would take minutes
    header = csvrows.header_of(",".join(names).encode(), Dialect())
    assert header == names
    with pytest.raises(InvalidError, match=r"twice: gene_5, gene_7$"):
        csvrows.header_of(",".join([*names, "gene_7", "gene_5"]).encode(), Dialect())
