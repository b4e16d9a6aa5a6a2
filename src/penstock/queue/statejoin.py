"""What stands elsewhere about messages of a queue: headers, payloads, how their attempts ended.

Contract     `Contents.joined` adds headers and payloads to columns of a queue's entries. Both come
             by the offset in the metadata log, so they are null for done messages, which keep none,
             and where the message is gone; by `now_ms` also where its retention is over.
             `last_words` gives the last attempt of failed ones.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import numpy as np
import pyarrow as pa

from penstock.codec.attempts import Attempt, decode_attempts
from penstock.codec.keys import KeyType, attempts_key, open_key
from penstock.codec.queuestate import HISTORY, Entries
from penstock.codec.scalars import U64_MAX
from penstock.log.state import LogState
from penstock.queue.arrays import HEADERS, Truths, rising
from penstock.queue.messagecolumns import metadata_at, open_metadata
from penstock.queue.payloadcolumns import GAP_IDS, payload_parts
from penstock.store.objects import Objects
from penstock.store.port import Reader


class Contents:
    def __init__(
        self,
        store: Reader,
        log: LogState | None,
        *,
        headers: bool,
        payload: bool,
        objects: Objects | None,
    ) -> None:
        self._store = store
        self._log = log
        self._headers = headers
        self._payload = payload
        self._objects = objects

    @classmethod
    async def open(
        cls, store: Reader, *, headers: bool, payload: bool, objects: Objects | None
    ) -> Contents:
        log = await open_metadata(store) if headers or payload else None
        return cls(store, log, headers=headers, payload=payload, objects=objects)

    async def joined(
        self, columns: list[pa.Array], entries: Entries, now_ms: int | None
    ) -> AsyncIterator[list[pa.Array]]:
        """The columns with headers and payloads, in parts where those are large."""
        if not (self._headers or self._payload):
            yield columns
            return
        alive, maps = await self._metadata(entries, now_ms)
        if self._headers:
            columns = [*columns, maps]
        if not self._payload:
            yield columns
            return
        ids = entries["message_id"].astype(np.uint64)
        at = 0
        async for part in payload_parts(self._store, ids, self._objects, alive=alive):
            count = len(part.data)
            yield [*(column.slice(at, count) for column in columns), part.data, part.uri]
            at += count

    async def _metadata(self, entries: Entries, now_ms: int | None) -> tuple[Truths, pa.Array]:
        """Which messages are alive, and the headers of those."""
        count = len(entries)
        if self._log is None or "offset" not in (entries.dtype.names or ()):
            return np.zeros(count, np.bool_), pa.nulls(count, HEADERS)
        offsets = rising(entries["offset"].astype(np.uint64))
        where = offsets.searchsorted(entries["offset"])
        found, living = await metadata_at(self._store, self._log, offsets, headers=self._headers)
        ids = np.zeros(len(offsets), np.uint64)
        ids[living] = found.fixed["message_id"]
        alive: Truths = living[where] & (ids[where] == entries["message_id"])
        if now_ms is not None:
            alive &= entries["retention_deadline_ms"] >= now_ms
        if found.headers is None:
            return alive, None
        return alive, found.headers.take(pa.array((np.cumsum(living) - 1)[where], mask=~alive))


async def last_words(store: Reader, queue_id: bytes, entries: Entries) -> tuple[pa.Array, pa.Array]:
    """Consumer and reason of the last attempt of failed messages, null where none is known. Each
    has a row of its own, so nothing can be done at once; failed ones are few."""
    ids = rising(entries["message_id"][entries["flags"] & HISTORY != 0])
    found: dict[int, Attempt] = {}
    gaps = (np.flatnonzero(np.diff(ids) > GAP_IDS) + 1).tolist()
    for low, high in zip([0, *gaps], [*gaps, len(ids)], strict=True):
        if low == high:
            continue
        first = attempts_key(queue_id, int(ids[low]))
        end = attempts_key(queue_id, min(int(ids[high - 1]) + 1, U64_MAX))
        async for rows in store.scan(first, end):
            for key, value in rows:
                found[_id_of(key)] = decode_attempts(value)[-1]
    told = [found.get(number) for number in entries["message_id"].tolist()]
    consumers = [None if last is None else last.consumer for last in told]
    reasons = [None if last is None else last.reason or None for last in told]
    return pa.array(consumers, pa.string()), pa.array(reasons, pa.string())


def _id_of(key: bytes) -> int:
    reader = open_key(key, KeyType.ATTEMPTS)
    reader.terminated("queue id")
    return reader.u64_key("message id")
