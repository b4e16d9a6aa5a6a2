"""Scalars: the encodings every key and value is made of. Pure.

Keys are big-endian so that byte order is value order; values are little-endian.

    TerminatedBytes   00 -> 01 01, 01 -> 01 02, end 00   (keys; keeps the order of the raw bytes)
    Utf8              length (u16) | bytes
    Array<T>          count (u16) | elements back to back
    Bytes32           length (u32) | bytes               (ours: what may exceed a u16)

Contract     Encoders raise InvalidError for values outside the limits, never wrap around. `Reader`
             raises CorruptError with what it was reading and where, for every truncation and any
             bytes; never another exception.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import TypeVar

from penstock.errors import CorruptError, InvalidError

T = TypeVar("T")

U16_MAX = 0xFFFF
U32_MAX = 0xFFFF_FFFF
U64_MAX = 0xFFFF_FFFF_FFFF_FFFF
I64_MAX = 0x7FFF_FFFF_FFFF_FFFF
#: A deadline that never comes.
NEVER_MS = I64_MAX

_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_I64 = struct.Struct("<q")
_U64_KEY = struct.Struct(">Q")
_ESCAPE = re.compile(rb"\x01(.?)", re.DOTALL)
_UNESCAPED = {b"\x01": b"\x00", b"\x02": b"\x01"}


def _pack(form: struct.Struct, kind: str, what: str, value: int) -> bytes:
    try:
        return form.pack(value)
    except struct.error:
        raise InvalidError(f"{what} does not fit a {kind}: {value}") from None


def encode_u8(value: int, what: str) -> bytes:
    if not 0 <= value <= 0xFF:
        raise InvalidError(f"{what} does not fit a u8: {value}")
    return bytes((value,))


def encode_u16(value: int, what: str) -> bytes:
    return _pack(_U16, "u16", what, value)


def encode_u32(value: int, what: str) -> bytes:
    return _pack(_U32, "u32", what, value)


def encode_u64(value: int, what: str) -> bytes:
    return _pack(_U64, "u64", what, value)


def encode_i64(value: int, what: str) -> bytes:
    return _pack(_I64, "i64", what, value)


def encode_u64_key(value: int, what: str) -> bytes:
    return _pack(_U64_KEY, "u64", what, value)


def encode_utf8(text: str, what: str) -> bytes:
    try:
        raw = text.encode()
    except UnicodeEncodeError as error:
        raise InvalidError(f"{what} is not valid text: {error.reason}") from None
    if len(raw) > U16_MAX:
        raise InvalidError(f"{what} is {len(raw)} bytes long; at most {U16_MAX} are allowed")
    return _U16.pack(len(raw)) + raw


def encode_bytes32(raw: bytes, what: str) -> bytes:
    return encode_u32(len(raw), f"length of {what}") + raw


def encode_array(elements: list[bytes], what: str) -> bytes:
    """Elements already encoded, one `bytes` each."""
    if len(elements) > U16_MAX:
        raise InvalidError(f"{what} has {len(elements)} elements; at most {U16_MAX} are allowed")
    return _U16.pack(len(elements)) + b"".join(elements)


def encode_terminated(raw: bytes) -> bytes:
    return raw.replace(b"\x01", b"\x01\x02").replace(b"\x00", b"\x01\x01") + b"\x00"


def lex_increment(prefix: bytes) -> bytes | None:
    """The smallest string above all that start with `prefix`; None if there is none."""
    stripped = prefix.rstrip(b"\xff")
    if not stripped:
        return None
    return stripped[:-1] + bytes((stripped[-1] + 1,))


def seconds_up(milliseconds: int) -> int:
    """Whole seconds, rounded up: half a second must not become 0, which means for ever."""
    return -(-milliseconds // 1000)


class Reader:
    """A cursor over stored bytes that turns every surprise into CorruptError.

    `what` names the thing being decoded; each read names its field. `end()` refuses bytes left
    over.
    """

    __slots__ = ("at", "data", "what")

    def __init__(self, data: bytes, what: str) -> None:
        self.data = data
        self.what = what
        self.at = 0

    def fail(self, field: str, reason: str) -> CorruptError:
        return CorruptError(f"{self.what}: {field} at byte {self.at} {reason}")

    def take(self, size: int, field: str) -> bytes:
        end = self.at + size
        if end > len(self.data):
            raise self.fail(field, f"needs {size} bytes, {len(self.data) - self.at} are left")
        raw = self.data[self.at : end]
        self.at = end
        return raw

    def u8(self, field: str) -> int:
        return self.take(1, field)[0]

    def u16(self, field: str) -> int:
        value: int = _U16.unpack(self.take(2, field))[0]
        return value

    def u32(self, field: str) -> int:
        value: int = _U32.unpack(self.take(4, field))[0]
        return value

    def u64(self, field: str) -> int:
        value: int = _U64.unpack(self.take(8, field))[0]
        return value

    def i64(self, field: str) -> int:
        value: int = _I64.unpack(self.take(8, field))[0]
        return value

    def u64_key(self, field: str) -> int:
        value: int = _U64_KEY.unpack(self.take(8, field))[0]
        return value

    def utf8(self, field: str) -> str:
        raw = self.take(self.u16(f"length of {field}"), field)
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            self.at -= len(raw)
            raise self.fail(field, f"is not UTF-8: {error.reason}") from None

    def bytes32(self, field: str) -> bytes:
        return self.take(self.u32(f"length of {field}"), field)

    def array(self, read: Callable[[Reader], T], field: str) -> list[T]:
        return [read(self) for _ in range(self.u16(f"count of {field}"))]

    def terminated(self, field: str) -> bytes:
        end = self.data.find(b"\x00", self.at)
        if end < 0:
            raise self.fail(field, "has no terminator")

        def unescape(match: re.Match[bytes]) -> bytes:
            raw = _UNESCAPED.get(match[1])
            if raw is None:
                raise self.fail(field, "has a bad escape")
            return raw

        raw = _ESCAPE.sub(unescape, self.data[self.at : end])
        self.at = end + 1
        return raw

    def end(self) -> None:
        if self.at != len(self.data):
            raise self.fail("the end", f"has {len(self.data) - self.at} bytes left over")
