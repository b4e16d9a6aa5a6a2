"""The chain: one commit's writes as bytes, and the record that ties it to the one before. Pure.

    Batch            { key length (u32) | value length (u32; FFFFFFFF deletes) | key | value } ...
    Hash             xxh3_128 of previous hash (16) | n (u64) | time (i64) | batch
    ChainRecord      n (u64) | time (i64) | previous hash (16) | hash (16) | oldest (u64)
                     | checksum (u64, xxh3_64)

Invariants   n is dense. A record's previous hash is the hash of record n - 1; that of n = 1 is
             sixteen zero bytes. So two stores with the same head hold the same commits.
Lives in     each journal record on a folder (journal.py); rows on a bucket; the newest one is the
             head row of every store (keys.CHAIN_HEAD).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

import msgspec
import xxhash

from penstock.codec.scalars import Reader
from penstock.errors import CorruptError, InvalidError

NO_HASH = bytes(16)
_DELETED = 0xFFFF_FFFF
_LENGTHS = struct.Struct("<II")
_SALT = struct.Struct("<Qq")
_RECORD = struct.Struct("<Qq16s16sQ")
_CHECKSUM = struct.Struct("<Q")


class ChainRecord(msgspec.Struct, frozen=True):
    n: int  # dense commit number, from 1
    time_ms: int  # the commit's time
    previous: bytes  # hash of commit n - 1
    hash: bytes  # hash of this one
    oldest: int = 0  # the lowest n that still has a row of its own (buckets)


def encode_batch(writes: Iterable[tuple[bytes, bytes | None]]) -> bytes:
    pieces: list[bytes] = []
    for key, value in writes:
        if value is None:
            pieces += (_LENGTHS.pack(len(key), _DELETED), key)
        elif len(value) >= _DELETED:
            raise InvalidError(f"a row of {len(value)} bytes is too large; the limit is 4 GiB")
        else:
            pieces += (_LENGTHS.pack(len(key), len(value)), key, value)
    return b"".join(pieces)


def decode_batch(data: bytes) -> list[tuple[bytes, bytes | None]]:
    reader = Reader(data, "batch")
    writes: list[tuple[bytes, bytes | None]] = []
    while reader.at < len(data):
        key_length, value_length = reader.u32("key length"), reader.u32("value length")
        key = reader.take(key_length, "key")
        value = None if value_length == _DELETED else reader.take(value_length, "value")
        writes.append((key, value))
    return writes


def chain_hash(previous: bytes, n: int, time_ms: int, batch: bytes) -> bytes:
    state = xxhash.xxh3_128(previous + _SALT.pack(n, time_ms))
    state.update(batch)
    return state.digest()


def encode_chain(record: ChainRecord) -> bytes:
    raw = _RECORD.pack(*msgspec.structs.astuple(record))
    return raw + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(raw))


def decode_chain(data: bytes) -> ChainRecord:
    if len(data) != _RECORD.size + _CHECKSUM.size:
        raise CorruptError(
            f"chain record: {len(data)} bytes long, expected {_RECORD.size + _CHECKSUM.size}"
        )
    checksum = xxhash.xxh3_64_intdigest(data[: _RECORD.size])
    if checksum != _CHECKSUM.unpack_from(data, _RECORD.size)[0]:
        raise CorruptError(f"chain record: checksum at byte {_RECORD.size} does not match")
    return ChainRecord(*_RECORD.unpack_from(data))
