"""Pieces of files: ranges meet without a gap, and what cannot be read says why."""

from __future__ import annotations

import bz2
import gzip
import json
import os
import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from penstock.errors import CorruptError, InvalidError, NotFoundError, PenstockError
from penstock.spark.ingest import readers
from penstock.spark.ingest.files import open_text, stat
from penstock.spark.ingest.pieces import Piece
from penstock.spark.ingest.readers import PieceReader, Reading, row_group_bytes
from penstock.spark.ingest.schema import TEXT, delta_type, settle

TEXTS = Reading("text")
JSON = Reading("json")
CSV = Reading("csv")
PARQUET = Reading("parquet")
PACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": zstandard.compress,
    ".zstd": zstandard.compress,
}
ID = pa.schema([("id", pa.int64())])


def read(piece: Piece, reading: Reading, columns: pa.Schema) -> tuple[list[Any], int | None]:
    reader = PieceReader(piece, reading)
    rows = [row for table in reader.tables(columns) for row in table.to_pylist()]
    return rows, reader.end


def values(piece: Piece) -> tuple[list[tuple[str, int]], int | None]:
    rows, end = read(piece, TEXTS, TEXT)
    return [(row["value"], row["_position"]) for row in rows], end


@pytest.mark.parametrize("block", [1, 3, 64])
@pytest.mark.parametrize("text", [b"ab\nc\n\nlong line\nx\n", b"ab\nc\n\nlong line\nx", b"", b"\n"])
def test_whatever_the_cuts_every_line_is_in_one_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes, block: int
) -> None:
    monkeypatch.setattr(readers, "BLOCK_BYTES", block)
    path = tmp_path / "a.txt"
    path.write_bytes(text)
    uri = f"file://{path}"
    whole, end = values(Piece(0, uri))
    assert end is None
    assert b"\n".join(value.encode() for value, _ in whole) == text.removesuffix(b"\n")
    for cut in range(1, len(text)):
        first, middle = values(Piece(0, uri, 0, cut))
        second, last = values(Piece(1, uri, cut, None, aligned=False))
        assert first + second == whole, cut
        assert last is None
        for later in range(cut + 1, len(text)):
            between, _ = values(Piece(1, uri, cut, later, aligned=False))
            rest, _ = values(Piece(2, uri, later, None, aligned=False))
            assert first + between + rest == whole, (cut, later)
        # A later batch begins where the first one says.
        assert middle is not None
        assert first + values(Piece(0, uri, middle, None))[0] == whole


@pytest.mark.parametrize("ending", ["", ".gz", ".bz2", ".zst", ".zstd"])
def test_compressed_files_of_several_members_are_one_text(tmp_path: Path, ending: str) -> None:
    pack = PACK[ending]
    path = tmp_path / f"ä b.json{ending}"
    path.write_bytes(pack(b'{"id":1}\n{"id"') + pack(b":2}\n"))
    rows, _ = read(Piece(0, f"file://{path}"), JSON, ID)
    assert [(row["id"], row["_position"]) for row in rows] == [(1, 0), (2, 9)]


@pytest.mark.parametrize("ending", list(PACK))
def test_a_file_without_a_byte_is_empty_whatever_it_is_called(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a.json{ending}"
    path.touch()
    assert read(Piece(0, f"file://{path}"), JSON, ID) == ([], None)


@pytest.mark.parametrize("ending", [".gz", ".bz2", ".zst"])
def test_a_cut_or_damaged_file_is_worth_another_try(tmp_path: Path, ending: str) -> None:
    pack = PACK[ending]
    whole = pack(os.urandom(100_000).hex().encode())
    path = tmp_path / f"a{ending}"
    for data in (whole[: len(whole) // 2], b"not compressed at all", whole[:200] + b"\0" * 500):
        path.write_bytes(data)
        with pytest.raises(CorruptError, match=r"damaged, or not whole yet|Invalid data stream"):
            read(Piece(0, f"file://{path}"), TEXTS, TEXT)


def test_a_few_bytes_that_become_very_many_do_not_fill_memory(tmp_path: Path) -> None:
    # A frame of blocks that repeat one byte: four bytes are 128 KiB.
    block = ((1 << 17) << 3 | 1 << 1).to_bytes(3, "little") + b"x"
    path = tmp_path / "a.zst"
    path.write_bytes(bytes.fromhex("28b52ffd 00 38") + block * 4000)
    tracemalloc.start()
    try:
        with open_text(f"file://{path}") as file:
            assert file.read(1) == b"x"
        assert tracemalloc.get_traced_memory()[1] < 2**28
    finally:
        tracemalloc.stop()


def test_what_is_no_file_is_an_error_of_the_right_kind(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    cases: list[tuple[str, type[PenstockError]]] = [
        (f"file://{tmp_path}/missing", NotFoundError),
        (f"file://{tmp_path}", InvalidError),
        (f"file://{tmp_path}/pipe", InvalidError),
        ("ftp://host/a", InvalidError),
        ("s3://bucket//a", InvalidError),
    ]
    for uri, kind in cases:
        with pytest.raises(kind):
            read(Piece(0, uri), TEXTS, TEXT)
        with pytest.raises(kind):
            stat(uri)


def test_a_line_without_an_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "LINE_BYTES_MAX", 100)
    monkeypatch.setattr(readers, "BLOCK_BYTES", 10)
    (tmp_path / "a").write_bytes(b"x" * 1000)
    for piece in (
        Piece(0, f"file://{tmp_path}/a"),
        Piece(0, f"file://{tmp_path}/a", 5, None, aligned=False),
    ):
        with pytest.raises(InvalidError, match="more than 100 bytes"):
            read(piece, TEXTS, TEXT)


def test_a_file_that_became_shorter_is_not_taken_for_loaded(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one\ntwo\n")
    with pytest.raises(CorruptError, match="shorter"):
        read(Piece(0, f"file://{tmp_path}/a", 0, 100), TEXTS, TEXT)


def test_another_version_than_the_announced_one_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"one\n")
    version = stat(f"file://{path}").version
    assert len(read(Piece(0, f"file://{path}", version=version), TEXTS, TEXT)[0]) == 1
    path.write_bytes(b"two, and more\n")
    with pytest.raises(InvalidError, match="is now version"):
        read(Piece(0, f"file://{path}", version=version), TEXTS, TEXT)


def test_a_version_that_changes_while_it_is_read_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"one\n")
    reader = PieceReader(Piece(0, f"file://{path}", version=stat(f"file://{path}").version), TEXTS)
    tables = reader.tables(TEXT)
    next(tables)
    path.write_bytes(b"two, and more\n")
    with pytest.raises(InvalidError, match="is now version"):
        list(tables)


def test_a_byte_order_mark_is_no_data(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b'\xef\xbb\xbf{"id":1}\n{"id":2}')
    rows, _ = read(Piece(0, f"file://{tmp_path}/a"), JSON, ID)
    assert [(row["id"], row["_position"]) for row in rows] == [(1, 3), (2, 12)]


def test_lines_that_are_no_text_are_kept_as_escapes() -> None:
    rows, _ = read(Piece(0, "inline:1", data=b"ok\n\xffno\n"), TEXTS, TEXT)
    assert [(row["value"], row["_rescued_data"]) for row in rows] == [
        ("ok", None),
        ("\\xffno", "\\xffno"),
    ]


def test_a_csv_file_in_many_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "BLOCK_BYTES", 7)
    (tmp_path / "a.csv").write_bytes(b'\nid,name\n1,"a\nb"\n2,c\n3,d')
    columns = pa.schema([("id", pa.int64()), ("name", pa.string())])
    piece = Piece(0, f"file://{tmp_path}/a.csv")
    rows, _ = read(piece, CSV, columns)
    assert [(r["id"], r["name"], r["_position"]) for r in rows] == [
        (1, "a\nb", 9),
        (2, "c", 17),
        (3, "d", 21),
    ]
    assert str(PieceReader(piece, CSV).infer().field("id").type) == "int64"
    (tmp_path / "head.csv").write_bytes(b"id,name\n")
    assert read(Piece(0, f"file://{tmp_path}/head.csv"), CSV, columns) == ([], None)


def test_row_groups_of_a_parquet_file_and_their_row_numbers(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": list(range(10))}), path, row_group_size=4)
    uri = f"file://{path}"
    assert len(row_group_bytes(uri)) == 3
    first, end = read(Piece(0, uri, 0, 2), PARQUET, ID)
    last, none = read(Piece(1, uri, 2, None), PARQUET, ID)
    assert (end, none) == (2, None)
    assert [(row["id"], row["_position"]) for row in first + last] == [(n, n) for n in range(10)]
    assert PieceReader(Piece(0, uri), PARQUET).infer() == ID
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(CorruptError, match="damaged"):
        read(Piece(0, uri), PARQUET, ID)


def parquet(tmp_path: Path, table: pa.Table) -> Piece:
    pq.write_table(table, tmp_path / "a.parquet")
    return Piece(0, f"file://{tmp_path}/a.parquet")


@pytest.mark.parametrize("ending", [".gz", ".bz2", ".zst", ".zstd"])
def test_a_parquet_file_that_was_compressed_as_a_whole_is_refused(
    tmp_path: Path, ending: str
) -> None:
    pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "a.parquet")
    path = tmp_path / f"a.parquet{ending}"
    plain = (tmp_path / "a.parquet").read_bytes()
    path.write_bytes(PACK[ending](plain))
    for look in (
        PieceReader(Piece(0, f"file://{path}"), PARQUET).infer,
        lambda: row_group_bytes(f"file://{path}"),
    ):
        with pytest.raises(InvalidError, match="a compressed Parquet file is not read"):
            look()
    path.write_bytes(plain)  # it only has the name
    rows, _ = read(Piece(0, f"file://{path}"), PARQUET, ID)
    assert [row["id"] for row in rows] == [1, 2]


def test_a_parquet_file_with_one_name_twice_is_refused(tmp_path: Path) -> None:
    one = pa.array([1])
    twice = pa.StructArray.from_arrays([one, one], names=["y", "y"])
    cases = [
        (pa.table([one, one, one], names=["id", "x", "x"]), "'x' twice"),
        (pa.table({"id": one, "s": twice}), "'y' twice"),
        (pa.table({"id": one, "l": pa.ListArray.from_arrays([0, 1], twice)}), "'y' twice"),
    ]
    for table, told in cases:
        piece = parquet(tmp_path, table)
        with pytest.raises(InvalidError, match=told):
            read(piece, PARQUET, ID)
        with pytest.raises(InvalidError, match=told):
            PieceReader(piece, PARQUET).infer()


def test_values_that_python_has_not_are_rescued(tmp_path: Path) -> None:
    day = pa.array([10**7], pa.int32()).cast(pa.date32())
    rows, _ = read(parquet(tmp_path, pa.table({"id": [1], "day": day})), PARQUET, ID)
    assert [(row["id"], row["_rescued_data"]) for row in rows] == [
        (1, '{"day": "10000000 days since 1970-01-01"}')
    ]


def test_a_column_too_deep_to_be_written_out_is_refused(tmp_path: Path) -> None:
    value = pa.array([1])
    for _ in range(1500):
        value = pa.StructArray.from_arrays([value], names=["a"])
    batch = pa.record_batch({"id": pa.array([1]), "deep": value})
    reader = PieceReader(Piece(0, "file:///a.parquet"), PARQUET)
    with pytest.raises(InvalidError, match="too deep"):
        reader._conform(batch, ID)


# -- Parquet: types that other writers choose

LOCAL, INSTANT = pa.timestamp("us"), pa.timestamp("us", tz="UTC")
MOMENTS = [datetime.fromisoformat(at) for at in ("2024-01-01T12:00", "9999-12-31", "0001-01-01")]
#: Of each type one value, made of a moment.
AROUND: dict[str, tuple[Callable[[pa.DataType], pa.DataType], Callable[[Any], Any]]] = {
    "flat": (lambda kind: kind, lambda value: value),
    "list": (lambda kind: pa.list_(pa.field("element", kind)), lambda value: [value, None]),
    "large": (lambda kind: pa.large_list(kind), lambda value: [value]),
    "struct": (
        lambda kind: pa.struct([("n", pa.int64()), pa.field("at", kind, nullable=False)]),
        lambda value: {"n": 1, "at": value},
    ),
    "map": (lambda kind: pa.map_(kind, kind), lambda value: [(value, value)]),
    "deep": (
        lambda kind: pa.list_(pa.field("element", pa.struct([("at", pa.list_(kind))]))),
        lambda value: [{"at": [value]}],
    ),
}


@pytest.mark.parametrize("stored", [True, False])
def test_int96_is_an_instant_of_any_year(tmp_path: Path, stored: bool) -> None:
    """Spark writes its TIMESTAMP so, unless it is told otherwise."""
    given = {
        name: pa.array([wrap(at) for at in MOMENTS], kind(LOCAL))
        for name, (kind, wrap) in AROUND.items()
    }
    ids = pa.array(range(3))
    # Which leaf is which must not be confused by columns of another sort before them.
    table = pa.table({"uuid": pa.array([b"x" * 16] * 3, pa.uuid()), "id": ids, **given, "end": ids})
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, use_deprecated_int96_timestamps=True, store_schema=stored)
    piece = Piece(0, f"file://{path}")
    inferred = settle(PieceReader(piece, PARQUET).infer())
    wanted = {name: delta_type(kind(INSTANT)) for name, (kind, _) in AROUND.items()}
    assert {name: inferred.field(name).type for name in AROUND} == wanted
    rows, _ = read(piece, PARQUET, inferred)
    for row, at in zip(rows, MOMENTS, strict=True):
        instant = at.replace(tzinfo=UTC)
        assert {name: row[name] for name in AROUND} == {
            name: wrap(instant) for name, (_, wrap) in AROUND.items()
        }
        assert row["_rescued_data"] is None
    rows, _ = read(piece, PARQUET, pa.schema([("flat", LOCAL)]))
    assert [row["flat"] for row in rows] == [None] * 3  # it is no time without a zone
    assert json.loads(rows[1]["_rescued_data"])["flat"] == "9999-12-31T00:00:00+00:00"


def test_times_that_are_not_int96_have_the_zone_that_they_have(tmp_path: Path) -> None:
    table = pa.table({"local": pa.array(MOMENTS, LOCAL), "instant": pa.array(MOMENTS, INSTANT)})
    assert settle(PieceReader(parquet(tmp_path, table), PARQUET).infer()) == table.schema


VIEWS: list[tuple[pa.DataType, pa.DataType, Any]] = [
    (pa.string_view(), pa.string(), "x" * 20),
    (pa.binary_view(), pa.binary(), b"x" * 20),
    (pa.struct([("a", pa.string_view())]), pa.struct([("a", pa.string())]), {"a": "x"}),
    (pa.list_(pa.string_view()), pa.list_(pa.string()), ["x", None]),
    (pa.large_list(pa.binary_view()), pa.list_(pa.binary()), [b"x", None]),
    (pa.list_(pa.string_view(), 1), pa.list_(pa.string()), ["x"]),
    (pa.map_(pa.string_view(), pa.string_view()), pa.map_(pa.string(), pa.string()), [("x", "y")]),
    (
        pa.list_(pa.map_(pa.string_view(), pa.string_view())),
        pa.list_(pa.map_(pa.string(), pa.string())),
        [[("x", "y")]],
    ),
    (pa.json_(pa.string_view()), pa.string(), '{"a": 1}'),
    (pa.list_view(pa.int64()), pa.list_(pa.int64()), [1, 2]),
    (pa.list_view(pa.string_view()), pa.list_(pa.string()), ["x", None]),
    (pa.large_list_view(pa.string_view()), pa.list_(pa.string()), ["x"]),
    (pa.list_(pa.list_view(pa.string())), pa.list_(pa.list_(pa.string())), [["x"], None]),
]


@pytest.mark.parametrize(("kind", "wanted", "value"), VIEWS, ids=lambda each: str(each)[:40])
def test_views_of_arrow_are_texts_bytes_and_lists(
    tmp_path: Path, kind: pa.DataType, wanted: pa.DataType, value: Any
) -> None:
    table = pa.table({"id": range(4), "x": pa.array([value, None, value, None], kind)})
    piece = parquet(tmp_path, table)
    inferred = settle(PieceReader(piece, PARQUET).infer())
    assert inferred.field("x").type == delta_type(wanted)
    rows, _ = read(piece, PARQUET, inferred)
    assert [row["x"] for row in rows] == [value, None, value, None]
    assert [row["_rescued_data"] for row in rows] == [None] * 4
    # And those that are rescued, of a column that the table has not.
    rows, _ = read(piece, PARQUET, ID)
    assert [row["_rescued_data"] is None for row in rows] == [False, True, False, True]
