"""One JSON line, and one value of it for a column: the careful way. Pure.

Contract     load_line: an object as a dict whose numbers are still text (`Number`).
             convert: (value, whether it fitted); what does not fit is null, or for arrays, structs
             and maps the part of it that does. The same answers as Arrow's reader gives, for all
             that it takes (tests/unit/spark/test_ingest_json.py compares them).
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.spark.ingest.schema import LEVELS_MAX, integer_type, merge_types


class NotJsonError(ValueError):
    """Not one JSON object."""


class Number(str):
    """A number as it was written: 1.10 as text stays 1.10."""

    __slots__ = ()


#: In the dict of an object that names a field twice. No field has this name.
TWICE = None

_INTEGER = re.compile(r"-?\d+")
_CONSTANTS = frozenset(["NaN", "Infinity", "-Infinity"])
_DATE = re.compile(r"\d{4}-\d\d-\d\d")


def _pairs(pairs: list[tuple[str, Any]]) -> dict[Any, Any]:
    found: dict[Any, Any] = dict(pairs)
    if len(found) < len(pairs):
        found[TWICE] = False
    return found


def load_line(line: bytes) -> dict[Any, Any]:
    try:
        value = json.loads(
            line.decode(),
            parse_int=Number,
            parse_float=Number,
            parse_constant=Number,
            object_pairs_hook=_pairs,
        )
    except (ValueError, RecursionError) as error:
        raise NotJsonError(str(error)) from None
    if not isinstance(value, dict):
        raise NotJsonError("not an object")
    return value


def type_of(value: Any, levels: int = LEVELS_MAX) -> pa.DataType:
    """The narrowest type of a value of load_line; text where it is too deep."""
    match value:
        case list() | dict() if not levels:
            return pa.string()
        case None:
            return pa.null()
        case bool():
            return pa.bool_()
        case Number() if _INTEGER.fullmatch(value):
            small = to_integer(value, pa.int64()) is not None
            return integer_type(len(value.lstrip("-")), small=small)
        case Number():
            return pa.float64()
        case str():
            return pa.string()
        case list():
            kind = pa.null()
            for each in value:
                kind = merge_types(kind, type_of(each, levels - 1))
            return pa.list_(pa.field("element", kind))
    return pa.struct(
        [(name, type_of(each, levels - 1)) for name, each in value.items() if name is not TWICE]
    )


def convert(value: Any, kind: pa.DataType) -> tuple[Any, bool]:
    if value is None:
        return None, True
    types = pa.types
    if types.is_string(kind):
        return _text(value)
    if types.is_struct(kind):
        return _struct(value, kind)
    if types.is_list(kind):
        if not isinstance(value, list):
            return None, False
        parts = [convert(each, kind.value_type) for each in value]
        return [part for part, _ in parts], all(good for _, good in parts)
    if types.is_map(kind):
        return _map(value, kind)
    found = _scalar(value, kind)
    return found, found is not None


def _struct(value: Any, kind: pa.DataType) -> tuple[Any, bool]:
    if not isinstance(value, dict):
        return None, False
    fits = value.get(TWICE, True)
    row = {}
    for field in kind:
        row[field.name], good = convert(value.get(field.name), field.type)
        fits = fits and good
    return row, fits and all(name in row for name in value if value[name] is not None)


def _map(value: Any, kind: pa.DataType) -> tuple[Any, bool]:
    if not isinstance(value, dict):
        return None, False
    fits = value.get(TWICE, True)
    pairs = []
    for name, each in value.items():
        if name is TWICE:
            continue
        key, good_key = convert(name, kind.key_type)
        item, good = convert(each, kind.item_type)
        if key is not None:
            pairs.append((key, item))
        fits = fits and good_key and good
    return pairs, fits


def _text(value: Any) -> tuple[str | None, bool]:
    try:
        text = value if isinstance(value, str) else dump(value)
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, written as an escape
        return None, False
    except RecursionError:  # hundreds of levels: the line has it
        return None, False
    return str(text), True


def dump(value: Any) -> str:
    """The JSON text of a value of load_line."""
    match value:
        case Number():
            return str(value)
        case list():
            return f"[{','.join(map(dump, value))}]"
        case dict():
            fields = (
                f"{json.dumps(name, ensure_ascii=False)}:{dump(each)}"
                for name, each in value.items()
                if name is not TWICE
            )
            return f"{{{','.join(fields)}}}"
    return json.dumps(value, ensure_ascii=False)


def _scalar(value: Any, kind: pa.DataType) -> Any:
    """None: it does not fit."""
    types = pa.types
    if types.is_boolean(kind):
        return value if isinstance(value, bool) else None
    if types.is_integer(kind):
        if not isinstance(value, Number) or not _INTEGER.fullmatch(value):
            return None
        return to_integer(value, kind)
    if types.is_floating(kind):
        if not isinstance(value, Number):
            return None
        return to_float(value, kind)
    if types.is_decimal(kind):
        return to_decimal(value, kind) if isinstance(value, str) else None
    if not isinstance(value, str) or isinstance(value, Number):
        return None
    if types.is_timestamp(kind):
        return to_timestamp(value, kind)
    if types.is_date32(kind):
        return to_date(value)
    assert types.is_binary(kind), kind  # all that schema.delta_type leaves
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return None


# -- text into values; CSV has nothing else

#: A number that Arrow may make another decimal of, even one of 76 digits, without a word: it counts
#: modulo 2^256, and divides by what lies behind its table of powers, or ends the process.
_UNSAFE_DECIMAL = (
    r'\d{38}|(?:^|[:\[,"])\s*[+-]?\d*\.?\d*[eE]-(?:39|[4-9]\d|\d{3})\d*\s*(?:[,\]}"]|$)'
    r"|\\u00(?:2[BbDdEe]|3\d|[46]5)"  # one of its signs as an escape
)


def wide_decimal(kind: pa.DataType) -> pa.DataType:
    """To read a decimal by: of 38 digits Arrow lets some be more than there is room for."""
    return pa.decimal256(76, kind.scale)


def has_unsafe_decimal(texts: pa.Array) -> bool:
    # Arrow's expressions take the same time for each byte, whatever it is.
    return bool(pc.any(pc.match_substring_regex(texts, _UNSAFE_DECIMAL)).as_py())


def to_integer(text: str, kind: pa.DataType) -> int | None:
    try:
        value = int(text)
    except ValueError:  # Python refuses thousands of digits
        return None
    half = 1 << (kind.bit_width - 1)
    return value if -half <= value < half else None


def _without_marks(text: str) -> str:
    """Python takes 1_000 for a number; nobody else does."""
    if "_" in text:
        raise ValueError(text)
    return text


def to_float(text: str, kind: pa.DataType) -> float | None:
    try:
        value = float(_without_marks(text))
    except ValueError:
        return None
    if text in _CONSTANTS:
        return value
    largest = 3.4028235677973366e38 if kind.bit_width == 32 else math.inf
    return None if math.isinf(value) or abs(value) >= largest else value


def to_decimal(text: str, kind: pa.DataType) -> Decimal | None:
    try:
        value = Decimal(_without_marks(text))
    except (InvalidOperation, ValueError):
        return None
    if not value.is_finite():
        return None
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)  # finite
    kept = bytes(digits).rstrip(b"\0")  # 1.500 has two digits, and 0e39 none
    exponent += len(digits) - len(kept)
    if not kept:
        return Decimal(0)
    if -exponent > kind.scale or len(kept) + exponent > kind.precision - kind.scale:
        return None
    return Decimal((sign, tuple(kept), exponent))


def to_timestamp(text: str, kind: pa.DataType) -> datetime | None:
    try:
        value = datetime.fromisoformat(text)
    except ValueError:
        return None
    if kind.tz is None:
        return value if value.tzinfo is None else None
    try:
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    except OverflowError:
        return None


def to_date(text: str) -> date | None:
    if not _DATE.fullmatch(text):
        return None
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None
