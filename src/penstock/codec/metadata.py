"""Metadata records: one entry of RFC 0001's metadata log. Pure.

    Metadata Record Value:   message id (u64) | created at (i64) | received at (i64)
                             | visible at (i64) | retention in seconds (u32)
                             | number of headers N (u8) | N x (key (Utf8) | value (Utf8))
    our tail, or nothing:    present (u8: 1 = to, 2 = dedup id, 3 = both)
                             | to (Utf8) | dedup id (Utf8)

Contract     A record with neither `to` nor a dedup id is exactly the RFC's bytes, and the RFC's
             bytes decode with both absent. The tail takes none of the 255 headers.
Invariants   Headers keep their order; a header name occurs once. Each value has one encoding.
Not here     Which header names users may publish, when a message expires (queue).
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence

import msgspec

from penstock.codec.scalars import (
    Reader,
    encode_i64,
    encode_u32,
    encode_u64,
    encode_utf8,
)
from penstock.errors import InvalidError

HEADERS_MAX = 255

_TO, _DEDUP_ID = 1, 2
_U16 = struct.Struct("<H")


class Metadata(msgspec.Struct, frozen=True):
    message_id: int  # the id of the payload in the payload store
    created_at_ms: int  # the producer's time
    received_at_ms: int  # the time of the commit that published it
    visible_at_ms: int  # not claimed before this
    retention_s: int  # counted from received_at_ms; 0 is for ever
    headers: tuple[tuple[str, str], ...] = ()  # what filters see, in the producer's order
    to: str | None = None  # the one queue it is addressed to; None: filters decide
    dedup_id: str | None = None  # the producer's key against double publishing


def encode_metadata(metadata: Metadata) -> bytes:
    return b"".join(
        (
            encode_u64(metadata.message_id, "message id"),
            encode_i64(metadata.created_at_ms, "created at"),
            encode_i64(metadata.received_at_ms, "received at"),
            encode_i64(metadata.visible_at_ms, "visible at"),
            encode_u32(metadata.retention_s, "retention in seconds"),
            encode_rest(metadata.headers, metadata.to, metadata.dedup_id),
        )
    )


def encode_rest(
    headers: Collection[tuple[str, str]], to: str | None = None, dedup_id: str | None = None
) -> bytes:
    """What stands behind the fixed fields: it does not depend on the commit."""
    return _encode_headers(headers) + _encode_tail(to, dedup_id)


def _encode_headers(headers: Collection[tuple[str, str]]) -> bytes:
    count = len(headers)
    if count > HEADERS_MAX:
        raise InvalidError(f"{count} headers; at most {HEADERS_MAX} are allowed")
    try:
        texts = [text.encode() for pair in headers for text in pair]
        lengths = [_U16.pack(len(text)) for text in texts]
    except (UnicodeEncodeError, struct.error):
        for name, value in headers:  # looked for only now: what is right is not looked at twice
            encode_utf8(name, "header name")
            encode_utf8(value, f"header {name!r}")
        raise
    if count > 1 and len(set(texts[::2])) < count:
        names = [name for name, _ in headers]
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise InvalidError(f"header {twice!r} occurs twice")
    parts = [bytes((count,))]
    for length, text in zip(lengths, texts, strict=True):
        parts += length, text
    return b"".join(parts)


def _encode_tail(to: str | None, dedup_id: str | None) -> bytes:
    present = (_TO if to is not None else 0) | (_DEDUP_ID if dedup_id is not None else 0)
    if not present:
        return b""
    parts = [bytes((present,))]
    if to is not None:
        parts.append(encode_utf8(to, "to"))
    if dedup_id is not None:
        parts.append(encode_utf8(dedup_id, "dedup id"))
    return b"".join(parts)


_FIXED = struct.Struct("<QqqqIB")
#: A record without headers and tail, whose last byte says so.
_PLAIN = struct.Struct("<QqqqIx")


def decode_metadata(data: bytes) -> Metadata:
    if len(data) == _FIXED.size and not data[-1]:
        # No headers and no tail, as most are: a fifth of the time.
        return Metadata(*_PLAIN.unpack(data))
    reader = Reader(data, "metadata record")
    message_id = reader.u64("message id")
    created_at_ms = reader.i64("created at")
    received_at_ms = reader.i64("received at")
    visible_at_ms = reader.i64("visible at")
    retention_s = reader.u32("retention in seconds")
    headers = _read_headers(reader)
    to, dedup_id = _read_tail(reader)
    reader.end()
    return Metadata(
        message_id=message_id,
        created_at_ms=created_at_ms,
        received_at_ms=received_at_ms,
        visible_at_ms=visible_at_ms,
        retention_s=retention_s,
        headers=headers,
        to=to,
        dedup_id=dedup_id,
    )


def decode_metadata_list(records: Sequence[bytes]) -> list[Metadata]:
    """Neighbours without headers and tail are taken together, in two thirds of the time."""
    if set(map(len, records)) == {_FIXED.size}:
        together = b"".join(records)
        if not any(together[_FIXED.size - 1 :: _FIXED.size]):
            return [Metadata(*fields) for fields in _PLAIN.iter_unpack(together)]
    return list(map(decode_metadata, records))


def read_message_id(data: bytes) -> int:
    """Of a record that holds more, which is not looked at."""
    if len(data) < _FIXED.size:
        return decode_metadata(data).message_id  # says what is wrong
    return int.from_bytes(data[:8], "little")


def _read_headers(reader: Reader) -> tuple[tuple[str, str], ...]:
    headers: dict[str, str] = {}
    for _ in range(reader.u8("number of headers")):
        at = reader.at
        name = reader.utf8("header name")
        if name in headers:
            reader.at = at
            raise reader.fail("header name", f"occurs twice: {name!r}")
        headers[name] = reader.utf8("header value")
    return tuple(headers.items())


def _read_tail(reader: Reader) -> tuple[str | None, str | None]:
    if reader.at == len(reader.data):
        return None, None
    present = reader.u8("tail")
    # 0 is refused too: an absent tail has no bytes, so it would be a second encoding.
    if not 0 < present <= _TO | _DEDUP_ID:
        reader.at -= 1
        raise reader.fail("tail", f"has unknown parts: {present:#04x}")
    to = reader.utf8("to") if present & _TO else None
    dedup_id = reader.utf8("dedup id") if present & _DEDUP_ID else None
    return to, dedup_id
