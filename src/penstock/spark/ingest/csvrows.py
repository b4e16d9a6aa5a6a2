"""CSV records into columns, as RFC 4180 has them. Pure.

Contract     parse(records, header, columns, dialect): one row for every record that is not empty.
             Fields go to columns by the names of the file's header, so the order in which a file
             has them does not matter. What does not fit leaves the raw record in
             `_rescued_data`: a value that is not of its column's type (that column null), one
             without a column, a record with more or fewer fields than the header (all null).
Values       An empty field is null, a quoted empty one is an empty text. Numbers and times may have
             blanks around them. true and false in any case, times and days as ISO 8601.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from penstock.errors import InvalidError
from penstock.spark.ingest.jsonvalues import (
    has_unsafe_decimal,
    to_date,
    to_decimal,
    to_float,
    to_integer,
    to_timestamp,
    wide_decimal,
)
from penstock.spark.ingest.lines import Lines, Quoting
from penstock.spark.ingest.schema import POSITION, RESCUED, integer_type, merge_types

_INTEGER = re.compile(r"[+-]?\d+")
#: A leading zero is a sign that it is a name made of digits: 01234 is no number.
_INTEGERS = r"^\s*-?(0|[1-9]\d{0,37})\s*$"
_NUMBERS = r"^\s*[+-]?(0|[1-9]\d*)?(\.\d+)?([eE][+-]?\d+)?\s*$"
_RETURN_ALONE = re.compile(rb"\r(?!\n)")
_BOOLEANS = {"true": True, "false": False, "1": True, "0": False}


class Dialect(msgspec.Struct, frozen=True):
    delimiter: str = ","
    quote: str = '"'
    header: bool = True

    @property
    def quoting(self) -> Quoting | None:
        return Quoting(ord(self.quote), ord(self.delimiter)) if self.quote else None


def without_empty(records: Lines) -> Lines:
    keep = records.ends > records.starts
    return records if keep.all() else records.only(keep)


def header_of(first: bytes, dialect: Dialect) -> list[str]:
    """The names of a file's columns, by its first record."""
    fields = _fields(first.decode(errors="backslashreplace"), dialect)
    # What is wrong with where it ends may make the whole file its header, and lose every row.
    if not fields:
        raise InvalidError("a quote in the first record is never closed")
    if not dialect.header:
        return [f"_c{number}" for number in range(len(fields))]
    if _RETURN_ALONE.search(first):
        raise InvalidError("a carriage return alone is in the header, and ends no line")
    names = [(name or "").strip() or f"_c{number}" for number, name in enumerate(fields)]
    doubled = sorted(name for name, times in Counter(names).items() if times > 1)
    if doubled:
        raise InvalidError(f"the header names a column twice: {', '.join(doubled)}")
    return names


def parse(records: Lines, header: Sequence[str], columns: pa.Schema, dialect: Dialect) -> pa.Table:
    """-> the columns, then _rescued_data and _position (of the record in `records.data`)"""
    records = without_empty(records)
    texts, whole = _texts(records, header, dialect)
    misfit = ~whole
    arrays = []
    left = dict(zip(header, texts, strict=True))
    for field in columns:
        if field.name not in left:
            arrays.append(pa.nulls(records.count, field.type))
            continue
        array, bad = _convert(left.pop(field.name), field.type)
        arrays.append(array)
        misfit |= bad
    for text in left.values():
        misfit |= text.is_valid().to_numpy(zero_copy_only=False)
    rescued: list[str | None] = [None] * records.count
    for at in np.flatnonzero(misfit).tolist():
        rescued[at] = records.line(at).decode(errors="backslashreplace")
    return pa.Table.from_arrays(
        [*arrays, pa.array(rescued, pa.string()), pa.array(records.starts, pa.int64())],
        schema=pa.schema([*columns, pa.field(RESCUED, pa.string()), (POSITION, pa.int64())]),
    )


def infer(records: Lines, header: Sequence[str], dialect: Dialect) -> pa.Schema:
    """The narrowest schema of these records; not settled."""
    texts, _ = _texts(without_empty(records), header, dialect)
    return pa.schema([(name, _kind(text)) for name, text in zip(header, texts, strict=True)])


def _kind(texts: pa.Array) -> pa.DataType:
    seen = texts.drop_null()
    if not len(seen):
        return pa.null()
    whole = pc.match_substring_regex(seen, _INTEGERS)
    if pc.all(whole).as_py():
        return _integer_kind(seen)
    number = pc.and_(
        pc.match_substring_regex(seen, _NUMBERS), pc.match_substring_regex(seen, r"\d")
    )
    if pc.all(number).as_py():
        return merge_types(_integer_kind(seen.filter(whole)), pa.float64())
    if pc.all(pc.match_substring_regex(seen, r"(?i)^\s*(true|false)\s*$")).as_py():
        return pa.bool_()
    return pa.string()


def _integer_kind(seen: pa.Array) -> pa.DataType:
    texts = pc.ascii_trim_whitespace(seen)
    try:
        texts.cast(pa.int64())
    except pa.ArrowInvalid:
        digits = pc.max(pc.utf8_length(pc.ascii_ltrim(texts, "-"))).as_py()
        return integer_type(digits, small=False)
    return pa.int64()


# -- the fields of each record, as text


def _texts(
    records: Lines, header: Sequence[str], dialect: Dialect
) -> tuple[list[pa.Array], np.ndarray[Any, np.dtype[np.bool_]]]:
    """-> one array of texts per column, and which records had as many fields as the header"""
    found = _quick(records, header, dialect)
    return found if found is not None else _slow(records, header, dialect)


def _quick(
    records: Lines, header: Sequence[str], dialect: Dialect
) -> tuple[list[pa.Array], np.ndarray[Any, np.dtype[np.bool_]]] | None:
    if not records.count:
        return None
    wrong: list[int] = []

    def note(row: pacsv.InvalidRow) -> str:
        wrong.append(row.number - 1)
        return "skip"

    data = records.span()
    if data.count(b"\r") != data.count(b"\r\n"):
        return None  # Arrow takes a carriage return alone for the end of a record
    if not _fields(records.part(records.count - 1, records.count).texts()[0], dialect):
        return None  # and a quote that stays open for one that was closed
    names = [str(number) for number in range(len(header))]
    try:
        table = pacsv.read_csv(
            io.BytesIO(data),
            # Rows that are skipped have numbers only where one thread reads one block.
            read_options=pacsv.ReadOptions(
                use_threads=False, column_names=names, block_size=len(data) + 1
            ),
            parse_options=pacsv.ParseOptions(
                delimiter=dialect.delimiter,
                quote_char=dialect.quote or False,
                double_quote=True,
                newlines_in_values=True,
                invalid_row_handler=note,
            ),
            convert_options=pacsv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                null_values=[""],
            ),
        )
    except pa.ArrowInvalid:
        return None
    if len(table) + len(wrong) != records.count:
        return None
    whole = np.ones(records.count, np.bool_)
    columns = [column.combine_chunks() for column in table.columns]
    if wrong:
        whole[wrong] = False
        # Row number of each record among those that were read; null for the others.
        index = pa.array(np.cumsum(whole) - 1, pa.int64(), mask=~whole)
        columns = [column.take(index) for column in columns]
    return columns, whole


def _slow(
    records: Lines, header: Sequence[str], dialect: Dialect
) -> tuple[list[pa.Array], np.ndarray[Any, np.dtype[np.bool_]]]:
    whole = np.ones(records.count, np.bool_)
    rows: list[list[str | None]] = []
    for at, text in enumerate(records.texts()):
        fields = _fields(text, dialect)
        whole[at] = len(fields) == len(header) and _is_text(records.line(at))
        rows.append(fields if len(fields) == len(header) else [None] * len(header))
    return [pa.array([row[at] for row in rows], pa.string()) for at in range(len(header))], whole


def _is_text(record: bytes) -> bool:
    try:
        record.decode()
    except UnicodeDecodeError:
        return False
    return True


def _fields(text: str, dialect: Dialect) -> list[str | None]:
    """Of one record. An empty one is None, a quoted empty one is not; [] if a quote stays open."""
    fields: list[str | None] = []
    at = 0
    while True:
        value, after = "", at
        quoted = bool(dialect.quote) and text.startswith(dialect.quote, at)
        if quoted:
            value, after = _unquoted(text, at + 1, dialect.quote)
            if after < 0:
                return []
        end = text.find(dialect.delimiter, after)
        end = len(text) if end < 0 else end
        value += text[after:end]
        fields.append(value if value or quoted else None)
        if end == len(text):
            return fields
        at = end + 1


def _unquoted(text: str, at: int, quote: str) -> tuple[str, int]:
    """What stands from here to the closing quote. -> (it, where it goes on; -1: there is none)"""
    parts = []
    while (end := text.find(quote, at)) >= 0:
        parts.append(text[at:end])
        if not text.startswith(quote, end + 1):
            return quote.join(parts), end + 1
        at = end + 2
    return "", -1


# -- text into values


def _convert(
    texts: pa.Array, kind: pa.DataType
) -> tuple[pa.Array, np.ndarray[Any, np.dtype[np.bool_]]]:
    fine = np.zeros(len(texts), np.bool_)
    if pa.types.is_string(kind):
        return texts, fine
    try:
        return _cast(texts, kind), fine
    except pa.ArrowInvalid:
        pass
    values = [None if text is None else _value(text, kind) for text in texts.to_pylist()]
    array = pa.array(values, kind)
    bad = pc.and_(array.is_null(), texts.is_valid())
    return array, bad.to_numpy(zero_copy_only=False)


def _cast(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_floating(kind):
        array = texts.cast(kind)
        if pc.any(pc.is_inf(array)).as_py():
            raise pa.ArrowInvalid("a number too large for its type")
        return array
    if pa.types.is_integer(kind) and pc.any(pc.match_substring_regex(texts, "[xX]")).as_py():
        raise pa.ArrowInvalid("Arrow takes 0x10 for 16")
    if pa.types.is_decimal(kind):
        if has_unsafe_decimal(texts):
            raise pa.ArrowInvalid("Arrow may take it for another number")
        return texts.cast(wide_decimal(kind)).cast(kind)
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        # Texts with zones and without them are two casts in Arrow; a mixture is read one by one.
        try:
            return texts.cast(kind)
        except pa.ArrowInvalid:
            return pc.assume_timezone(texts.cast(pa.timestamp(kind.unit)), kind.tz)
    return texts.cast(kind)


def _value(text: str, kind: pa.DataType) -> Any:
    """None: it does not fit."""
    text = text.strip()
    types = pa.types
    if types.is_boolean(kind):
        return _BOOLEANS.get(text.lower())
    if types.is_integer(kind):
        return to_integer(text, kind) if _INTEGER.fullmatch(text) else None
    if types.is_floating(kind):
        return to_float(text, kind)
    if types.is_decimal(kind):
        return to_decimal(text, kind)
    if types.is_timestamp(kind):
        return to_timestamp(text, kind)
    assert types.is_date32(kind), kind  # options.py refuses the others
    return to_date(text)
