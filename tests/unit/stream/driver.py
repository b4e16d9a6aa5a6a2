"""A driver for tests of groups: one stream `s`, one request per call, restarts, flushes.

`flush` does what upkeep does with a group's operations, and may stop behind any of its commits, as
a crash would. `restarted` opens the same disk again, with nothing but rows; `rebuilt` looks at them
through the same handle, so that the driver itself can go on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from penstock.codec.keys import KeyType, prefix, prefix_end
from penstock.codec.operations import Owner
from penstock.log.catalogue import LogName
from penstock.log.evict import evict_step
from penstock.log.holes import plan_holes
from penstock.log.pages import trim_step
from penstock.store.memory import MemoryDisk
from penstock.stream.ack import ack_step
from penstock.stream.deliver import Delivered, deliver_step
from penstock.stream.flush import head_step, pages_step, plan_flush
from penstock.stream.group import GroupState, group_name_key, group_state_key, owner_of
from penstock.stream.groups import (
    GroupInfo,
    Pending,
    create_step,
    destroy_step,
    info_step,
    pending_step,
    set_step,
)
from unit.log.driver import LogDriver, stream

S = stream("s")
DEAD = stream("dead")
G = b"g"

#: What a read is told that found nothing: try later, or ask again at once.
NOTHING: tuple[list[int], bool] = ([], False)
MOVED: tuple[list[int], bool] = ([], True)

Stop = Literal["pages", "head", "flushed"]


class GroupDriver:
    def __init__(self, log: LogDriver) -> None:
        self.log = log

    @classmethod
    async def open(cls, entries: int = 0, disk: MemoryDisk | None = None) -> GroupDriver:
        driver = cls(await LogDriver.open(disk))
        await driver.log.tail.load(driver.log.store)
        if entries:
            await driver.write(entries)
        return driver

    async def restarted(self) -> GroupDriver:
        """A new process over the same rows, at the same time."""
        again = await GroupDriver.open(disk=self.log.disk)
        again.log.clock.ms = self.now_ms
        return again

    async def rebuilt(self) -> GroupDriver:
        """What a restart would see."""
        again = GroupDriver(LogDriver(self.log.disk, self.log.clock, self.log.store))
        await again.log.tail.load(again.log.store)
        return again

    @property
    def now_ms(self) -> int:
        return self.log.clock.ms

    def wait(self, ms: int) -> None:
        self.log.clock.ms += ms

    async def write(self, count: int, target: LogName = S) -> range:
        state = await self.log.state(target)
        start = 0 if state is None else state.next
        entries = [(b"t%d" % i, b"%d" % i, b"m%d" % i) for i in range(start, start + count)]
        return await self.log.append(target, entries)

    async def evict(self, up_to: int) -> int:
        evicted: int = await self.log.do(evict_step(S, up_to=up_to))
        return evicted

    async def compact(self, offsets: Iterable[int]) -> None:
        """These entries die in place."""
        left = list(offsets)
        while left:
            state = await self.log.state(S)
            assert state is not None
            step, left = await plan_holes(self.log.store, state, left)
            if step is not None:
                assert await self.log.do(step) == ()

    async def deliver(self, count: int, group: bytes = G, **options: Any) -> Delivered:
        found: Delivered = await self.log.do(deliver_step(S, group, count, **options))
        return found

    async def asked(self, count: int, group: bytes = G, **options: Any) -> tuple[list[int], bool]:
        """Offsets of what was delivered, and whether the group moved without finding anything."""
        found = await self.deliver(count, group, **options)
        return [message.offset for message in found.messages], found.moved

    async def read(self, count: int, group: bytes = G, **options: Any) -> list[int]:
        """Offsets of what was delivered."""
        found = (await self.deliver(count, group, **options)).messages
        for message in found:
            i = message.offset
            assert (message.tag, message.data, message.meta) == (f"t{i}", b"%d" % i, b"m%d" % i)
        return [message.offset for message in found]

    async def ack(self, *offsets: int | tuple[int, int], group: bytes = G) -> int:
        pairs = [item if isinstance(item, tuple) else (item, item) for item in offsets]
        count: int = await self.log.do(ack_step(S, group, pairs))
        return count

    async def create(self, group: bytes = G, **options: Any) -> None:
        assert await self.log.do(create_step(S, group, **options)) is None

    async def set(self, offset: Any, group: bytes = G) -> None:
        assert await self.log.do(set_step(S, group, offset)) is None

    async def destroy(self, group: bytes = G) -> bool:
        found: bool = await self.log.do(destroy_step(S, group))
        return found

    async def info(self, group: bytes = G) -> GroupInfo:
        found: GroupInfo = await self.log.do(info_step(S, group))
        return found

    async def pending(
        self, start: int = 0, count: int = 1 << 30, group: bytes = G
    ) -> list[Pending]:
        found: list[Pending] = await self.log.do(pending_step(S, group, start, count))
        return found

    async def waiting(self, group: bytes = G) -> list[int]:
        """Offsets that are pending."""
        return [entry.offset for entry in await self.pending(group=group)]

    async def seen(self, group: bytes = G) -> tuple[GroupInfo, list[Pending]]:
        """All that can be seen of a group."""
        return await self.info(group), await self.pending(group=group)

    async def state(self, group: bytes = G) -> GroupState:
        await self.info(group)
        log = await self.log.state(S)
        assert log is not None
        name = self.log.states[group_name_key(log.log_id, group)]
        state: GroupState = self.log.states[group_state_key(name.row.id)]
        return state

    async def owner(self, group: bytes = G) -> Owner:
        return owner_of((await self.state(group)).id)

    async def flush(self, owner: Owner | None = None, stop: Stop | None = None) -> int:
        """-> rows of operations that went. `stop` leaves out what comes behind that commit."""
        owner = await self.owner() if owner is None else owner
        tail, plan = self.log.tail, plan_flush(self.log.tail.of(owner))
        for part in plan.parts():
            await self.log.do(pages_step(owner.id, part))
        if stop == "pages":
            return 0
        exists = await self.log.do(head_step(owner.id))
        if stop == "head":
            return 0
        tail.flushed(owner, plan.sequence if exists else None)
        if stop == "flushed":
            return 0
        return await self.trim()

    async def trim(self) -> int:
        numbers = self.log.tail.unneeded()
        gone: int = await self.log.do(trim_step(numbers))
        self.log.tail.trimmed(numbers)
        return gone

    async def rows(self, kind: KeyType) -> dict[bytes, bytes]:
        low = prefix(kind)
        scan = self.log.store.scan(low, prefix_end(low))
        return {key: value async for rows in scan for key, value in rows}
