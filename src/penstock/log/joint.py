"""Small appends to one log that came together become one fragment. Pure.

Fifty clients that each write one entry would make fifty rows in one commit, each put into the
store, merged and deleted again. What is small is joined before it is decided.

Contract     `may_join` tells what is worth joining; `join_parts` gives the same entries, in the
             same order, as one body. A lone entry comes as tag and data: making a body of it, only
             to join that, was a tenth of its price.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.codec.node import Body
from penstock.log.batch import TAG_BYTES_MAX
from penstock.log.gather import Gathered

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
    if len(parts) == 1 and isinstance(parts[0], Body):
        return parts[0]
    joined = Gathered()
    lone: list[Lone] = []
    for part in parts:
        if not isinstance(part, Body):
            lone.append(part)
            continue
        if lone:
            joined.add_entries(lone)
            lone = []
        joined.add_body(part)
    if lone:
        joined.add_entries(lone)
    body = joined.body()
    assert body is not None, "what comes alive stays alive"
    return body
