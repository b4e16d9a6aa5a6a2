"""A range of a log as Arrow batches: large ones, of living entries only, in types that Spark takes.

Contract     `columns(...)` gives the entries low <= offset < high, in order, as batches of at least
             `batch_rows` rows, or about BATCH_BYTES; only the last one may be smaller.
             `tags` and the times (low <= time < high) choose entries exactly. A node that cannot
             hold any, by its header, is not opened. Nothing here loops over entries.
             Of the columns only those in `names` are made, and the others are not copied.
             Who shares his time with others sets `look_bytes`: a read ends behind so many, and
             `Counts.end` says where.
Columns      offset int64 | time timestamp[us, UTC] | tag string | data binary, and meta binary
             where it is asked for (null: none). Tags are text here: what is not UTF-8 in them shows
             as U+FFFD, while `tags` compares the bytes themselves. With text=False the column is
             binary, and they are what was written.
Counts       Who reads hands in `Counts`, and may look into it at any time.
Races        Those of read.py. What is evicted, before or while it is read, is counted: whether
             that is an error is the caller's business.
Not here     Which process reads what (spark/), a store for processes without one (bulkread.py).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Iterator
from contextlib import aclosing

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.node import UNIFORM_TIME, Header, Node, may_hold
from penstock.log.read import Piece, read_nodes
from penstock.log.state import Readable
from penstock.store.port import Reader

BATCH_ROWS = 10_000
#: A batch that has reached this size is full, however few rows it has.
BATCH_BYTES = 32 << 20
#: Arrow's columns end at 2 GiB, and a single entry may be nearly that large.
_GLUED_BYTES_MAX = 1 << 30
#: A node costs at least as much to look at as so many bytes.
_LOOK_BYTES_MIN = 4096
_TIME = pa.timestamp("us", tz="UTC")

_Mask = npt.NDArray[np.bool_]


SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("time", _TIME, nullable=False),
        pa.field("tag", pa.string(), nullable=False),
        pa.field("data", pa.binary(), nullable=False),
    ]
)
META_SCHEMA = SCHEMA.append(pa.field("meta", pa.binary()))


def column_schema(*, meta: bool = False, text: bool = True) -> pa.Schema:
    schema = META_SCHEMA if meta else SCHEMA
    return schema if text else schema.set(2, pa.field("tag", pa.binary(), nullable=False))


class Counts(msgspec.Struct):
    """What a read did so far."""

    nodes: int = 0  # opened
    skipped: int = 0  # not opened: nothing in them could match
    rows: int = 0
    bytes: int = 0  # of data in those rows, where that column is made
    evicted: int = 0  # offsets of the range that are gone
    end: int = 0  # what lies below was given, or was not meant, or is gone: where to go on

    def counted(self, batch: pa.RecordBatch, end: int) -> pa.RecordBatch:
        self.end = end
        self.rows += batch.num_rows
        self.bytes += _data_bytes(batch)
        return batch


class Choice(msgspec.Struct, frozen=True):
    """Which entries are meant."""

    tags: frozenset[bytes] | None = None  # one of these; None: any
    time_low_ms: int | None = None  # at this time or later
    time_high_ms: int | None = None  # before this time

    def names(self) -> Iterator[str]:
        """The columns that are needed to choose, whether they are shown or not."""
        if self.tags is not None:
            yield "tag"
        if self.time_low_ms is not None or self.time_high_ms is not None:
            yield "time"


async def columns(
    store: Reader,
    state: Readable,
    low: int,
    high: int,
    *,
    count: Counts,
    tags: Collection[bytes] | None = None,
    time_low_ms: int | None = None,
    time_high_ms: int | None = None,
    batch_rows: int = BATCH_ROWS,
    meta: bool = False,
    text: bool = True,
    names: Collection[str] | None = None,
    look_bytes: int | None = None,
) -> AsyncGenerator[pa.RecordBatch, None]:
    choice = Choice(None if tags is None else frozenset(tags), time_low_ms, time_high_ms)
    schema = column_schema(meta=meta, text=text)
    if names is not None:
        schema = pa.schema([field for field in schema if field.name in names])
    glue = _Glue(choice, batch_rows, schema)
    sieve = _Sieve(choice)
    expected = min(low, high, state.next)
    looked, is_cut = 0, False
    pieces = read_nodes(store, state, low, high, wanted=sieve.wants)
    async with aclosing(pieces) as found:
        async for node, start, stop in found:
            count.evicted += node.first + start - expected
            expected = node.first + stop
            if isinstance(node, Header):
                count.skipped += 1
                if sieve.is_over:
                    break
                looked += max(node.stored_bytes, _LOOK_BYTES_MIN)
                if glue.is_empty:
                    count.end = expected
            else:
                if glue.is_empty:
                    count.end = node.first + start
                count.nodes += 1
                looked += max(node.memory_bytes, _LOOK_BYTES_MIN)
                for batch in glue.add((node, start, stop)):
                    yield count.counted(batch, glue.end)
            if look_bytes is not None and looked >= look_bytes:
                is_cut = True
                break
    if not sieve.is_over and not is_cut:
        count.evicted += max(min(high, state.next) - expected, 0)
    for batch in glue.rest():
        yield count.counted(batch, glue.end)
    count.end = expected if is_cut else max(low, high)


class _Sieve:
    """Judges nodes, in the order of the log, by their headers."""

    def __init__(self, choice: Choice) -> None:
        self._choice = choice
        self._last_ms: int | None = None  # of the nodes so far
        self.is_over = False  # everything from here on is too new

    def wants(self, header: Header) -> bool:
        choice, before_ms = self._choice, self._last_ms
        self._last_ms = header.time_ms
        if choice.time_high_ms is not None:
            # Times never fall: no entry is older than the newest one of the node before.
            oldest_ms = header.time_ms if header.flags & UNIFORM_TIME else before_ms
            if oldest_ms is not None and oldest_ms >= choice.time_high_ms:
                self.is_over = True
                return False
        if choice.time_low_ms is not None and header.time_ms < choice.time_low_ms:
            return False
        return choice.tags is None or may_hold(header, choice.tags)


class _Glue:
    """Gathers nodes until they make a batch."""

    def __init__(self, choice: Choice, batch_rows: int, schema: pa.Schema) -> None:
        self._choice = choice
        self._batch_rows = batch_rows
        self._schema = schema
        self._pieces: list[Piece] = []
        self._rows = 0  # of the pieces
        self._chosen: list[pa.RecordBatch] = []  # what was chosen, where that was too little
        self._chosen_rows = 0
        self._bytes = 0  # of both, about
        self.end = 0  # behind the last piece

    @property
    def is_empty(self) -> bool:
        return not self._pieces and not self._chosen

    def add(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        node, start, stop = piece
        if self._bytes + node.memory_bytes > _GLUED_BYTES_MAX:
            yield from self.rest()
        self._pieces.append(piece)
        self.end = node.first + stop
        self._rows += stop - start
        self._bytes += node.memory_bytes
        if self._rows >= self._batch_rows or self._bytes >= BATCH_BYTES:
            self._choose()
            if self._chosen_rows >= self._batch_rows or self._bytes >= BATCH_BYTES:
                yield from self.rest()

    def rest(self) -> Iterator[pa.RecordBatch]:
        self._choose()
        chosen = self._chosen
        self._chosen, self._chosen_rows, self._bytes = [], 0, 0
        if chosen:
            yield chosen[0] if len(chosen) == 1 else pa.concat_batches(chosen)

    def _choose(self) -> None:
        if self._pieces:
            batch = _batch(self._pieces, self._choice, self._schema)
            self._pieces, self._rows = [], 0
            if batch.num_rows:
                self._chosen.append(batch)
                self._chosen_rows += batch.num_rows
            self._bytes = sum(part.nbytes for part in self._chosen)


def _batch(pieces: list[Piece], choice: Choice, schema: pa.Schema) -> pa.RecordBatch:
    made: dict[str, pa.Array] = {}
    names = {*schema.names, *choice.names()}
    if "offset" in names:
        made["offset"] = _offsets(pieces)
    times = np.concatenate([_times(*piece) for piece in pieces]) if "time" in names else None
    if times is not None:
        us = pa.py_buffer(times * 1000)
        made["time"] = pa.Array.from_buffers(_TIME, len(times), [None, us])
    if "tag" in names:
        made["tag"] = _binary(pieces, "tags")
    if "data" in names:
        made["data"] = _binary(pieces, "data")
    if "meta" in names:
        made["meta"] = _metas(pieces)
    mask = _mask(pieces, times, made.get("tag"), choice)
    arrays = [made[name] for name in schema.names]
    if mask is not None:
        chosen = pa.array(mask)
        arrays = [array.filter(chosen) for array in arrays]
    arrays = [
        _text(array) if pa.types.is_string(field.type) else array
        for array, field in zip(arrays, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _offsets(pieces: list[Piece]) -> pa.Array:
    ranges = [np.arange(node.first + low, node.first + high) for node, low, high in pieces]
    return pa.array(np.concatenate(ranges), pa.int64())


def _times(node: Node, low: int, high: int) -> npt.NDArray[np.int64]:
    if node.times is None:
        return np.full(high - low, node.time_ms, np.int64)
    return node.times[low:high]


def _binary(pieces: list[Piece], name: str) -> pa.Array:
    """One column of all pieces: tables are moved up, blobs joined; one copy of each."""
    tables: list[npt.NDArray[np.uint32]] = [np.zeros(1, np.uint32)]
    blobs: list[memoryview] = []
    rows = size = 0
    for node, low, high in pieces:
        rows += high - low
        column = getattr(node, name)
        if column is None:
            tables.append(np.full(high - low, size, np.uint32))
            continue
        table = column.table
        start, end = int(table[low]), int(table[high])
        # Modulo 2**32, as a node's table may have to move down.
        tables.append(table[low + 1 : high + 1] + np.uint32((size - start) & 0xFFFF_FFFF))
        blobs.append(memoryview(node.raw)[column.start + start : column.start + end])
        size += end - start
    assert size < 1 << 31, "a node is less, and glue takes no second one then"
    table = pa.py_buffer(np.concatenate(tables))
    return pa.Array.from_buffers(pa.binary(), rows, [None, table, pa.py_buffer(b"".join(blobs))])


def _mask(
    pieces: list[Piece],
    times: npt.NDArray[np.int64] | None,
    tags: pa.Array | None,
    choice: Choice,
) -> _Mask | None:
    """Which rows are meant; None: all of them. What the choice asks for is there."""
    masks: list[_Mask] = []
    alive = [node.alive() for node, _, _ in pieces]
    if any(part is not None for part in alive):
        parts = [
            np.ones(high - low, np.bool_) if part is None else part[low:high]
            for part, (_, low, high) in zip(alive, pieces, strict=True)
        ]
        masks.append(np.concatenate(parts))
    if times is not None:
        if choice.time_low_ms is not None and times[0] < choice.time_low_ms:
            masks.append(times >= choice.time_low_ms)
        if choice.time_high_ms is not None and times[-1] >= choice.time_high_ms:
            masks.append(times < choice.time_high_ms)
    if choice.tags is not None:
        meant = pa.array(sorted(choice.tags), pa.binary())
        masks.append(pc.is_in(tags, value_set=meant).to_numpy(zero_copy_only=False))
    if not masks:
        return None
    mask = np.logical_and.reduce(masks)
    return None if mask.all() else mask


def _metas(pieces: list[Piece]) -> pa.Array:
    """Meta of zero bytes is no meta."""
    column = _binary(pieces, "meta")
    if all(node.meta is None for node, _, _ in pieces):
        return pa.nulls(len(column), pa.binary())
    return pc.if_else(pc.greater(pc.binary_length(column), 0), column, None)


def _text(tags: pa.Array) -> pa.Array:
    try:
        return tags.cast(pa.string())  # which verifies, and copies nothing
    except pa.ArrowInvalid:
        coded = tags.dictionary_encode()
        texts = [tag.decode("utf-8", "replace") for tag in coded.dictionary.to_pylist()]
        return pa.array(texts, pa.string()).take(coded.indices)


def _data_bytes(batch: pa.RecordBatch) -> int:
    if "data" not in batch.schema.names or not batch.num_rows:
        return 0
    column = batch.column("data")
    table = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, column.offset * 4)
    return int(table[-1]) - int(table[0])
