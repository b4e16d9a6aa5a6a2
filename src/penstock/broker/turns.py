"""Readers of a group that wait, served in turn (RCP 11: whoever is served goes to the end).

Contract     `wait(key, ask, count)` puts a reader behind those that wait already, and returns what
             its `ask` found once it found something. `stir(key)` says that there may be something:
             readers are asked in order, as many as what is there may serve, and those that found
             nothing keep their place.
Cost         Nothing while nothing happens; a commit asks no reader that it cannot serve.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Any

Ask = Callable[[], Awaitable[Any]]


class Reader:
    __slots__ = ("ask", "count", "found")

    def __init__(self, ask: Ask, count: int, found: asyncio.Future[Any]) -> None:
        self.ask = ask  # -> what it found, falsy for nothing
        self.count = count  # how many entries it would take
        self.found = found


class Turns:
    """`available(key)` tells about how many entries could be delivered now."""

    def __init__(self, available: Callable[[Hashable], int]) -> None:
        self._available = available
        self._queues: dict[Hashable, deque[Reader]] = {}
        self._serving: dict[Hashable, asyncio.Task[None]] = {}
        self._stirred: set[Hashable] = set()

    def __contains__(self, key: Hashable) -> bool:
        return key in self._queues

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    async def wait(self, key: Hashable, ask: Ask, count: int) -> Any:
        reader = Reader(ask, count, asyncio.get_running_loop().create_future())
        self._queues.setdefault(key, deque()).append(reader)
        try:
            return await reader.found
        finally:
            self._leave(key, reader)

    def _leave(self, key: Hashable, reader: Reader) -> None:
        queue = self._queues.get(key)
        if queue is not None:
            if reader in queue:
                queue.remove(reader)
            if not queue:
                del self._queues[key]

    def stir(self, key: Hashable) -> None:
        if key not in self._queues:
            return
        self._stirred.add(key)
        if key not in self._serving:
            self._serving[key] = asyncio.get_running_loop().create_task(self._serve(key))

    async def _serve(self, key: Hashable) -> None:
        try:
            while key in self._stirred and key in self._queues:
                self._stirred.discard(key)
                while await self._serve_some(key):
                    pass
        finally:
            self._stirred.discard(key)
            del self._serving[key]

    async def _serve_some(self, key: Hashable) -> bool:
        """Ask those at the front, all at once and in order. -> whether all of them were served"""
        queue = self._queues.get(key)
        if not queue:
            return False
        room = self._available(key)
        asked: list[Reader] = []
        for reader in queue:
            if asked and room <= 0:
                break
            asked.append(reader)
            room -= reader.count
        # Tasks run in the order they are made, so their requests enter the tick in turn.
        results = await asyncio.gather(
            *(self._ask(reader) for reader in asked), return_exceptions=True
        )
        return all(result is True for result in results)

    async def _ask(self, reader: Reader) -> bool:
        if reader.found.done():
            return True  # it gave up
        try:
            found = await reader.ask()
        except asyncio.CancelledError:
            raise
        except Exception as error:
            if not reader.found.done():
                reader.found.set_exception(error)
            return True
        if not found:
            return False
        if not reader.found.done():
            reader.found.set_result(found)
        return True
