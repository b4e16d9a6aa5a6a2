"""Small appends to one log that came together become one fragment. Pure.

Fifty clients that each write one entry would make fifty rows in one commit, each put into the
store, merged and deleted again. What is small is joined before it is decided.

Contract     `may_join` tells what is worth joining; `join_bodies` gives the same entries, in the
             same order, as one body.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.codec.node import Body, body_lists, build_body
from penstock.log.batch import column, is_large

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


def join_bodies(bodies: Sequence[Body]) -> Body:
    if len(bodies) == 1:
        return bodies[0]
    data: list[bytes] = []
    tags: list[bytes] = []
    metas: list[bytes] = []
    for body in bodies:
        lists = body_lists(body)
        assert lists is not None, "may_join lets plain bodies through"
        found, found_tags, found_metas = lists
        data += found
        tags += [b""] * body.count if found_tags is None else found_tags
        metas += [b""] * body.count if found_metas is None else found_metas
    return build_body(
        len(data),
        column(data, "data"),
        tags=column(tags, "tag") if any(tags) else None,
        meta=column(metas, "meta") if any(metas) else None,
        compress=is_large(len(data), sum(body.raw_bytes for body in bodies)),
    )
