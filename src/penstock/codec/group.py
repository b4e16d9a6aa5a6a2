"""What is stored of a consumer group: its row, its head, the pages of its pending list, and its
operations. Pure.

    group       version (u8 = 1) | id (u64) | max pending (u64) | dead stream (Utf8, empty = none)
    head        version (u8 = 1) | log id (u64) | name (Utf8) | sequence (u64) | next (u64)
                | expired (u64) | skipped (u64)
    page        version (u8 = 1) | sequence (u64) | count (u32) | slots (u16 each, rising)
                | deliveries (u16 each) | retry times (i64 each) | expiry times (i64 each)
    operation   next (u64) | expired (u64) | skipped (u64) | retry time (i64) | expiry time (i64)
                | removed (runs) | again (runs) | fresh (runs)
    runs        count (u32) | firsts (u64 each, rising) | lengths (u32 each)

Contract     Page p holds the offsets p * PAGE_SLOTS + slot. An operation says all that one request
             did: the group's numbers afterwards, what left the pending list, what was delivered
             again (a new retry time) and what for the first time (both times). Offsets in an
             operation are arrays that rise.
"""

from __future__ import annotations

import struct

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.codec.scalars import (
    Reader,
    encode_u32,
    encode_u64,
    encode_utf8,
)
from penstock.errors import CorruptError, InvalidError

_VERSION = b"\x01"
_NUMBERS = struct.Struct("<QQQqq")
_ONE_RUN = struct.Struct("<IQI")
_NO_RUNS = bytes(4)

PAGE_SLOTS = 1024
#: How many offsets one list of an operation may name.
OPERATION_OFFSETS = 1 << 20
OFFSET_MAX = 1 << 62

Offsets = npt.NDArray[np.int64]
NO_OFFSETS: Offsets = np.zeros(0, np.int64)


class GroupRow(msgspec.Struct, frozen=True):
    """What a group is: found by its log and name, changed only by whoever sets it up."""

    id: int  # what head, pages and operations carry
    max_pending: int  # no new entries while so many wait to be acknowledged
    dead: str  # the stream that expired entries are moved to; empty: none


class HeadRow(msgspec.Struct, frozen=True):
    """Where a group stands: found by its id, changed by every operation."""

    log_id: int
    name: str
    sequence: int  # of the last operation that is in this row
    next: int  # the offset of the next entry that is new to the group
    expired: int = 0  # entries that nobody acknowledged in time
    skipped: int = 0  # entries that were evicted or compacted before they were acknowledged


class PageRow(msgspec.Struct, frozen=True):
    sequence: int  # of the last operation that is in this row
    slots: npt.NDArray[np.uint16]
    deliveries: npt.NDArray[np.uint16]
    retry: npt.NDArray[np.int64]  # when it is delivered again; never 0
    expire: npt.NDArray[np.int64]  # when it leaves the list


class GroupOperation(msgspec.Struct, frozen=True):
    next: int
    expired: int
    skipped: int
    retry_ms: int = 0
    expire_ms: int = 0
    removed: Offsets = NO_OFFSETS
    again: Offsets = NO_OFFSETS
    fresh: Offsets = NO_OFFSETS


def encode_group(row: GroupRow) -> bytes:
    return b"".join(
        (
            _VERSION,
            encode_u64(row.id, "group id"),
            encode_u64(row.max_pending, "max pending"),
            encode_utf8(row.dead, "dead stream"),
        )
    )


def decode_group(data: bytes, what: str) -> GroupRow:
    reader = _open(data, what)
    row = GroupRow(reader.u64("id"), reader.u64("max pending"), reader.utf8("dead stream"))
    reader.end()
    return row


def encode_head(row: HeadRow) -> bytes:
    return b"".join(
        (
            _VERSION,
            encode_u64(row.log_id, "log id"),
            encode_utf8(row.name, "group name"),
            encode_u64(row.sequence, "sequence"),
            encode_u64(row.next, "next offset"),
            encode_u64(row.expired, "expired"),
            encode_u64(row.skipped, "skipped"),
        )
    )


def decode_head(data: bytes, what: str) -> HeadRow:
    reader = _open(data, what)
    row = HeadRow(
        reader.u64("log id"),
        reader.utf8("name"),
        reader.u64("sequence"),
        reader.u64("next"),
        reader.u64("expired"),
        reader.u64("skipped"),
    )
    reader.end()
    return row


def encode_page(row: PageRow) -> bytes:
    return b"".join(
        (
            _VERSION,
            encode_u64(row.sequence, "sequence"),
            encode_u32(len(row.slots), "count"),
            row.slots.astype("<u2").tobytes(),
            row.deliveries.astype("<u2").tobytes(),
            row.retry.astype("<i8").tobytes(),
            row.expire.astype("<i8").tobytes(),
        )
    )


def decode_page(data: bytes, what: str) -> PageRow:
    reader = _open(data, what)
    sequence, count = reader.u64("sequence"), reader.u32("count")
    slots = np.frombuffer(reader.take(2 * count, "slots"), "<u2")
    row = PageRow(
        sequence,
        slots,
        np.frombuffer(reader.take(2 * count, "deliveries"), "<u2"),
        np.frombuffer(reader.take(8 * count, "retry times"), "<i8"),
        np.frombuffer(reader.take(8 * count, "expiry times"), "<i8"),
    )
    reader.end()
    if count and (int(slots[-1]) >= PAGE_SLOTS or (slots[1:] <= slots[:-1]).any()):
        raise CorruptError(f"{what}: slots are not rising below {PAGE_SLOTS}")
    if (row.retry <= 0).any():
        raise CorruptError(f"{what}: a retry time is not positive")
    return row


def encode_group_operation(operation: GroupOperation) -> bytes:
    return b"".join(
        (
            _encode_numbers(operation),
            _encode_runs(operation.removed),
            _encode_runs(operation.again),
            _encode_runs(operation.fresh),
        )
    )


def _encode_numbers(operation: GroupOperation) -> bytes:
    try:
        return _NUMBERS.pack(
            operation.next,
            operation.expired,
            operation.skipped,
            operation.retry_ms,
            operation.expire_ms,
        )
    except struct.error:
        raise InvalidError(f"a number of {operation} cannot be stored") from None


def decode_group_operation(data: bytes) -> GroupOperation:
    reader = Reader(data, "group operation")
    operation = GroupOperation(
        reader.u64("next"),
        reader.u64("expired"),
        reader.u64("skipped"),
        reader.i64("retry time"),
        reader.i64("expiry time"),
        _read_runs(reader, "removed"),
        _read_runs(reader, "again"),
        _read_runs(reader, "fresh"),
    )
    reader.end()
    return operation


def _encode_runs(offsets: Offsets) -> bytes:
    if not len(offsets):
        return _NO_RUNS
    first, length = int(offsets[0]), len(offsets)
    if int(offsets[-1]) - first == length - 1:  # one run: nearly always
        return _ONE_RUN.pack(1, first, length)
    starts = np.concatenate(([0], np.flatnonzero(np.diff(offsets) != 1) + 1))
    lengths = np.diff(np.concatenate((starts, [len(offsets)])))
    return b"".join(
        (
            encode_u32(len(starts), "runs"),
            offsets[starts].astype("<u8").tobytes(),
            lengths.astype("<u4").tobytes(),
        )
    )


def _read_runs(reader: Reader, what: str) -> Offsets:
    count = reader.u32(f"runs of {what}")
    if not count:
        return NO_OFFSETS
    firsts = np.frombuffer(reader.take(8 * count, f"firsts of {what}"), "<u8")
    lengths = np.frombuffer(reader.take(4 * count, f"lengths of {what}"), "<u4").astype(np.int64)
    # Checked before anything is allocated for them.
    if int(firsts.max()) > OFFSET_MAX or not 0 < int(lengths.min()) <= int(lengths.sum()) <= (
        OPERATION_OFFSETS
    ):
        raise reader.fail(what, "has runs that cannot be")
    starts = firsts.astype(np.int64)
    ends = starts + lengths
    if (starts[1:] <= ends[:-1]).any():  # touching ones would be one run
        raise reader.fail(what, "has runs that do not rise")
    before = np.concatenate(([0], np.cumsum(lengths)[:-1]))
    offsets: Offsets = np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()))
    return offsets


def _open(data: bytes, what: str) -> Reader:
    reader = Reader(data, what)
    if (version := reader.u8("version")) != _VERSION[0]:
        raise reader.fail("version", f"is {version}, not {_VERSION[0]}")
    return reader
