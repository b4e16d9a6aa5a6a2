"""A node as an Arrow record batch, without touching a message.

Contract     `to_batch(node, low, high)`: entries low <= i < high as columns whose buffers lie
             inside the decoded node. Only what a node does not store is made: the offsets, times
             that are one number, tags that are all empty, and which meta are null. A dead entry is
             null in tag, data and meta; it keeps its offset and time.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.codec.node import Node

SCHEMA = pa.schema(
    [
        pa.field("offset", pa.uint64(), nullable=False),
        pa.field("time", pa.timestamp("ms", tz="UTC"), nullable=False),
        pa.field("tag", pa.binary()),
        pa.field("data", pa.binary()),
        pa.field("meta", pa.binary()),
    ]
)


def to_batch(node: Node, low: int = 0, high: int | None = None) -> pa.RecordBatch:
    count = node.count
    raw = pa.py_buffer(node.raw)
    offsets = pa.array(np.arange(node.first, node.end, dtype=np.uint64))
    times = np.full(count, node.time_ms, np.int64) if node.times is None else node.times
    stamps = pa.Array.from_buffers(SCHEMA.field("time").type, count, [None, pa.py_buffer(times)])
    validity = None
    if node.data is None:
        validity = pa.py_buffer(bytes(-(-count // 8)))
    elif node.validity is not None:
        validity = raw.slice(node.validity, -(-count // 8))
    meta_validity = _present(node) if node.meta is not None else pa.py_buffer(bytes(-(-count // 8)))
    batch = pa.RecordBatch.from_arrays(
        [
            offsets,
            stamps,
            _binary(node, "tags", raw, validity),
            _binary(node, "data", raw, validity),
            _binary(node, "meta", raw, meta_validity),
        ],
        schema=SCHEMA,
    )
    return batch.slice(low, (count if high is None else high) - low)


def _binary(node: Node, name: str, raw: pa.Buffer, validity: pa.Buffer | None) -> pa.Array:
    column = getattr(node, name)
    if column is None:
        table, blob = pa.py_buffer(bytes(4 * (node.count + 1))), pa.py_buffer(b"")
    else:
        table = pa.py_buffer(column.table)
        blob = raw.slice(column.start, int(column.table[-1]))
    return pa.Array.from_buffers(pa.binary(), node.count, [validity, table, blob])


def _present(node: Node) -> pa.Buffer:
    """Meta of zero bytes is no meta, so dead entries need no bitmap of their own here."""
    assert node.meta is not None
    return pa.py_buffer(np.packbits(node.meta.sizes() > 0, bitorder="little"))
