"""Entries become bodies: checked, split into nodes of even size, laid out, compressed. Pure.

Contract     `build_bodies(entries)` runs in the caller's thread, before and outside the one writer.
             Entries are data, or (tag, data), or (tag, data, meta), all of one form; or an Arrow
             RecordBatch or Table with a column `data` and, where there are any, `tag` and `meta`.
             Whatever is wrong with them is an InvalidError that names the entry where it can.
Bounds       A node holds at most NODE_ENTRIES entries and NODE_BYTES bytes; one entry that is
             larger is a node of its own.
Not here     offsets and times: the decision that appends them knows those (append.py).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.codec.node import COLUMN_BYTES_MAX, Body, Column, build_body
from penstock.codec.scalars import U16_MAX
from penstock.errors import InvalidError

#: The size of a macro node in RCP 11.
NODE_ENTRIES = 1000
NODE_BYTES = 1 << 20
#: From here on a batch makes a node by itself: it is compressed now, and later sealed at once.
LARGE_ENTRIES = NODE_ENTRIES // 2
LARGE_BYTES = NODE_BYTES // 4
TAG_BYTES_MAX = U16_MAX

Tag = str | bytes | None
Entry = bytes | tuple[Tag, bytes] | tuple[Tag, bytes, bytes | None]
Sizes = npt.NDArray[np.int64]


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
    count = len(entries)
    if not count:
        return []
    tags, data, metas = _columns(entries)
    size = _size_of(data, "data")
    tag_size = _size_of(tags, "tag") if tags else 0
    meta_size = _size_of(metas, "meta") if metas else 0
    if tags and tag_size > TAG_BYTES_MAX:
        for i, tag in enumerate(tags):
            _check_tag_size(i, len(tag))
    size += tag_size + meta_size

    def body(low: int, high: int) -> Body:
        whole = low == 0 and high == count
        part = data if whole else data[low:high]
        tag_part = tags if whole or not tags else tags[low:high]
        meta_part = metas if whole or not metas else metas[low:high]
        return _body(
            high - low,
            column(part, "data"),
            column(tag_part, "tag") if tag_part else None,
            column(meta_part, "meta") if meta_part else None,
        )

    if count <= NODE_ENTRIES and size <= NODE_BYTES:
        return [body(0, count)]
    sizes = _sizes(data)
    for others in (tags, metas):
        if others:
            sizes = sizes + _sizes(others)
    return _split(sizes, body)


def _columns(
    entries: Sequence[Entry],
) -> tuple[Sequence[bytes] | None, Sequence[bytes], Sequence[bytes] | None]:
    """-> tags, data, meta; None for a column without a byte in it."""
    if not isinstance(entries[0], tuple):
        return None, entries, None  # type: ignore[return-value]
    try:
        tags, data, *rest = zip(*entries, strict=True)
    except (ValueError, TypeError):
        raise InvalidError(
            "entries are all data, or all (tag, data), or all (tag, data, meta)"
        ) from None
    if len(rest) > 1:
        raise InvalidError("an entry is (tag, data) or (tag, data, meta)")
    # Plain ASCII text, the usual case, is worth a path without a call of our own per entry.
    encoded = [
        tag.encode() if type(tag) is str and tag.isascii() else encode_tag(tag) for tag in tags
    ]
    metas = [b"" if meta is None else meta for meta in rest[0]] if rest else None
    return (
        encoded if any(encoded) else None,
        data,
        metas if metas and any(metas) else None,
    )


def _size_of(items: Sequence[bytes], what: str) -> int:
    try:
        return sum(map(len, items))
    except TypeError:
        raise _not_bytes(items, what) from None


def _not_bytes(items: Sequence[bytes], what: str) -> InvalidError:
    for i, item in enumerate(items):
        if not isinstance(item, bytes | bytearray | memoryview):
            return InvalidError(f"entry {i}: {what} is bytes, not {type(item).__name__}")
    return InvalidError(f"{what} is bytes, one byte per element")


def column(items: Sequence[bytes], what: str) -> Column:
    try:
        blob = b"".join(items)
        table = array("I", accumulate(map(len, items), initial=0))
    except (TypeError, OverflowError, BufferError):
        raise _not_bytes(items, what) from None
    _check_column(len(blob), what)
    if table[-1] != len(blob):
        # A memoryview of wider elements counts those, not its bytes.
        raise InvalidError(f"{what} is bytes, one byte per element")
    return table.tobytes(), blob


def _sizes(items: Sequence[bytes]) -> Sizes:
    return np.fromiter(map(len, items), np.int64, len(items))


def _check_column(size: int, what: str) -> None:
    if size > COLUMN_BYTES_MAX:
        raise InvalidError(f"{what} of {size} bytes; at most {COLUMN_BYTES_MAX} fit into a node")


def _check_tag_size(i: int, size: int) -> None:
    if size > TAG_BYTES_MAX:
        raise InvalidError(f"entry {i}: tag of {size} bytes; at most {TAG_BYTES_MAX} are allowed")


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
    columns: list[tuple[Sizes, memoryview] | None] = [_edges(data)]
    for name in ("tag", "meta"):
        present = name in batch.schema.names
        columns.append(_edges(_binary(batch, name).fill_null(b"")) if present else None)
    tag_edges = columns[1]
    if tag_edges is not None:
        tag_sizes = np.diff(tag_edges[0])
        longest = int(tag_sizes.argmax())
        _check_tag_size(longest, int(tag_sizes[longest]))
    sizes: Sizes = sum(  # type: ignore[assignment]
        np.diff(edges) for edges, _ in filter(None, columns)
    )

    def body(low: int, high: int) -> Body:
        cut = [_cut(column, low, high) if column else None for column in columns]
        assert cut[0] is not None
        return _body(high - low, cut[0], cut[1], cut[2])

    return _split(sizes, body)


def _binary(batch: pa.RecordBatch, name: str) -> pa.Array:
    try:
        return batch.column(name).cast(pa.binary())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, KeyError) as error:
        raise InvalidError(f"column {name} cannot become bytes: {error}") from None


def _edges(column: pa.Array) -> tuple[Sizes, memoryview]:
    """Where the entries begin in the blob (one more than entries), and the blob."""
    _, table, blob = column.buffers()
    edges = np.frombuffer(table, np.int32, len(column) + 1, column.offset * 4).astype(np.int64)
    return edges, memoryview(b"" if blob is None else blob)


def _cut(column: tuple[Sizes, memoryview], low: int, high: int) -> Column | None:
    edges, blob = column
    part = edges[low : high + 1]
    start, end = int(part[0]), int(part[-1])
    return (part - start).astype(np.uint32).tobytes(), bytes(blob[start:end])


# ---- both -------------------------------------------------------------------------------------


def _body(count: int, data: Column, tags: Column | None, meta: Column | None) -> Body:
    tags = tags if tags and tags[1] else None
    meta = meta if meta and meta[1] else None
    size = sum(len(column[1]) for column in (data, tags, meta) if column)
    return build_body(count, data, tags=tags, meta=meta, compress=is_large(count, size))


def _split(sizes: Sizes, body: Callable[[int, int], Body]) -> list[Body]:
    return [body(low, high) for low, high in pairwise(split_edges(sizes))]


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
