"""The publish row: the splits that one publish added to a source's table. Pure.

    value       version (u8 = 1) | schema version (u32) | time (i64, ms) | count (u32)
                | count x (path (Utf8) | rows (u64) | bytes (u64) | stats (Bytes32, UTF-8))

Not here     the sequence, which is in the key (keys.py); the positions of shards, which move in the
             same commit (shard.py).
"""

from __future__ import annotations

import msgspec

from penstock.codec.scalars import (
    Reader,
    encode_bytes32,
    encode_i64,
    encode_u32,
    encode_u64,
    encode_utf8,
)
from penstock.codec.source import open_row

_VERSION = b"\x01"


class SplitRow(msgspec.Struct, frozen=True, gc=False):
    path: str  # inside the table
    rows: int
    bytes: int
    stats: str = ""  # JSON for the table's log


class PublishedRow(msgspec.Struct, frozen=True):
    schema_version: int  # of the splits
    time_ms: int  # of the commit
    splits: tuple[SplitRow, ...]


def encode_published(row: PublishedRow) -> bytes:
    parts = [
        _VERSION,
        encode_u32(row.schema_version, "schema version"),
        encode_i64(row.time_ms, "time"),
        encode_u32(len(row.splits), "number of splits"),
    ]
    for split in row.splits:
        parts += (
            encode_utf8(split.path, "path of a split"),
            encode_u64(split.rows, "rows of a split"),
            encode_u64(split.bytes, "bytes of a split"),
            encode_bytes32(split.stats.encode(), "stats of a split"),
        )
    return b"".join(parts)


def decode_published(data: bytes) -> PublishedRow:
    reader = open_row(data, "publish row")
    schema_version, time_ms = reader.u32("schema version"), reader.i64("time")
    splits = tuple(_read_split(reader) for _ in range(reader.u32("number of splits")))
    reader.end()
    return PublishedRow(schema_version, time_ms, splits)


def _read_split(reader: Reader) -> SplitRow:
    path, rows, size = reader.utf8("path"), reader.u64("rows"), reader.u64("bytes")
    raw = reader.bytes32("stats")
    try:
        return SplitRow(path, rows, size, raw.decode())
    except UnicodeDecodeError as error:
        reader.at -= len(raw)
        raise reader.fail("stats", f"is not UTF-8: {error.reason}") from None
