"""Entries become bodies: checked, split into nodes of even size, laid out, compressed. Pure.

Contract     `build_bodies(entries)` runs in the caller's thread, before and outside the one writer.
             Entries are data, or (tag, data), or (tag, data, meta), all of one form; or an Arrow
             RecordBatch or Table with a column `data` and, where there are any, `tag` and `meta`.
             Whatever is wrong with them is an InvalidError that names the entry where it can.
Bounds       A node holds at most NODE_ENTRIES entries and NODE_BYTES bytes; one entry that is
             larger is a node of its own. Data and meta of an entry end at ENTRY_BYTES_MAX: what
             one process writes every other one must be able to read, in one answer.
Not here     offsets and times: the decision that appends them knows those (append.py).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence, Sized
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.codec.node import (
    ANY_TAG,
    SIGNATURE_TAGS_MAX,
    Body,
    Column,
    build_body,
    tag_signature,
)
from penstock.codec.scalars import U16_MAX
from penstock.errors import InvalidError

#: The size of a macro node in RCP 11.
NODE_ENTRIES = 1000
NODE_BYTES = 1 << 20
#: From here on a batch makes a node by itself: it is compressed now, and later sealed at once.
LARGE_ENTRIES = NODE_ENTRIES // 2
LARGE_BYTES = NODE_BYTES // 4
TAG_BYTES_MAX = U16_MAX
#: As of a payload: what a socket takes in one piece. And a commit of it ends within its deadline.
ENTRY_BYTES_MAX = 64 << 20

Tag = str | bytes | None
Entry = bytes | tuple[Tag, bytes] | tuple[Tag, bytes, bytes | None]
Sizes = npt.NDArray[np.int64]
#: Where each entry begins in a blob, and where the last one ends; the blob.
Edges = tuple[Sizes, bytes | memoryview]


_ONE_FORM = "entries are all data, or all (tag, data), or all (tag, data, meta)"


def is_large(count: int, size: int) -> bool:
    return count >= LARGE_ENTRIES or size >= LARGE_BYTES


def build_bodies(entries: Sequence[Entry] | pa.RecordBatch | pa.Table) -> list[Body]:
    """What an append takes. No entries, no bodies."""
    if isinstance(entries, pa.Table):
        batches = entries.combine_chunks().to_batches()
        return [body for batch in batches for body in _arrow_bodies(batch)]
    if isinstance(entries, pa.RecordBatch):
        return _arrow_bodies(entries)
    return _list_bodies(entries)


def encode_tag(tag: Tag) -> bytes:
    """Tags are bytes; as text, surrogates stand for bytes that are not UTF-8."""
    if isinstance(tag, str):
        try:
            return tag.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise InvalidError(f"tag {tag!r} is not valid text: {error.reason}") from None
    if tag is None:
        return b""
    if isinstance(tag, bytes | bytearray | memoryview):
        return bytes(tag)
    raise InvalidError(f"a tag is text or bytes, not {type(tag).__name__}")


# ---- lists ------------------------------------------------------------------------------------


def _list_bodies(entries: Sequence[Entry]) -> list[Body]:
    if isinstance(entries, str | bytes | bytearray | memoryview):
        raise InvalidError("entries are a list; this is one entry")
    if not len(entries):
        return []
    try:
        return _form_bodies(entries)
    except InvalidError:
        # Looked for only now: what is right is not looked at twice.
        with_tags = isinstance(entries[0], tuple)
        for i, entry in enumerate(entries):
            if isinstance(entry, tuple) != with_tags:
                raise InvalidError(f"{_ONE_FORM}; entry {i} is not what entry 0 is") from None
        raise


def _form_bodies(entries: Sequence[Entry]) -> list[Body]:
    if not isinstance(entries[0], tuple):
        return _bodies([_list_edges(entries, "data"), None, None])  # type: ignore[arg-type]
    try:
        tags, data, *rest = zip(*entries, strict=True)
    except (ValueError, TypeError):
        raise InvalidError(_ONE_FORM) from None
    if len(rest) > 1:
        raise InvalidError("an entry is (tag, data) or (tag, data, meta)")
    metas = [b"" if meta is None else meta for meta in rest[0]] if rest else None
    return build_columns(data, tags=tags, metas=metas)


def build_columns(
    data: Sequence[bytes],
    *,
    tags: Sequence[Tag] | None = None,
    metas: Sequence[bytes] | None = None,
) -> list[Body]:
    """The same from columns of one length; an empty meta is none."""
    if not len(data):
        return []
    return _bodies(
        [
            _list_edges(data, "data"),
            _tag_edges(tags) if tags else None,
            _list_edges(metas, "meta") if metas else None,
        ]
    )


def build_blob(edges: Sizes, blob: bytes) -> list[Body]:
    """The same from data that is laid out already."""
    return _bodies([(edges, blob), None, None]) if len(edges) > 1 else []


def _tag_edges(tags: Sequence[Tag]) -> Edges:
    """All ASCII text or all bytes, the usual cases, go without a call of our own per entry."""
    try:
        if type(tags[0]) is str:
            text = "".join(tags)  # type: ignore[arg-type]
            if text.isascii():
                return _edges_of(tags, text.encode())  # type: ignore[arg-type]
        elif type(tags[0]) is bytes:
            return _list_edges(tags, "tag")  # type: ignore[arg-type]
    except (TypeError, InvalidError):
        pass  # mixed; or wrong, and then the encoder says what is
    return _list_edges([encode_tag(tag) for tag in tags], "tag")


def _list_edges(items: Sequence[bytes], what: str) -> Edges:
    try:
        edges, blob = _edges_of(items, b"".join(items))
    except (TypeError, BufferError):
        raise _not_bytes(items, what) from None
    if edges[-1] != len(blob):
        # A memoryview of wider elements counts those, not its bytes.
        raise InvalidError(f"{what} is bytes, one byte per element")
    return edges, blob


def _edges_of(items: Sequence[Sized], blob: bytes) -> Edges:
    return np.fromiter(accumulate(map(len, items), initial=0), np.int64, len(items) + 1), blob


def _not_bytes(items: Sequence[bytes], what: str) -> InvalidError:
    for i, item in enumerate(items):
        if not isinstance(item, bytes | bytearray | memoryview):
            return InvalidError(f"entry {i}: {what} is bytes, not {type(item).__name__}")
    return InvalidError(f"{what} is bytes, one byte per element")


def column(items: Sequence[bytes], what: str) -> Column:
    """One column of a node, from its entries."""
    return _cut(_list_edges(items, what), 0, len(items), what)


# ---- Arrow ------------------------------------------------------------------------------------


def _arrow_bodies(batch: pa.RecordBatch) -> list[Body]:
    """Without a loop over messages: tables are rebased, blobs are cut out."""
    unknown = set(batch.schema.names) - {"data", "tag", "meta"}
    if unknown or batch.schema.names.count("data") != 1:
        raise InvalidError(
            f"columns are data and, optionally, tag and meta; these are {batch.schema.names}"
        )
    count = batch.num_rows
    if not count:
        return []
    data = _binary(batch, "data")
    if data.null_count:
        raise InvalidError("data has nulls; an entry without data is empty bytes")
    columns: list[Edges | None] = [_edges(data)]
    for name in ("tag", "meta"):
        present = name in batch.schema.names
        columns.append(_edges(_binary(batch, name).fill_null(b"")) if present else None)
    return _bodies(columns)


def _binary(batch: pa.RecordBatch, name: str) -> pa.Array:
    try:
        return batch.column(name).cast(pa.binary())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, KeyError) as error:
        raise InvalidError(f"column {name} cannot become bytes: {error}") from None


def _edges(column: pa.Array) -> Edges:
    _, table, blob = column.buffers()
    edges = np.frombuffer(table, np.int32, len(column) + 1, column.offset * 4).astype(np.int64)
    return edges, memoryview(b"" if blob is None else blob)


# ---- both -------------------------------------------------------------------------------------


def _bodies(columns: Sequence[Edges | None]) -> list[Body]:
    """data, tags, meta -> bodies, as many as the bounds ask for."""
    there = [column for column in columns if column]
    edges = there[0][0]
    count = len(edges) - 1
    if columns[1]:
        tag_sizes = np.diff(columns[1][0])
        longest = int(tag_sizes.argmax())
        _check_tag_size(longest, int(tag_sizes[longest]))
    size = sum(int(ends[-1] - ends[0]) for ends, _ in there)
    if count <= NODE_ENTRIES and size <= NODE_BYTES:
        return [_body(columns, 0, count)]
    sizes: Sizes = sum(np.diff(ends) for ends, _ in there)  # type: ignore[assignment]
    return [_body(columns, low, high) for low, high in pairwise(split_edges(sizes))]


def _body(columns: Sequence[Edges | None], low: int, high: int) -> Body:
    data, tags, meta = (
        _cut(column, low, high, what) if column else None
        for column, what in zip(columns, ("data", "tag", "meta"), strict=True)
    )
    assert data is not None
    tags = tags if tags and tags[1] else None
    meta = meta if meta and meta[1] else None
    size = sum(len(column[1]) for column in (data, tags, meta) if column)
    large = is_large(high - low, size)
    # What is small will be merged, and gets its signature then.
    signature = column_signature(high - low, tags) if tags and large else 0
    return build_body(high - low, data, tags=tags, meta=meta, compress=large, signature=signature)


def column_signature(count: int, tags: Column) -> int:
    """The signature of a column of tags, without a loop over its entries."""
    table, blob = tags
    # Tags that all differ, or are all the same, show in a few of them, in a fraction of the time.
    sampled = min(count, SIGNATURE_TAGS_MAX + 2)
    edges = struct.unpack_from(f"<{sampled + 1}I", table)
    sample = {blob[low:high] for low, high in pairwise(edges)}
    if len(sample) > SIGNATURE_TAGS_MAX:
        return ANY_TAG
    # Not by the bytes alone: b"11" and b"" come to as many as b"1" twice.
    alike = (np.arange(count + 1, dtype="<u4") * edges[1]).tobytes()
    if len(sample) > 1 or table != alike or blob != blob[: edges[1]] * count:
        buffers = [None, pa.py_buffer(table), pa.py_buffer(blob)]
        distinct = pa.Array.from_buffers(pa.binary(), count, buffers).unique()
        if len(distinct) > SIGNATURE_TAGS_MAX:
            return ANY_TAG
        return tag_signature(distinct.to_pylist())
    return tag_signature(sample)


def _cut(column: Edges, low: int, high: int, what: str) -> Column:
    edges, blob = column
    part = edges[low : high + 1]
    start, end = int(edges[low]), int(edges[high])
    if end - start > ENTRY_BYTES_MAX:  # of one entry: several are less than a node
        size = end - start
        raise InvalidError(
            f"entry {low}: {what} of {size:,} bytes; at most {ENTRY_BYTES_MAX:,} are allowed",
            hint="keep it in a file, and write where that is",
        )
    if start:
        part = part - start
    # The whole of it is the object that it is; of a view bytes are made.
    return part.astype(np.uint32).tobytes(), bytes(blob[start:end])


def _check_tag_size(i: int, size: int) -> None:
    if size > TAG_BYTES_MAX:
        raise InvalidError(f"entry {i}: tag of {size} bytes; at most {TAG_BYTES_MAX} are allowed")


def split_edges(sizes: Sizes) -> list[int]:
    """Where nodes begin, and the end: as even as the bounds allow."""
    count = len(sizes)
    # The cost of an entry is its share of a node, by count or by bytes, whichever is larger.
    cost = np.cumsum(np.maximum(1 / NODE_ENTRIES, sizes / NODE_BYTES))
    ends = np.cumsum(sizes)
    nodes = int(np.ceil(cost[-1] - 1e-9))
    # Whole entries may need one node more than their sum does.
    for parts in (nodes, nodes + 1):
        even = np.searchsorted(cost, cost[-1] * np.arange(1, parts) / parts + 1e-9)
        edges = [0, *np.unique(even[(even > 0) & (even < count)]).tolist(), count]
        if all(_fits(ends, low, high) for low, high in pairwise(edges)):
            return edges
    # Entries of very different size: fill each node as far as it goes.
    edges = [0]
    while (low := edges[-1]) < count:
        before = int(ends[low - 1]) if low else 0
        high = int(np.searchsorted(ends, before + NODE_BYTES, side="right"))
        edges.append(min(max(high, low + 1), low + NODE_ENTRIES, count))
    return edges


def _fits(ends: Sizes, low: int, high: int) -> bool:
    before = int(ends[low - 1]) if low else 0
    return high - low == 1 or (
        high - low <= NODE_ENTRIES and int(ends[high - 1]) - before <= NODE_BYTES
    )
