"""A piece of a file as tables, block by block. Runs in Spark's tasks.

Contract     PieceReader.tables(columns): tables with the columns, `_rescued_data` and `_position`
             (of a line: the offset of its first byte in the text; of a row of Parquet: its number
             in the file), and, when all are taken, `end`: where the next piece begins, None at the
             end of the file. Memory holds one block, however large the file.
             infer(): the narrowest schema of its beginning.
Errors       Those of files.py. A line of more than LINE_BYTES_MAX is an InvalidError.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import IO, Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.errors import CorruptError, InvalidError
from penstock.spark.ingest import csvrows, jsonlines
from penstock.spark.ingest.conform import conform
from penstock.spark.ingest.csvrows import Dialect
from penstock.spark.ingest.files import compression_of, damaged, open_file, open_text, stat
from penstock.spark.ingest.fit import plain
from penstock.spark.ingest.kinds import instants
from penstock.spark.ingest.lines import BOM, Lines, Quoting, cut, split_lines
from penstock.spark.ingest.pieces import Piece
from penstock.spark.ingest.schema import (
    CELLS_MAX,
    POSITION,
    RESCUED,
    field_count,
    merge_schemas,
    shallow,
)

Format = Literal["json", "csv", "parquet", "text"]

BLOCK_BYTES = 4 * 2**20
LINE_BYTES_MAX = 64 * 2**20
#: A schema is inferred from so much of each piece.
INFER_BYTES = 16 * 2**20
_BATCH_ROWS = 65_536


class ChangedError(InvalidError):
    """The file is not the one that was announced, or that the parts so far are of."""


class Reading(msgspec.Struct, frozen=True):
    """How the files of a source are read."""

    format: Format
    dialect: Dialect = Dialect()


class PieceReader:
    def __init__(self, piece: Piece, reading: Reading) -> None:
        self._piece = piece
        self._reading = reading
        #: Known when all tables were taken.
        self.end: int | None = None

    def tables(self, columns: pa.Schema) -> Iterator[pa.Table]:
        self._check_version()
        match self._reading.format:
            case "parquet":
                yield from self._parquet(columns)
            case "csv":
                yield from self._csv(columns)
            case "json":
                for base, lines in self._lines():
                    for part in _parts(lines, field_count(columns)):
                        yield _moved(jsonlines.parse(part, columns), base)
            case "text":
                for base, lines in self._lines():
                    yield _moved(_text(lines, columns), base)
        # What was read while it was replaced may be of both.
        self._check_version()

    def infer(self) -> pa.Schema:
        match self._reading.format:
            case "parquet":
                with self._parquet_file() as file:
                    fields = [(each.name, shallow(each.type)) for each in self._fields(file)]
                    return pa.schema(fields)
            case "csv":
                return self._infer_csv()
            case "json":
                found, seen = [], 0
                for _, lines in self._lines():
                    found.append(jsonlines.infer(lines))
                    seen += len(lines.data)
                    if seen >= INFER_BYTES:
                        break
                return merge_schemas(found)
        raise AssertionError("text has one schema")

    def _check_version(self) -> None:
        wanted = self._piece.version
        if wanted is not None and (found := stat(self._piece.uri).version) != wanted:
            raise ChangedError(
                f"{self._piece.uri} is now version {found}, not {wanted}",
                hint="the new version is loaded when it is announced",
            )

    # -- lines

    def _lines(self, quoting: Quoting | None = None) -> Iterator[tuple[int, Lines]]:
        """-> (offset of the block, its lines)"""
        piece = self._piece
        with open_text(piece.uri, piece.data) as file:
            position = piece.start if piece.aligned else piece.start - 1
            if position:
                file.seek(position)
            buffer = b""
            if not piece.aligned:
                skipped, buffer = _skip_line(file, piece)
                position += skipped
            while piece.end is None or position < piece.end:
                chunk = file.read(BLOCK_BYTES)
                buffer += chunk
                whole = self._whole(buffer, position, quoting)
                if not chunk and not whole:
                    whole = len(buffer)  # the last line has no line feed
                if whole:
                    yield _split(buffer[:whole], position, quoting)
                    position, buffer = position + whole, buffer[whole:]
                elif len(buffer) > LINE_BYTES_MAX:
                    raise InvalidError(f"{piece.uri}: a line of more than {LINE_BYTES_MAX:,} bytes")
                if not chunk and not buffer:
                    break
            # Ranges end where the next line begins; a file that is read to its end has no next one.
            if piece.end is not None:
                if position < piece.end:
                    raise CorruptError(f"{piece.uri} became shorter while it was read")
                self.end = position

    def _whole(self, buffer: bytes, position: int, quoting: Quoting | None) -> int:
        """How many bytes are whole lines of this piece."""
        whole = cut(buffer, quoting)
        if self._piece.end is None or position + whole < self._piece.end:
            return whole
        # The last line is the one that has the byte before the end.
        return buffer.find(b"\n", self._piece.end - position - 1) + 1

    # -- CSV

    def _csv(self, columns: pa.Schema) -> Iterator[pa.Table]:
        dialect = self._reading.dialect
        header: list[str] | None = None
        for base, records in self._lines(dialect.quoting):
            header, rest = _header(header, records, dialect)
            for part in _parts(rest, max(field_count(columns), len(header or ()))):
                assert header is not None  # there are records
                yield _moved(csvrows.parse(part, header, columns, dialect), base)

    def _infer_csv(self) -> pa.Schema:
        dialect = self._reading.dialect
        header: list[str] | None = None
        found, seen = [], 0
        for _, records in self._lines(dialect.quoting):
            header, rest = _header(header, records, dialect)
            for part in _parts(rest, len(header or ())):
                assert header is not None  # there are records
                found.append(csvrows.infer(part, header, dialect))
            seen += len(records.data)
            if seen >= INFER_BYTES:
                break
        return merge_schemas(found)

    # -- Parquet

    @contextlib.contextmanager
    def _parquet_file(self) -> Iterator[pq.ParquetFile]:
        piece = self._piece
        try:
            if piece.data is not None:
                yield _parquet_file(pa.BufferReader(piece.data))
                return
            with open_file(piece.uri) as file:
                if compression_of(piece.uri) is not None:
                    _refuse_compressed(piece.uri, file)
                yield _parquet_file(pa.PythonFile(file, mode="r"))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
            raise damaged(piece.uri, error) from error

    def _parquet(self, columns: pa.Schema) -> Iterator[pa.Table]:
        with self._parquet_file() as file:
            sizes = [file.metadata.row_group(at).num_rows for at in range(file.num_row_groups)]
            first, last = self._piece.start, len(sizes)
            if self._piece.end is not None:
                last = self.end = self._piece.end
            if last > len(sizes):
                raise CorruptError(f"{self._piece.uri} became shorter while it was read")
            row = sum(sizes[:first])
            groups = list(range(first, last))
            if not groups:
                return
            fields = self._fields(file)
            width = max(field_count(columns), field_count(pa.schema(fields)))
            rows = max(1, min(_BATCH_ROWS, CELLS_MAX // max(1, width)))
            for batch in file.iter_batches(batch_size=rows, row_groups=groups):
                table = self._conform(_typed(batch, fields), columns)
                numbers = pa.array(range(row, row + len(table)), pa.int64())
                yield table.append_column(POSITION, numbers)
                row += len(table)

    def _fields(self, file: pq.ParquetFile) -> list[pa.Field]:
        fields = list(instants(file))
        doubled = _doubled(pa.struct(fields))
        if doubled is not None:
            raise InvalidError(f"{self._piece.uri}: it has the column or field {doubled!r} twice")
        return fields

    def _conform(self, batch: pa.RecordBatch, columns: pa.Schema) -> pa.Table:
        try:
            return conform(pa.Table.from_batches([batch]), columns)
        except RecursionError as error:
            raise InvalidError(f"{self._piece.uri}: its columns are too deep") from error


def _parquet_file(file: pa.NativeFile) -> pq.ParquetFile:
    # Nanoseconds, as INT96 has them, would turn years after 2262 into others.
    return pq.ParquetFile(file, coerce_int96_timestamp_unit="us")


def _refuse_compressed(uri: str, file: IO[bytes]) -> None:
    """Row groups are read from the middle. One that merely has such a name is read as it is."""
    head = file.read(4)
    if head and not head.startswith(b"PAR"):
        raise InvalidError(
            f"{uri}: a compressed Parquet file is not read: decompress it, its columns are "
            "compressed within"
        )
    file.seek(0)


def _typed(batch: pa.RecordBatch, fields: Sequence[pa.Field]) -> pa.RecordBatch:
    """With the zone of times that have none in the file."""
    arrays = [
        array if array.type == field.type else plain(array).cast(field.type)
        for array, field in zip(batch.columns, fields, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


def _doubled(kind: pa.DataType) -> str | None:
    """A name that a struct in there has twice."""
    children = [kind.field(at) for at in range(kind.num_fields)]
    if pa.types.is_struct(kind):
        for name, times in Counter(child.name for child in children).items():
            if times > 1:
                return str(name)
    found = (_doubled(child.type) for child in children)
    return next((name for name in found if name is not None), None)


def row_group_bytes(uri: str) -> tuple[int, ...]:
    """What each row group of a Parquet file takes on disk."""
    piece = Piece(0, uri)
    with PieceReader(piece, Reading("parquet"))._parquet_file() as file:
        groups = [file.metadata.row_group(at) for at in range(file.num_row_groups)]
        return tuple(
            sum(group.column(at).total_compressed_size for at in range(group.num_columns))
            for group in groups
        )


def _skip_line(file: IO[bytes], piece: Piece) -> tuple[int, bytes]:
    """To the start of the next line. -> (bytes before it, what was read behind it)"""
    skipped = 0
    while chunk := file.read(BLOCK_BYTES):
        end = chunk.find(b"\n") + 1
        if end:
            return skipped + end, chunk[end:]
        skipped += len(chunk)
        if skipped > LINE_BYTES_MAX:
            raise InvalidError(f"{piece.uri}: a line of more than {LINE_BYTES_MAX:,} bytes")
    return skipped, b""


def _parts(lines: Lines, width: int) -> Iterator[Lines]:
    """So many lines that their columns fit into memory."""
    step = max(1, CELLS_MAX // max(1, width))
    for low in range(0, lines.count, step):
        yield lines.part(low, low + step)


def _split(data: bytes, position: int, quoting: Quoting | None) -> tuple[int, Lines]:
    if position == 0 and data.startswith(BOM):
        return len(BOM), split_lines(data[len(BOM) :], quoting)
    return position, split_lines(data, quoting)


def _moved(table: pa.Table, base: int) -> pa.Table:
    """Positions within a block become positions within the file."""
    at = table.schema.get_field_index(POSITION)
    return table.set_column(at, POSITION, pc.add(table.column(at), base)) if base else table


def _text(lines: Lines, columns: pa.Schema) -> pa.Table:
    """Every line, empty ones too. Bytes that are no UTF-8 are written as \\xff, here and there."""
    texts = lines.texts()
    rescued: list[str | None] = [None] * len(texts)
    try:
        lines.span().decode()
    except UnicodeDecodeError:
        for at in range(len(texts)):
            if not _is_text(lines.line(at)):
                rescued[at] = texts[at]
    return pa.table(
        [
            pa.array(texts, pa.string()),
            pa.array(rescued, pa.string()),
            pa.array(lines.starts, pa.int64()),
        ],
        names=[*columns.names, RESCUED, POSITION],
    )


def _is_text(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _header(
    header: list[str] | None, records: Lines, dialect: Dialect
) -> tuple[list[str] | None, Lines]:
    """-> the file's header, once it was seen, and the records behind it"""
    if header is not None:
        return header, records
    records = csvrows.without_empty(records)
    if not records.count:
        return None, records
    header = csvrows.header_of(records.line(0), dialect)
    return header, records.part(1, records.count) if dialect.header else records
