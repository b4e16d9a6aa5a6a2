"""The invariants of messages: metadata, payloads, and who still needs them.

Contract     `check_messages` takes what the queues hold (check.py) and returns what is wrong.
             What is past its retention, as of the last commit, may be there or not: it goes in
             the background.
Invariants   M1  what a queue holds has living metadata, which says the same of it, and a payload
             M2  the takers of a message are the queues that hold it
             M3  a message has metadata until it is gone, and none from then on; a payload has a
                 message
             M4  a message with a retention has a row that says when it goes
             M5  pages of takers lie within the metadata log; ids in use were reserved
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.codec.garbage import decode_garbage
from penstock.codec.idblock import decode_id_block
from penstock.codec.keys import (
    KeyType,
    ids_key,
    open_key,
    pages_prefix,
    payload_key,
    prefix,
    prefix_end,
    router_key,
)
from penstock.codec.metadata import Metadata, decode_metadata
from penstock.codec.payload import PayloadBlock, decode_payload
from penstock.codec.queuestate import Entries
from penstock.codec.router import decode_cursor, decode_expiry, decode_expiry_key
from penstock.codec.scalars import NEVER_MS
from penstock.codec.staging import Phase, decode_staging
from penstock.codec.taken import DEAD, GONE, PAGE_SLOTS, TAKERS_MAX
from penstock.log.catalogue import Ids, lookup
from penstock.log.pages import Tail
from penstock.log.read import read_nodes
from penstock.log.rowview import RowView
from penstock.log.state import LogState, read_log
from penstock.queue.taken import METADATA, load_taken_page
from penstock.store.port import Store

#: What is remembered of an entry that a queue holds.
_HELD = np.dtype([("offset", "<u8"), ("message_id", "<u8"), ("deadline_ms", "<i8")])
_MESSAGE = np.dtype([("message_id", "<u8"), ("deadline_ms", "<i8"), ("living", "?")])
#: A note about each of millions of messages helps nobody.
_TOLD = 20

Look = Callable[[], None]


class Held:
    """Entries of queues that still need their message."""

    def __init__(self) -> None:
        self._parts: list[npt.NDArray[np.void]] = []

    def put(self, entries: Entries) -> None:
        part = np.zeros(len(entries), _HELD)
        part["offset"], part["message_id"] = entries["offset"], entries["message_id"]
        part["deadline_ms"] = entries["retention_deadline_ms"]
        self._parts.append(part)

    def add(self, other: Held) -> None:
        self._parts += other._parts

    def all(self) -> npt.NDArray[np.void]:
        found = np.concatenate([np.zeros(0, _HELD), *self._parts])
        return found[np.argsort(found["offset"], kind="stable")]


class _Messages(msgspec.Struct, frozen=True, eq=False):
    first: int  # offset of the first one
    about: npt.NDArray[np.void]  # of _MESSAGE, one per offset


async def check_messages(store: Store, tail: Tail, held: Held, look: Look) -> list[str]:
    row = await lookup(store, METADATA)
    log = None if row is None else await read_log(store, row.id)
    entries = held.all()
    if row is None or log is None:
        return ["queues hold messages, and there is no metadata log"] if len(entries) else []
    now_ms = store.head().time_ms
    messages = await _read(store, log, look)
    slots = await _slots(store, tail, log, look)
    return [
        *_told(_check_held(entries, messages, now_ms)),
        *_told(_check_takers(entries, messages, slots, now_ms)),
        *_told(_check_metadata(messages, slots)),
        *_told(await _check_payloads(store, messages, entries, now_ms, look)),
        *_told(await _check_expiries(store, messages, await _routed(store, log), look)),
        *_told(await _check_pages(store, log, look)),
        *await _check_ids(store, messages),
    ]


def _told(wrong: list[str]) -> list[str]:
    more = len(wrong) - _TOLD
    return wrong if more <= 0 else [*wrong[:_TOLD], f"… and {more} more like these"]


async def _read(store: Store, log: LogState, look: Look) -> _Messages:
    about = np.zeros(log.next - log.first, _MESSAGE)
    about["deadline_ms"] = NEVER_MS
    async for node, start, stop in read_nodes(store, log, log.first, log.next):
        for first, last, living in node.runs(start, stop):
            if not living:
                continue
            for i, record in enumerate(node.data_list(first, last), node.first + first):
                look()
                found = decode_metadata(record)
                about[i - log.first] = found.message_id, _deadline_ms(found), True
    return _Messages(log.first, about)


def _deadline_ms(about: Metadata) -> int:
    if not about.retention_s:
        return NEVER_MS
    return about.received_at_ms + 1000 * about.retention_s


async def _slots(store: Store, tail: Tail, log: LogState, look: Look) -> npt.NDArray[np.uint16]:
    """Takers by offset, from the log's first one on."""
    parts: list[npt.NDArray[np.uint16]] = [np.zeros(0, np.uint16)]
    for number in range(log.first // PAGE_SLOTS, (log.next + PAGE_SLOTS - 1) // PAGE_SLOTS):
        look()
        parts.append((await load_taken_page(RowView(store, tail), log.log_id, number)).slots)
    skipped = log.first % PAGE_SLOTS
    return np.concatenate(parts)[skipped : skipped + log.next - log.first]


def _check_held(entries: npt.NDArray[np.void], messages: _Messages, now_ms: int) -> list[str]:
    wrong: list[str] = []
    end = messages.first + len(messages.about)
    for entry in entries[entries["deadline_ms"] >= now_ms]:
        offset, message_id = int(entry["offset"]), int(entry["message_id"])
        if not messages.first <= offset < end:
            wrong.append(f"message {message_id} at offset {offset}: the log does not reach there")
            continue
        about = messages.about[offset - messages.first]
        if not about["living"]:
            wrong.append(f"message {message_id} is in a queue, and its metadata is gone")
        elif int(about["message_id"]) != message_id:
            wrong.append(f"offset {offset} holds message {about['message_id']}, not {message_id}")
        elif int(about["deadline_ms"]) != int(entry["deadline_ms"]):
            wrong.append(f"message {message_id}: its deadline is another one than in its metadata")
    return wrong


def _check_takers(
    entries: npt.NDArray[np.void],
    messages: _Messages,
    slots: npt.NDArray[np.uint16],
    now_ms: int,
) -> list[str]:
    here = entries["offset"].astype(np.int64) - messages.first
    here = here[(here >= 0) & (here < len(slots))]
    holders = np.bincount(here, minlength=len(slots))
    # What left a queue by its retention is not counted out: it goes as a whole.
    fresh = messages.about["deadline_ms"] >= now_ms
    takers = np.where(slots >= DEAD, 0, slots).astype(np.int64)
    bad = (takers < holders) | ((takers > holders) & (takers < TAKERS_MAX))
    return [
        f"offset {messages.first + i}: {takers[i]} takers, but {holders[i]} queues hold it"
        for i in np.flatnonzero(bad & fresh & messages.about["living"]).tolist()
    ]


def _check_metadata(messages: _Messages, slots: npt.NDArray[np.uint16]) -> list[str]:
    living, gone = messages.about["living"], slots == GONE
    lost = "its metadata is gone, but it was not dead"
    left = "it is gone, but its metadata is there"
    return [
        f"offset {messages.first + i}: {left if living[i] else lost}"
        for i in np.flatnonzero(living == gone).tolist()
    ]


async def _check_payloads(
    store: Store,
    messages: _Messages,
    entries: npt.NDArray[np.void],
    now_ms: int,
    look: Look,
) -> list[str]:
    wrong: list[str] = []
    waiting = await _waiting(store)
    living = np.sort(messages.about["message_id"][messages.about["living"]])
    found: list[npt.NDArray[np.uint64]] = [np.zeros(0, np.uint64)]
    low = prefix(KeyType.PAYLOAD)
    async for rows in store.scan(low, prefix_end(low), batch_rows=16):
        for key, value in rows:
            look()
            first = open_key(key, KeyType.PAYLOAD).u64_key("message id")
            payload = decode_payload(value)
            count = payload.count if isinstance(payload, PayloadBlock) else 1
            found.append(np.arange(first, first + count, dtype=np.uint64))
            at = int(np.searchsorted(living, np.uint64(first)))
            gone = at == len(living) or int(living[at]) >= first + count
            if gone and not any(low <= key < end for low, end in waiting):
                wrong.append(f"payloads {first} to {first + count - 1}: all their messages went")
    stored = np.concatenate(found)
    if (stored[1:] <= stored[:-1]).any():
        wrong.append("two payload records hold the same message")
    needed = np.unique(entries["message_id"][entries["deadline_ms"] >= now_ms])
    for message_id in needed[~np.isin(needed, stored)].tolist():
        wrong.append(f"message {message_id} is in a queue, and its payload is gone")
    return wrong


async def _waiting(store: Store) -> list[tuple[bytes, bytes]]:
    """Ranges of payloads that have no message: not yet, while they are staged, or never, and then
    they are garbage that goes."""
    found: list[tuple[bytes, bytes]] = []
    low = prefix(KeyType.STAGING)
    async for rows in store.scan(low, prefix_end(low)):
        for key, value in rows:
            staging = decode_staging(value, open_key(key, KeyType.STAGING).u64_key("staging id"))
            if staging.phase is Phase.OPEN:
                found += [
                    (payload_key(ids.first), payload_key(ids.first + ids.count))
                    for ids in staging.reserved
                ]
    low = prefix(KeyType.GARBAGE)
    async for rows in store.scan(low, prefix_end(low)):
        found += [decode_garbage(key, value) for key, value in rows]
    return found


async def _routed(store: Store, log: LogState) -> int:
    """The router has seen what is below this offset."""
    value = await store.get(router_key())
    return log.next if value is None else decode_cursor(value)


async def _check_expiries(store: Store, messages: _Messages, routed: int, look: Look) -> list[str]:
    told = np.zeros(len(messages.about), np.bool_)
    low = prefix(KeyType.EXPIRY)
    async for rows in store.scan(low, prefix_end(low)):
        for key, value in rows:
            look()
            deadline_ms, first = decode_expiry_key(key)
            begin = max(first - messages.first, 0)
            end = max(first - messages.first + decode_expiry(value), 0)
            told[begin:end] |= messages.about["deadline_ms"][begin:end] == deadline_ms
    told[max(routed - messages.first, 0) :] = True  # who routes them will say it
    forgotten = messages.about["living"] & (messages.about["deadline_ms"] != NEVER_MS) & ~told
    return [
        f"offset {messages.first + i}: nothing says when its retention ends"
        for i in np.flatnonzero(forgotten).tolist()
    ]


async def _check_pages(store: Store, log: LogState, look: Look) -> list[str]:
    wrong: list[str] = []
    low = pages_prefix(log.log_id)
    async for rows in store.scan(low + b"\x00", prefix_end(low)):
        for key, _ in rows:
            look()
            reader = open_key(key, KeyType.PAGE)
            reader.u64_key("owner id")
            number = reader.u64_key("page")
            if not log.first < (number + 1) * PAGE_SLOTS < log.next + PAGE_SLOTS:
                wrong.append(f"takers of page {number}: the log has no such offsets")
    return wrong


async def _check_ids(store: Store, messages: _Messages) -> list[str]:
    highest = int(messages.about["message_id"].max(initial=0))
    value = await store.get(ids_key(Ids.MESSAGE))
    reserved = 0 if value is None else decode_id_block(value).next_id
    if highest and highest >= reserved:
        return [f"message {highest} exists, only {reserved} ids are reserved"]
    return []
