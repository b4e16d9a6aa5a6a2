"""Decoded nodes that were read lately, bounded in bytes.

Contract     `find` needs no store: nodes are found by any offset they hold. A merge does not
             change what an offset holds, but punching holes does, so whoever commits calls
             `forget` with the keys of every commit, deletions included. A node that was read
             before such a commit and arrives after it must not enter: `reading()` remembers what
             was forgotten meanwhile.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from penstock.codec.keys import KeyType, decode_node_key, prefix
from penstock.codec.node import Node

CACHE_BYTES = 32 << 20
#: What a node costs besides its bytes: the object, its arrays, its places in here.
_NODE_OVERHEAD = 1024
_NODES = prefix(KeyType.NODE)

Place = tuple[int, int]
#: Every place: log ids begin at 1.
_ALL: Place = (0, 0)


class NodeCache:
    def __init__(self, bytes_max: int = CACHE_BYTES) -> None:
        self._bytes_max = bytes_max
        self._nodes: OrderedDict[Place, Node] = OrderedDict()
        self._firsts: dict[int, list[int]] = {}
        self._readings: list[set[Place]] = []
        self.bytes = 0

    def find(self, log_id: int, offset: int) -> Node | None:
        firsts = self._firsts.get(log_id)
        if not firsts or not (at := bisect_right(firsts, offset)):
            return None
        place = (log_id, firsts[at - 1])
        node = self._nodes[place]
        if node.end <= offset:
            return None
        self._nodes.move_to_end(place)
        return node

    @contextmanager
    def reading(self) -> Iterator[set[Place]]:
        """Around store reads: pass the result to `keep`."""
        forgotten: set[Place] = set()
        self._readings.append(forgotten)
        try:
            yield forgotten
        finally:
            # By identity: two readings may have forgotten the same places.
            self._readings = [other for other in self._readings if other is not forgotten]

    def keep(self, log_id: int, node: Node, forgotten: set[Place]) -> None:
        place = (log_id, node.first)
        size = _cost(node)
        if place in forgotten or _ALL in forgotten or size > self._bytes_max // 4:
            return
        self._drop(place)
        self._nodes[place] = node
        insort(self._firsts.setdefault(log_id, []), node.first)
        self.bytes += size
        while self.bytes > self._bytes_max:
            self._drop(next(iter(self._nodes)))

    def clear(self) -> None:
        """Forget everything: after an unknown outcome any row may be another one."""
        for place in list(self._nodes):
            self._drop(place)
        for forgotten in self._readings:
            forgotten.add(_ALL)

    def forget(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            if key.startswith(_NODES):
                place = decode_node_key(key)
                self._drop(place)
                for forgotten in self._readings:
                    forgotten.add(place)

    def _drop(self, place: Place) -> None:
        node = self._nodes.pop(place, None)
        if node is None:
            return
        self.bytes -= _cost(node)
        firsts = self._firsts[place[0]]
        del firsts[bisect_right(firsts, place[1]) - 1]
        if not firsts:
            del self._firsts[place[0]]


def _cost(node: Node) -> int:
    return node.memory_bytes + _NODE_OVERHEAD
