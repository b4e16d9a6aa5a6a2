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


class Waiters:
    def __init__(self) -> None:
        self._heaps: dict[StateKey, list[tuple[int, int, asyncio.Future[None]]]] = {}
        self._turn = itertools.count()

    async def wait(self, key: StateKey, offset: int) -> None:
        woken = asyncio.get_running_loop().create_future()
        heappush(self._heaps.setdefault(key, []), (offset, next(self._turn), woken))
        try:
            await woken
        finally:
            if not woken.done():
                woken.cancel()
            self._sweep(key)

    def grown(self, key: StateKey, end: int | None) -> None:
        heap = self._heaps.get(key)
        while heap and (end is None or heap[0][0] < end):
            woken = heappop(heap)[2]
            if not woken.done():
                woken.set_result(None)
        if heap is not None and not heap:
            self._heaps.pop(key, None)

    def wake_all(self) -> None:
        for key in list(self._heaps):
            self.grown(key, None)

    def end(self, error: Exception) -> None:
        """Everybody who waits hears why nothing will come any more."""
        for heap in list(self._heaps.values()):
            for _, _, woken in heap:
                if not woken.done():
                    woken.set_exception(error)

    def _sweep(self, key: StateKey) -> None:
        """Forget readers that gave up, at the latest when they are half of those that wait."""
        heap = self._heaps.get(key)
        if heap is None:
            return
        while heap and heap[0][2].done():
            heappop(heap)
        if len(heap) > 64 and next(self._turn) % len(heap) == 0:
            heap[:] = sorted(item for item in heap if not item[2].done())
        if not heap:
            self._heaps.pop(key, None)

    def __len__(self) -> int:
        return sum(not item[2].done() for heap in self._heaps.values() for item in heap)
