"""A column of one type into another: each value as it was, or not at all. Pure.

Contract     fit(given, kind): an array of `kind`, and which rows are not wholly in it. A value is
             kept if casting it back gives the same one, so no digit, no time of day and no field
             is lost without being marked. Of a struct, an array or a map the parts that fit are
             kept; a field that `kind` has not marks the rows where it is not null.
Pairs        Numbers (integers, floats, decimals) into numbers; text and binary into each other, if
             it is UTF-8; timestamps into those of the same sort, with a zone or without; days into
             days and timestamps without a zone; all that is not nested into text. What is not on
             this list does not fit, even if Arrow would cast it: 5 is not true, and a number is no
             time.
Exception    Nanoseconds below a microsecond are cut and not marked: Delta's times have no more.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.spark.ingest.kinds import is_list, plain_type
from penstock.spark.ingest.legible import legible

Mask = npt.NDArray[np.bool_]

_PAIRS = {
    "boolean": {"boolean", "text"},
    "integer": {"integer", "float", "decimal", "text"},
    "float": {"integer", "float", "decimal", "text"},
    "decimal": {"integer", "float", "decimal", "text"},
    "text": {"text", "binary"},
    "binary": {"text", "binary"},
    "instant": {"instant", "text"},
    "local time": {"local time", "text"},
    "day": {"day", "local time", "text"},
    "other": {"text"},
}
#: Up to here every integer is a double, and every whole double that integer.
_WHOLE_MAX = 2.0**53
#: So many values are cast one by one, if one of them cannot be.
_FEW = 64


def fit(given: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Mask]:
    types = pa.types
    if types.is_dictionary(given.type):
        given = given.dictionary_decode()
    if given.type == kind:
        return given, np.zeros(len(given), np.bool_)
    if types.is_struct(given.type) and types.is_struct(kind):
        return _struct(given, kind)
    if is_list(given.type) and types.is_list(kind):
        return _list(given, kind)
    if types.is_map(given.type) and types.is_map(kind):
        return _map(given, kind)
    if types.is_nested(given.type) or types.is_nested(kind):
        return _nothing(given, kind)
    if types.is_float16(given.type):
        given = given.cast(pa.float32())  # of which Arrow has all casts
    if _sort(kind) not in _PAIRS[_sort(given.type)]:
        return _nothing(given, kind)
    return _exact(given, kind)


def plain(array: pa.Array) -> pa.Array:
    """The same values in types that Arrow has all functions for (kinds.py)."""
    found, lost = fit(array, plain_type(array.type))
    assert not lost.any(), array.type
    return found


def valid(array: pa.Array) -> Mask:
    found: Mask = array.is_valid().to_numpy(zero_copy_only=False)
    return found


def _nothing(given: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Mask]:
    return pa.nulls(len(given), kind), valid(given)


def _sort(kind: pa.DataType) -> str:
    types = pa.types
    if types.is_timestamp(kind):
        return "instant" if kind.tz else "local time"
    for name, tests in _SORTS.items():
        if any(test(kind) for test in tests):
            return name
    return "other"  # times of day, durations, extensions, nothing but nulls


_SORTS: dict[str, tuple[Any, ...]] = {
    "boolean": (pa.types.is_boolean,),
    "integer": (pa.types.is_integer,),
    "float": (pa.types.is_floating,),
    "decimal": (pa.types.is_decimal,),
    "text": (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
    "binary": (
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_binary_view,
        pa.types.is_fixed_size_binary,
    ),
    "day": (pa.types.is_date,),
}


# -- one value in a row


def _exact(given: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Mask]:
    try:
        array = _cast(given, kind)
        lost = valid(given) & ~_same(array, given)
    except pa.ArrowNotImplementedError:
        return _nothing(given, kind)
    if lost.any():
        array = pc.if_else(pa.array(~lost), array, pa.scalar(None, kind))
    return array, lost


def _cast(given: pa.Array, kind: pa.DataType) -> pa.Array:
    """Null where Arrow knows that a value would not survive."""
    match _sort(given.type), _sort(kind):
        case "other", "text":
            texts = [None if each is None else str(each) for each in legible(given)]
            return pa.array(texts, kind)
        case "integer" | "decimal" as sort, "decimal":
            # By way of a decimal that holds them all: of integers Arrow goes by types, not by
            # values, and of 38 digits it lets some be more than there is room for.
            scale = 0 if sort == "integer" else given.type.scale
            return _each(given.cast(pa.decimal256(76, scale)), kind)
        case "float", "integer":
            # Beyond them a machine may make of a double whatever it likes.
            whole = pc.less_equal(pc.abs(given), _WHOLE_MAX)
            return _each(pc.if_else(whole, given, pa.scalar(None, given.type)), kind)
        case ("instant", "instant") | ("local time", "local time") if given.type.unit == "ns":
            return given.cast(kind, safe=False)
    return _each(given, kind)


def _each(given: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return given.cast(kind)
    except pa.ArrowInvalid:  # which tells that a value does not survive, not which one
        if len(given) <= _FEW:
            return pa.array([_one(each, kind) for each in given], kind)
    half = len(given) // 2
    return pa.concat_arrays([_each(given[:half], kind), _each(given[half:], kind)])


def _one(given: pa.Scalar, kind: pa.DataType) -> pa.Scalar | None:
    try:
        return given.cast(kind)
    except pa.ArrowInvalid:
        return None


def _same(array: pa.Array, given: pa.Array) -> Mask:
    """Where the cast of `given` back is what it was."""
    match _sort(given.type), _sort(array.type):
        case (
            ("integer" | "decimal", "integer" | "decimal")
            | ("other" | "decimal" | "text" | "binary", "text" | "binary")
            | ("instant", "instant")
            | ("local time", "local time")
        ):
            # Arrow checks these, or they are the exception.
            return valid(array)
    same = pc.equal(_each(array, given.type), given)
    if pa.types.is_floating(given.type) and not pa.types.is_integer(array.type):
        same = pc.or_(same, pc.and_(pc.is_nan(given), array.is_valid()))
    found: Mask = same.fill_null(False).to_numpy(zero_copy_only=False)
    return found


# -- fields, elements, entries


def _struct(given: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Mask]:
    lost = np.zeros(len(given), np.bool_)
    at = {field.name: index for index, field in enumerate(given.type)}
    parts = []
    for field in kind:
        if field.name not in at:
            parts.append(pa.nulls(len(given), field.type))
            continue
        # Not given.field(): what it has where the struct is null is no value.
        part, bad = fit(pc.struct_field(given, [at.pop(field.name)]), field.type)
        parts.append(part)
        lost |= bad
    for index in at.values():
        lost |= valid(pc.struct_field(given, [index]))
    return pa.StructArray.from_arrays(parts, fields=list(kind), mask=given.is_null()), lost


def _list(given: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Mask]:
    # Without the elements that a null may have.
    values, bad = fit(given.flatten(), kind.value_type)
    lengths = np.where(valid(given), pc.list_value_length(given).fill_null(0).to_numpy(), 0)
    lost = np.zeros(len(given), np.bool_)
    lost[np.repeat(np.arange(len(given)), lengths)[bad]] = True
    array = pa.ListArray.from_arrays(_offsets(lengths), values, type=kind, mask=given.is_null())
    return array, lost


def _map(given: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Mask]:
    offsets = given.offsets.to_numpy().astype(np.int64)
    lengths = np.where(valid(given), np.diff(offsets), 0)
    row = np.repeat(np.arange(len(given)), lengths)
    at = np.arange(len(row)) + np.repeat(offsets[:-1] - (np.cumsum(lengths) - lengths), lengths)
    keys, bad_keys = fit(plain(given.keys).take(pa.array(at)), kind.key_type)
    items, bad_items = fit(plain(given.items).take(pa.array(at)), kind.item_type)
    lost = np.zeros(len(given), np.bool_)
    # An entry must have a key, so a map with one that does not fit is null.
    lost[row[bad_keys]] = True
    mask = lost | ~valid(given)
    keep = pa.array(~lost[row])
    keys, items = keys.filter(keep), items.filter(keep)
    lost[row[bad_items]] = True
    array = pa.MapArray.from_arrays(
        _offsets(np.where(mask, 0, lengths)), keys, items, type=kind, mask=pa.array(mask)
    )
    return array, lost


def _offsets(lengths: npt.NDArray[Any]) -> pa.Array:
    return pa.array(np.concatenate(([0], np.cumsum(lengths))), pa.int32())
