"""Nodes from outside: laid out and compressed by a client, so that the one broker has less to do.

Contract     `take_node` verifies all of it before any of it is taken, and refuses what only a log
             says of its entries: their times, which are those of the commit, and which are evicted.
             A log with such a node could not be read any more, or not be searched by time.
"""

from __future__ import annotations

import numpy as np

from penstock.codec.node import (
    UNIFORM_TIME,
    VALIDITY,
    Body,
    Node,
    decode_body,
    decode_columns,
    decode_header,
)
from penstock.errors import CorruptError, InvalidError
from penstock.log.batch import TAG_BYTES_MAX


def take_node(value: bytes, what: str) -> tuple[Node, Body]:
    """Its columns, and its body, which gets another header. InvalidError names it as `what`."""
    try:
        header = decode_header(value, what)
        node, body = decode_columns(header, value, what), decode_body(header, value, what)
    except CorruptError as error:
        raise InvalidError(str(error)) from None
    if not header.flags & UNIFORM_TIME:
        raise InvalidError(f"{what}: entries with times of their own")
    if header.flags & VALIDITY:
        raise InvalidError(f"{what}: entries that are evicted already")
    if node.tags is not None:
        longest = int(np.diff(node.tags.table).max(initial=0))
        if longest > TAG_BYTES_MAX:
            raise InvalidError(
                f"{what}: a tag of {longest} bytes; at most {TAG_BYTES_MAX} are allowed"
            )
    return node, body
