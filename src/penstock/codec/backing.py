"""Records of a processor's backing queue: snapshot, choice of an alts, attempt. Pure.

    value       version (u8 = 1) | type (u8) | epoch (u64) | rest
    1 snapshot  processor id (Utf8) | step (u64) | ranges
    2 choice    input (u16) | end (u64)
    3 output    step (u64) | step hash | outputs | errors | nil (u64)      an attempt, by what it
    4 error     as 3, without outputs                                      gave: any output, else
    5 nil       as 3, without outputs and errors                           any error, else nothing
    ranges      Array<alias (Utf8) | stream id (u64) | start (u64) | end (u64)>
    step hash   length (u8: 0 of a source and of at least once, else 16) | bytes
    outputs     Array<stream (Utf8) | log id (u64) | first (u64) | end (u64) | meta of the first:
                length (u16), bytes>
    errors      as outputs, of none or one

Invariants   first < end: what wrote nothing is not among the outputs. Each value has one encoding.
Not here     what a runner may do next (graph/steps.py), what a record means to one that starts
             (graph/recovery.py), the hash itself (graph/hashes.py).
"""

from __future__ import annotations

import msgspec

from penstock.codec.scalars import (
    U16_MAX,
    Reader,
    encode_array,
    encode_u16,
    encode_u64,
    encode_utf8,
)
from penstock.errors import InvalidError

_VERSION = 1
_SNAPSHOT, _CHOICE, _OUTPUT, _ERROR, _NIL = range(1, 6)
HASH_BYTES = 16


class RangeRow(msgspec.Struct, frozen=True):
    alias: str
    stream_id: int
    start: int
    end: int


class SnapshotRow(msgspec.Struct, frozen=True):
    epoch: int  # whose runner wrote it
    processor_id: str  # graph/processor: what its messages are hashed with
    step: int
    ranges: tuple[RangeRow, ...]  # of an alts all empty: the starts


class ChoiceRow(msgspec.Struct, frozen=True):
    epoch: int
    input: int  # of the snapshot's ranges
    end: int


class WrittenRow(msgspec.Struct, frozen=True):
    """Entries first <= offset < end of a stream, and the hash that the first of them carries: the
    recovery reads it back."""

    stream: str
    log_id: int
    first: int
    end: int
    meta: bytes = b""


class AttemptRow(msgspec.Struct, frozen=True):
    epoch: int
    step: int
    step_hash: bytes
    outputs: tuple[WrittenRow, ...] = ()
    errors: WrittenRow | None = None
    nil: int = 0  # messages that gave neither


BackingRow = SnapshotRow | ChoiceRow | AttemptRow


def encode_backing(row: BackingRow) -> bytes:
    kind, rest = _parts(row)
    return b"".join((bytes((_VERSION, kind)), encode_u64(row.epoch, "epoch"), *rest))


def _parts(row: BackingRow) -> tuple[int, tuple[bytes, ...]]:
    match row:
        case SnapshotRow():
            return _SNAPSHOT, (
                encode_utf8(row.processor_id, "processor id"),
                encode_u64(row.step, "step"),
                encode_array([_encode_range(each) for each in row.ranges], "ranges"),
            )
        case ChoiceRow():
            return _CHOICE, (encode_u16(row.input, "input"), encode_u64(row.end, "end"))
        case AttemptRow():
            return _attempt_type(row), _attempt_parts(row)


def _attempt_type(row: AttemptRow) -> int:
    return _OUTPUT if row.outputs else _NIL if row.errors is None else _ERROR


def _attempt_parts(row: AttemptRow) -> tuple[bytes, ...]:
    if len(row.step_hash) not in (0, HASH_BYTES):
        raise InvalidError(f"a step hash of {len(row.step_hash)} bytes")
    errors = () if row.errors is None else (row.errors,)
    return (
        encode_u64(row.step, "step"),
        bytes((len(row.step_hash),)) + row.step_hash,
        encode_array([_encode_written(each) for each in row.outputs], "outputs"),
        encode_array([_encode_written(each) for each in errors], "errors"),
        encode_u64(row.nil, "nil"),
    )


def _encode_range(row: RangeRow) -> bytes:
    return b"".join(
        (
            encode_utf8(row.alias, "alias"),
            encode_u64(row.stream_id, "stream id"),
            encode_u64(row.start, "start"),
            encode_u64(row.end, "end"),
        )
    )


def _encode_written(row: WrittenRow) -> bytes:
    return b"".join(
        (
            encode_utf8(row.stream, "stream"),
            encode_u64(row.log_id, "log id"),
            encode_u64(row.first, "first"),
            encode_u64(row.end, "end"),
            _encode_meta(row.meta),
        )
    )


def _encode_meta(meta: bytes) -> bytes:
    if len(meta) > U16_MAX:
        raise InvalidError(f"meta of {len(meta)} bytes; at most {U16_MAX} are kept")
    return encode_u16(len(meta), "length of meta") + meta


def decode_backing(data: bytes, what: str) -> BackingRow:
    reader = Reader(data, what)
    if (version := reader.u8("version")) != _VERSION:
        raise reader.fail("version", f"is {version}, not {_VERSION}")
    kind, epoch = reader.u8("type"), reader.u64("epoch")
    row: BackingRow
    if kind == _SNAPSHOT:
        processor_id, step = reader.utf8("processor id"), reader.u64("step")
        row = SnapshotRow(epoch, processor_id, step, tuple(reader.array(_read_range, "ranges")))
    elif kind == _CHOICE:
        row = ChoiceRow(epoch, reader.u16("input"), reader.u64("end"))
    elif kind in (_OUTPUT, _ERROR, _NIL):
        row = _read_attempt(reader, epoch)
        if _attempt_type(row) != kind:
            raise reader.fail("type", f"is {kind}, and the attempt is none of these")
    else:
        raise reader.fail("type", f"is {kind}, which is unknown")
    reader.end()
    return row


def _read_range(reader: Reader) -> RangeRow:
    row = RangeRow(
        reader.utf8("alias"), reader.u64("stream id"), reader.u64("start"), reader.u64("end")
    )
    if row.end < row.start:
        raise reader.fail("end", f"{row.end} lies below the start {row.start}")
    return row


def _read_attempt(reader: Reader, epoch: int) -> AttemptRow:
    step = reader.u64("step")
    size = reader.u8("length of the step hash")
    if size not in (0, HASH_BYTES):
        raise reader.fail("length of the step hash", f"is {size}")
    step_hash = reader.take(size, "step hash")
    outputs = tuple(reader.array(_read_written, "outputs"))
    errors = reader.array(_read_written, "errors")
    if len(errors) > 1:
        raise reader.fail("errors", f"are {len(errors)} streams")
    return AttemptRow(
        epoch, step, step_hash, outputs, errors[0] if errors else None, reader.u64("nil")
    )


def _read_written(reader: Reader) -> WrittenRow:
    row = WrittenRow(
        reader.utf8("stream"),
        reader.u64("log id"),
        reader.u64("first"),
        reader.u64("end"),
        _read_meta(reader),
    )
    if row.end <= row.first:
        raise reader.fail("end", f"{row.end} does not lie above {row.first}")
    return row


def _read_meta(reader: Reader) -> bytes:
    return reader.take(reader.u16("length of meta"), "meta")
