"""The processor row: what a graph's processor is, where it stands, how it fares. Pure.

    value       version (u8 = 1) | kind (u8) | semantics (u8) | on evicted (u8) | reset (u8)
                | name (Utf8) | uid (16 bytes) | epoch (u64) | head (u64) | tail (u64) | step (u64)
                | tries (u32) | last chosen (u16; FFFF: none) | counts (6 x u64)
                | started (i64, ms) | committed (i64, ms) | failed (i64, ms) | retry (i64, ms)
                | failure (Bytes32) | position (u8: 0 none, 1 Bytes32 follows)
                | inputs | outputs | errors
    kind        1 source, 2 pipe, 3 join, 4 alts, 5 fork, 6 sink
    semantics   1 exactly once, 2 at least once, 3 at most once
    on evicted  1 stop, 2 skip
    reset       0 no, 1 keep, 2 first, 3 new
    counts      delivered | written | failed | nil | skipped | lost
    inputs      Array<alias (Utf8) | stream (Utf8) | stream id (u64) | position (u64)>
    outputs     Array<stream (Utf8)>
    errors      Array<stream (Utf8)>, of none or one

Invariants   Times are 0 where there is none. Each value has one encoding.
Not here     The name's own row (catalogue.py), records of the backing queue (backing.py), what is
             done with the numbers (graph/).
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeVar

import msgspec

from penstock.codec.scalars import (
    U16_MAX,
    Reader,
    encode_array,
    encode_bytes32,
    encode_i64,
    encode_u16,
    encode_u32,
    encode_u64,
    encode_utf8,
)
from penstock.errors import InvalidError

_VERSION = 1
UID_BYTES = 16

E = TypeVar("E", bound=IntEnum)


class ProcessorKind(IntEnum):
    SOURCE = 1
    PIPE = 2
    JOIN = 3
    ALTS = 4
    FORK = 5
    SINK = 6


class Semantics(IntEnum):
    EXACTLY_ONCE = 1
    AT_LEAST_ONCE = 2
    AT_MOST_ONCE = 3


class OnEvicted(IntEnum):
    STOP = 1
    SKIP = 2


class Reset(IntEnum):
    """Whether the next start may bring other inputs, and where they begin then."""

    NO = 0
    KEEP = 1
    FIRST = 2
    NEW = 3


class Counts(msgspec.Struct, frozen=True):
    """Messages so far."""

    delivered: int = 0  # read, and one of the next three became of each
    written: int = 0  # output entries
    failed: int = 0  # error entries
    nil: int = 0  # neither
    skipped: int = 0  # evicted before they were read
    lost: int = 0  # at most once: under way when their runner ended


class TailerRow(msgspec.Struct, frozen=True):
    alias: str
    stream: str
    stream_id: int  # a stream that was deleted and made again has another one
    position: int  # the next offset to read; what is below was delivered


class ProcessorRow(msgspec.Struct, frozen=True):
    name: str  # graph/processor, as in the catalogue: what messages are hashed with
    kind: ProcessorKind
    semantics: Semantics
    on_evicted: OnEvicted
    uid: bytes  # random, drawn when it was made
    inputs: tuple[TailerRow, ...]
    outputs: tuple[str, ...]
    errors: str | None = None
    epoch: int = 0  # raised by every start
    head: int = 0  # records of the backing queue: head <= n < tail
    tail: int = 0
    step: int = 0  # of the step under way, or of the next one
    tries: int = 0  # attempts begun at the step under way
    last_chosen: int | None = None  # of an alts: which input
    counts: Counts = Counts()
    started_ms: int = 0
    committed_ms: int = 0
    failed_ms: int = 0
    retry_ms: int = 0
    failure: str = ""  # why the last attempt failed; a commit clears it
    position: bytes | None = None  # of a source
    reset: Reset = Reset.NO


def encode_processor(row: ProcessorRow) -> bytes:
    if len(row.uid) != UID_BYTES:
        raise InvalidError(f"a uid of {len(row.uid)} bytes")
    counts = msgspec.structs.astuple(row.counts)
    return b"".join(
        (
            bytes((_VERSION, row.kind, row.semantics, row.on_evicted, row.reset)),
            encode_utf8(row.name, "name"),
            row.uid,
            encode_u64(row.epoch, "epoch"),
            encode_u64(row.head, "head"),
            encode_u64(row.tail, "tail"),
            encode_u64(row.step, "step"),
            encode_u32(row.tries, "tries"),
            encode_u16(U16_MAX if row.last_chosen is None else row.last_chosen, "last chosen"),
            *(encode_u64(count, "count") for count in counts),
            encode_i64(row.started_ms, "started"),
            encode_i64(row.committed_ms, "committed"),
            encode_i64(row.failed_ms, "failed"),
            encode_i64(row.retry_ms, "retry"),
            encode_bytes32(row.failure.encode("utf-8", "replace"), "failure"),
            b"\x00" if row.position is None else b"\x01",
            b"" if row.position is None else encode_bytes32(row.position, "position"),
            encode_array([_encode_tailer(each) for each in row.inputs], "inputs"),
            encode_array([encode_utf8(name, "output") for name in row.outputs], "outputs"),
            encode_array(
                [] if row.errors is None else [encode_utf8(row.errors, "errors")], "errors"
            ),
        )
    )


def _encode_tailer(row: TailerRow) -> bytes:
    return b"".join(
        (
            encode_utf8(row.alias, "alias"),
            encode_utf8(row.stream, "stream"),
            encode_u64(row.stream_id, "stream id"),
            encode_u64(row.position, "position"),
        )
    )


def decode_processor(data: bytes, processor_id: int) -> ProcessorRow:
    reader = Reader(data, f"processor row {processor_id}")
    if (version := reader.u8("version")) != _VERSION:
        raise reader.fail("version", f"is {version}, not {_VERSION}")
    kind = _number(reader, ProcessorKind, "kind")
    semantics = _number(reader, Semantics, "semantics")
    on_evicted = _number(reader, OnEvicted, "on evicted")
    reset = _number(reader, Reset, "reset")
    name, uid = reader.utf8("name"), reader.take(UID_BYTES, "uid")
    epoch, head, tail = (reader.u64(what) for what in ("epoch", "head", "tail"))
    if head > tail:
        raise reader.fail("tail", f"{tail} lies below the head {head}")
    step, tries = reader.u64("step"), reader.u32("tries")
    chosen = reader.u16("last chosen")
    counts = Counts(*(reader.u64("count") for _ in Counts.__struct_fields__))
    started, committed, failed, retry = (
        reader.i64(what) for what in ("started", "committed", "failed", "retry")
    )
    failure = _text(reader, reader.bytes32("failure"))
    position = _optional(reader)
    inputs = tuple(reader.array(_read_tailer, "inputs"))
    outputs = tuple(reader.array(lambda found: found.utf8("output"), "outputs"))
    errors = reader.array(lambda found: found.utf8("errors"), "errors")
    if len(errors) > 1:
        raise reader.fail("errors", f"are {len(errors)} streams")
    if chosen != U16_MAX and chosen >= len(inputs):
        raise reader.fail("last chosen", f"is {chosen}, of {len(inputs)} inputs")
    reader.end()
    return ProcessorRow(
        name, kind, semantics, on_evicted, uid, inputs, outputs, errors[0] if errors else None,
        epoch, head, tail, step, tries, None if chosen == U16_MAX else chosen, counts,
        started, committed, failed, retry, failure, position, reset,
    )  # fmt: skip


def _read_tailer(reader: Reader) -> TailerRow:
    return TailerRow(
        reader.utf8("alias"),
        reader.utf8("stream"),
        reader.u64("stream id"),
        reader.u64("position"),
    )


def _number(reader: Reader, kind: type[E], field: str) -> E:
    number = reader.u8(field)
    try:
        return kind(number)
    except ValueError:
        raise reader.fail(field, f"is {number}, which is unknown") from None


def _optional(reader: Reader) -> bytes | None:
    present = reader.u8("presence of a position")
    if present > 1:
        raise reader.fail("presence of a position", f"is {present}, not 0 or 1")
    return reader.bytes32("position") if present else None


def _text(reader: Reader, raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise reader.fail("failure", f"is not UTF-8: {error.reason}") from None
