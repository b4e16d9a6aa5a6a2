"""Nodes from outside: laid out and compressed by a client, so that the one broker has less to do.

Contract     `take_node` verifies all of it before any of it is taken, and refuses what only a log
             says of its entries: their times, which are those of the commit, and which are evicted.
             A log with such a node could not be read any more, or not be searched by time. Nor
             by tag, where its signature leaves one out.
Bounds       Those of batch.py. A few kilobytes may stand for gigabytes once they are decompressed,
             so what a header says is compared before anything is.
"""

from __future__ import annotations

from penstock.codec.node import (
    ANY_TAG,
    UNIFORM_TIME,
    VALIDITY,
    Body,
    Node,
    decode_body,
    decode_columns,
    decode_header,
)
from penstock.errors import CorruptError, InvalidError
from penstock.log.batch import (
    ENTRY_BYTES_MAX,
    NODE_BYTES,
    NODE_ENTRIES,
    TAG_BYTES_MAX,
    column_signature,
)

#: Data and meta of an entry, the node's tags, tables.
_RAW_BYTES_MAX = 2 * ENTRY_BYTES_MAX + 2 * NODE_BYTES


def take_node(value: bytes, what: str) -> tuple[Node, Body]:
    """Its columns, and its body, which gets another header. InvalidError names it as `what`."""
    try:
        header = decode_header(value, what)
        if header.count > NODE_ENTRIES:
            raise InvalidError(f"{what}: {header.count:,} entries; at most {NODE_ENTRIES:,} fit")
        if header.raw_bytes > _RAW_BYTES_MAX:
            raise InvalidError(
                f"{what}: {header.raw_bytes:,} bytes; at most {_RAW_BYTES_MAX:,} fit"
            )
        node, body = decode_columns(header, value, what), decode_body(header, value, what)
    except CorruptError as error:
        raise InvalidError(str(error)) from None
    if not header.flags & UNIFORM_TIME:
        raise InvalidError(f"{what}: entries with times of their own")
    if header.flags & VALIDITY:
        raise InvalidError(f"{what}: entries that are evicted already")
    bounds = (("tag", TAG_BYTES_MAX), ("data", ENTRY_BYTES_MAX), ("meta", ENTRY_BYTES_MAX))
    for (name, most), column in zip(bounds, (node.tags, node.data, node.meta), strict=True):
        longest = 0 if column is None else int(column.sizes().max(initial=0))
        if longest > most:
            raise InvalidError(f"{what}: {name} of {longest:,} bytes; at most {most:,} are allowed")
    if header.signature not in (0, ANY_TAG):
        assert node.tags is not None, "a header without tags has no signature"
        if column_signature(header.count, node.tags.column(node.raw)) & ~header.signature:
            raise InvalidError(f"{what}: tags that its signature leaves out")
    return node, body
