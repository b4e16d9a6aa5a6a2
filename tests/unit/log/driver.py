"""A driver for tests of the log: the memory store, one tick per call, states kept in a dict."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from penstock.codec.keys import Kind, operations_key
from penstock.codec.operations import Operation, Owner, encode_operations
from penstock.log.append import append_step
from penstock.log.batch import build_bodies
from penstock.log.catalogue import LogName, open_target
from penstock.log.chores import plan_chore
from penstock.log.decision import Now, StateKey, Step, Timer
from penstock.log.pages import Tail
from penstock.log.read import Message, read
from penstock.log.state import LogState
from penstock.store.memory import MemoryDisk, MemoryStore
from penstock.store.port import Row, Store


class StillClock:
    """Time moves when the test says so."""

    def __init__(self) -> None:
        self.ms = 1_000_000

    def wall_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000

    def entropy(self, size: int) -> bytes:
        return bytes(size)

    async def sleep(self, seconds: float) -> None:
        self.ms += int(seconds * 1000)


class TickView:
    """Memory and store under what the tick wrote so far."""

    def __init__(self, driver: LogDriver) -> None:
        self._driver = driver
        self.store: Store = driver.store
        self.now_ms = driver.clock.ms
        self.writes: dict[bytes, bytes | None] = {}
        self.states: dict[StateKey, Any] = {}
        self.timers: list[Timer] = []
        self.done: list[Operation] = []
        self._fetched: dict[bytes, bytes | None] = {}

    def state(self, key: StateKey) -> Any | None:
        return self.states[key] if key in self.states else self._driver.states.get(key)

    def committed(self, key: StateKey) -> Any | None:
        return self._driver.states.get(key)

    def row(self, key: bytes) -> bytes | None:
        return self.writes[key] if key in self.writes else self._fetched[key]

    def operations(self, owner: Owner) -> list[Operation]:
        return self._driver.tail.of(owner)

    async def fetch(self, *keys: bytes) -> None:
        for key in keys:
            self._fetched[key] = await self.store.get(key)

    def keep(self, key: StateKey, state: Any) -> None:
        self._driver.states.setdefault(key, state)


class LogDriver:
    def __init__(self, disk: MemoryDisk, clock: StillClock, store: MemoryStore) -> None:
        self.disk = disk
        self.clock = clock
        self.store = store
        self.states: dict[StateKey, Any] = {}
        self.timers: list[Timer] = []
        self.tail = Tail()
        self.written: list[dict[bytes, bytes | None]] = []

    @classmethod
    async def open(cls, disk: MemoryDisk | None = None) -> LogDriver:
        disk, clock = disk or MemoryDisk(), StillClock()
        return cls(disk, clock, await MemoryStore.open(disk, clock=clock))

    async def submit(self, *steps: Step) -> list[Any]:
        view = TickView(self)
        now = Now(self.clock.ms, bytes(16))
        replies = []
        for step in steps:
            if step.load is not None:
                await step.load(view)
            decision = step.decide(view, now)
            view.writes.update(decision.writes)
            view.states.update(decision.states)
            view.timers += decision.timers
            view.done += decision.operations
            replies.append(decision.reply)
        head = self.store.head()
        if view.done:
            record = encode_operations(view.done)
            view.writes[operations_key(head.n + 1)] = record
            self.tail.add(head.n + 1, view.done, len(record))
        if view.writes:
            await self.store.commit(
                head.n + 1,
                list(view.writes.items()),
                time_ms=now.ms,
                epoch=self.store.epoch,
            )
        self.written.append(view.writes)
        for key, state in view.states.items():
            self.states.pop(key, None)
            if state is not None:
                self.states[key] = state
        self.timers += view.timers
        return replies

    async def do(self, step: Step) -> Any:
        return (await self.submit(step))[0]

    def forget(self) -> None:
        """As after a restart: everything comes from rows again."""
        self.states.clear()

    async def append(self, name: LogName, entries: Sequence[Any], **options: Any) -> range:
        offsets: range = await self.do(append_step(name, build_bodies(entries), **options))
        return offsets

    async def state(self, name: LogName) -> LogState | None:
        return await open_target(TickView(self), name)

    async def read(
        self, name: LogName, offset: int, count: int, *, reverse: bool = False
    ) -> list[Message | None]:
        state = await self.state(name)
        assert state is not None
        return await read(self.store, state, offset, count, reverse=reverse)

    async def chore(self, what: StateKey) -> int:
        """Run it until nothing is left; -> commits"""
        for n in range(10_000):
            state = self.states.get(("log", what[1])) if what[0] == "merge" else None
            step = await plan_chore(self.store, what, state)
            if step is None or not await self.do(step):
                return n
        raise AssertionError(f"{what} never ends")


class FlushedBehind:
    """A store that is flushed to, once, behind one of the readings from it: the first of this row,
    or the one with this number."""

    def __init__(
        self,
        driver: LogDriver,
        flush: Callable[[], Awaitable[Any]],
        *,
        row: bytes | None = None,
        number: int | None = None,
    ) -> None:
        self._driver, self._flush, self._row = driver, flush, row
        self._left = number
        self.flushed = False
        self.floor = driver.store.floor

    async def get(self, key: bytes) -> bytes | None:
        value: bytes | None = await self._driver.store.get(key)
        await self._was_read(key)
        return value

    async def scan(self, low: bytes, high: bytes, **options: Any) -> AsyncIterator[list[Row]]:
        async for rows in self._driver.store.scan(low, high, **options):
            yield rows
        await self._was_read(None)

    async def _was_read(self, key: bytes | None) -> None:
        here = self._left == 0 if self._row is None else key == self._row
        if self._left is not None:
            self._left -= 1
        if not here or self.flushed:
            return
        self.flushed = True
        await self._flush()
        tail = self._driver.tail
        for owner in tail.owners():
            tail.flushed(owner, tail.of(owner)[-1].sequence)


def stream(name: str) -> LogName:
    return LogName(Kind.STREAM, name.encode())


async def data_of(driver: LogDriver, name: LogName) -> list[bytes | None]:
    """Everything from offset 0 on; None for what is gone."""
    state = await driver.state(name)
    if state is None:
        return []
    found = await driver.read(name, 0, state.next)
    return [None if message is None else message.data for message in found]
