"""Operations of a topic: what one request did to its shards and references. Pure.

    operation   flags (u8: 1 head) | routed (u64) | rows | [head (Bytes32)] | parts
    rows        count (u32) | row numbers (u32 each) | shards as they are then
    parts       count (u16) | count x (space (u64) | fed (u64) | added first (u64) | added | marked
                | done)
    added       count (u32) | slots (u16 each)
    marked      count (u32) | offsets (u64 each) | epochs (u32 each)
    done        count (u32) | offsets (u64 each)

Contract     An operation says all that one request did: which shards changed and how they are now,
             or the whole head where more than that changed; then, by space, references that were
             added, that got an epoch, and that went. Decoders raise CorruptError for any bytes no
             encoder made.
Not here     shards, heads and pages (topic.py), the record around it (operations.py).
"""

from __future__ import annotations

import struct

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.codec.scalars import Reader, encode_bytes32, encode_u32, encode_u64
from penstock.codec.topic import (
    OPEN_END,
    SHARD,
    SLOTS_MAX,
    Epochs,
    Offsets,
    Shards,
    Slots,
    TopicHead,
    decode_topic,
    encode_topic,
    read_shards,
)

_WITH_HEAD = 1

NO_OFFSETS: Offsets = np.zeros(0, np.int64)
NO_SLOTS: Slots = np.zeros(0, np.uint16)
NO_EPOCHS: Epochs = np.zeros(0, np.uint32)
NO_ROWS = np.zeros(0, np.uint32)


class SpacePart(msgspec.Struct, frozen=True):
    """What an operation does to the references of one space."""

    space: int
    fed: int
    added_first: int = 0
    added: Slots = NO_SLOTS  # of neighbouring offsets, from `added_first` on
    marked: Offsets = NO_OFFSETS
    epochs: Epochs = NO_EPOCHS
    done: Offsets = NO_OFFSETS


class TopicOperation(msgspec.Struct, frozen=True):
    routed: int
    rows: npt.NDArray[np.uint32] = NO_ROWS  # numbers of the shards that changed
    shards: Shards = np.zeros(0, SHARD)
    head: TopicHead | None = None  # instead
    parts: tuple[SpacePart, ...] = ()


def encode_topic_operation(operation: TopicOperation) -> bytes:
    parts = [
        b"\x01" if operation.head is not None else b"\x00",
        encode_u64(operation.routed, "routed"),
        encode_u32(len(operation.rows), "rows"),
        operation.rows.astype("<u4").tobytes(),
        operation.shards.tobytes(),
    ]
    if operation.head is not None:
        parts.append(encode_bytes32(encode_topic(operation.head), "head"))
    parts.append(struct.pack("<H", len(operation.parts)))
    for part in operation.parts:
        parts += (
            encode_u64(part.space, "space"),
            encode_u64(part.fed, "fed"),
            encode_u64(part.added_first, "first offset"),
            encode_u32(len(part.added), "added"),
            part.added.astype("<u2").tobytes(),
            encode_u32(len(part.marked), "marked"),
            part.marked.astype("<u8").tobytes(),
            part.epochs.astype("<u4").tobytes(),
            encode_u32(len(part.done), "done"),
            part.done.astype("<u8").tobytes(),
        )
    return b"".join(parts)


def decode_topic_operation(data: bytes) -> TopicOperation:
    reader = Reader(data, "topic operation")
    flags = reader.u8("flags")
    if flags & ~_WITH_HEAD:
        raise reader.fail("flags", f"are unknown: {flags}")
    routed = reader.u64("routed")
    count = reader.u32("rows")
    rows = np.frombuffer(reader.take(4 * count, "row numbers"), "<u4")
    shards = read_shards(reader, count)
    head = decode_topic(reader.bytes32("head"), "head of an operation") if flags else None
    parts = tuple(_read_part(reader) for _ in range(reader.u16("number of parts")))
    reader.end()
    return TopicOperation(routed, rows, shards, head, parts)


def _read_part(reader: Reader) -> SpacePart:
    space, fed, first = reader.u64("space"), reader.u64("fed"), reader.u64("first offset")
    count = reader.u32("added")
    added = np.frombuffer(reader.take(2 * count, "slots"), "<u2")
    if count and (int(added.max()) >= SLOTS_MAX or first > OPEN_END - count):
        raise reader.fail("added", "cannot be")
    marked = _read_offsets(reader, "marked")
    epochs = np.frombuffer(reader.take(4 * len(marked), "epochs"), "<u4")
    return SpacePart(space, fed, first, added, marked, epochs, _read_offsets(reader, "done"))


def _read_offsets(reader: Reader, what: str) -> Offsets:
    count = reader.u32(what)
    raw = np.frombuffer(reader.take(8 * count, what), "<u8")
    if count and int(raw.max()) >= OPEN_END:
        raise reader.fail(what, "has an offset that cannot be")
    offsets = raw.astype(np.int64)
    if (offsets[1:] <= offsets[:-1]).any():
        raise reader.fail(what, "does not rise")
    return offsets
