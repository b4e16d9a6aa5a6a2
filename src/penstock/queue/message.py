"""Reading what messages hold: payload, headers and times.

Contract     `read_contents` gives one `Content` per message, or None where its payload or metadata
             is gone. What was published a moment ago is in `Fresh`, and nothing is read for it.
             Payloads that are objects are named by their URI; who has the objects reads them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.codec.keys import KeyType, open_key, payload_key, prefix
from penstock.codec.metadata import Metadata, decode_metadata
from penstock.codec.payload import (
    BytesPayload,
    Payload,
    PayloadBlock,
    UriPayload,
    decode_payload,
    payload_at,
)
from penstock.log.cache import NodeCache
from penstock.log.catalogue import open_target
from penstock.log.decision import View
from penstock.log.read import read_nodes
from penstock.queue.item import Item, PreparedBatch
from penstock.queue.publish import Published
from penstock.queue.taken import METADATA
from penstock.store.port import Store

#: What was published lately is kept up to this size.
FRESH_BYTES = 32 << 20
PAYLOADS_BYTES = 32 << 20
_OVERHEAD = 400


class Content(msgspec.Struct, frozen=True):
    payload: bytes | None
    uri: str | None
    headers: Mapping[str, str]
    created_at_ms: int
    received_at_ms: int


class _Kept(msgspec.Struct, frozen=True, eq=False):
    first_offset: int
    ids: list[int]
    items: list[Item]
    received_at_ms: int
    size: int


class Fresh:
    """What was published lately, by its offsets."""

    def __init__(self, bytes_max: int = FRESH_BYTES) -> None:
        self._bytes_max = bytes_max
        self._firsts: deque[int] = deque()
        self._kept: deque[_Kept] = deque()
        self._bytes = 0

    def add(self, published: Published, batch: PreparedBatch) -> None:
        """After its commit. Commits come in the order of their offsets."""
        chosen = [batch.items[i] for i in published.chosen]
        if not chosen or (self._firsts and published.first_offset <= self._firsts[-1]):
            return
        size = batch.size + _OVERHEAD * len(chosen)
        ids = [published.ids[i] for i in published.chosen]
        kept = _Kept(published.first_offset, ids, chosen, published.received_at_ms, size)
        self._firsts.append(published.first_offset)
        self._kept.append(kept)
        self._bytes += size
        while self._bytes > self._bytes_max and self._kept:
            self._firsts.popleft()
            self._bytes -= self._kept.popleft().size

    def find(self, message_id: int, offset: int) -> Content | None:
        at = bisect_right(self._firsts, offset) - 1
        if at < 0:
            return None
        kept = self._kept[at]
        i = offset - kept.first_offset
        if i >= len(kept.items) or kept.ids[i] != message_id:
            return None
        item = kept.items[i]
        return Content(
            None if item.uri is not None else item.payload,
            item.uri,
            item.headers,
            kept.received_at_ms if item.created_at_ms is None else item.created_at_ms,
            kept.received_at_ms,
        )

    def clear(self) -> None:
        self._firsts.clear()
        self._kept.clear()
        self._bytes = 0


class Payloads:
    """Payload records that were read lately, by any id they hold. What a message held does not
    change, and nobody asks for one that is gone: nothing has to be forgotten but all of it."""

    def __init__(self, bytes_max: int = PAYLOADS_BYTES) -> None:
        self._bytes_max = bytes_max
        self._records: OrderedDict[int, tuple[Payload, int]] = OrderedDict()
        self._firsts: list[int] = []
        self._bytes = 0

    def find(self, number: int) -> bytes | str | None:
        at = bisect_right(self._firsts, number) - 1
        if at < 0:
            return None
        first = self._firsts[at]
        self._records.move_to_end(first)
        return _part(self._records[first][0], number - first)

    def keep(self, first: int, record: Payload, size: int) -> None:
        if first in self._records or size > self._bytes_max // 4:
            return
        self._records[first] = record, size
        insort(self._firsts, first)
        self._bytes += size
        while self._bytes > self._bytes_max:
            gone, (_, size) = self._records.popitem(last=False)
            del self._firsts[bisect_left(self._firsts, gone)]
            self._bytes -= size

    def clear(self) -> None:
        self._records.clear()
        self._firsts.clear()
        self._bytes = 0


async def read_contents(
    view: View,
    ids: Sequence[int],
    offsets: Sequence[int],
    cache: NodeCache | None = None,
    payloads: Payloads | None = None,
) -> list[Content | None]:
    """In the order that is given."""
    metadata = await read_metadata(view, offsets, cache)
    payload_of = await _read_payloads(view.store, sorted(set(ids)), payloads or Payloads())
    found: list[Content | None] = []
    for message_id, offset in zip(ids, offsets, strict=True):
        about = metadata.get(offset)
        if about is None or about.message_id != message_id:
            found.append(None)
            continue
        payload = payload_of.get(message_id)
        if payload is None:
            found.append(None)
            continue
        uri = payload if isinstance(payload, str) else None
        data = payload if isinstance(payload, bytes) else None
        headers = dict(about.headers)
        found.append(Content(data, uri, headers, about.created_at_ms, about.received_at_ms))
    return found


async def read_metadata(
    view: View, offsets: Sequence[int], cache: NodeCache | None = None
) -> dict[int, Metadata]:
    """Of the living ones among these."""
    log = await open_target(view, METADATA)
    found: dict[int, Metadata] = {}
    if log is None or not offsets:
        return found
    wanted = np.unique(np.array(offsets, np.int64))
    for low, high in _runs(wanted):
        async for node, start, stop in read_nodes(view.store, log, low, high, cache=cache):
            for first, last, living in node.runs(start, stop):
                if living:
                    for i, record in enumerate(node.data_list(first, last), node.first + first):
                        found[i] = decode_metadata(record)
    return found


def _runs(numbers: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(numbers) != 1) + 1
    starts, stops = [0, *edges.tolist()], [*edges.tolist(), len(numbers)]
    return [(int(numbers[a]), int(numbers[b - 1]) + 1) for a, b in zip(starts, stops, strict=True)]


async def _read_payloads(
    store: Store, ids: Sequence[int], cache: Payloads
) -> dict[int, bytes | str]:
    """Bytes, or a URI, of those that are there; ids rise."""
    found: dict[int, bytes | str] = {}
    first, record = -1, None
    for number in ids:
        payload = _part(record, number - first) if record is not None else None
        if payload is None:
            payload = cache.find(number)
        if payload is None:
            row = await store.floor(payload_key(number), low=prefix(KeyType.PAYLOAD))
            if row is None:
                continue
            reader = open_key(row[0], KeyType.PAYLOAD)
            first, record = reader.u64_key("message id"), decode_payload(row[1])
            cache.keep(first, record, len(row[1]))
            payload = _part(record, number - first)
        if payload is not None:
            found[number] = payload
    return found


def _part(record: Payload, index: int) -> bytes | str | None:
    match record:
        case PayloadBlock():
            return payload_at(record, index)
        case BytesPayload(data):
            return data if index == 0 else None
        case UriPayload(uri):
            return uri if index == 0 else None
