"""The rows of a source: its settings and how far it has come, its schema, its format. Pure.

    part 0      version (u8 = 1) | identity (u8) | name (Utf8) | table (Utf8) | created (i64, ms)
                | prune age (u64, ms) | prune count (u64) | horizon (u64, ms) | max failures (u32)
                | schema version (u32) | published (u64) | exported (u64) | first publish (u64)
                | next staging (u64) | done (u64) | failed (u64)
    identity    1 uri, 2 version
    part 1      version (u8 = 1) | schema version (u32) | schema (Bytes32, UTF-8)
    part 2      version (u8 = 1) | format (Utf8); there is none where nobody told it

The schema has a row of its own: it may be long, and part 0 is written with every publish. So has
the format, which older sources do not know.

Not here     the key (keys.py), what the settings mean (source/).
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

from penstock.codec.scalars import (
    Reader,
    encode_bytes32,
    encode_i64,
    encode_u32,
    encode_u64,
    encode_utf8,
)

_VERSION = b"\x01"

#: Parts of the key.
SETTINGS = 0
SCHEMA = 1
FORMAT = 2


class IdentityBy(IntEnum):
    URI = 1
    VERSION = 2


class SourceRow(msgspec.Struct, frozen=True):
    identity: IdentityBy  # what makes two announcements the same file
    name: str
    table: str  # where the rows go
    created_ms: int
    prune_age_ms: int  # how long terminal shards are remembered
    prune_count: int  # and how many of them
    horizon_ms: int  # younger ones stay, however many
    max_failures: int  # of one shard, before it is failed for good
    schema_version: int = 0  # 0: there is none
    published: int = 0  # the newest publish; 0: none
    exported: int = 0  # the table has it up to here, at least
    first_publish: int = 1  # older ones are pruned
    next_staging: int = 1
    done: int = 0  # shards at the end of their file
    failed: int = 0  # shards and announcements that failed for good


class SchemaRow(msgspec.Struct, frozen=True):
    version: int
    schema: str


def open_row(data: bytes, what: str) -> Reader:
    """A reader placed behind the version, which all rows of sources begin with."""
    reader = Reader(data, what)
    if (version := reader.u8("version")) != _VERSION[0]:
        raise reader.fail("version", f"is {version}, not {_VERSION[0]}")
    return reader


def encode_source(row: SourceRow) -> bytes:
    return b"".join(
        (
            _VERSION,
            bytes((row.identity,)),
            encode_utf8(row.name, "name of a source"),
            encode_utf8(row.table, "table"),
            encode_i64(row.created_ms, "created"),
            encode_u64(row.prune_age_ms, "prune age"),
            encode_u64(row.prune_count, "prune count"),
            encode_u64(row.horizon_ms, "horizon"),
            encode_u32(row.max_failures, "max failures"),
            encode_u32(row.schema_version, "schema version"),
            encode_u64(row.published, "published"),
            encode_u64(row.exported, "exported"),
            encode_u64(row.first_publish, "first publish"),
            encode_u64(row.next_staging, "next staging"),
            encode_u64(row.done, "done"),
            encode_u64(row.failed, "failed"),
        )
    )


def decode_source(data: bytes) -> SourceRow:
    reader = open_row(data, "source row")
    number = reader.u8("identity")
    try:
        identity = IdentityBy(number)
    except ValueError:
        raise reader.fail("identity", f"is {number}, which is unknown") from None
    row = SourceRow(
        identity=identity,
        name=reader.utf8("name"),
        table=reader.utf8("table"),
        created_ms=reader.i64("created"),
        prune_age_ms=reader.u64("prune age"),
        prune_count=reader.u64("prune count"),
        horizon_ms=reader.u64("horizon"),
        max_failures=reader.u32("max failures"),
        schema_version=reader.u32("schema version"),
        published=reader.u64("published"),
        exported=reader.u64("exported"),
        first_publish=reader.u64("first publish"),
        next_staging=reader.u64("next staging"),
        done=reader.u64("done"),
        failed=reader.u64("failed"),
    )
    reader.end()
    return row


def encode_schema(row: SchemaRow) -> bytes:
    return b"".join(
        (
            _VERSION,
            encode_u32(row.version, "schema version"),
            encode_bytes32(row.schema.encode(), "schema"),
        )
    )


def decode_schema(data: bytes) -> SchemaRow:
    reader = open_row(data, "schema row")
    version = reader.u32("schema version")
    raw = reader.bytes32("schema")
    try:
        schema = raw.decode()
    except UnicodeDecodeError as error:
        reader.at -= len(raw)
        raise reader.fail("schema", f"is not UTF-8: {error.reason}") from None
    reader.end()
    return SchemaRow(version, schema)


def encode_format(format: str) -> bytes:
    return _VERSION + encode_utf8(format, "format")


def decode_format(data: bytes) -> str:
    reader = open_row(data, "format row")
    format = reader.utf8("format")
    reader.end()
    return format
