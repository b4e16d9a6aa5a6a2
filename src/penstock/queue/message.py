"""Reading what messages hold: payload, headers and times.

Contract     `read_contents` gives one `Content` per message, or None where its payload or metadata
             is gone. What was published a moment ago is in `Fresh`, and nothing is read for it.
             Payloads that are objects are named by their URI; who has the objects reads them.
             `read_ahead` reads the same into the caches alone.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import count

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.codec.keys import KeyType, open_key, payload_key, payloads_from
from penstock.codec.metadata import Metadata, decode_metadata_list, read_message_id
from penstock.codec.payload import (
    BytesPayload,
    Payload,
    PayloadBlock,
    UriPayload,
    decode_payload,
    payloads_between,
)
from penstock.codec.queueoperation import Keys
from penstock.log.cache import NodeCache
from penstock.log.catalogue import open_target
from penstock.log.decision import View
from penstock.log.read import read_nodes
from penstock.log.state import LogState
from penstock.queue.arrays import rising
from penstock.queue.item import Bare, Item
from penstock.queue.publish import Published, is_one_record
from penstock.queue.taken import METADATA
from penstock.store.port import Reader

#: What was published lately is kept up to this size.
FRESH_BYTES = 32 << 20
PAYLOADS_BYTES = 32 << 20
#: Who reads a record gets up to so many behind it, where it is no larger than this itself.
AHEAD_ROWS = 16
AHEAD_BYTES = 128 << 10
#: Reading ahead looks into the store about so often, after so many messages at a time, and takes up
#: to so much in one look.
LOOKS_MAX = 8
LOOK_COUNT = 4096
LOOK_BYTES = 1 << 20
#: So much lies ahead at once, and not much more: what is read behind it must not push it out.
AHEAD_SIZE = PAYLOADS_BYTES // 4
#: What a message, or a record, costs in memory besides its bytes: objects and their places.
_OVERHEAD = 400
#: The same of a payload in a list of payloads, and of a header: two texts and a place in a table.
_BARE_OVERHEAD = 48
_HEADER_OVERHEAD = 128


class Content(msgspec.Struct, frozen=True, gc=False):
    payload: bytes | None
    uri: str | None
    headers: Mapping[str, str]
    created_at_ms: int
    received_at_ms: int
    dedup_id: str | None = None


class _Kept(msgspec.Struct, frozen=True, eq=False):
    first_offset: int
    ids: Sequence[int]
    items: Sequence[Item]
    received_at_ms: int
    size: int
    one_record: bool  # all payloads lie under the first id, surely


def _content(item: Item, received_at_ms: int) -> Content:
    return Content(
        None if item.uri is not None else item.payload,
        item.uri,
        dict(item.headers),  # whoever gets it may change it, and here it stays as it was stored
        received_at_ms if item.created_at_ms is None else item.created_at_ms,
        received_at_ms,
        item.dedup_id,
    )


class Fresh:
    """What was published lately, by its offsets."""

    def __init__(self, bytes_max: int = FRESH_BYTES) -> None:
        self._bytes_max = bytes_max
        self._firsts: list[int] = []
        self._kept: list[_Kept] = []
        self._bytes = 0

    def add(self, published: Published) -> None:
        """After its commit. Commits come in the order of their offsets."""
        batch, first = published.stored, published.first_offset
        if batch is None or (self._firsts and first <= self._firsts[-1]):
            return
        each = _BARE_OVERHEAD if isinstance(batch.items, Bare) else _OVERHEAD
        size = batch.size + each * len(batch) + _OVERHEAD
        if batch.headers is not None:
            size += _HEADER_OVERHEAD * sum(map(len, batch.headers))
        numbers = published.numbers
        one = is_one_record(numbers, batch)
        kept = _Kept(first, numbers, batch.items, published.received_at_ms, size, one)
        self._firsts.append(first)
        self._kept.append(kept)
        self._bytes += size
        if self._bytes > self._bytes_max:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        """An eighth of what may be kept: the lists move, so this is not for every batch."""
        gone = 0
        while self._bytes > self._bytes_max - self._bytes_max // 8 and gone < len(self._kept):
            self._bytes -= self._kept[gone].size
            gone += 1
        del self._firsts[:gone], self._kept[:gone]

    def has(self, offset: int) -> bool:
        """What is younger is here, too."""
        return bool(self._firsts) and offset >= self._firsts[0]

    def find(self, ids: Sequence[int], offsets: Sequence[int]) -> list[Content | None]:
        """In their order. Neighbours were nearly always published together."""
        if not self._firsts or not offsets or max(offsets) < self._firsts[0]:
            return [None] * len(ids)
        found: list[Content | None] = []
        while len(found) < len(ids):
            found += self._run(ids, offsets, len(found))
        return found

    def _run(self, ids: Sequence[int], offsets: Sequence[int], at: int) -> Sequence[Content | None]:
        """Of those from `at` on that were published together, side by side: at least the first."""
        first = offsets[at]
        holding = bisect_right(self._firsts, first) - 1
        if holding < 0:
            return [None]
        kept = self._kept[holding]
        i = first - kept.first_offset
        count = min(len(kept.ids) - i, len(ids) - at)
        if count <= 0:
            return [None]
        if offsets[at + count - 1] - first != count - 1 or ids[at : at + count] != list(
            kept.ids[i : i + count]
        ):
            count = 1
            if ids[at] != kept.ids[i]:
                return [None]
        at_ms = kept.received_at_ms
        if isinstance(kept.items, Bare):
            payloads = kept.items.payloads[i : i + count]
            return [Content(payload, None, {}, at_ms, at_ms) for payload in payloads]
        return [_content(item, at_ms) for item in kept.items[i : i + count]]

    def whole_records(self, offsets: Keys) -> tuple[list[int], Keys]:
        """For who removes these messages (rising). Of records that hold nothing but some of them:
        the first ids, as far as that is known here; and the offsets of all others."""
        if not len(offsets):
            return [], offsets
        ids: list[int] = []
        others = np.ones(len(offsets), np.bool_)
        at = max(bisect_right(self._firsts, int(offsets[0])) - 1, 0)
        for i in range(at, bisect_right(self._firsts, int(offsets[-1]))):
            kept = self._kept[i]
            first, count = kept.first_offset, len(kept.ids)
            low = int(offsets.searchsorted(np.uint64(first)))
            high = int(offsets.searchsorted(np.uint64(first + count)))
            if not kept.one_record or low == high:
                continue
            if high - low == count:
                ids.append(kept.ids[0])
                others[low:high] = False
            else:  # who removes a part may write what is left anew, in several records
                self._kept[i] = msgspec.structs.replace(kept, one_record=False)
        return ids, offsets[others]

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

    def find(self, number: int) -> tuple[int, Payload] | None:
        """The record that holds this id, and the first id of that."""
        at = bisect_right(self._firsts, number) - 1
        if at < 0:
            return None
        first = self._firsts[at]
        self._records.move_to_end(first)
        record = self._records[first][0]
        return (first, record) if number - first < _count(record) else None

    def size(self, first: int) -> int:
        """Of a record that `find` found."""
        return self._records[first][1]

    def keep(self, first: int, record: Payload, size: int) -> None:
        size += _OVERHEAD
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
        about, payload = metadata.get(offset), payload_of.get(message_id)
        if about is None or payload is None or about.message_id != message_id:
            found.append(None)
            continue
        uri = payload if isinstance(payload, str) else None
        data = payload if isinstance(payload, bytes) else None
        headers = dict(about.headers)
        found.append(
            Content(data, uri, headers, about.created_at_ms, about.received_at_ms, about.dedup_id)
        )
    return found


async def read_ahead(
    view: View, ids: Sequence[int], offsets: Sequence[int], cache: NodeCache, payloads: Payloads
) -> int:
    """Into the caches, neighbours in one look. -> how many of these are there now, from the first
    on, as far as that is known"""
    log = await open_target(view, METADATA)
    if log is None:
        return 0
    spent, done = _Spent(), 0
    while done < len(ids):
        part = np.array(offsets[done : done + LOOK_COUNT], np.int64)
        there = _leading(part < await _metadata_ahead(view.store, log, part, cache, spent))
        if there:
            numbers = np.array(ids[done : done + there], np.int64)
            there = _leading(numbers < await _payloads_ahead(view.store, numbers, payloads, spent))
        done += there
        if there < len(part):
            break
    return done


class _Spent:
    """What reading ahead came to so far: looks, and bytes of what is there, read now or before."""

    def __init__(self) -> None:
        self.looks = self.size = 0
        self._last: int | None = None

    def hold(self, first: int, size: int) -> None:
        """A node or a record with its first number; runs may share one."""
        self.size += size if first != self._last else 0
        self._last = first


async def _metadata_ahead(
    store: Reader, log: LogState, offsets: npt.NDArray[np.int64], cache: NodeCache, spent: _Spent
) -> int:
    """-> up to which offset they are there"""
    for low, high in runs_of(rising(offsets)):
        if spent.looks >= LOOKS_MAX:
            return low
        spent.looks += cache.find(log.log_id, low) is None
        async for node, _, stop in read_nodes(store, log, low, high, cache=cache):
            spent.hold(node.first, node.memory_bytes)
            if spent.size >= AHEAD_SIZE:
                return node.first + stop
    return int(offsets.max()) + 1


async def _payloads_ahead(
    store: Reader, ids: npt.NDArray[np.int64], payloads: Payloads, spent: _Spent
) -> int:
    """-> up to which id they are there"""
    for low, high in runs_of(rising(ids)):
        number = low
        while number < high:
            held = payloads.find(number)
            if held is not None:
                spent.hold(held[0], payloads.size(held[0]))
                number = held[0] + _count(held[1])
            elif spent.looks >= LOOKS_MAX or spent.size >= AHEAD_SIZE:
                return number
            else:
                spent.looks += 1
                number, size = await _read_neighbours(store, number, high, payloads)
                spent.size += size
    return int(ids.max()) + 1


def _leading(truths: npt.NDArray[np.bool_]) -> int:
    """How many there are before the first that is not so."""
    return len(truths) if truths.all() else int(truths.argmin())


async def read_metadata(
    view: View, offsets: Sequence[int], cache: NodeCache | None = None
) -> dict[int, Metadata]:
    """Of the living ones among these."""
    found: dict[int, Metadata] = {}
    async for first, records in _read_records(view, offsets, cache):
        found |= enumerate(decode_metadata_list(records), first)
    return found


async def read_ids(
    view: View, offsets: Sequence[int], cache: NodeCache | None = None
) -> dict[int, int]:
    """The offsets of the living ones among these, by message id."""
    found: dict[int, int] = {}
    async for first, records in _read_records(view, offsets, cache):
        found |= zip(map(read_message_id, records), count(first))
    return found


async def _read_records(
    view: View, offsets: Sequence[int], cache: NodeCache | None
) -> AsyncIterator[tuple[int, list[bytes]]]:
    """Neighbouring records that are alive, and the offset of the first of them."""
    log = await open_target(view, METADATA)
    if log is None or not offsets:
        return
    for low, high in runs_of(rising(np.array(offsets, np.int64))):
        async for node, start, stop in read_nodes(view.store, log, low, high, cache=cache):
            for first, last, living in node.runs(start, stop):
                if living:
                    yield node.first + first, node.data_list(first, last)


def runs_of(numbers: npt.NDArray[np.int64], gap: int = 1) -> list[tuple[int, int]]:
    """Rising numbers as runs, the ends exclusive; up to `gap` lies between two of a run."""
    edges = np.flatnonzero(np.diff(numbers) > gap) + 1
    starts, stops = [0, *edges.tolist()], [*edges.tolist(), len(numbers)]
    return [(int(numbers[a]), int(numbers[b - 1]) + 1) for a, b in zip(starts, stops, strict=True)]


async def _read_payloads(
    store: Reader, ids: Sequence[int], cache: Payloads
) -> dict[int, bytes | str]:
    """Bytes, or a URI, of those that are there; ids rise."""
    found: dict[int, bytes | str] = {}
    i = 0
    while i < len(ids):
        held = cache.find(ids[i]) or await _read_payload(store, ids[i], cache)
        if held is None:
            i += 1  # it is gone
            continue
        first, record = held
        end = bisect_left(ids, first + _count(record), i)
        found.update(zip(ids[i:end], _parts(record, first, ids[i:end]), strict=True))
        i = end
    return found


async def _read_payload(store: Reader, number: int, cache: Payloads) -> tuple[int, Payload] | None:
    """The record that holds this id, and the first id of that. Small ones behind it are kept too:
    they are claimed next."""
    row = await store.floor(payload_key(number), low=payloads_from(number))
    if row is None:
        return None
    first, record = _record(*row)
    cache.keep(first, record, len(row[1]))
    if number - first >= _count(record):
        return None
    if len(row[1]) <= AHEAD_BYTES:
        following = first + _count(record)
        await _keep_between(store, following, following + LOOK_COUNT, cache, AHEAD_ROWS, 0)
    return first, record


async def _read_neighbours(store: Reader, low: int, high: int, cache: Payloads) -> tuple[int, int]:
    """The records that hold these ids, as many as one look brings. -> the id behind them, and how
    large they are"""
    row = await store.floor(payload_key(low), low=payloads_from(low))
    known = 0
    if row is not None:
        first, record = _record(*row)
        cache.keep(first, record, len(row[1]))
        known = len(row[1]) if first + _count(record) > low else 0
        low = max(low, first + _count(record))
    end, size = await _keep_between(store, low, high, cache, LOOK_COUNT, LOOK_BYTES)
    return end, known + size


async def _keep_between(
    store: Reader, low: int, high: int, cache: Payloads, rows_max: int, size_max: int
) -> tuple[int, int]:
    """The records that begin with one of these ids, until they are so large. -> the id behind, and
    how large they are"""
    size = 0
    # Never to the end of all: what was published just now the engine may not have yet, and a read
    # of it would wait for that.
    async for rows in store.scan(payload_key(low), payload_key(high), batch_rows=rows_max):
        for key, value in rows:
            first, record = _record(key, value)
            cache.keep(first, record, len(value))
            low = first + _count(record)
            size += len(value)
        if size >= size_max:
            return low, size
    return high, size


def _record(key: bytes, value: bytes) -> tuple[int, Payload]:
    return open_key(key, KeyType.PAYLOAD).u64_key("message id"), decode_payload(value)


def _count(record: Payload) -> int:
    return record.count if isinstance(record, PayloadBlock) else 1


def _parts(record: Payload, first: int, ids: Sequence[int]) -> Sequence[bytes | str]:
    """The payloads of these ids, which rise, of a record that begins with the id `first`."""
    match record:
        case PayloadBlock():
            # What was acknowledged out of order leaves gaps, seldom wide ones.
            run = payloads_between(record, ids[0] - first, ids[-1] + 1 - first)
            return run if len(run) == len(ids) else [run[number - ids[0]] for number in ids]
        case BytesPayload(data):
            return [data]
        case UriPayload(uri):
            return [uri]
