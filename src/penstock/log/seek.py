"""From a time to an offset: a binary search that reads one node's header at a time.

Contract     `seek_time` gives the first offset, of those that are not evicted, whose entry was
             written at this time or later; where all are older, the next offset. Dead entries have
             a time as others do; in a hole all have the time of its newest.
Why          Times never fall within a log, and a header has the time of the node's newest entry. So
             headers tell in which node it is, and only a node with times of its own is opened.
Races        As in read.py: what is not there was evicted meanwhile, or is corruption.
"""

from __future__ import annotations

import numpy as np

from penstock.codec.keys import log_key
from penstock.codec.logrow import decode_log
from penstock.codec.node import UNIFORM_TIME, Header, Node, decode_node
from penstock.errors import CorruptError, NotFoundError
from penstock.log.read import floor_node, node_header
from penstock.log.state import Readable
from penstock.store.port import Reader


async def seek_time(store: Reader, state: Readable, time_ms: int) -> int:
    log_id = state.log_id
    # Below `low` everything is older or evicted; from `high` on nothing is.
    low, high = state.first, state.next
    while low < high:
        middle = (low + high) // 2
        row = await floor_node(store, log_id, middle)
        header = None if row is None else node_header(log_id, *row)
        if row is None or header is None or header.end <= middle:
            low = await _first_after(store, log_id, middle)
        elif header.time_ms < time_ms:
            low = header.end
        else:
            start = _start(header, row[1], time_ms)
            if start > header.first:
                return min(max(start, low), high)
            high = max(header.first, low)
    return min(low, state.next)


def _start(header: Header, value: bytes, time_ms: int) -> int:
    """The first offset of this node that is not older, one of which there is."""
    if header.flags & UNIFORM_TIME:
        return header.first
    node: Node = decode_node(value, f"node {header.first}")
    assert node.times is not None
    return header.first + int(np.searchsorted(node.times, time_ms))


async def _first_after(store: Reader, log_id: int, missing: int) -> int:
    """Where the log begins by now, if the node of this offset was evicted."""
    row = await store.get(log_key(log_id))
    if row is None:
        raise NotFoundError(f"log {log_id} was deleted while it was read")
    first = decode_log(row, log_id).first
    if first <= missing:
        raise CorruptError(f"log {log_id}: the node of offset {missing} is missing")
    return first
