"""The columns of a table that files are loaded into: what they may be, and how they are found.

Contract     `columns` are those of the user's data; a table has three more (TABLE_FIELDS). They are
             stored as the JSON that Spark and Delta write for a StructType. Types that Delta has
             not are widened to one that holds every value (`delta_type`).
Inference    A value has a type (64-bit integers, doubles, booleans, text, arrays, structs); an
             integer that is larger is a decimal (`integer_type`), for a double has not its digits.
             Two rows of one column have the narrowest type that holds both (`merge_types`); what
             holds nothing but nulls is text. Types of Arrow that are one type of Delta are that
             one; integers and decimals have a decimal, if 38 digits hold both, and else text. Text
             that looks like a time stays text: a later row might not look so. Give a schema for
             times and decimals.
Bounds       What files hold decides what is inferred, so that is bounded: arrays and structs
             LEVELS_MAX deep, what is deeper being text; FIELDS_MAX columns and fields in them,
             what comes later being rescued. A schema that somebody gives is not. Rows are read so
             many at a time that they have CELLS_MAX values.
Invariant    merge_types is commutative up to the order of fields, associative and idempotent, so
             the schema does not depend on how a batch was cut into tasks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from penstock.errors import CorruptError, InvalidError
from penstock.spark.ingest.kinds import is_list

FILE = "_file"
POSITION = "_position"
RESCUED = "_rescued_data"

#: What every table has behind the columns of its data.
TABLE_FIELDS = (
    pa.field(RESCUED, pa.string()),
    pa.field(FILE, pa.string()),
    pa.field(POSITION, pa.int64()),
)
RESERVED = frozenset(field.name for field in TABLE_FIELDS)

#: The schema of text files, whoever asks.
TEXT = pa.schema([pa.field("value", pa.string())])

TIMESTAMP = pa.timestamp("us", tz="UTC")

#: Arrays and structs within one another. The JSON of a schema cannot be read back at about 40.
LEVELS_MAX = 20
#: Columns, and the fields of those that are structs: every reader of the table reads all of them.
FIELDS_MAX = 2000
#: Rows times columns that are in memory at once, of about 9 bytes each.
CELLS_MAX = 2**24
#: A name of a column, in characters.
NAME_MAX = 255


def table_schema(columns: pa.Schema) -> pa.Schema:
    return pa.schema([*columns, *TABLE_FIELDS])


def delta_type(kind: pa.DataType) -> pa.DataType:
    """The type of Delta that holds all values of an Arrow type."""
    fixed = _NARROW.get(kind)
    if fixed is not None:
        return fixed
    types = pa.types
    if types.is_timestamp(kind):
        return TIMESTAMP if kind.tz else pa.timestamp("us")
    if types.is_dictionary(kind):
        return delta_type(kind.value_type)
    if types.is_fixed_size_binary(kind) or types.is_large_binary(kind):
        return pa.binary()
    if types.is_decimal(kind):
        return pa.decimal128(kind.precision, kind.scale) if kind.precision <= 38 else pa.string()
    if types.is_struct(kind):
        fields = [pa.field(each.name, delta_type(each.type)) for each in _distinct(kind)]
        return pa.struct(fields) if fields else pa.string()
    if types.is_map(kind):
        return pa.map_(delta_type(kind.key_type), delta_type(kind.item_type))
    if is_list(kind):
        return pa.list_(pa.field("element", delta_type(kind.value_type)))
    if kind in _AS_THEY_ARE:
        return kind
    # Durations, times of day and what else Delta does not know: their text.
    return pa.string()


_AS_THEY_ARE = frozenset(
    [
        pa.bool_(),
        pa.int8(),
        pa.int16(),
        pa.int32(),
        pa.int64(),
        pa.float32(),
        pa.float64(),
        pa.string(),
        pa.binary(),
        pa.date32(),
    ]
)
_NARROW = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.binary_view(): pa.binary(),
    pa.null(): pa.string(),
}


def _can_be_a_name(name: str) -> bool:
    return 0 < len(name) <= NAME_MAX and "\0" not in name


def settle(columns: pa.Schema) -> pa.Schema:
    """An inferred schema as a table can have it: without our names, each name once."""
    own = _distinct(columns, RESERVED)
    return pa.schema([pa.field(field.name, delta_type(field.type)) for field in own])


def _distinct(fields: Iterable[pa.Field], taken: Iterable[str] = ()) -> Iterator[pa.Field]:
    """Delta's names differ in more than their case; the later one of two that do not is left out,
    and its values are rescued."""
    seen = {name.casefold() for name in taken}
    for field in fields:
        if field.name.casefold() not in seen and _can_be_a_name(field.name):
            seen.add(field.name.casefold())
            yield field


def _left_out(kind: pa.DataType) -> list[str]:
    """Fields of structs in there that a table cannot have."""
    fields = [kind.field(at) for at in range(kind.num_fields)]
    names = [field.name for field in fields] if pa.types.is_struct(kind) else []
    for field in _distinct(fields) if names else ():
        names.remove(field.name)
    return names + [name for field in fields for name in _left_out(field.type)]


def shallow(kind: pa.DataType, levels: int = LEVELS_MAX) -> pa.DataType:
    """The same type, with text for what is deeper."""
    if not pa.types.is_nested(kind):
        return kind
    if not levels:
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(shallow(each.type, levels - 1)) for each in kind])
    if is_list(kind):
        return pa.list_(kind.value_field.with_type(shallow(kind.value_type, levels - 1)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, shallow(kind.item_type, levels - 1))
    return pa.string()  # unions and the like


def fitting(fields: Iterable[pa.Field], known: pa.Schema) -> list[pa.Field]:
    """Those of the new fields that there is room for behind the known ones."""
    room = FIELDS_MAX - field_count(known)
    found = []
    for field in fields:
        if room < 1:
            break
        wide = _field_count(field.type) > room
        found.append(field.with_type(pa.string()) if wide else field)
        room -= _field_count(found[-1].type)
    return found


def _field_count(kind: pa.DataType) -> int:
    return 1 + sum(_field_count(kind.field(at).type) for at in range(kind.num_fields))


def field_count(columns: pa.Schema) -> int:
    """Columns, and the fields in them."""
    return sum(_field_count(field.type) for field in columns)


def integer_type(digits: int, *, small: bool) -> pa.DataType:
    """Of an integer of so many digits; `small`: 64 bits hold it."""
    if small:
        return pa.int64()
    return pa.decimal128(digits, 0) if digits <= 38 else pa.float64()


class Merging:
    """The narrowest schema of all that were added, in place: those of single lines are many."""

    def __init__(self) -> None:
        self._kinds: dict[str, pa.DataType] = {}

    def add(self, columns: pa.Schema) -> None:
        for field in columns:
            if field.name in self._kinds:
                self._kinds[field.name] = merge_types(self._kinds[field.name], field.type)
            # More cannot become columns. Some of these cannot either, so it is not FIELDS_MAX.
            elif len(self._kinds) < 2 * FIELDS_MAX:
                self._kinds[field.name] = field.type

    def schema(self) -> pa.Schema:
        return pa.schema(list(self._kinds.items()))


def merge_schemas(schemas: Iterable[pa.Schema]) -> pa.Schema:
    merging = Merging()
    for schema in schemas:
        merging.add(schema)
    return merging.schema()


def merge_types(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    types = pa.types
    if left == right or types.is_null(right):
        return left
    if types.is_null(left):
        return right
    if types.is_struct(left) and types.is_struct(right):
        return _merge_structs(left, right)
    if is_list(left) and is_list(right):
        return pa.list_(pa.field("element", merge_types(left.value_type, right.value_type)))
    if types.is_map(left) and types.is_map(right):
        keys = merge_types(left.key_type, right.key_type)
        return pa.map_(keys, merge_types(left.item_type, right.item_type))
    # Files of one table may have different types of Arrow that are one type of Delta.
    left, right = delta_type(left), delta_type(right)
    if left == right:
        return left
    if _is_number(left) and _is_number(right):
        return _wider(left, right)
    if _is_exact(left) and _is_exact(right):
        return _wider_decimal(left, right)
    return pa.string()


def _merge_structs(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    new = [each for each in right if not _has(left, each)]
    if not new:
        return left
    fields = {each.name: each.type for each in left}
    for each in new:
        known = fields.get(each.name, each.type)
        fields[each.name] = merge_types(known, each.type)
    # There is no room for so many, so it would be text in the end.
    return pa.struct(list(fields.items())) if len(fields) <= FIELDS_MAX else pa.string()


def _has(struct: pa.DataType, field: pa.Field) -> bool:
    at = struct.get_field_index(field.name)
    return bool(at >= 0 and struct.field(at).type == field.type)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _wider(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    if pa.types.is_floating(left) == pa.types.is_floating(right):
        return left if left.bit_width >= right.bit_width else right
    return pa.float64()


def _is_exact(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_decimal(kind))


def _wider_decimal(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    (before, behind), (others_before, others_behind) = _digits(left), _digits(right)
    scale = max(behind, others_behind)
    precision = max(before, others_before) + scale
    return pa.decimal128(precision, scale) if precision <= 38 else pa.string()


def _digits(kind: pa.DataType) -> tuple[int, int]:
    """Before the point and behind it."""
    if pa.types.is_decimal(kind):
        return kind.precision - kind.scale, kind.scale
    return len(str(2 ** (kind.bit_width - 1))), 0


def widens(stored: pa.Schema, wanted: pa.Schema) -> bool:
    """Whether `wanted` is `stored` with further columns behind it."""
    return list(wanted)[: len(stored)] == list(stored)


# -- as text, and as users give it


def to_text(columns: pa.Schema) -> str:
    return str(_delta().from_arrow(columns).to_json())


def from_text(text: str) -> pa.Schema:
    try:
        return pa.schema(_delta().from_json(text).to_arrow())
    except InvalidError:  # deltalake is not installed
        raise
    except Exception as error:  # of Delta's parser, whatever it is
        raise CorruptError(f"not a schema: {_first_line(error, text)}") from error


def as_stored(columns: pa.Schema) -> pa.Schema:
    """As they are read back. What could not be is refused before it is stored."""
    try:
        return from_text(to_text(columns))
    except InvalidError:
        raise
    except Exception as error:
        raise InvalidError(
            f"these columns cannot be stored: {_first_line(error, 'unknown types')}",
            hint="fewer arrays and structs within one another",
        ) from error


def given_schema(given: object) -> pa.Schema:
    """A user's schema: of Arrow, of Spark, its JSON, or DDL such as `id BIGINT, at TIMESTAMP`."""
    columns = _read_given(given)
    wanted = pa.schema([pa.field(field.name, delta_type(field.type)) for field in columns])
    names = Counter(field.name.casefold() for field in wanted)
    for name, times in names.items():
        if not _can_be_a_name(name):
            raise InvalidError(f"{name!r} cannot be the name of a column")
        if name in RESERVED or times > 1:
            raise InvalidError(
                f"the schema has a column {name!r} that every table has"
                if name in RESERVED
                else f"the schema has the column {name!r} twice",
                hint="names differ in more than their case; "
                + ", ".join(sorted(RESERVED))
                + " are ours",
            )
    for name in (each for field in columns for each in _left_out(field.type)):
        raise InvalidError(
            f"a table cannot have the field {name!r} of a struct",
            hint="names differ in more than their case",
        )
    if not names:
        raise InvalidError("a schema without columns", hint="leave it out to have it inferred")
    return as_stored(wanted)


def _read_given(given: object) -> pa.Schema:
    if isinstance(given, pa.Schema):
        return given
    if hasattr(given, "jsonValue") and hasattr(given, "json"):
        given = given.json()
    if not isinstance(given, str):
        raise InvalidError(
            f"{type(given).__name__} is not a schema",
            hint="DDL text, a StructType of Spark, or a schema of pyarrow",
        )
    if given.lstrip().startswith("{"):
        return _checked(from_text, given)
    return _checked(_from_ddl, given)


def _from_ddl(ddl: str) -> pa.Schema:
    from pyspark.sql.types import StructType

    return from_text(StructType.fromDDL(ddl).json())


def _checked(read: Any, text: str) -> pa.Schema:
    try:
        return read(text)
    except InvalidError:
        raise
    except Exception as error:  # of Spark's parser or of Delta's: both say what they miss
        reason = _first_line(error, text).removeprefix("not a schema: ")
        raise InvalidError(f"not a schema: {reason}") from error


def _first_line(error: BaseException, otherwise: str) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else otherwise


def _delta() -> Any:
    from penstock.spark.ingest.delta import require_deltalake

    return require_deltalake().Schema


def simple_fields(columns: pa.Schema) -> Sequence[str]:
    """Names of columns that a CSV file cannot hold."""
    nested = (pa.types.is_nested, pa.types.is_binary)
    return [field.name for field in columns if any(test(field.type) for test in nested)]
