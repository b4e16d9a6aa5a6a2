"""Payloads of many messages as columns: their records are scanned, not asked for one by one.

Contract     `payload_parts` gives `data` and `uri` for the ids, in their order, in parts that hold
             about `bytes_max` bytes at most; `payloads_of` gives all at once. Both are null where
             there is no record any more. A user's own URI stands in `uri`. A payload that is an
             object of ours is read where `objects` are given, and both are null where they are not,
             or where the object is gone: it goes after its row, which a checkpoint may still hold.
Memory       Of a block only what lies between the first and the last wanted payload is kept.
Not here     whether a message is alive: a block does not know (messagecolumns.py asks the log).
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.codec.keys import KeyType, open_key, payload_key, payloads_from
from penstock.codec.payload import (
    BytesPayload,
    Payload,
    PayloadBlock,
    UriPayload,
    decode_payload,
)
from penstock.codec.scalars import U64_MAX
from penstock.errors import CorruptError
from penstock.queue.arrays import Ints, Truths, cut_out, places, rising
from penstock.queue.publish import check_spilled, spilled_id
from penstock.store.objects import Objects
from penstock.store.port import Reader, Row

#: Payloads of one part.
PART_BYTES = 32 << 20
#: Ids that lie further apart are looked for by themselves: a lookup costs about as much as some
#: blocks that nobody wants.
GAP_IDS = 2048
#: Rows of a scan that are in memory at once; a block may have a megabyte.
SCAN_ROWS = 32

Ids = npt.NDArray[np.uint64]


class Payloads(msgspec.Struct, frozen=True, eq=False):
    data: pa.Array  # binary
    uri: pa.Array  # string
    size: int  # bytes of data that were read for it


async def payloads_of(store: Reader, ids: Ids, objects: Objects | None = None) -> Payloads:
    parts = [part async for part in payload_parts(store, ids, objects)]
    if len(parts) == 1:
        return parts[0]
    return Payloads(
        pa.concat_arrays([pa.array([], pa.binary()), *(part.data for part in parts)]),
        pa.concat_arrays([pa.array([], pa.string()), *(part.uri for part in parts)]),
        sum(part.size for part in parts),
    )


async def payload_parts(
    store: Reader,
    ids: Ids,
    objects: Objects | None = None,
    *,
    alive: Truths | None = None,
    bytes_max: int | None = None,
) -> AsyncIterator[Payloads]:
    """Those that are not `alive` are not looked for, and null. `bytes_max` None: PART_BYTES."""
    bytes_max = PART_BYTES if bytes_max is None else bytes_max
    alive = np.ones(len(ids), np.bool_) if alive is None else alive
    at, count = 0, len(ids)
    while at < len(ids):
        reading = _Reading(ids[at : at + count], alive[at : at + count], objects)
        done = await reading.read(store, bytes_max)
        if done < len(reading.wanted) and count > 1:
            # Too much for one part. About so many fit, for payloads of a kind are alike.
            count = max(min(done, count // 2), 1)
            continue
        yield reading.columns()
        at += count
        count = min(count + count // 8 + 1, len(ids) - at)


class _Reading:
    """What was found of some ids, which are sorted for it."""

    def __init__(self, ids: Ids, alive: Truths, objects: Objects | None) -> None:
        self.wanted = rising(ids[alive])
        self._in_order = len(self.wanted) == len(ids) and bool((self.wanted == ids).all())
        #: Where each id stands among those.
        self._order = pa.array(self.wanted.searchsorted(ids), mask=~alive)
        self._objects = objects
        self._found = np.zeros(len(self.wanted), np.bool_)
        self._begin: Ints = np.zeros(len(self.wanted), np.int64)
        self._end: Ints = np.zeros(len(self.wanted), np.int64)
        self._pieces: list[bytes] = []
        self._size = 0
        self._uris: dict[int, str] = {}

    async def read(self, store: Reader, bytes_max: int) -> int:
        """-> how many were looked at before there were too many bytes"""
        wanted, done = self.wanted, 0
        gaps = np.flatnonzero(np.diff(wanted) > GAP_IDS) + 1
        for low, high in zip([0, *gaps.tolist()], [*gaps.tolist(), len(wanted)], strict=True):
            if low == high:
                break
            async for rows in _records(store, int(wanted[low]), int(wanted[high - 1])):
                for first, value in rows:
                    if self._size > bytes_max:
                        return done
                    done = await self._take(done, first, decode_payload(value))
            done = high
        return done

    async def _take(self, done: int, first: int, record: Payload) -> int:
        """What is wanted of this record, but not what an earlier one held: a block may be written
        anew while it is read. -> how many were looked at by now"""
        wanted = self.wanted
        low = max(int(wanted.searchsorted(np.uint64(first))), done)
        if low == len(wanted):
            return low
        match record:
            case PayloadBlock():
                # By its last payload: behind the last id of all there is none.
                last = np.uint64(min(first + record.count - 1, U64_MAX))
                high = max(int(wanted.searchsorted(last, "right")), low)
                self._take_block(low, high, first, record)
                return high
            case BytesPayload(data):
                if wanted[low] == first:
                    self._put(low, data)
                    return low + 1
            case UriPayload(uri):
                if wanted[low] == first:
                    await self._take_uri(low, uri)
                    return low + 1
        return low

    def _take_block(self, low: int, high: int, first: int, block: PayloadBlock) -> None:
        if low == high:
            return
        table = np.frombuffer(block.offsets, "<u4").astype(np.int64)
        numbers = (self.wanted[low:high] - np.uint64(first)).astype(np.int64)
        begin, end = table[numbers], table[numbers + 1]
        piece = block.blob[int(begin[0]) : int(end[-1])]
        self._begin[low:high] = begin + (self._size - begin[0])
        self._end[low:high] = end + (self._size - begin[0])
        self._found[low:high] = True
        self._pieces.append(piece)
        self._size += len(piece)

    def _put(self, at: int, data: bytes) -> None:
        self._begin[at], self._end[at] = self._size, self._size + len(data)
        self._found[at] = True
        self._pieces.append(data)
        self._size += len(data)

    async def _take_uri(self, at: int, uri: str) -> None:
        number = spilled_id(uri)
        if number is None:
            self._uris[at] = uri
            return
        if self._objects is None:
            return
        try:
            data = await self._objects.get(number)
        except CorruptError:
            return  # missing: removed since the state that is read
        check_spilled(uri, data)
        self._put(at, data)

    def columns(self) -> Payloads:
        found, order = self._found, self._order
        blob = pa.py_buffer(b"".join(self._pieces))
        pieces = cut_out(blob, self._begin[found], self._end[found])
        whole = self._in_order and bool(found.all())
        data = pieces if whole else pieces.take(places(found).take(order))
        if not self._uris:
            return Payloads(data, pa.nulls(len(order), pa.string()), self._size)
        named = np.zeros(len(self.wanted), np.bool_)
        named[list(self._uris)] = True
        uris = pa.array(self._uris.values(), pa.string())  # in order, as the records came
        return Payloads(data, uris.take(places(named).take(order)), self._size)


async def _records(store: Reader, low: int, high: int) -> AsyncIterator[list[tuple[int, bytes]]]:
    """The records that may hold an id low <= id <= high, by their first id."""
    row = await store.floor(payload_key(low), low=payloads_from(low))
    if row is not None:
        yield _opened([row])
    if low < high:
        # The highest id has no successor to end at; nobody was ever given it.
        end = payload_key(min(high + 1, U64_MAX))
        async for rows in store.scan(payload_key(low + 1), end, batch_rows=SCAN_ROWS):
            yield _opened(rows)


def _opened(rows: list[Row]) -> list[tuple[int, bytes]]:
    return [(open_key(key, KeyType.PAYLOAD).u64_key("message id"), value) for key, value in rows]
