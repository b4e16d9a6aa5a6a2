"""Readers that wait for a log to grow: woken after the commit that lets them go on.

Contract     `wait(key, offset)` returns once `grown(key, end)` told of an end above the offset, or
             of None: look again, the log is made or gone. A commit wakes the readers it can serve
             and no other; what waits costs nothing until then.
"""

from __future__ import annotations

import asyncio
import itertools
from heapq import heappop, heappush

from penstock.log.decision import StateKey

#: So many that gave up may lie in a heap whatever it holds.
GIVEN_UP_MIN = 64


class _Heap:
    """Who waits on one log. What is done in it gave up: who is woken leaves it before."""

    __slots__ = ("given_up", "items")

    def __init__(self) -> None:
        self.items: list[tuple[int, int, asyncio.Future[None]]] = []
        self.given_up = 0

    def sweep(self) -> None:
        """Forget readers that gave up, at the latest when they are more than those that wait."""
        self.given_up += 1
        items = self.items
        while items and items[0][2].done():
            heappop(items)
            self.given_up -= 1
        if self.given_up > max(GIVEN_UP_MIN, len(items) // 2):
            items[:] = sorted(item for item in items if not item[2].done())
            self.given_up = 0


class Waiters:
    def __init__(self) -> None:
        self._heaps: dict[StateKey, _Heap] = {}
        self._turn = itertools.count()

    async def wait(self, key: StateKey, offset: int) -> None:
        woken = asyncio.get_running_loop().create_future()
        heap = self._heaps.setdefault(key, _Heap())
        heappush(heap.items, (offset, next(self._turn), woken))
        try:
            await woken
        finally:
            if not woken.done() or woken.cancelled():
                woken.cancel()
                heap.sweep()
                self._drop_empty(key)

    def grown(self, key: StateKey, end: int | None) -> None:
        heap = self._heaps.get(key)
        if heap is None:
            return
        while heap.items and (end is None or heap.items[0][0] < end):
            woken = heappop(heap.items)[2]
            if woken.done():
                heap.given_up -= 1
            else:
                woken.set_result(None)
        self._drop_empty(key)

    def wake_all(self) -> None:
        for key in list(self._heaps):
            self.grown(key, None)

    def end(self, error: Exception) -> None:
        """Everybody who waits hears why nothing will come any more."""
        heaps, self._heaps = self._heaps, {}
        for heap in heaps.values():
            for _, _, woken in heap.items:
                if not woken.done():
                    woken.set_exception(error)

    def _drop_empty(self, key: StateKey) -> None:
        heap = self._heaps.get(key)
        if heap is not None and not heap.items:
            del self._heaps[key]

    def __len__(self) -> int:
        return sum(not item[2].done() for heap in self._heaps.values() for item in heap.items)
