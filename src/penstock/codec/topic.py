"""What is stored of a topic beside its all-log: its head, and pages of references. Pure.

    head        version (u8 = 1) | sequence (u64) | flags (u8: 1 paused) | routed (u64)
                | number (u32) | name (Utf8) | consumers | shards | folded (i64 * 7) | spaces
                | attempts
    consumers   count (u16) | count x (number (u32) | flags (u8: 1 zombie) | heartbeat (u32, ms)
                | joined (i64, ms) | name (Utf8))
    shards      count (u32) | count x shard (SHARD, 110 bytes), by slot and generation
    spaces      count (u16) | count x (space (u64) | first (u64) | end (u64) | fed (u64))
    attempts    count (u32) | count x (space (u64) | offset (u64) | attempts (u16))
    page        version (u8 = 1) | sequence (u64) | count (u32) | places (u16 each, rising)
                | slots (u16 each) | epochs (u32 each)

Words        A *shard* is a slot in one generation. A *space* is what references are kept for: 0 is
             the live messages, others are replays. A reference is (offset, slot, epoch); it exists
             until its message is done. `fed`: everything below has its reference.
Contract     Page p of a space holds the offsets p * PAGE_OFFSETS + place. Decoders raise
             CorruptError for any bytes no encoder made.
Not here     what a request did to them (topicoperation.py).
"""

from __future__ import annotations

import struct

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.codec.scalars import (
    I64_MAX,
    Reader,
    encode_u32,
    encode_u64,
    encode_utf8,
)
from penstock.errors import CorruptError

_VERSION = b"\x01"
PAGE_OFFSETS = 4096
SLOTS_MAX = 1024
#: The end of a shard that takes new messages, and of the live space.
OPEN_END = I64_MAX
#: An epoch of none: never handed out. RELEASED: it was, and was given back.
FRESH, RELEASED = 0, 0xFFFF_FFFF

SHARD = np.dtype(
    [
        ("slot", "<u2"),
        ("generation", "<u4"),  # of this slot; that of the open one is the slot's epoch
        ("owner", "<u4"),  # the consumer it was opened for; 0: none
        ("heir", "<u4"),  # who gets the slot when nothing of it runs any more; 0: nobody
        ("first", "<i8"),  # its messages: first <= offset < end
        ("end", "<i8"),
        ("hint", "<i8"),  # of an open one: below, everything of the slot is done or running
        ("inserted", "<i8"),
        ("routed", "<i8"),
        ("emitted", "<i8"),  # each message once
        ("acked", "<i8"),
        ("errored", "<i8"),
        ("redelivered", "<i8"),  # emitted again
        ("replayed", "<i8"),  # of replays, each message once
        ("running", "<i8"),  # with the slot's owner
        ("replaying", "<i8"),  # of an open one: the slot's running messages of replays
    ]
)
COUNTERS = ("inserted", "routed", "emitted", "acked", "errored", "redelivered", "replayed")

Shards = npt.NDArray[np.void]
Offsets = npt.NDArray[np.int64]
Slots = npt.NDArray[np.uint16]
Epochs = npt.NDArray[np.uint32]

_HEAD = struct.Struct("<QBQI")
_FOLDED = struct.Struct("<7q")
_CONSUMER = struct.Struct("<IBIq")
_SPACE = struct.Struct("<QQQQ")
_ATTEMPT = struct.Struct("<QQH")
_PAUSED = _ZOMBIE = 1


class Consumer(msgspec.Struct, frozen=True):
    number: int  # of this registration, never given twice within its topic
    name: str
    heartbeat_ms: int  # silent for so long, it is a zombie
    joined_ms: int
    zombie: bool = False  # gone; shards that were its own are being drained


class Space(msgspec.Struct, frozen=True):
    id: int
    first: int
    end: int
    fed: int  # everything below has its reference


class Attempt(msgspec.Struct, frozen=True):
    space: int
    offset: int
    count: int  # failed ones, of a message that is tried again


class TopicHead(msgspec.Struct, frozen=True):
    sequence: int  # of the last operation that is in this row
    name: str  # of the topic: whoever has its id alone finds its other rows
    shards: Shards  # by slot and generation; the last one of each slot is open
    routed: int = 0  # everything below was routed to a shard
    number: int = 0  # the last one given to a consumer or a replay
    paused: bool = False
    consumers: tuple[Consumer, ...] = ()
    folded: tuple[int, ...] = (0,) * len(COUNTERS)  # counters of shards that are gone
    spaces: tuple[Space, ...] = (Space(0, 0, OPEN_END, 0),)  # the live one first
    attempts: tuple[Attempt, ...] = ()


class TopicPageRow(msgspec.Struct, frozen=True):
    sequence: int
    places: npt.NDArray[np.uint16]
    slots: Slots
    epochs: Epochs


# ---- head -------------------------------------------------------------------------------------


def encode_topic(head: TopicHead) -> bytes:
    parts = [
        _VERSION,
        _HEAD.pack(head.sequence, head.paused * _PAUSED, head.routed, head.number),
        encode_utf8(head.name, "topic name"),
        struct.pack("<H", len(head.consumers)),
    ]
    for consumer in head.consumers:
        parts.append(
            _CONSUMER.pack(
                consumer.number,
                consumer.zombie * _ZOMBIE,
                consumer.heartbeat_ms,
                consumer.joined_ms,
            )
        )
        parts.append(encode_utf8(consumer.name, "consumer"))
    parts += (
        encode_u32(len(head.shards), "number of shards"),
        head.shards.tobytes(),
        _FOLDED.pack(*head.folded),
        struct.pack("<H", len(head.spaces)),
    )
    parts += [_SPACE.pack(each.id, each.first, each.end, each.fed) for each in head.spaces]
    parts.append(encode_u32(len(head.attempts), "number of attempts"))
    parts += [_ATTEMPT.pack(each.space, each.offset, each.count) for each in head.attempts]
    return b"".join(parts)


def decode_topic(data: bytes, what: str) -> TopicHead:
    reader = _open(data, what)
    sequence, flags, routed, number = _HEAD.unpack(reader.take(_HEAD.size, "head"))
    if flags & ~_PAUSED:
        raise reader.fail("flags", f"are unknown: {flags}")
    name = reader.utf8("name")
    consumers = tuple(_read_consumer(reader) for _ in range(reader.u16("number of consumers")))
    shards = read_shards(reader, reader.u32("number of shards"))
    folded = _FOLDED.unpack(reader.take(_FOLDED.size, "counters"))
    spaces = tuple(
        Space(*_SPACE.unpack(reader.take(_SPACE.size, "space")))
        for _ in range(reader.u16("number of spaces"))
    )
    attempts = tuple(
        Attempt(*_ATTEMPT.unpack(reader.take(_ATTEMPT.size, "attempts")))
        for _ in range(reader.u32("number of attempts"))
    )
    reader.end()
    head = TopicHead(
        sequence=sequence,
        name=name,
        shards=shards,
        routed=routed,
        number=number,
        paused=bool(flags),
        consumers=consumers,
        folded=folded,
        spaces=spaces,
        attempts=attempts,
    )
    _check_head(head, what)
    return head


def _read_consumer(reader: Reader) -> Consumer:
    number, flags, heartbeat_ms, joined_ms = _CONSUMER.unpack(
        reader.take(_CONSUMER.size, "consumer")
    )
    if flags & ~_ZOMBIE:
        raise reader.fail("flags of a consumer", f"are unknown: {flags}")
    return Consumer(number, reader.utf8("consumer"), heartbeat_ms, joined_ms, bool(flags))


def read_shards(reader: Reader, count: int) -> Shards:
    return np.frombuffer(reader.take(SHARD.itemsize * count, "shards"), SHARD)


def _check_head(head: TopicHead, what: str) -> None:
    """What the arithmetic of shards stands on; everything else is for check.py."""
    shards = head.shards
    slots = shards["slot"].astype(np.int64)
    last = np.append(slots[1:] != slots[:-1], True)
    if not len(shards) or slots[0] != 0 or (~np.isin(np.diff(slots), (0, 1))).any():
        raise CorruptError(f"{what}: shards are not in the order of their slots")
    if slots[-1] >= SLOTS_MAX:
        raise CorruptError(f"{what}: slot {slots[-1]} is too high")
    if ((shards["end"] == OPEN_END) != last).any():
        raise CorruptError(f"{what}: the last shard of each slot is open, and no other")
    same = ~last[:-1]
    if (shards["first"][1:] < shards["end"][:-1])[same].any() or (shards["first"] < 0).any():
        raise CorruptError(f"{what}: shards of a slot overlap")
    if (shards["generation"][1:] <= shards["generation"][:-1])[same].any():
        raise CorruptError(f"{what}: generations of a slot do not rise")
    if not head.spaces or head.spaces[0].id != 0 or head.spaces[0].end != OPEN_END:
        raise CorruptError(f"{what}: the first space is not the live one")
    if any(not space.first <= space.fed <= space.end <= OPEN_END for space in head.spaces):
        raise CorruptError(f"{what}: a space is fed beyond its ends")
    if len({space.id for space in head.spaces}) != len(head.spaces):
        raise CorruptError(f"{what}: two spaces have one number")


# ---- pages ------------------------------------------------------------------------------------


def encode_topic_page(row: TopicPageRow) -> bytes:
    return b"".join(
        (
            _VERSION,
            encode_u64(row.sequence, "sequence"),
            encode_u32(len(row.places), "count"),
            row.places.astype("<u2").tobytes(),
            row.slots.astype("<u2").tobytes(),
            row.epochs.astype("<u4").tobytes(),
        )
    )


def decode_topic_page(data: bytes, what: str) -> TopicPageRow:
    reader = _open(data, what)
    sequence, count = reader.u64("sequence"), reader.u32("count")
    places = np.frombuffer(reader.take(2 * count, "places"), "<u2")
    row = TopicPageRow(
        sequence,
        places,
        np.frombuffer(reader.take(2 * count, "slots"), "<u2"),
        np.frombuffer(reader.take(4 * count, "epochs"), "<u4"),
    )
    reader.end()
    if count and (int(places[-1]) >= PAGE_OFFSETS or (places[1:] <= places[:-1]).any()):
        raise CorruptError(f"{what}: places are not rising below {PAGE_OFFSETS}")
    if count and int(row.slots.max()) >= SLOTS_MAX:
        raise CorruptError(f"{what}: slot {int(row.slots.max())} is too high")
    return row


def _open(data: bytes, what: str) -> Reader:
    reader = Reader(data, what)
    if (version := reader.u8("version")) != _VERSION[0]:
        raise reader.fail("version", f"is {version}, not {_VERSION[0]}")
    return reader
