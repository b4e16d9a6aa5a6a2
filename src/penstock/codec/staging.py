"""The staging row: what has been staged under an id, and what became of it. Pure.

    value       version (u8 = 1) | phase (u8) | lease (u64, ms) | deadline (i64, ms)
                | linked at (i64, ms; 0 before) | writers | parts
    phase       1 open, 2 linked, 3 revoked
    writers     count (u32) | count x (writer (u64) | nodes (u32) | nodes x entries (u32))
    parts       count (u32) | count x (log id (u64) | writer (u64) | first offset (u64))

The entries of every staged node stand here, so that linking assigns offsets without reading one.

Not here     the staged nodes themselves (node.py), who may link (log/staging.py).
"""

from __future__ import annotations

import struct
from enum import IntEnum

import msgspec

from penstock.codec.scalars import Reader, encode_i64, encode_u32, encode_u64

_VERSION = 1
_PART = struct.Struct("<QQQ")


class Phase(IntEnum):
    OPEN = 1
    LINKED = 2
    REVOKED = 3


class Part(msgspec.Struct, frozen=True, gc=False):
    """The nodes of one writer, in their place in a log."""

    log_id: int
    writer: int
    first: int


#: Entries of each staged node of a writer, in the order of n.
Counts = tuple[int, ...]


class StagingRow(msgspec.Struct, frozen=True):
    phase: Phase
    lease_ms: int  # how long it lives after the last staging
    deadline_ms: int  # may be revoked from here on
    linked_ms: int = 0  # the time of the commit that linked it
    writers: tuple[tuple[int, Counts], ...] = ()
    parts: tuple[Part, ...] = ()  # where the winners went


def encode_staging(row: StagingRow) -> bytes:
    pieces = [
        bytes((_VERSION, row.phase)),
        encode_u64(row.lease_ms, "lease"),
        encode_i64(row.deadline_ms, "deadline"),
        encode_i64(row.linked_ms, "linked at"),
        encode_u32(len(row.writers), "number of writers"),
    ]
    for writer, counts in row.writers:
        pieces += (
            encode_u64(writer, "writer"),
            encode_u32(len(counts), "number of nodes"),
            struct.pack(f"<{len(counts)}I", *counts),
        )
    pieces.append(encode_u32(len(row.parts), "number of parts"))
    pieces += [_PART.pack(part.log_id, part.writer, part.first) for part in row.parts]
    return b"".join(pieces)


def decode_staging(data: bytes, staging_id: int) -> StagingRow:
    reader = Reader(data, f"staging row {staging_id}")
    if (version := reader.u8("version")) != _VERSION:
        raise reader.fail("version", f"is {version}, not {_VERSION}")
    number = reader.u8("phase")
    try:
        phase = Phase(number)
    except ValueError:
        raise reader.fail("phase", f"is {number}, which is unknown") from None
    lease_ms, deadline_ms = reader.u64("lease"), reader.i64("deadline")
    linked_ms = reader.i64("linked at")
    writers = tuple(_read_writer(reader) for _ in range(reader.u32("number of writers")))
    parts = tuple(
        Part(reader.u64("log id"), reader.u64("writer of a part"), reader.u64("first offset"))
        for _ in range(reader.u32("number of parts"))
    )
    reader.end()
    return StagingRow(phase, lease_ms, deadline_ms, linked_ms, writers, parts)


def _read_writer(reader: Reader) -> tuple[int, Counts]:
    writer = reader.u64("writer")
    nodes = reader.u32("number of nodes")
    raw = reader.take(4 * nodes, "entries of the nodes")
    return writer, struct.unpack(f"<{nodes}I", raw)
