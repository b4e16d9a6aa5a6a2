"""Small appends to one log that came together become one fragment. Pure.

Fifty clients that each write one entry would make fifty rows in one commit, each put into the
store, merged and deleted again. What is small is joined before it is decided.

Contract     `may_join` tells what is worth joining; `join_parts` gives the same entries, in the
             same order, as one body. A lone entry comes as tag and data: making a body of it, only
             to take it apart again, was a tenth of its price.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from penstock.codec.node import Body, Column, body_lists, build_body, tag_signature
from penstock.log.batch import TAG_BYTES_MAX, column, is_large

JOIN_ENTRIES = 128
JOIN_BYTES = 32 << 10


def may_join(bodies: Sequence[Body]) -> bool:
    """One small, plain body: not compressed."""
    if len(bodies) != 1:
        return False
    (body,) = bodies
    return (
        body.count <= JOIN_ENTRIES
        and body.raw_bytes <= JOIN_BYTES
        and len(body.stored) == body.raw_bytes
    )


#: Tag and data of one small entry.
Lone = tuple[bytes, bytes]


def may_post(tag: bytes, data: bytes) -> bool:
    """Whether this entry may come as a `Lone`."""
    return len(tag) <= TAG_BYTES_MAX and len(tag) + len(data) <= JOIN_BYTES


def join_parts(parts: Sequence[Body | Lone]) -> Body:
    if len(parts) == 1:
        (part,) = parts
        return part if isinstance(part, Body) else _lone_body(*part)
    data: list[bytes] = []
    tags: list[bytes] = []
    metas: list[bytes] = []
    for part in parts:
        if not isinstance(part, Body):
            tags.append(part[0])
            data.append(part[1])
            metas.append(b"")
            continue
        body = part
        lists = body_lists(body)
        assert lists is not None, "may_join lets plain bodies through"
        found, found_tags, found_metas = lists
        data += found
        tags += [b""] * body.count if found_tags is None else found_tags
        metas += [b""] * body.count if found_metas is None else found_metas
    large = is_large(len(data), sum(map(len, data)) + sum(map(len, tags)))
    tagged = any(tags)
    return build_body(
        len(data),
        column(data, "data"),
        tags=column(tags, "tag") if tagged else None,
        meta=column(metas, "meta") if any(metas) else None,
        compress=large,
        signature=tag_signature(set(tags)) if tagged and large else 0,
    )


_TABLE = struct.Struct("<II")


def _column(item: bytes) -> Column:
    return _TABLE.pack(0, len(item)), item


def _lone_body(tag: bytes, data: bytes) -> Body:
    """The columns of one entry without the price of arrays."""
    return build_body(1, _column(data), tags=_column(tag) if tag else None)
