"""Messages as columns: ranges of the metadata log, with headers and payloads.

Contract     `message_columns` gives the messages low <= offset < high of the metadata log that are
             alive, in the order of their offsets, in batches of `batch_rows` rows and some more,
             or of fewer where their bytes are many. `metadata_at` gives the metadata of single
             offsets. Both read rows alone, at a checkpoint or from a broker's store.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import numpy as np
import pyarrow as pa

from penstock.codec.node import Node
from penstock.errors import CorruptError
from penstock.log.catalogue import open_target
from penstock.log.columns import Counts
from penstock.log.pages import Tail
from penstock.log.read import read_nodes
from penstock.log.rowview import RowView
from penstock.log.state import LogState, Readable
from penstock.queue.arrays import HEADERS, INSTANT, Ints, Truths, instants, whole
from penstock.queue.metadatacolumns import MetadataColumns, Records, metadata_columns
from penstock.queue.payloadcolumns import Ids, Payloads, payload_parts
from penstock.queue.taken import METADATA
from penstock.store.objects import Objects
from penstock.store.port import Reader

#: Larger than those of logs: finding the first payload of a batch takes as long as reading some
#: thousands.
BATCH_ROWS = 50_000
#: Metadata of one batch.
BATCH_BYTES = 64 << 20
#: Offsets that lie further apart are looked for by themselves.
GAP_OFFSETS = 4096


def message_schema(*, headers: bool = True, payload: bool = True) -> pa.Schema:
    fields = [
        pa.field("offset", pa.int64(), nullable=False),  # in the metadata log
        pa.field("id", pa.int64(), nullable=False),
        pa.field("created_at", INSTANT, nullable=False),  # the producer's time
        pa.field("received_at", INSTANT, nullable=False),  # when it was published
        pa.field("visible_at", INSTANT, nullable=False),  # as it was published
        pa.field("retention", pa.int64(), nullable=False),  # seconds; 0 is for ever
        pa.field("to", pa.string()),  # null: filters decide
    ]
    if headers:
        fields.append(pa.field("headers", HEADERS, nullable=False))
    if payload:
        fields += [pa.field("payload", pa.binary()), pa.field("uri", pa.string())]
    return pa.schema(fields)


async def open_metadata(store: Reader) -> LogState | None:
    """The metadata log; None where nothing was ever published."""
    return await open_target(RowView(store, Tail()), METADATA)


async def message_columns(
    store: Reader,
    low: int,
    high: int,
    *,
    headers: bool = True,
    payload: bool = True,
    objects: Objects | None = None,
    batch_rows: int = BATCH_ROWS,
    log: Readable | None = None,
    now_ms: int | None = None,
    count: Counts,
) -> AsyncIterator[pa.RecordBatch]:
    """Batches of `message_schema`. `log` is the metadata log, where the caller knows it. With
    `now_ms` those whose retention is over by then are left out: they stay some time longer, for who
    holds them. `count` is told what was read: its bytes are those of payloads."""
    log = log or await open_metadata(store)
    if log is None:
        count.end = max(low, high)
        return
    schema = message_schema(headers=headers, payload=payload)
    async for gathered in _gathered(store, log, low, high, batch_rows, count):
        found = gathered.columns(headers)
        batch = _batch(schema, found, gathered.offsets())
        ids = found.fixed["message_id"].astype(np.uint64)
        if now_ms is not None and not (present := _present(found, now_ms)).all():
            batch, ids = batch.filter(pa.array(present)), ids[present]
        if not payload or not len(ids):
            count.end = int(gathered.offsets()[-1]) + 1
            if len(ids):
                count.rows += len(batch)
                yield batch
            continue
        at = 0
        async for part in payload_parts(store, ids, objects):
            rows = _with_payloads(schema, batch.slice(at, len(part.data)), part)
            at += len(part.data)
            count.rows += len(rows)
            count.bytes += part.size
            count.end = rows.column("offset")[-1].as_py() + 1
            yield rows
    count.end = max(low, high)


def _present(found: MetadataColumns, now_ms: int) -> Truths:
    """Whose retention is not over, as queues reckon it (route.py)."""
    retention_s = found.fixed["retention_s"].astype(np.int64)
    deadline_ms = found.fixed["received_at_ms"] + 1000 * retention_s
    present: Truths = (retention_s == 0) | (deadline_ms >= now_ms)
    return present


def _batch(schema: pa.Schema, found: MetadataColumns, offsets: Ints) -> pa.RecordBatch:
    fixed = found.fixed
    columns = [
        pa.array(offsets),
        whole(fixed["message_id"], "message id"),
        instants(fixed["created_at_ms"]),
        instants(fixed["received_at_ms"]),
        instants(fixed["visible_at_ms"]),
        pa.array(fixed["retention_s"].astype(np.int64)),
        found.to,
    ]
    if found.headers is not None:
        columns.append(found.headers)
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(list(schema)[: len(columns)]))


def _with_payloads(schema: pa.Schema, batch: pa.RecordBatch, part: Payloads) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([*batch.columns, part.data, part.uri], schema=schema)


# ---- gathering records --------------------------------------------------------------------------


class _Gathered:
    """Records of neighbouring nodes, glued together: numpy's calls cost the same for one."""

    def __init__(self) -> None:
        self._blobs: list[memoryview] = []
        self._size = 0
        self._begin: list[Ints] = []
        self._end: list[Ints] = []
        self._offsets: list[Ints] = []
        self.rows = 0

    def add(self, node: Node, chosen: Ints) -> None:
        """These entries of the node, rising and alive."""
        if not len(chosen):
            return
        assert node.data is not None, "in a hole nothing is alive"
        table = node.data.table
        begin, end = table[chosen].astype(np.int64), table[chosen + 1].astype(np.int64)
        low, high = int(begin[0]), int(end[-1])
        start = node.data.start
        self._blobs.append(memoryview(node.raw)[start + low : start + high])
        self._begin.append(begin + (self._size - low))
        self._end.append(end + (self._size - low))
        self._offsets.append(chosen + node.first)
        self._size += high - low
        self.rows += len(chosen)

    def full(self, batch_rows: int) -> bool:
        return self.rows >= batch_rows or self._size >= BATCH_BYTES

    def offsets(self) -> Ints:
        return _joined(self._offsets)

    def columns(self, headers: bool) -> MetadataColumns:
        records = Records(b"".join(self._blobs), _joined(self._begin), _joined(self._end))
        try:
            return metadata_columns(records, headers=headers)
        except CorruptError as error:
            offsets = self.offsets()
            raise CorruptError(
                f"messages of offsets {offsets[0]} to {offsets[-1]}: {error}"
            ) from None


def _joined(parts: Sequence[Ints]) -> Ints:
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


async def _gathered(
    store: Reader, log: Readable, low: int, high: int, batch_rows: int, count: Counts
) -> AsyncIterator[_Gathered]:
    gathered = _Gathered()
    expected = min(low, high, log.next)
    async for node, start, stop in read_nodes(store, log, low, high):
        count.nodes += 1
        count.evicted += node.first + start - expected
        expected = node.first + stop
        alive = node.alive()
        chosen = np.arange(start, stop)
        gathered.add(node, chosen if alive is None else chosen[alive[start:stop]])
        if gathered.full(batch_rows):
            yield gathered
            gathered = _Gathered()
    count.evicted += max(min(high, log.next) - expected, 0)
    if gathered.rows:
        yield gathered


async def metadata_at(
    store: Reader, log: Readable, offsets: Ids, *, headers: bool = True
) -> tuple[MetadataColumns, Truths]:
    """Of those of these offsets that are alive; and which ones those are. They rise."""
    wanted = offsets.astype(np.int64)
    gathered = _Gathered()
    gaps = np.flatnonzero(np.diff(wanted) > GAP_OFFSETS) + 1
    for low, high in zip([0, *gaps.tolist()], [*gaps.tolist(), len(wanted)], strict=True):
        if low == high:
            continue
        pieces = read_nodes(store, log, int(wanted[low]), int(wanted[high - 1]) + 1)
        async for node, start, stop in pieces:
            first, last = np.searchsorted(wanted, (node.first + start, node.first + stop)).tolist()
            chosen = wanted[first:last] - node.first
            alive = node.alive()
            gathered.add(node, chosen if alive is None else chosen[alive[chosen]])
    return gathered.columns(headers), np.isin(wanted, gathered.offsets(), assume_unique=True)
