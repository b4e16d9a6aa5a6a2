"""The staging row: what has been staged under an id, and what became of it. Pure.

    value       version (u8 = 2) | phase (u8) | lease (u64, ms) | deadline (i64, ms)
                | linked at (i64, ms; 0 before) | writers | parts | reserved
    phase       1 open, 2 linked, 3 revoked
    writers     count (u32) | count x (writer (u64) | runs (u32) | runs x (entries (u32) | nodes
                (u32)))
    parts       count (u32) | count x (log id (u64) | writer (u64) | first offset (u64))
    reserved    count (u32) | count x (writer (u64) | first message id (u64) | ids (u64))

The entries of every staged node stand here, so that linking assigns offsets without reading one.
Most nodes of a writer are full: neighbours with the same number of entries are one run, so that the
row stays small however much is staged.

Not here     the staged nodes themselves (node.py), who may link (log/staging.py).
"""

from __future__ import annotations

import struct
from enum import IntEnum
from itertools import chain, groupby, repeat

import msgspec

from penstock.codec.scalars import Reader, encode_i64, encode_u32, encode_u64

_VERSION = 2
_PART = struct.Struct("<QQQ")
_RUN = struct.Struct("<II")


#: Of one writer: a thousand million entries in full nodes.
NODES_MAX = 1_000_000


class Phase(IntEnum):
    OPEN = 1
    LINKED = 2
    REVOKED = 3


class Part(msgspec.Struct, frozen=True, gc=False):
    """The nodes of one writer, in their place in a log."""

    log_id: int
    writer: int
    first: int


class Reserved(msgspec.Struct, frozen=True, gc=False):
    """Message ids of one writer, whose payloads are stored before they are published."""

    writer: int
    first: int
    count: int

    @property
    def ids(self) -> range:
        return range(self.first, self.first + self.count)


#: Entries of each staged node of a writer, in the order of n.
Counts = tuple[int, ...]


class StagingRow(msgspec.Struct, frozen=True):
    phase: Phase
    lease_ms: int  # how long it lives after the last staging
    deadline_ms: int  # may be revoked from here on
    linked_ms: int = 0  # the time of the commit that linked it
    writers: tuple[tuple[int, Counts], ...] = ()
    parts: tuple[Part, ...] = ()  # where the winners went
    reserved: tuple[Reserved, ...] = ()


def encode_staging(row: StagingRow) -> bytes:
    pieces = [
        bytes((_VERSION, row.phase)),
        encode_u64(row.lease_ms, "lease"),
        encode_i64(row.deadline_ms, "deadline"),
        encode_i64(row.linked_ms, "linked at"),
        encode_u32(len(row.writers), "number of writers"),
    ]
    for writer, counts in row.writers:
        runs = [(entries, len(list(same))) for entries, same in groupby(counts)]
        pieces += (encode_u64(writer, "writer"), encode_u32(len(runs), "number of runs"))
        pieces += [_RUN.pack(*run) for run in runs]
    pieces.append(encode_u32(len(row.parts), "number of parts"))
    pieces += [_PART.pack(part.log_id, part.writer, part.first) for part in row.parts]
    pieces.append(encode_u32(len(row.reserved), "number of reserved ranges"))
    pieces += [_PART.pack(ids.writer, ids.first, ids.count) for ids in row.reserved]
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
    reserved = tuple(
        Reserved(reader.u64("writer of ids"), reader.u64("first id"), reader.u64("number of ids"))
        for _ in range(reader.u32("number of reserved ranges"))
    )
    reader.end()
    return StagingRow(phase, lease_ms, deadline_ms, linked_ms, writers, parts, reserved)


def _read_writer(reader: Reader) -> tuple[int, Counts]:
    writer = reader.u64("writer")
    raw = reader.take(_RUN.size * reader.u32("number of runs"), "runs of nodes")
    runs = list(_RUN.iter_unpack(raw))
    # A count from damaged bytes would be memory; no staging has so many nodes.
    if sum(nodes for _, nodes in runs) > NODES_MAX:
        raise reader.fail("runs of nodes", "are more than a staging can have")
    return writer, tuple(chain.from_iterable(repeat(entries, nodes) for entries, nodes in runs))
