"""The shard row: how far one file of a source is loaded, and by whom. Pure.

    value       version (u8 = 1) | kind (u8) | phase (u8) | token (16 bytes; all 0: released)
                | stale (u64, ms) | place (u8) | offset (u64; 0 unless the place is 2) | rows (u64)
                | failures (u32) | opened (i64, ms) | updated (i64, ms) | uri (Utf8)
                | has etag (u8, 0 or 1) | etag (Utf8, only if it has one) | announced by (Utf8)
                | error (Utf8) | text (Utf8)
    kind        1 file, 2 inline, 3 announcement
    phase       1 open, 2 eof, 3 failed
    place       1 BOF, 2 at the offset, 3 EOF

Invariants   Each value has one encoding. At EOF is the phase eof, and the other way round.
Not here     The identity, which is in the key (keys.py); who may change it (source/shards.py).
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeVar

import msgspec

from penstock.codec.keys import KeyType, open_key
from penstock.codec.scalars import Reader, encode_i64, encode_u32, encode_u64, encode_utf8
from penstock.codec.source import open_row
from penstock.errors import CorruptError, InvalidError

_VERSION = b"\x01"
TOKEN_BYTES = 16
RELEASED = bytes(TOKEN_BYTES)

E = TypeVar("E", bound=IntEnum)


class ShardKind(IntEnum):
    FILE = 1
    INLINE = 2  # the announcement's body is the data
    ANNOUNCEMENT = 3  # a message that names nothing that could be read


class ShardPhase(IntEnum):
    OPEN = 1
    EOF = 2
    FAILED = 3


class Place(IntEnum):
    BOF = 1
    OFFSET = 2
    EOF = 3


class ShardRow(msgspec.Struct, frozen=True):
    kind: ShardKind
    phase: ShardPhase
    token: bytes  # of its owner, who alone may publish
    stale_ms: int  # so long may the owner be silent
    place: Place  # up to here it is published
    offset: int  # a byte or a row group, where the place is one
    rows: int  # published, of this shard
    failures: int
    opened_ms: int
    updated_ms: int  # of a terminal one: when it ended
    uri: str
    etag: str | None = None  # as its opener saw it, or who published a part of it
    announced_by: str = ""
    error: str = ""  # of the latest try, whether that counted as a failure or not
    text: str = ""  # of an announcement: how it begins

    @property
    def terminal(self) -> bool:
        return self.phase is not ShardPhase.OPEN


def encode_shard(row: ShardRow) -> bytes:
    if len(row.token) != TOKEN_BYTES:
        raise InvalidError(f"a token has {TOKEN_BYTES} bytes, not {len(row.token)}")
    return b"".join(
        (
            _VERSION,
            bytes((row.kind, row.phase)),
            row.token,
            encode_u64(row.stale_ms, "stale"),
            bytes((row.place,)),
            encode_u64(row.offset, "offset in a shard"),
            encode_u64(row.rows, "rows"),
            encode_u32(row.failures, "failures"),
            encode_i64(row.opened_ms, "opened"),
            encode_i64(row.updated_ms, "updated"),
            encode_utf8(row.uri, "URI"),
            b"\x00" if row.etag is None else b"\x01" + encode_utf8(row.etag, "etag"),
            encode_utf8(row.announced_by, "announced by"),
            encode_utf8(row.error, "error"),
            encode_utf8(row.text, "text of an announcement"),
        )
    )


def decode_shard(data: bytes) -> ShardRow:
    reader = open_row(data, "shard row")
    kind, phase = _read(reader, ShardKind, "kind"), _read(reader, ShardPhase, "phase")
    token, stale_ms = reader.take(TOKEN_BYTES, "token"), reader.u64("stale")
    place, offset = _read(reader, Place, "place"), reader.u64("offset")
    if offset and place is not Place.OFFSET:
        raise reader.fail("offset", f"is {offset} at {place.name}")
    if (place is Place.EOF) != (phase is ShardPhase.EOF):
        raise reader.fail("place", f"is {place.name} in the phase {phase.name.lower()}")
    row = ShardRow(
        kind=kind,
        phase=phase,
        token=token,
        stale_ms=stale_ms,
        place=place,
        offset=offset,
        rows=reader.u64("rows"),
        failures=reader.u32("failures"),
        opened_ms=reader.i64("opened"),
        updated_ms=reader.i64("updated"),
        uri=reader.utf8("URI"),
        etag=_read_etag(reader),
        announced_by=reader.utf8("announced by"),
        error=reader.utf8("error"),
        text=reader.utf8("text"),
    )
    reader.end()
    return row


def _read(reader: Reader, kind: type[E], field: str) -> E:
    number = reader.u8(field)
    try:
        return kind(number)
    except ValueError:
        raise reader.fail(field, f"is {number}, which is unknown") from None


def _read_etag(reader: Reader) -> str | None:
    match reader.u8("has etag"):
        case 0:
            return None
        case 1:
            return reader.utf8("etag")
        case other:
            raise reader.fail("has etag", f"is {other}, not 0 or 1")


def decode_shard_key(key: bytes) -> tuple[int, str]:
    """-> (source id, identity)"""
    reader = open_key(key, KeyType.SHARD)
    source_id, identity = reader.u64_key("source id"), _read_identity(reader)
    reader.end()
    return source_id, identity


def decode_ended_key(key: bytes) -> tuple[int, int, str]:
    """-> (source id, when the shard ended, its identity)"""
    reader = open_key(key, KeyType.ENDED)
    source_id, ended_ms = reader.u64_key("source id"), reader.u64_key("ended at")
    identity = _read_identity(reader)
    reader.end()
    return source_id, ended_ms, identity


def _read_identity(reader: Reader) -> str:
    try:
        return reader.terminated("identity").decode()
    except UnicodeDecodeError as error:
        raise CorruptError(f"{reader.what}: identity is not UTF-8: {error.reason}") from None
