"""JSON lines into columns: quickly where all fits, line by line where something does not. Pure.

Contract     parse(lines, columns): one row for every line that is not blank, in order. What does
             not fit leaves the raw line in `_rescued_data`, and nothing is lost: a line that is no
             JSON object (all columns null), a value that is not of its column's type (that column
             null), a field that has no column.
Types        As Spark reads JSON: a text column takes any value (its JSON text), integers take no
             fractions, times are ISO 8601 (without a zone: UTC), binary is base64, a map is an
             object. A field that is null or missing is null.
How          Arrow's reader takes a whole block. If it refuses one, the block is cut until the lines
             in question are few, and those go through Python. Fields without a column make Arrow
             read the lines again, first with them, then without.
Bounds       Arrow makes an array for every name, with a place for every object, so lines with names
             of their own would fill memory: where it is not told the names, it gets so few lines
             that there are CELLS_MAX. Python has only the fields that are there.
Danger       Arrow's reader crashes on a line that is `null`, and on brackets some ten thousands
             deep: neither gets there (`_odd`), nor does a number that it crashes on, or takes for
             another, in a column of decimals (`_unsafe`). It reads two objects in one line as two
             rows, and one object in two lines as one: lines that begin with `{` and end with `}`
             can only be the former, which the number of rows shows.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from penstock.spark.ingest.jsonvalues import (
    TWICE,
    NotJsonError,
    convert,
    has_unsafe_decimal,
    load_line,
    type_of,
    wide_decimal,
)
from penstock.spark.ingest.lines import Lines, without_blank
from penstock.spark.ingest.schema import (
    CELLS_MAX,
    LEVELS_MAX,
    POSITION,
    RESCUED,
    Merging,
    field_count,
)

#: Texts that a colon follows; the others are matched too, for what is in them is no name.
_NAMES = re.compile(rb'"([^"\\]*+(?:\\.[^"\\]*+)*+)"\s*+:|"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
#: An integer that 64 bits may not hold: Arrow would infer a double, which has not its digits.
_LARGE = re.compile(rb"[:,\[]\s*+-?(?:9\d{18}|\d{20})\d*+\s*+[,\]}]")
#: Inference begins with so many lines.
_HEAD = 64
#: Fewer lines than this are quicker in Python than by another try of Arrow's reader.
_FEW = 32
#: A line must be this long to be too deep, and have this many brackets.
_DEEP_BYTES, _DEEP = 4096, 1000


def parse(lines: Lines, columns: pa.Schema) -> pa.Table:
    """-> the columns, then _rescued_data and _position (of the line in `lines.data`)"""
    lines = without_blank(lines)
    wire = _wire(columns)
    table = _by_parts(
        lines, lambda part: None if wire is None else _quick(part, columns, wire), columns
    )
    return table.append_column(POSITION, pa.array(lines.starts, pa.int64()))


def infer(lines: Lines) -> pa.Schema:
    """The narrowest schema of these lines; not settled."""
    lines = without_blank(lines)
    merging = Merging()

    def look(part: Lines) -> None:
        motley = _motley(part)
        quick = _narrow(part) and not motley and not _odd(part) and not _large(part)
        table = _read(part.span(), None, "infer") if quick else None
        if table is not None and len(table) == part.count:
            merging.add(pa.schema([(each.name, _plain(each.type)) for each in table.schema]))
        elif part.count > _FEW and not motley:
            for each in _cut(part):
                look(each)
        else:
            for at in range(part.count):
                merging.add(_schema_of(part.line(at)))

    head, rest = lines.part(0, _HEAD), lines.part(_HEAD, lines.count)
    if head.count:
        look(head)
    # Lines that are as the first ones were need not be counted.
    if rest.count and not _fit(rest, merging.schema()):
        look(rest)
    return merging.schema()


def _fit(lines: Lines, columns: pa.Schema) -> bool:
    if lines.span().count(b"{") * field_count(columns) > CELLS_MAX or _odd(lines) or _large(lines):
        return False
    if _unsafe(lines, columns):
        return False
    table = _read(lines.span(), columns, "error")
    return table is not None and len(table) == lines.count


def _schema_of(line: bytes) -> pa.Schema:
    try:
        value = load_line(line)
    except NotJsonError:
        return pa.schema([])
    return pa.schema([(name, type_of(each)) for name, each in value.items() if name is not TWICE])


def _plain(kind: pa.DataType, levels: int = LEVELS_MAX) -> pa.DataType:
    """Arrow takes text that looks like a time for one, and goes to any depth."""
    if pa.types.is_timestamp(kind) or (pa.types.is_nested(kind) and not levels):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([(each.name, _plain(each.type, levels - 1)) for each in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _plain(kind.value_type, levels - 1)))
    return kind


# -- a block, and its parts


def _by_parts(
    lines: Lines, quick: Callable[[Lines], pa.Table | None], columns: pa.Schema
) -> pa.Table:
    done: list[pa.Table] = []

    def take(part: Lines, *, whole: bool) -> None:
        # What was cut down to a few lines has a bad one among them, or is next to it.
        table = None if not whole and part.count <= _FEW else quick(part)
        if table is not None:
            done.append(table)
        elif part.count > _FEW:
            for each in _cut(part):
                take(each, whole=False)
        else:
            done.append(_slow(part, columns))

    if lines.count:
        take(lines, whole=True)
    schema = pa.schema([*columns, pa.field(RESCUED, pa.string())])
    return pa.concat_tables(done) if done else schema.empty_table()


def _quick(lines: Lines, columns: pa.Schema, wire: pa.Schema) -> pa.Table | None:
    """None: something in there needs a closer look."""
    if _odd(lines) or _unsafe(lines, columns):
        return None
    data = lines.span()
    table = _read(data, wire, "error")
    rescued = pa.nulls(lines.count, pa.string())
    if table is None:
        if _motley(lines):
            return _slow(lines, columns)
        table = _read(data, wire, "infer") if _narrow(lines) else None
        if table is None or len(table) != lines.count:
            return None
        try:
            # Arrow's reader makes arrays of nothing but nulls that are not whole.
            table.validate()
        except pa.ArrowInvalid:
            return None
        strange = np.zeros(lines.count, np.bool_)
        kinds = {each.name: each.type for each in wire}
        for name, column in zip(table.schema.names, table.columns, strict=True):
            _mark_strange(column.combine_chunks(), kinds.get(name), strange)
        # One object with the same field twice is refused, so what is left is the same rows.
        table = _read(data, wire, "ignore")
        if table is None:
            return None
        if strange.any():
            texts: list[str | None] = [None] * lines.count
            for at in np.flatnonzero(strange).tolist():
                texts[at] = lines.line(at).decode()
            rescued = pa.array(texts, pa.string())
    if len(table) != lines.count or any(_has_infinity(column) for column in table.columns):
        return None
    if wire != columns:
        try:
            table = table.cast(columns)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return None
    return table.append_column(RESCUED, rescued)


def _slow(lines: Lines, columns: pa.Schema) -> pa.Table:
    kinds = {field.name: field.type for field in columns}
    # Only what is there: lines may have few of many columns.
    values: dict[str, dict[int, Any]] = {name: {} for name in kinds}
    rescued: list[str | None] = [None] * lines.count
    for at in range(lines.count):
        raw = lines.line(at)
        try:
            row = load_line(raw)
        except NotJsonError:
            row, fits = {}, False
        else:
            # A field twice keeps its last value; the line tells the other.
            fits = row.pop(TWICE, True)
        for name, value in row.items():
            if value is None:
                continue
            if name not in kinds:
                fits = False
                continue
            values[name][at], good = convert(value, kinds[name])
            fits = fits and good
        if not fits:
            rescued[at] = raw.decode(errors="backslashreplace")
    arrays = [
        pa.array(map(values[name].get, range(lines.count)), kind, size=lines.count)
        if values[name]
        else pa.nulls(lines.count, kind)
        for name, kind in kinds.items()
    ]
    schema = pa.schema([*columns, pa.field(RESCUED, pa.string())])
    return pa.Table.from_arrays([*arrays, pa.array(rescued, pa.string())], schema=schema)


# -- what Arrow reads, and what it may not see


def _read(
    data: bytes, schema: pa.Schema | None, others: Literal["error", "infer", "ignore"]
) -> pa.Table | None:
    """`others`: what to do about fields that the schema has not."""
    try:
        return pj.read_json(
            io.BytesIO(data),
            # One block: the reader must not cut it again, for a type is inferred per block.
            read_options=pj.ReadOptions(use_threads=False, block_size=len(data) + 1),
            parse_options=pj.ParseOptions(
                explicit_schema=schema,
                newlines_in_values=False,
                unexpected_field_behavior=others,
            ),
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


def _narrow(lines: Lines) -> bool:
    """Whether Arrow's reader has room for all names in there, be they as many as there are colons.
    Names are counted only where lines are not cut any further, for that takes a while."""
    data = lines.span()
    objects = data.count(b"{")
    return objects * data.count(b":") <= CELLS_MAX or (
        lines.count <= _FEW and objects * len(set(_NAMES.findall(data))) <= CELLS_MAX
    )


def _motley(lines: Lines) -> bool:
    """Whether names go on being new, by the first and the last lines: then Python is quicker."""
    if lines.count <= 2 * _FEW:
        return False
    ends = lines.part(0, _FEW), lines.part(lines.count - _FEW, lines.count)
    first, last = (set(_NAMES.findall(part.span())) for part in ends)
    return len(last - first) >= _FEW // 2


def _cut(lines: Lines) -> list[Lines]:
    """Two parts, or so many that they may be narrow."""
    data = lines.span()
    times = data.count(b"{") * data.count(b":") // CELLS_MAX
    step = -(-lines.count // max(2, math.isqrt(times) + 1))
    return [lines.part(low, low + step) for low in range(0, lines.count, step)]


def _large(lines: Lines) -> bool:
    return _LARGE.search(lines.span()) is not None


def _unsafe(lines: Lines, columns: pa.Schema) -> bool:
    found = any(_has_decimal(field.type) for field in columns)
    return found and has_unsafe_decimal(pa.array([lines.span()]))


def _has_decimal(kind: pa.DataType) -> bool:
    inner = (kind.field(at).type for at in range(kind.num_fields))
    return pa.types.is_decimal(kind) or any(map(_has_decimal, inner))


def _odd(lines: Lines) -> bool:
    """Whether Arrow's reader must not see them, or would not tell lines apart."""
    octets = np.frombuffer(lines.data, np.uint8)
    brackets = (octets[lines.starts] == ord("{")) & (octets[lines.ends - 1] == ord("}"))
    if not brackets.all():
        return True
    try:
        lines.span().decode()
    except UnicodeDecodeError:
        return True
    long = np.flatnonzero(lines.ends - lines.starts > _DEEP_BYTES)
    return any(_is_deep(lines.line(at)) for at in long.tolist())


def _is_deep(line: bytes) -> bool:
    if line.count(b"[") + line.count(b"{") < _DEEP:
        return False
    octets = np.frombuffer(line, np.uint8)
    opened = np.isin(octets, np.frombuffer(b"[{", np.uint8)).astype(np.int64)
    closed = np.isin(octets, np.frombuffer(b"]}", np.uint8)).astype(np.int64)
    # Brackets in texts count too: then it is looked at more closely for nothing.
    return int(np.cumsum(opened - closed).max()) >= _DEEP


def _wire(columns: pa.Schema) -> pa.Schema | None:
    """What Arrow's reader is told: days come as text, and so do times without a zone, for it would
    take those with one, too; decimals have more digits, for it lets them have more than their type,
    and its writer cuts those. None: it cannot read one of the types."""
    fields = []
    for field in columns:
        kind = _wire_type(field.type)
        if kind is None:
            return None
        fields.append(pa.field(field.name, kind))
    return pa.schema(fields)


def _wire_type(kind: pa.DataType) -> pa.DataType | None:
    types = pa.types
    if types.is_date32(kind) or (types.is_timestamp(kind) and kind.tz is None):
        return pa.string()
    if types.is_decimal(kind):
        return wide_decimal(kind)
    if types.is_struct(kind):
        children = [(each.name, _wire_type(each.type)) for each in kind]
        return None if any(child is None for _, child in children) else pa.struct(children)
    if types.is_list(kind):
        element = _wire_type(kind.value_type)
        return None if element is None else pa.list_(pa.field("element", element))
    return None if types.is_map(kind) or types.is_binary(kind) else kind


def _mark_strange(
    column: pa.Array, wanted: pa.DataType | None, strange: npt.NDArray[np.bool_]
) -> None:
    """Set the rows that have a value where no column is. A null there is no loss."""
    if wanted is None:
        strange |= column.is_valid().to_numpy(zero_copy_only=False)
    elif column.type == wanted:
        return
    elif pa.types.is_struct(wanted):
        names = {each.name: each.type for each in wanted}
        for index, child in enumerate(column.type):
            _mark_strange(pc.struct_field(column, [index]), names.get(child.name), strange)
    elif pa.types.is_list(wanted):
        inner = np.zeros(len(column.flatten()), np.bool_)
        _mark_strange(column.flatten(), wanted.value_type, inner)
        strange[pc.list_parent_indices(column).to_numpy()[inner]] = True


def _has_infinity(column: pa.ChunkedArray | pa.Array) -> bool:
    """A number too large for its type came out as infinite."""
    kind = column.type
    if pa.types.is_floating(kind):
        return bool(pc.any(pc.is_inf(column)).as_py())
    if isinstance(column, pa.ChunkedArray):
        return pa.types.is_nested(kind) and any(_has_infinity(each) for each in column.chunks)
    if pa.types.is_struct(kind):
        return any(_has_infinity(each) for each in column.flatten())
    return pa.types.is_list(kind) and _has_infinity(column.flatten())
