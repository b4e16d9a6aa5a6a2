"""A client: asks processes, counts the time, and never believes more than it was told.

Contract     `ask` returns the answer, or raises `Lost`: the outcome is unknown. Errors that are
             answers (not found, conflict) are raised as they are; anything else is a failure of the
             world. A client stays with its process until that fails it, as one with a connection
             would, so some keep asking a broker that was overtaken.
Invariants   T1  a call ends within its deadline, and a blocking one that much after its time
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import TypeVar

from penstock.broker.queues import Queues
from penstock.broker.streams import Streams
from penstock.errors import (
    ConflictError,
    FencedError,
    InvalidError,
    NotFoundError,
    PenstockError,
    UnavailableError,
)
from penstock.sim.process import Process
from penstock.sim.world import Blocked, World

T = TypeVar("T")
Ask = Callable[[Streams], Awaitable[T]]
AskQueues = Callable[[Queues], Awaitable[T]]

#: Commits and timers are rounded to milliseconds.
SLACK = 0.01


class Lost(Exception):  # noqa: N818
    """Nobody knows whether it happened."""


class Client:
    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.random = world.random(name)
        self.history, self.groups = world.history, world.groups
        self._process: Process | None = None
        #: The newest commit that the process had applied when the last call began.
        self.n = 0
        #: What time it was then, in its eyes; and when it answered.
        self.began_ms = self.ended_ms = 0

    def fail(self, text: str) -> None:
        self.world.trace.fail(f"{self.name}: {text}")

    async def _connect(self) -> Process:
        if self._process is None or not self._process.ready:
            self._process = await self.world.served()
        return self._process

    async def ask(
        self, what: str, ask: Ask[T], *, block: float | None = 0.0, blocked: Blocked | None = None
    ) -> T:
        """`block` is how long the call may wait for something to come; None: for ever."""
        # A read that waited may have to ask once more at the end.
        calls = 1 if blocked is None else 2
        return await self._ask(what, lambda process: process.call(ask), calls, block, blocked)

    async def ask_queues(
        self,
        what: str,
        ask: AskQueues[T],
        *,
        calls: int = 1,
        block: float | None = 0.0,
        blocked: Blocked | None = None,
    ) -> T:
        """`calls` is how many commits and reads it may take, each with the deadline for itself."""
        return await self._ask(
            what, lambda process: process.call_queues(ask), calls, block, blocked
        )

    async def _ask(
        self,
        what: str,
        call: Callable[[Process], Awaitable[T]],
        calls: int,
        block: float | None,
        blocked: Blocked | None,
    ) -> T:
        world = self.world
        process = await self._connect()
        self.n, self.began_ms = process.applied_n, process.now_ms()
        begun = world.loop.time()
        patience = None  # a client that waits may lose it, and hang up
        if blocked is not None and self.random.random() < 0.15:
            patience = self.random.choice((0.0, 0.01, 0.5))
        if blocked is not None:
            blocked.since, blocked.process = begun, process
            world.blocked[self.name] = blocked
            world.busy -= 1
        try:
            async with asyncio.timeout(patience):
                result = await call(process)
        except TimeoutError:
            world.trace.add(f"{self.name} {what}: gave up")
            raise Lost from None
        except (UnavailableError, FencedError) as error:
            self._process = None
            world.trace.add(f"{self.name} {what}: {type(error).__name__} {error}")
            raise Lost from None
        except (ConflictError, NotFoundError) as error:
            world.trace.add(f"{self.name} {what}: {type(error).__name__} {error}")
            raise
        except InvalidError as error:
            if not process.ready:
                raise Lost from None
            self.fail(f"{what}: {error!r}")
            raise Lost from None
        except (PenstockError, AssertionError) as error:
            self.fail(f"{what}: {error!r}")
            raise Lost from None
        finally:
            if blocked is not None:
                del world.blocked[self.name]
                world.busy += 1
            took = world.loop.time() - begun
            if block is not None and took > block + calls * world.deadline + SLACK:
                self.fail(f"{what}: took {took:.3f} s")
        self.ended_ms = process.now_ms()
        if self.random.random() < world.weather.lose / 2:
            world.trace.add(f"{self.name} {what}: the answer is lost")
            raise Lost
        world.trace.add(f"{self.name} {what} -> {_short(result)}")
        return result

    async def insist(self, what: str, ask: Ask[T]) -> T:
        """Until the answer is known: for what may be done twice."""
        return await self._insist(lambda: self.ask(what, ask))

    async def insist_queues(self, what: str, ask: AskQueues[T], *, calls: int = 1) -> T:
        return await self._insist(lambda: self.ask_queues(what, ask, calls=calls))

    async def _insist(self, ask: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await ask()
            except Lost:
                await asyncio.sleep(0.02 + self.random.random() * 0.2)


def _short(result: object) -> str:
    return f"{result!r:.160}"


class Actor(Client, ABC):
    """A client that lives by itself."""

    async def live(self) -> None:
        """Step after step, until the world is over."""
        while True:
            await self._think()
            if not await self.world.turn():
                return
            self.world.busy += 1
            try:
                await self.step()
            except Lost:
                pass
            finally:
                self.world.busy -= 1

    @abstractmethod
    async def step(self) -> None: ...

    async def _think(self) -> None:
        await asyncio.sleep(self.random.choice((0, 0, 0.01, 0.05, 0.3)) * self.random.random())
