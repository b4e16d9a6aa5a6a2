"""Pieces of files: ranges meet without a gap, and what cannot be read says why."""

from __future__ import annotations

import bz2
import gzip
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from penstock.errors import CorruptError, InvalidError, NotFoundError, PenstockError
from penstock.spark.ingest import readers
from penstock.spark.ingest.files import stat
from penstock.spark.ingest.pieces import Piece
from penstock.spark.ingest.readers import PieceReader, Reading, row_group_bytes
from penstock.spark.ingest.schema import TEXT

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


@pytest.mark.parametrize("ending", [".gz", ".bz2", ".zst"])
def test_a_cut_or_damaged_file_is_worth_another_try(tmp_path: Path, ending: str) -> None:
    pack = PACK[ending]
    whole = pack(os.urandom(100_000).hex().encode())
    path = tmp_path / f"a{ending}"
    for data in (whole[: len(whole) // 2], b"not compressed at all", whole[:200] + b"\0" * 500):
        path.write_bytes(data)
        with pytest.raises(CorruptError, match=r"damaged, or not whole yet|Invalid data stream"):
            read(Piece(0, f"file://{path}"), TEXTS, TEXT)


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
