"""The truth about published messages: what was asked for, and what commits made of it.

Contract     Callers announce what they are about to publish (`send`). `published` is asked with
             each commit and gives the messages that it adds to the metadata log.
Invariants   U1  a message is what somebody asked to publish, once; all of a batch or nothing; one
                 with a dedup id once within its window
             U7  no payload ever changes
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from penstock.codec.keys import KeyType, key_type, open_key, payload_key, prefix
from penstock.codec.metadata import Metadata, decode_metadata
from penstock.codec.payload import (
    BytesPayload,
    PayloadBlock,
    UriPayload,
    decode_payload,
    payload_at,
)
from penstock.codec.scalars import NEVER_MS
from penstock.log.read import read
from penstock.log.state import LogState, read_log
from penstock.queue.item import Item
from penstock.queue.publish import DEDUP_MS, spilled_id
from penstock.queue.rows import Row
from penstock.sim.clock import SimClock
from penstock.sim.peek import at_once, peek
from penstock.sim.process import SimDisk
from penstock.sim.trace import Trace
from penstock.store.objects import MemoryObjects
from penstock.store.port import Writes


class Sent(msgspec.Struct):
    """What a caller asked to publish, under its payload."""

    item: Item
    batch: list[bytes]  # payloads of all that were asked for together
    whole: bool  # it is small enough to be one commit


class Message(msgspec.Struct):
    id: int
    offset: int
    n: int  # the commit that published it
    about: Metadata
    payload: bytes
    deadline_ms: int  # of its retention
    takers: int = 0  # queues that took it and are not done with it
    dead_ms: int | None = None  # since then all that took it are done with it
    gone: bool = False  # payload and metadata may be gone

    @property
    def dead(self) -> bool:
        return self.dead_ms is not None

    @property
    def row(self) -> Row:
        about = self.about
        return Row(
            self.id,
            about.created_at_ms,
            about.received_at_ms,
            about.visible_at_ms,
            about.retention_s,
            dict(about.headers),
        )


class Messages:
    def __init__(
        self, disk: SimDisk, clock: SimClock, trace: Trace, objects: MemoryObjects
    ) -> None:
        self._disk = disk
        self._clock = clock
        self._trace = trace
        self._objects = objects
        self._sent: dict[bytes, Sent] = {}
        self.by_id: dict[int, Message] = {}
        self.by_offset: dict[int, Message] = {}
        self._with_payload: dict[bytes, Message] = {}  # the newest one
        self._payloads: dict[int, bytes] = {}
        self._dedups: dict[tuple[int, str], Message] = {}
        self._end = 0

    def send(self, items: Sequence[Item], *, whole: bool) -> None:
        """Before it is asked for."""
        batch = [item.payload for item in items]
        for item in items:
            self._sent[item.payload] = Sent(item, batch, whole)

    def payload(self, message: Message) -> bytes | None:
        """As the rows say it now; None: it is gone."""
        store = peek(self._disk, self._clock)
        row = at_once(store.floor(payload_key(message.id), low=prefix(KeyType.PAYLOAD)))
        if row is None:
            return None
        first = open_key(row[0], KeyType.PAYLOAD).u64_key("message id")
        return self._parts(first, row[1]).get(message.id)

    def _wrong(self, n: int, text: str) -> None:
        self._trace.fail(f"messages, commit {n}: {text}")

    def published(
        self,
        n: int,
        writes: Writes,
        time_ms: int,
        log_id: int | None,
        owners: Mapping[str | None, int],
    ) -> list[Message]:
        """`owners` tells whose dedup ids are meant; a name that is missing means two in here."""
        self._stored(n, writes)
        store = peek(self._disk, self._clock)
        state = None if log_id is None else at_once(read_log(store, log_id))
        if state is None or state.next <= self._end:
            return []
        # What was evicted in the commit that wrote it lies below the edge.
        whole = LogState(**{f: getattr(state, f) for f in state.__struct_fields__} | {"first": 0})
        found = at_once(read(store, whole, self._end, state.next - self._end))
        self._end = state.next
        new = [self._add(n, e.offset, e.data, time_ms, owners) for e in found if e is not None]
        if len(new) != len(found):
            self._wrong(n, f"{len(found)} messages were published, {len(new)} are there")
        self._whole_batches(n, new)
        return new

    def _stored(self, n: int, writes: Writes) -> None:
        """Payload rows: of new messages, or of old ones that are packed anew."""
        for key, value in writes:
            if key_type(key) is not KeyType.PAYLOAD or value is None:
                continue
            first = open_key(key, KeyType.PAYLOAD).u64_key("message id")
            for number, data in self._parts(first, value).items():
                known = self._payloads.setdefault(number, data)
                if known != data:
                    self._wrong(n, f"the payload of {number} was {known!r}, is {data!r}")

    def _parts(self, first: int, value: bytes) -> dict[int, bytes]:
        payload = decode_payload(value)
        match payload:
            case PayloadBlock():
                found = [payload_at(payload, i) or b"" for i in range(payload.count)]
                return dict(enumerate(found, first))
            case BytesPayload(data):
                return {first: data}
            case UriPayload(uri):
                number = spilled_id(uri)
                return {} if number is None else {first: self._objects.objects[number]}

    def _add(
        self, n: int, offset: int, data: bytes, time_ms: int, owners: Mapping[str | None, int]
    ) -> Message:
        about = decode_metadata(data)
        payload = self._payloads.get(about.message_id, b"")
        deadline_ms = time_ms + 1000 * about.retention_s if about.retention_s else NEVER_MS
        message = Message(about.message_id, offset, n, about, payload, deadline_ms)
        self._trace.add(f"  message {message.id} at {offset}: {payload[:40]!r} {about}")
        if message.id in self.by_id:
            self._wrong(n, f"message {message.id} is there twice")
        self._as_asked(n, message, time_ms)
        before = self._with_payload.get(payload)
        if before is not None and about.dedup_id is None:
            self._wrong(n, f"{payload!r} is message {before.id}, and {message.id}")
        self._once(n, message, time_ms, owners)
        self._with_payload[payload] = self.by_id[message.id] = self.by_offset[offset] = message
        return message

    def _as_asked(self, n: int, message: Message, time_ms: int) -> None:
        sent, about = self._sent.get(message.payload), message.about
        if sent is None:
            self._wrong(n, f"nobody asked for {message}")
            return
        item = sent.item
        visible_ms = time_ms + item.delay_ms if item.visible_at_ms is None else item.visible_at_ms
        told = (dict(about.headers), about.to, about.dedup_id, about.retention_s)
        wanted = (dict(item.headers), item.to, item.dedup_id, item.retention_s)
        times = (about.received_at_ms, about.visible_at_ms)
        if told != wanted or times != (time_ms, visible_ms):
            self._wrong(n, f"{item} was asked for at {time_ms}, and became {about}")

    def _once(
        self, n: int, message: Message, time_ms: int, owners: Mapping[str | None, int]
    ) -> None:
        to, dedup_id = message.about.to, message.about.dedup_id
        if dedup_id is None or to not in owners:
            return
        before = self._dedups.get((owners[to], dedup_id))
        if before is not None and time_ms < before.about.received_at_ms + DEDUP_MS:
            self._wrong(n, f"{dedup_id} of {to} is message {before.id}, and {message.id}")
        self._dedups[owners[to], dedup_id] = message

    def _whole_batches(self, n: int, new: Sequence[Message]) -> None:
        there = {message.payload for message in new}
        for message in new:
            sent = self._sent.get(message.payload)
            if sent is None or not sent.whole:
                continue
            missing = [
                payload
                for payload in sent.batch
                if payload not in there and self._sent[payload].item.dedup_id is None
            ]
            if missing:
                self._wrong(n, f"{message.payload!r} was published without {missing}")
