"""Readers of a group that wait, served in turn (RCP 11: whoever is served goes to the end).

Contract     `wait` puts a reader behind those that wait already, and returns what its `ask` found
             once it found something, or None when its time is over. `stir(key)` says that there may
             be something: readers are asked in order, as many as what is there may serve, and
             those that found nothing keep their place.
             However short its time, a reader is asked once if there is something for it.
Invariants   What an `ask` found goes to its reader, also when its time ended meanwhile: entries
             that nobody has to acknowledge would be lost otherwise.
Cost         Nothing while nothing happens; a commit asks no reader that it cannot serve.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Any

Ask = Callable[[], Awaitable[Any]]


class Reader:
    __slots__ = ("ask", "asking", "chosen", "count", "found", "had_its_turn", "late")

    def __init__(self, ask: Ask, count: int, found: asyncio.Future[Any]) -> None:
        self.ask = ask  # -> what it found, falsy for nothing
        self.count = count  # how many entries it would take
        self.found = found
        self.had_its_turn = False
        self.chosen = False  # to be asked in this round
        self.asking = False
        self.late = False  # its time is over, but its turn is not


class Turns:
    """`available(key)` tells about how many entries could be delivered now; 0: surely none.
    `idle(key)` is called when nothing more can be done for those that still wait."""

    def __init__(
        self,
        available: Callable[[Any], int],
        idle: Callable[[Any], None] = lambda key: None,
    ) -> None:
        self._available = available
        self._idle = idle
        self._queues: dict[Hashable, deque[Reader]] = {}
        self._serving: dict[Hashable, asyncio.Task[None]] = {}
        self._stirred: set[Hashable] = set()

    def __contains__(self, key: Hashable) -> bool:
        return key in self._queues

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def waiting(self) -> list[Any]:
        """The keys that somebody waits under."""
        return list(self._queues)

    async def wait(self, key: Hashable, ask: Ask, count: int, seconds: float | None) -> Any | None:
        reader = Reader(ask, count, asyncio.get_running_loop().create_future())
        self._queues.setdefault(key, deque()).append(reader)
        # A commit may have come by since the caller looked.
        self.stir(key)
        try:
            try:
                await asyncio.wait([reader.found], timeout=seconds)
            except asyncio.CancelledError:
                return await self._found_while_cancelled(reader)
            if not reader.found.done():
                if not reader.chosen and (reader.had_its_turn or key not in self._serving):
                    return None
                reader.late = True
                try:
                    await asyncio.wait([reader.found])
                except asyncio.CancelledError:
                    return await self._found_while_cancelled(reader)
            return reader.found.result()
        finally:
            self._leave(key, reader)

    async def _found_while_cancelled(self, reader: Reader) -> Any:
        """Cancelled while it is being asked: what it is given in this moment is still its own."""
        cancelled = 1
        reader.late = True
        while reader.asking and not reader.found.done():
            try:
                await asyncio.wait([reader.found])
            except asyncio.CancelledError:
                cancelled += 1
        found = None
        if reader.found.done() and not reader.found.cancelled():
            found = reader.found.result()
        if not found:
            raise asyncio.CancelledError
        task = asyncio.current_task()
        assert task is not None
        for _ in range(cancelled):
            task.uncancel()
        return found

    def _leave(self, key: Hashable, reader: Reader) -> None:
        reader.found.cancel()
        queue = self._queues.get(key)
        if queue is not None and reader in queue:
            queue.remove(reader)
            if not queue:
                del self._queues[key]

    def end(self, error: Exception) -> None:
        """Everybody who waits hears why nobody will be served any more."""
        for queue in list(self._queues.values()):
            for reader in list(queue):
                if not reader.found.done():
                    reader.found.set_exception(error)

    def stir(self, key: Hashable) -> None:
        if key not in self._queues:
            return
        self._stirred.add(key)
        if key not in self._serving:
            self._serving[key] = asyncio.get_running_loop().create_task(self._serve(key))

    def stir_served(self) -> None:
        """Ask those once more that are being asked: something changed, and whose is not known."""
        self._stirred.update(self._serving)

    async def _serve(self, key: Hashable) -> None:
        try:
            while key in self._stirred:
                self._stirred.discard(key)
                while await self._serve_some(key):
                    pass
        finally:
            self._stirred.discard(key)
            del self._serving[key]
            for reader in self._queues.get(key, ()):
                if reader.late and not reader.found.done():
                    reader.found.set_result(None)  # there was nothing for it
        if key in self._queues:
            self._idle(key)

    async def _serve_some(self, key: Hashable) -> bool:
        """Ask those at the front, all at once and in order. -> whether all of them were served"""
        waiting = self._queues.get(key)
        if waiting is None:
            return False  # served, as most are at once: what is left is for the next one
        room = self._available(key)
        asked: list[Reader] = []
        for reader in waiting:
            if room <= 0:
                break
            if not reader.found.done():
                reader.chosen = reader.had_its_turn = True
                asked.append(reader)
                room -= reader.count
        # Tasks run in the order they are made, so their requests enter the tick in turn.
        results = await asyncio.gather(*(self._ask(key, reader) for reader in asked))
        return bool(results) and all(results)

    async def _ask(self, key: Hashable, reader: Reader) -> bool:
        if reader.found.done():
            reader.chosen = False
            return True  # it left before this began: nothing may be delivered to it
        reader.asking = True
        try:
            found = await reader.ask()
        except Exception as error:
            if not reader.found.done():
                reader.found.set_exception(error)
            return True
        finally:
            reader.chosen = reader.asking = False
        if not reader.found.done() and (found or reader.late):
            reader.found.set_result(found or None)
        if reader.found.done():
            self._leave(key, reader)  # at once: the next round must not meet it
        return bool(found)
