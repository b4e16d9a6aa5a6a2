"""Reading messages of a topic by their offsets, which lie scattered over the all-log.

Contract     `read_messages` gives columns for rising offsets, as many as fit `size_max` bytes of
             data, at least one. A message that has a reference is never trimmed: one that is
             missing is corruption.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.codec.node import Node
from penstock.codec.topic import Offsets
from penstock.errors import CorruptError
from penstock.log.cache import NodeCache
from penstock.log.read import read_nodes
from penstock.log.state import LogState
from penstock.store.port import Reader

#: Two that lie so far apart are read one by one, without what is between them.
GAP = 2000
_HOLE = "message {} of log {} is gone"


class Messages(msgspec.Struct):
    keys: list[bytes]
    data: list[bytes]
    times_ms: list[int]


async def read_messages(
    store: Reader,
    log: LogState,
    offsets: Offsets,
    *,
    cache: NodeCache | None = None,
    size_max: int | None = None,
) -> Messages:
    found = Messages([], [], [])
    size = 0
    for cluster in np.split(offsets, np.flatnonzero(np.diff(offsets) > GAP) + 1):
        if not len(cluster):
            continue
        low, high = int(cluster[0]), int(cluster[-1]) + 1
        at = 0
        async for node, start, stop in read_nodes(store, log, low, high, cache=cache):
            end = int(cluster.searchsorted(node.first + stop))
            places = cluster[at:end] - node.first
            if len(places) and int(places[0]) < start:
                raise CorruptError(_HOLE.format(int(cluster[at]), log.log_id))
            at = end
            room = None if size_max is None else size_max - size
            fitting = _fitting(node, places, room, first=not found.data)
            size += _take(found, node, places[:fitting], log.log_id)
            if fitting < len(places):
                return found
        if at < len(cluster):
            raise CorruptError(_HOLE.format(int(cluster[at]), log.log_id))
    return found


def _sizes(node: Node, places: Offsets) -> npt.NDArray[np.int64]:
    if node.data is None:
        return np.zeros(len(places), np.int64)
    table = node.data.table
    return table[places + 1].astype(np.int64) - table[places]


def _fitting(node: Node, places: Offsets, room: int | None, *, first: bool) -> int:
    """How many of these still fit; the very first always does."""
    if room is None:
        return len(places)
    fitting = int(np.cumsum(_sizes(node, places)).searchsorted(room, side="right"))
    return max(fitting, 1) if first and len(places) else fitting


def _take(found: Messages, node: Node, places: Offsets, log_id: int) -> int:
    """Add these. -> bytes of data"""
    alive = node.alive()
    if alive is not None and not alive[places].all():
        dead = int(places[~alive[places]][0])
        raise CorruptError(_HOLE.format(node.first + dead, log_id))
    found.data += _slices(node.raw, node.data, places)
    found.keys += _slices(node.raw, node.tags, places)
    if node.times is None:
        found.times_ms += [node.time_ms] * len(places)
    else:
        found.times_ms += node.times[places].tolist()
    return int(_sizes(node, places).sum())


def _slices(raw: bytes, column: object, places: Offsets) -> list[bytes]:
    if column is None:
        return [b""] * len(places)
    table: npt.NDArray[np.uint32] = column.table  # type: ignore[attr-defined]
    begin: int = column.start  # type: ignore[attr-defined]
    lows = (table[places].astype(np.int64) + begin).tolist()
    highs = (table[places + 1].astype(np.int64) + begin).tolist()
    return [raw[low:high] for low, high in zip(lows, highs, strict=True)]
