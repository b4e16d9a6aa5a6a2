"""A simulated process: one broker with its store handle, that can be stopped, killed and overtaken.

Contract     `call` and `call_queues` are the only ways in: they run a request inside the process
             and bring the answer out. A killed process answers nothing: calls in flight end in
             UnavailableError, all of its tasks end, what was not durable is gone. A stopped one
             (`stop`) hangs in its next call to the store until `go_on`, whatever happens in the
             world meanwhile.
Invariants   W1  whoever lost the location answers no call that began after the loss
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context, ContextVar, copy_context
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.broker.broker import Broker
from penstock.broker.queues import Queues
from penstock.broker.streams import Streams
from penstock.errors import FencedError, UnavailableError
from penstock.sim.clock import SimClock
from penstock.sim.faults import draw_fault
from penstock.store.memory import Call, Crashed, Fault, Faults, MemoryDisk, MemoryStore, Stall
from penstock.store.port import Store, Writes

if TYPE_CHECKING:
    from penstock.sim.world import World

T = TypeVar("T")

#: The process whose code is running; None is the world around them.
running: ContextVar[Process | None] = ContextVar("running", default=None)


class SimDisk(MemoryDisk):
    """Knows whose the newest epoch is, and tells the world of every commit."""

    def __init__(self) -> None:
        super().__init__()
        self.owner: Process | None = None
        self.on_durable: Callable[[int, Writes, int], None] = lambda n, writes, time_ms: None

    def fence(self) -> int:
        self.owner = None
        return super().fence()


class SimStore(MemoryStore):
    def __init__(
        self, disk: SimDisk, clock: SimClock, faults: Faults, process: Process | None = None
    ) -> None:
        super().__init__(disk, clock, faults)
        self._sim_disk = disk
        self._process = process

    @classmethod
    async def take(
        cls, disk: SimDisk, clock: SimClock, faults: Faults, process: Process, after: int | None
    ) -> SimStore:
        """As `open`, but a location is taken again only from oneself: as every real store does."""
        fault = faults.consult("open", epoch=0, n=disk.head.n)
        await cls(disk, clock, faults, process)._suffer("open", fault.before)
        if after is not None and disk.owner is not process:
            raise FencedError(f"epoch {disk.epoch} took over from epoch {after}")
        disk.fence()
        disk.owner = process
        store = cls(disk, clock, faults, process)
        await store._suffer("open", fault.after)
        return store

    def crash(self) -> None:
        super().crash()
        if self._process is not None:
            self._process.die("crash at a fault point")

    def _make_durable(self, n: int, writes: Writes, time_ms: int) -> None:
        super()._make_durable(n, writes, time_ms)
        self._sim_disk.on_durable(n, writes, time_ms)


class Process:
    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.alive = True
        self.closing = False
        self.finished = False  # it said that it lost the location
        self._broker: Broker | None = None
        self.stopped = False
        self._stalls: list[Stall] = []
        #: Ordered, as everything is that the schedule depends on.
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._replies: dict[asyncio.Future[Any], None] = {}
        self._stores: list[SimStore] = []

    def __str__(self) -> str:
        return f"p{self.number}"

    async def start(self) -> None:
        async def begin(_: None) -> Broker:
            return await Broker.start(
                self._open,
                self.world.clock,
                deadline=self.world.deadline,
                objects=self.world.objects,
            )

        self._broker = await self._inside(begin, None)

    async def _open(self, after: int | None) -> Store:
        world = self.world
        store = await SimStore.take(world.disk, world.clock, Faults(self._decide), self, after)
        self._stores.append(store)
        world.trace.add(f"{self} opened, epoch {store.epoch}")
        return store

    def _decide(self, call: Call) -> Fault:
        if self.stopped:
            stall = Stall()
            self._stalls.append(stall)
            return Fault(before=[stall])
        fault = draw_fault(self.world.fault_random, self.world.weather, call)
        self._stalls += [action for action in fault.before if isinstance(action, Stall)]
        self._stalls += [action for action in fault.after if isinstance(action, Stall)]
        if fault.before or fault.after:
            self.world.trace.add(f"{self} {call.operation} {call.n}: {_words(fault)}")
        return fault

    @property
    def ready(self) -> bool:
        return self.alive and not self.closing and not self.finished and self._broker is not None

    def now_ms(self) -> int:
        """The time that its commits carry."""
        assert self._broker is not None
        return self._broker.committer.now_ms()

    @property
    def epoch(self) -> int:
        """Which of its own openings this is."""
        assert self._broker is not None
        return self._broker.epoch

    @property
    def applied_n(self) -> int:
        """The newest commit that it shows."""
        assert self._broker is not None
        return self._broker.committer.applied_n

    # -- calls

    async def call(self, ask: Callable[[Streams], Awaitable[T]]) -> T:
        return await self._call(ask, lambda broker: broker.streams)

    async def call_queues(self, ask: Callable[[Queues], Awaitable[T]]) -> T:
        return await self._call(ask, lambda broker: broker.queues)

    async def _call(
        self, ask: Callable[[Any], Awaitable[T]], view: Callable[[Broker], object]
    ) -> T:
        if not self.ready or self._broker is None:
            raise UnavailableError("nobody listens")
        owned = self.world.disk.owner is self
        result = await self._inside(ask, view(self._broker))
        if not owned:
            self.world.trace.fail(f"{self} had lost the location, and answered: {result!r:.200}")
        return result

    async def _inside(self, ask: Callable[[Any], Awaitable[T]], view: object) -> T:
        reply: asyncio.Future[T] = self.world.loop.create_future()
        self._replies[reply] = None

        async def answer() -> None:
            try:
                result = await ask(view)
            except Exception as error:
                if not reply.done():
                    reply.set_exception(error)
            else:
                if not reply.done():
                    reply.set_result(result)

        context = copy_context()
        context.run(running.set, self)
        task = self.world.loop.create_task(answer(), context=context)
        try:
            return await reply
        except FencedError:
            self.finished = True
            raise
        finally:
            self._replies.pop(reply, None)
            task.cancel()

    # -- what is done to it

    def made(self, task: asyncio.Task[Any]) -> None:
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        if not self.alive:
            task.cancel()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if task.cancelled() or (error := task.exception()) is None:
            return
        # Looked at here, so that a failure is heard at once and not when the task is collected.
        if self.alive and not isinstance(error, Crashed):
            self.world.trace.fail(f"a task of {self} failed: {error!r}")

    def die(self, why: str) -> None:
        if not self.alive:
            return
        self.world.trace.add(f"{self} dies: {why}")
        self.alive = False
        for store in self._stores:
            store.crash()
        for reply in list(self._replies):
            if not reply.done():
                reply.set_exception(UnavailableError("the connection was lost"))
        current = asyncio.current_task()
        for task in list(self._tasks):
            if task is not current:
                task.cancel()
        self.world.lost(self)

    def stop(self) -> None:
        self.world.trace.add(f"{self} is stopped")
        self.stopped = True

    def go_on(self) -> None:
        self.world.trace.add(f"{self} goes on")
        self.stopped = False
        self.release()

    def release(self) -> None:
        """Let go what hangs in the store."""
        stalls, self._stalls = self._stalls, []
        for stall in stalls:
            stall.release()

    async def close(self) -> None:
        """An orderly end."""
        broker = self._broker
        if not self.ready or broker is None:
            return
        self.closing = True
        self.world.trace.add(f"{self} closes")

        async def end(_: None) -> None:
            await broker.close()

        try:
            await self._inside(end, None)
        except (UnavailableError, FencedError) as error:
            self.world.trace.add(f"{self} closed: {error!r}")
        self.die("closed")


def owner_of(context: Context | None) -> Process | None:
    return running.get() if context is None else context.get(running)


def _words(fault: Fault) -> str:
    def side(actions: Any) -> str:
        return ",".join(
            f"delay {action.seconds:.4f}" if hasattr(action, "seconds") else type(action).__name__
            for action in actions
        )

    return f"before [{side(fault.before)}] after [{side(fault.after)}]"
