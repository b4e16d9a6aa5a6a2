"""Arrow's values for people, and for JSON. Pure.

Contract     legible(array): a value for each row that `rescued_text` can write: numbers and texts
             as they are, bytes as base64, times as ISO 8601, maps as pairs. What Python's types
             cannot hold (years beyond 9999, nanoseconds, text that is no UTF-8) is written out, so
             that nothing is lost and nothing raises.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_UNITS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}


def rescued_text(values: Mapping[str, Any]) -> str:
    return json.dumps(values, ensure_ascii=False, allow_nan=False, default=str)


def legible(array: pa.Array) -> list[Any]:
    types, kind = pa.types, array.type
    if types.is_dictionary(kind):
        return legible(array.dictionary_decode())
    if types.is_struct(kind):
        names = [field.name for field in kind]
        parts = [legible(pc.struct_field(array, [at])) for at in range(len(names))]
        rows = zip(*parts, strict=True) if parts else [()] * len(array)
        valid = array.is_valid().to_pylist()
        return [
            dict(zip(names, row, strict=True)) if there else None
            for row, there in zip(rows, valid, strict=True)
        ]
    if types.is_map(kind):
        return [
            None if not row.is_valid else _pairs(row.values.field(0), row.values.field(1))
            for row in array
        ]
    if types.is_nested(kind):
        return [legible(row.values) if row.is_valid else None for row in array]
    if types.is_timestamp(kind) or types.is_date(kind):
        return [_moment(each) if each.is_valid else None for each in array]
    if types.is_time(kind):
        texts = pc.replace_substring_regex(array.cast(pa.string()), r"\.0+$", "")
        return list(texts.to_pylist())
    if types.is_duration(kind):
        return [_duration(each.value, kind.unit) if each.is_valid else None for each in array]
    if types.is_string(kind) or types.is_large_string(kind):
        return _decoded(array)
    return [_value(each) for each in array.to_pylist()]


def _decoded(texts: pa.Array) -> list[str | None]:
    try:
        return list(texts.to_pylist())
    except UnicodeDecodeError:
        raw = texts.cast(pa.large_binary()).to_pylist()
        return [None if each is None else each.decode(errors="backslashreplace") for each in raw]


def _value(value: Any) -> Any:
    match value:
        case bytes():
            return base64.b64encode(value).decode()
        case float() if not math.isfinite(value):  # JSON has no such numbers
            return str(value)
    return value


def _pairs(keys: pa.Array, items: pa.Array) -> list[Any]:
    return [list(pair) for pair in zip(legible(keys), legible(items), strict=True)]


def _moment(value: pa.Scalar) -> str:
    kind = value.type
    unit = "ms" if pa.types.is_date64(kind) else getattr(kind, "unit", "days")
    try:
        if unit == "ns" and value.value % 1000:
            return str(value.cast(pa.string())).replace(" ", "T", 1)
        moment = value if unit != "ns" else value.cast(pa.timestamp("us", kind.tz))
        return str(moment.as_py().isoformat())
    except (OverflowError, ValueError, KeyError, pa.ArrowException):  # of years, and of zones
        return f"{value.value} {_UNITS.get(unit, unit)} since 1970-01-01"


def _duration(value: int, unit: str) -> str:
    try:
        if unit != "ns":
            return str(timedelta(**{_UNITS[unit]: value}))
        if not value % 1000:
            return str(timedelta(microseconds=value // 1000))
    except OverflowError:
        pass
    return f"{value} {_UNITS[unit]}"
