"""What topic requests take and answer with, beside plain values.

Contract     Messages are columns: a batch is a few lists of one length, in the order in which they
             are to be handled. `job` is 0 for live messages and the number of a replay for others.
             An *epoch* says under which ownership of its slot a message was handed out: whoever
             acknowledges it names it, and is refused when the slot has moved on.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.queue.item import Item

#: Of a live message; replays have numbers of their own.
LIVE = 0


class Joined(msgspec.Struct, frozen=True):
    token: int  # names this registration in every later request
    slots: list[int]  # as planned: some may still be handed over by others
    heartbeat_ms: int  # silent for so long: a zombie
    paused: bool


class Beaten(msgspec.Struct, frozen=True):
    #: While it is paused: hand out nothing more of what was polled, `release` it.
    paused: bool
    #: Slots that are this consumer's, and their epochs: what it holds of others has moved on.
    slots: list[int]
    epochs: list[int]


class Part(msgspec.Struct, frozen=True):
    """Messages of one poll: live ones, or those of one replay."""

    job: int
    offsets: list[int]
    epochs: list[int]
    slots: list[int]
    keys: list[bytes]  # shard keys; empty: none
    data: list[bytes]
    times_ms: list[int]
    #: Failed attempts so far, of those that have any: offset -> how many.
    attempts: dict[int, int] = {}


class Polled(msgspec.Struct, frozen=True):
    parts: list[Part]  # usually one; none where there is nothing
    paused: bool = False


class Refs(msgspec.Struct, frozen=True):
    """Messages as they were handed out: those that are done, or are given back."""

    offsets: Sequence[int]
    epochs: Sequence[int]  # one for each
    job: int = LIVE


class Failure(msgspec.Struct, frozen=True):
    """A handler raised."""

    offset: int
    epoch: int
    error: str
    job: int = LIVE
    #: Which attempt it was, from 1 on: one that is told twice counts once. 0: not known.
    attempt: int = 0


class TxPush(msgspec.Struct, frozen=True, tag="push"):
    topic: str
    data: bytes
    shard_key: bytes = b""  # empty: none


class TxPublish(msgspec.Struct, frozen=True, tag="publish"):
    item: Item


class TxWrite(msgspec.Struct, frozen=True, tag="write"):
    stream: str
    data: bytes
    tag: bytes = b""


Effect = TxPush | TxPublish | TxWrite


class Acked(msgspec.Struct, frozen=True):
    #: For each message of `done`, in order: whether it counts; else it has moved on (or was done).
    taken: list[bool]
    #: For each failure: "again" (try it once more, it is still yours), "errored" (its key goes on)
    #: or "stale" (it has moved on).
    failed: list[str]
    paused: bool


class Released(msgspec.Struct, frozen=True):
    taken: list[bool]


class ConsumerInfo(msgspec.Struct, frozen=True):
    id: str
    slots: list[int]
    last_seen_ms: int
    zombie: bool  # its shards are being drained by others
    heartbeat_ms: int


class ShardInfo(msgspec.Struct, frozen=True):
    slot: int
    generation: int
    consumer: str | None  # who opened it
    owner: str | None  # who has its messages now
    draining: bool  # takes no new messages
    first: int  # its messages have offsets first <= offset
    end: int | None  # ... < end; None while it takes new ones
    inserted: int
    routed: int
    emitted: int
    acked: int
    errored: int
    redelivered: int
    replayed: int
    running: int


class TopicStats(msgspec.Struct, frozen=True):
    """inserted >= routed >= emitted >= acked; acked + errored + waiting + running = inserted."""

    inserted: int
    routed: int
    emitted: int
    acked: int
    errored: int
    redelivered: int
    replayed: int
    waiting: int
    running: int
    replays: int  # jobs that are not done
    consumers: int  # live ones
    shards: int
    slots: int
    paused: bool
    first: int  # of the all-log
    next: int


class TopicError(msgspec.Struct, frozen=True):
    offset: int
    shard_key: bytes
    data: bytes | None  # None: the all-log was trimmed meanwhile
    time_ms: int  # of the last failure
    consumer: str
    error: str
    attempts: int
    final: bool  # counted as errored; else it was or is tried again
    job: int


class Replay(msgspec.Struct, frozen=True):
    """A replay that was begun: messages first <= offset < end."""

    id: int  # 0: there was nothing to replay
    first: int
    end: int


class TopicInfo(msgspec.Struct, frozen=True):
    name: str
    slots: int
    created_ms: int
    max_count: int | None = None
    max_bytes: int | None = None
    max_age_ms: int | None = None
