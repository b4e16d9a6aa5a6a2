"""Values of the two tables that several layers share: `once` and `hold`. Pure.

    once        version (u8 = 1) | sequence (u64) | expires (i64, ms) | answer (Bytes32)
    hold        version (u8 = 1) | offset (u64)

Not here     what a repeated id means (log/once.py), what a hold stops (log/hold.py).
"""

from __future__ import annotations

import msgspec

from penstock.codec.scalars import Reader, encode_bytes32, encode_i64, encode_u64

_VERSION = b"\x01"


class OnceRow(msgspec.Struct, frozen=True, gc=False):
    sequence: int  # the latest one; 0 where the id alone is what must not repeat
    expires_ms: int  # from here on the row counts as absent
    answer: bytes  # what the first request was told, given again to every repetition


def _open(data: bytes, what: str) -> Reader:
    reader = Reader(data, what)
    if (version := reader.u8("version")) != _VERSION[0]:
        raise reader.fail("version", f"is {version}, not {_VERSION[0]}")
    return reader


def encode_once(row: OnceRow) -> bytes:
    return b"".join(
        (
            _VERSION,
            encode_u64(row.sequence, "sequence"),
            encode_i64(row.expires_ms, "expiry"),
            encode_bytes32(row.answer, "answer"),
        )
    )


def decode_once(data: bytes) -> OnceRow:
    reader = _open(data, "once row")
    row = OnceRow(reader.u64("sequence"), reader.i64("expires"), reader.bytes32("answer"))
    reader.end()
    return row


def encode_hold(offset: int) -> bytes:
    return _VERSION + encode_u64(offset, "held offset")


def decode_hold(data: bytes) -> int:
    reader = _open(data, "hold row")
    offset = reader.u64("offset")
    reader.end()
    return offset
