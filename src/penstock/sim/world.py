"""The world: one disk, processes that come and go, clients in front of them; one seed for all.

Contract     `World(seed, steps)` draws everything from the seed: limits, weather, deadline, the
             times at which processes are killed, stopped, overtaken and closed, and jumps of the
             wall clock. `supervise` keeps one process serving. Clients ask `turn` before each
             step: the world is over when the steps are used up. `quiet` ends the troubles for a
             while, so that what must hold at rest can be looked at (oracle.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import Context
from random import Random
from typing import Any

import msgspec

from penstock.errors import PenstockError
from penstock.sim.clock import SimClock
from penstock.sim.faults import draw_weather
from penstock.sim.grouplog import GroupLog
from penstock.sim.history import History
from penstock.sim.loop import VirtualLoop
from penstock.sim.process import Process, SimDisk, owner_of, running
from penstock.sim.queuelog import QueueLog
from penstock.sim.trace import Trace
from penstock.store.objects import MemoryObjects
from penstock.store.port import Writes

JUMPS_MS = (-7_200_000, -60_000, -1_000, 1_000, 60_000, 7_200_000)


class Blocked(msgspec.Struct):
    """A client that waits in a blocking read, or in a claim."""

    stream: str  # or queue
    offset: int = 0
    group: str | None = None  # None: a plain read
    claims: bool = False
    since: float = 0.0
    process: Process | None = None


class World:
    def __init__(self, seed: int, steps: int, *, show: bool = False) -> None:
        self.seed = seed
        self.loop = VirtualLoop(self._made)
        self.loop.set_exception_handler(self._unheard)
        self.trace = Trace(self.loop, show=show)
        self.loop.over = lambda: bool(self.trace.failures)
        self.clock = SimClock(self.loop, self.random("entropy"))
        self.disk = SimDisk()
        self.disk.on_durable = self._durable
        self.history = History(self.disk, self.clock, self.trace)
        self.groups = GroupLog(self.history, self.trace)
        #: Large payloads, beside the disk; no trouble ever comes to these.
        self.objects = MemoryObjects()
        self.queues = QueueLog(self.disk, self.clock, self.trace, self.objects)
        self.fault_random = self.random("faults")
        self._random = self.random("world")
        self.deadline = self._random.choice((2.0, 5.0, 30.0))
        self.weather = draw_weather(self._random, self.deadline)
        #: Seconds between troubles that are not faults of the store.
        self._trouble = self._random.choice((0.5, 2.0, 10.0, 1e9))
        self.steps = steps
        self.limits: dict[str, int] = {}
        self.serving: Process | None = None
        self._processes: list[Process] = []
        self._gate = asyncio.Event()
        self._gate.set()
        self._changed = asyncio.Event()
        self._calm = False
        #: Steps under way, but for those that wait for something to come.
        self.busy = 0
        self.blocked: dict[str, Blocked] = {}

    def random(self, name: str) -> Random:
        """A source of its own for each purpose, so that one more draw here moves nothing there."""
        return Random(f"{self.seed}/{name}")

    # -- what happens inside

    def _made(self, task: asyncio.Task[Any], context: Context | None) -> None:
        owner = owner_of(context)
        if owner is not None:
            owner.made(task)

    def _unheard(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        owner = running.get()
        if owner is None or owner.alive:
            self.trace.fail(f"unheard: {context.get('message')}: {context.get('exception')!r}")

    def _durable(self, n: int, writes: Writes, time_ms: int) -> None:
        owner = self.disk.owner
        self.trace.add(f"{owner} commit {n}, {len(writes)} rows, {self.disk.head.hash.hex()[:8]}")
        try:
            self.groups.made(writes)
            self.history.committed(n, writes, time_ms)
            self.groups.committed(n, writes, time_ms, self.loop.time())
            self.queues.committed(n, writes, time_ms)
        except Exception as error:  # the broker must not see it: it is not its store's fault
            self.trace.fail(f"commit {n} cannot be understood: {error!r}")

    def lost(self, process: Process) -> None:
        if process is self.serving:
            self.serving = None
        self._changed.set()

    # -- steps

    async def turn(self) -> bool:
        """Before each step of a client. -> whether there is one left"""
        await self._gate.wait()
        if self.steps <= 0:
            return False
        self.steps -= 1
        return True

    # -- processes

    async def supervise(self) -> None:
        trouble = self.loop.time() + self._random.expovariate(1 / self._trouble)
        while True:
            if self.serving is None or not self.serving.ready:
                await self._replace()
            if not self._calm and self.loop.time() >= trouble:
                await self._cause_trouble()
                trouble = self.loop.time() + self._random.expovariate(1 / self._trouble)
            self._changed.clear()
            try:
                async with asyncio.timeout(0.05):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def _replace(self) -> None:
        old, self.serving = self.serving, None
        if old is not None and old.alive:
            old.die("it lost the location")
        while self.serving is None:
            await asyncio.sleep(self._random.random() * 0.2)
            process = Process(self, len(self._processes) + 1)
            self._processes.append(process)
            try:
                await process.start()
            except PenstockError as error:
                self.trace.add(f"{process} did not start: {error!r}")
                process.die("did not start")
            else:
                self.serving = process

    async def _cause_trouble(self) -> None:
        process = self.serving
        if process is None:
            return
        match self._random.choice(("kill", "overtake", "close", "clock", "clock", "overtake")):
            case "kill":
                process.die("killed")
            case "close":
                await process.close()
            case "clock":
                self.clock.skew_ms += self._random.choice(JUMPS_MS)
                self.trace.add(f"the wall clock is off by {self.clock.skew_ms} ms")
            case "overtake":
                process.stop()
                self.serving = None
                await self._replace()
                seconds = self._random.random() * 2 * self.deadline
                self.loop.call_later(seconds, self._wake, process)

    def _wake(self, process: Process) -> None:
        process.go_on()
        self.loop.call_later(self.deadline, process.die, "overtaken for long")

    async def restart(self, *, kill: bool) -> None:
        """In the calm: another process, that knows nothing but rows."""
        process = await self.served()
        if kill:
            process.die("killed")
        else:
            await process.close()
        await self.served()

    async def served(self) -> Process:
        while self.serving is None or not self.serving.ready:
            await asyncio.sleep(0.05)
        return self.serving

    # -- rest

    @asynccontextmanager
    async def quiet(self) -> AsyncIterator[None]:
        """No faults, no new steps, no calls but those that wait for something to come."""
        weather = msgspec.structs.replace(self.weather)
        self._gate.clear()
        self._calm = True
        self.weather.calm()
        for process in self._processes:
            process.release()
        end = self.loop.time() + 4 * self.deadline + 10
        while self.busy:
            await asyncio.sleep(0.05)
            if self.loop.time() > end:
                self.trace.fail(f"{self.busy} steps never end")
                break
        # Delays that were drawn before the calm: a call has one on either side.
        await asyncio.sleep(2 * weather.delay_max)
        await self.served()
        try:
            yield
        finally:
            self.weather = weather
            self._calm = False
            self._gate.set()
