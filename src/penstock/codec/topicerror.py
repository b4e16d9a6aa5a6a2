"""Error rows: what a handler raised for a message of a topic. Pure.

    row        version (u8 = 1) | time (i64, ms) | attempts (u32) | final (u8) | consumer (Utf8)
               | error (Bytes32, UTF-8)

Contract     The key names the message. There is one row per message and space, of the last failure.
"""

from __future__ import annotations

import msgspec

from penstock.codec.scalars import Reader, encode_bytes32, encode_i64, encode_u32, encode_utf8

_VERSION = 1


class ErrorRow(msgspec.Struct, frozen=True):
    time_ms: int
    attempts: int  # how often it failed
    final: bool  # it was given up
    consumer: str
    error: str


def encode_error(row: ErrorRow) -> bytes:
    return b"".join(
        (
            bytes((_VERSION,)),
            encode_i64(row.time_ms, "time"),
            encode_u32(row.attempts, "attempts"),
            bytes((row.final,)),
            encode_utf8(row.consumer, "consumer"),
            encode_bytes32(row.error.encode("utf-8", "backslashreplace"), "error"),
        )
    )


def decode_error(data: bytes) -> ErrorRow:
    reader = Reader(data, "error row")
    if (version := reader.u8("version")) != _VERSION:
        raise reader.fail("version", f"is {version}, not {_VERSION}")
    time_ms, attempts, final = reader.i64("time"), reader.u32("attempts"), reader.u8("final")
    if final > 1:
        raise reader.fail("final", f"is {final}")
    consumer, raw = reader.utf8("consumer"), reader.bytes32("error")
    reader.end()
    try:
        error = raw.decode()
    except UnicodeDecodeError as problem:
        raise reader.fail("error", f"is not UTF-8: {problem.reason}") from None
    return ErrorRow(time_ms, attempts, bool(final), consumer, error)
