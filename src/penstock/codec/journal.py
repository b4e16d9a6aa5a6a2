"""The journal's bytes: segment header, record, head. Pure; store/journal.py does the I/O.

    Segment   header, padded to 4096 | records, one after the other | zeros or older bytes

    Header    magic "PENSTKJ1" (8) | store id (16) | epoch (u64) | sequence (u64) | salt (u64)
              | size of the file (u64) | checksum (u64, xxh3_64 of what is before)
    Record    body length (u32) | kind (u32) | epoch (u64) | n (u64) | time (i64)
              | previous hash (16) | hash (16)
              | checksum (u64: xxh3_64 of what is before, seeded with the salt)
              | body: the batch of chain.py, which the hash covers | zeros to a multiple of 8
    Kind      1 commit | 2 mark: no body, repeats the last commit's n, time and hashes
    Head      magic "PENSTKH1" (8) | store id (16) | epoch (u64) | start n (u64) | start hash (16)
              | covered n (u64) | covered hash (16) | closed (u8)
              | count (u16) | { epoch (u64) | slot (u64) | sequence (u64) | salt (u64) } ...
              | checksum (u64, xxh3_64 of what is before)

Why a salt   A segment is used again and again, and users choose what stands in a body. The salt is
             drawn anew for each use, so neither an older record nor bytes that look like one can
             pass for a record of this use.
Why a mark   A torn record at the end is a commit that was never acknowledged; a damaged one is data
             loss. Something valid behind it tells them apart, so an idle journal writes a mark.
"""

from __future__ import annotations

import struct

import msgspec
import xxhash

from penstock.codec.chain import ChainRecord, chain_hash
from penstock.codec.scalars import Reader
from penstock.errors import CorruptError

HEADER_BYTES = 4096
COMMIT, MARK = 1, 2

_SEGMENT_MAGIC = b"PENSTKJ1"
_HEAD_MAGIC = b"PENSTKH1"
_HEADER = struct.Struct("<8s16sQQQQ")
_RECORD = struct.Struct("<IIQQq16s16s")
_HEAD = struct.Struct("<8s16sQQ16sQ16sBH")
_SEGMENT = struct.Struct("<QQQQ")
_CHECKSUM = struct.Struct("<Q")
RECORD_BYTES = _RECORD.size + _CHECKSUM.size


class SegmentHeader(msgspec.Struct, frozen=True):
    store_id: bytes  # 16 random bytes, the same in everything that belongs to one location
    epoch: int  # who wrote it
    sequence: int  # order of use within the epoch
    salt: int  # drawn for this use; seeds the checksums of its records
    size: int  # of the whole file: a shorter one was cut


class SegmentName(msgspec.Struct, frozen=True):
    """A segment as the head lists it."""

    epoch: int
    slot: int  # which file of that epoch
    sequence: int
    salt: int


class JournalHead(msgspec.Struct, frozen=True):
    """What an epoch knows of the journal: one file per epoch, replaced as a whole."""

    store_id: bytes
    epoch: int
    start_n: int  # the epoch began after this commit: older epochs' records above it are void
    start_hash: bytes
    covered_n: int  # the store itself held all commits up to this one
    covered_hash: bytes
    closed: bool  # a clean close: the store holds everything, there are no segments
    segments: tuple[SegmentName, ...]  # in order of use; a listed segment that is missing is a loss


class JournalRecord(msgspec.Struct, frozen=True):
    kind: int
    epoch: int
    chain: ChainRecord
    body: bytes
    end: int  # where the next record begins


def encode_header(header: SegmentHeader) -> bytes:
    raw = _HEADER.pack(_SEGMENT_MAGIC, *msgspec.structs.astuple(header))
    return (raw + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(raw))).ljust(HEADER_BYTES, b"\0")


def decode_header(data: bytes, what: str) -> SegmentHeader:
    size = _HEADER.size + _CHECKSUM.size
    if len(data) < size:
        raise CorruptError(f"{what}: header at byte 0 needs {size} bytes, {len(data)} are there")
    magic, *fields = _HEADER.unpack_from(data)
    checksum = xxhash.xxh3_64_intdigest(data[: _HEADER.size])
    if magic != _SEGMENT_MAGIC or checksum != _CHECKSUM.unpack_from(data, _HEADER.size)[0]:
        raise CorruptError(f"{what}: header at byte 0 is damaged")
    return SegmentHeader(*fields)


def encode_record(kind: int, epoch: int, chain: ChainRecord, body: bytes, salt: int) -> bytes:
    raw = _RECORD.pack(len(body), kind, epoch, chain.n, chain.time_ms, chain.previous, chain.hash)
    checksum = _CHECKSUM.pack(xxhash.xxh3_64_intdigest(raw, seed=salt))
    return b"".join((raw, checksum, body, bytes(-(RECORD_BYTES + len(body)) % 8)))


def decode_record(data: bytes, at: int, salt: int) -> JournalRecord | None:
    """The record at this place, or None when no valid one is there (torn, older use, zeros)."""
    if at + RECORD_BYTES > len(data):
        return None
    body_at = at + RECORD_BYTES
    # The header has its own checksum: a place that only looks like a record costs little to refuse.
    checksum = xxhash.xxh3_64_intdigest(data[at : at + _RECORD.size], seed=salt)
    if checksum != _CHECKSUM.unpack_from(data, at + _RECORD.size)[0]:
        return None
    length, kind, epoch, n, time_ms, previous, digest = _RECORD.unpack_from(data, at)
    end = body_at + length
    if end > len(data):
        return None
    body = data[body_at:end]
    if kind == COMMIT and chain_hash(previous, n, time_ms, body) != digest:
        return None
    return JournalRecord(
        kind, epoch, ChainRecord(n, time_ms, previous, digest), body, end + -end % 8
    )


def encode_head(head: JournalHead) -> bytes:
    raw = _HEAD.pack(
        _HEAD_MAGIC,
        head.store_id,
        head.epoch,
        head.start_n,
        head.start_hash,
        head.covered_n,
        head.covered_hash,
        head.closed,
        len(head.segments),
    ) + b"".join(_SEGMENT.pack(s.epoch, s.slot, s.sequence, s.salt) for s in head.segments)
    return raw + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(raw))


def decode_head(data: bytes, what: str) -> JournalHead:
    body, stored = data[: -_CHECKSUM.size], data[-_CHECKSUM.size :]
    if len(data) < _HEAD.size + _CHECKSUM.size:
        raise CorruptError(f"{what}: {len(data)} bytes long, too short for a journal head")
    magic, store_id, epoch, start_n, start_hash, covered_n, covered_hash, closed, count = (
        _HEAD.unpack_from(body)
    )
    if magic != _HEAD_MAGIC or _CHECKSUM.unpack(stored)[0] != xxhash.xxh3_64_intdigest(body):
        raise CorruptError(f"{what}: checksum at byte {len(body)} does not match")
    reader = Reader(body, what)
    reader.at = _HEAD.size
    segments = tuple(
        SegmentName(*_SEGMENT.unpack(reader.take(_SEGMENT.size, "segment"))) for _ in range(count)
    )
    reader.end()
    return JournalHead(
        store_id, epoch, start_n, start_hash, covered_n, covered_hash, bool(closed), segments
    )
