"""What one Spark task does: read its pieces, write splits. And what it tells the driver.

Contract     run_task(job, pieces): Parquet splits in the staging's folder, durable, and a result
             for each piece. A file that cannot be read spoils nothing but itself: its rows are in
             no split that is reported. A table that cannot be written is an UnavailableError, for
             that is no file's fault. A task that Spark repeats writes other names; what its first
             try left goes with the staging.
Splits       Small files share one, a row group having many of them; what is large gets its own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.errors import PenstockError, UnavailableError
from penstock.source.requests import Split
from penstock.spark.ingest.pieces import Piece, PieceResult, failed
from penstock.spark.ingest.readers import ChangedError, PieceReader, Reading
from penstock.spark.ingest.schema import FILE, TABLE_FIELDS, merge_schemas, table_schema
from penstock.spark.ingest.tablefolder import put

#: Rows gather until a row group is worth it.
ROW_GROUP_BYTES = 32 * 2**20
#: A file whose rows take more memory than this gets splits of its own.
SHARED_BYTES = 64 * 2**20
#: A split is closed when it is this large.
SPLIT_BYTES = 128 * 2**20
#: As many as Delta has statistics of (delta.dataSkippingNumIndexedCols).
STATS_COLUMNS = 32


class Job(msgspec.Struct, frozen=True):
    """What all tasks of a batch know."""

    table: str
    folder: str  # of the staging, inside the table
    reading: Reading
    schema: bytes  # of the data, Arrow's own form


class NamedSplit(msgspec.Struct, frozen=True):
    split: Split
    pieces: list[int]  # whose rows are in it


class TaskResult(msgspec.Struct, frozen=True):
    splits: list[NamedSplit] = []
    pieces: list[PieceResult] = []
    schema: bytes = b""  # where one was asked for
    fault: str = ""  # the table could not be written


def pack_schema(schema: pa.Schema) -> bytes:
    return bytes(schema.serialize())


def unpack_schema(data: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(data))


class SplitWriter:
    """One split after the other, in memory until each is put into the table."""

    def __init__(self, job: Job, schema: pa.Schema) -> None:
        self._job = job
        self._schema = schema
        self._gathered: list[pa.Table] = []
        self._gathered_bytes = 0
        self._pieces: list[int] = []
        self._sink: pa.BufferOutputStream | None = None
        self._writer: pq.ParquetWriter | None = None
        self._splits: list[NamedSplit] = []

    def add(self, piece: int, table: pa.Table) -> None:
        if piece not in self._pieces[-1:]:
            self._pieces.append(piece)
        if not len(table):
            return
        self._gathered.append(table)
        self._gathered_bytes += table.nbytes
        if self._gathered_bytes >= ROW_GROUP_BYTES:
            self._flush()
            assert self._sink is not None
            if self._sink.tell() >= SPLIT_BYTES:
                self._close()
                self._pieces = [piece]

    def _flush(self) -> None:
        if not self._gathered:
            return
        if self._writer is None:
            self._sink = pa.BufferOutputStream()
            self._writer = pq.ParquetWriter(self._sink, self._schema, compression="zstd")
        table = pa.concat_tables(self._gathered)
        self._writer.write_table(table, row_group_size=max(1, len(table)))
        self._gathered, self._gathered_bytes = [], 0

    def finished(self) -> list[NamedSplit]:
        """All that was added is in these."""
        self._close()
        return self._splits

    def _close(self) -> None:
        self._flush()
        if self._writer is None:
            return
        assert self._sink is not None
        self._writer.close()
        data = self._sink.getvalue()
        path = f"{self._job.folder}/{os.urandom(16).hex()}.parquet"
        put(self._job.table, path, data)
        metadata = pq.read_metadata(pa.BufferReader(data))
        split = Split(path, metadata.num_rows, data.size, statistics(metadata, self._schema))
        self._splits.append(NamedSplit(split, self._pieces))
        self._writer, self._sink, self._pieces = None, None, []


def run_task(job: Job, pieces: Sequence[Piece]) -> TaskResult:
    columns = unpack_schema(job.schema)
    schema = table_schema(columns)
    shared = SplitWriter(job, schema)
    # Ranges of one file share splits with each other, for they are published together or not. They
    # follow one another, so one of these is open at a time.
    ranged: dict[tuple[str, str | None], SplitWriter] = {}
    splits: list[NamedSplit] = []
    results = []
    for piece in pieces:
        own = SplitWriter(job, schema)
        if piece.alone:
            file = (piece.uri, piece.version)
            for other in [each for each in ranged if each != file]:
                splits += ranged.pop(other).finished()
            own = ranged.setdefault(file, own)
        reader = PieceReader(piece, job.reading)
        held: list[pa.Table] | None = None if piece.alone else []
        held_bytes = rows = 0
        tables = reader.tables(columns)
        while True:
            try:
                table = next(tables, None)
            except PenstockError as error:
                changed = isinstance(error, ChangedError)
                results.append(
                    msgspec.structs.replace(failed(piece.number, error), changed=changed)
                )
                break
            if table is None:
                for each in held or ():
                    shared.add(piece.number, each)
                if not piece.alone:
                    splits += own.finished()
                results.append(PieceResult(piece.number, rows, reader.end))
                break
            table = with_file(table, piece.uri, schema)
            rows += len(table)
            if held is not None:
                held.append(table)
                held_bytes += table.nbytes
                if held_bytes > SHARED_BYTES:
                    for each in held:
                        own.add(piece.number, each)
                    held = None
            else:
                own.add(piece.number, table)
    for writer in (*ranged.values(), shared):
        splits += writer.finished()
    return TaskResult(splits, results)


def infer_task(reading: Reading, pieces: Sequence[Piece]) -> TaskResult:
    """The narrowest schema of what can be read; what cannot is found again by run_task. Pieces
    whose store is away are named: they would have had a word in it."""
    found, away = [], []
    for piece in pieces:
        try:
            found.append(PieceReader(piece, reading).infer())
        except UnavailableError as error:
            away.append(failed(piece.number, error))
        except PenstockError:
            continue
    return TaskResult(pieces=away, schema=pack_schema(merge_schemas(found)))


def with_file(table: pa.Table, uri: str, schema: pa.Schema) -> pa.Table:
    names = pa.repeat(pa.scalar(uri, pa.string()), len(table))
    return table.append_column(FILE, names).select(schema.names).cast(schema)


def statistics(metadata: Any, schema: pa.Schema) -> str:
    """Of a split, as Delta's log has them: how many rows, and where whole numbers lie.

    Of the first columns only, as Delta does it: all of them are in the log, for every split.
    """
    kinds = {field.name: field.type for field in [*list(schema)[:STATS_COLUMNS], *TABLE_FIELDS]}
    lows: dict[str, Any] = {}
    highs: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for at in range(metadata.num_columns):
        name = metadata.schema.column(at).path
        # a.b may be a column of that name, or b within a.
        if "." in name or name not in kinds or pa.types.is_nested(kinds[name]):
            continue
        found = [
            metadata.row_group(group).column(at).statistics
            for group in range(metadata.num_row_groups)
        ]
        if any(each is None or not each.has_null_count for each in found):
            continue
        nulls[name] = sum(each.null_count for each in found)
        bounds = [each for each in found if each.has_min_max]
        # Texts may be cut and floats may be NaN in there; whole numbers are as they are.
        if pa.types.is_integer(kinds[name]) and len(bounds) == len(found):
            lows[name] = min(each.min for each in bounds)
            highs[name] = max(each.max for each in bounds)
    return json.dumps(
        {
            "numRecords": metadata.num_rows,
            "minValues": lows,
            "maxValues": highs,
            "nullCount": nulls,
        }
    )
