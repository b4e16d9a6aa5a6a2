"""What must hold at rest, and at the end: memory, rows and history say the same; nobody is left.

Contract     `look` is asked inside `World.quiet`. `finish` ends a world: it looks, starts the
             broker again, looks again, and lets every group come to its end.
Invariants   O1  what a broker answers from memory is what the commits say; also a new broker, which
                 has nothing but rows
             O2  nobody waits while there is something for them
             O3  check_log and check_groups find nothing
             O4  every pending entry comes again, until it is acknowledged or expired
             O5  limits are kept in the end, and no edge moved further than anybody asked
             O6  blocked readers of a group are served in turn
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from penstock.broker.answers import Found
from penstock.broker.streams import Streams
from penstock.codec.scalars import NEVER_MS
from penstock.log.batch import build_bodies
from penstock.log.catalogue import stream_name
from penstock.log.check import check_log
from penstock.sim.client import Client
from penstock.sim.grouplog import Group
from penstock.sim.history import Log
from penstock.sim.peek import at_once, peek
from penstock.sim.streams import Cast, StreamPlan
from penstock.sim.world import Blocked, World
from penstock.stream.check import check_groups
from penstock.stream.groups import GroupInfo, Pending

T = TypeVar("T")

#: How long a wake-up may take in a calm world, a reopening included.
PATIENCE = 5.0
#: Retention and compaction look every now and then (broker/keeping.py).
UPKEEP_SECONDS = 30.0
ALL = 1 << 20


class Oracle(Client):
    def __init__(self, world: World, cast: Cast) -> None:
        super().__init__(world, "oracle")
        self._plans = {plan.name: plan for plan in cast.streams}

    async def look(self) -> None:
        while (await self.world.served()).applied_n != self.world.disk.head.n:
            await asyncio.sleep(0.05)  # a commit from before the calm may be on its way
            # A process that lost the location while nobody asks it anything does not know.
            await self.insist("names", lambda streams: streams.names())
        await asyncio.sleep(PATIENCE)
        self._nobody_left()
        self._rows()
        for name in self._names():
            log = self.history.log(name)
            assert log is not None
            await self._log(log)
        for group in self.groups.living():
            await self._group(group)
            self._expired(group)
        listed = await self._still("names", lambda streams: streams.names())
        if listed != self._names():
            self.fail(f"names are {listed}, truly {self._names()}")

    def _names(self) -> list[str]:
        names = {log.name for log in self.history.logs.values()}
        living = [name for name in names if self.history.log(name) is not None]
        return sorted(living, key=str.encode)

    async def _still(self, what: str, ask: Callable[[Streams], Awaitable[T]]) -> T:
        """An answer that no commit came in between of."""
        while True:
            n = self.world.disk.head.n
            result = await self.insist(what, ask)
            if n == self.world.disk.head.n:
                return result

    # -- O2

    def _nobody_left(self) -> None:
        now = self.world.loop.time()
        for name, blocked in self.world.blocked.items():
            if now - blocked.since < PATIENCE - 1 or blocked.claims:
                continue
            if blocked.process is None or blocked.process.stopped:
                continue  # it can do nothing; its clients look for another broker (client/)
            log = self.history.log(blocked.stream)
            why = None if log is None else self._something(log, blocked, now)
            if why:
                self.fail(
                    f"{name} waits since {blocked.since:.3f} at {blocked.process} for"
                    f" {blocked.stream}/{blocked.group} {blocked.offset}, though {why}"
                )

    def _something(self, log: Log, blocked: Blocked, now: float) -> str | None:
        if blocked.group is None:
            return f"it ends at {log.end}" if log.end > blocked.offset else None
        group = self.groups.group(log, blocked.group)
        if group is None:
            return f"it ends at {log.end}" if log.end > log.first else None
        due = [offset for offset, entry in group.pending.items() if entry.due < now - PATIENCE + 1]
        if due:
            return f"{due} are due"
        new = [offset for offset in range(group.next, log.end) if log.alive(offset)]
        if new and len(group.pending) < group.max_pending:
            return f"{new} are new, and {len(group.pending)} pending"
        return None

    # -- O1 and O3

    def _rows(self) -> None:
        store = peek(self.world.disk, self.world.clock)
        for finding in (*at_once(check_log(store)), *at_once(check_groups(store))):
            self.fail(f"check: {finding.where}: {finding.what}")

    async def _log(self, log: Log) -> None:
        target = stream_name(log.name)
        found = await self._still(f"read {log.name}", lambda streams: streams.read(target, 0, ALL))
        truth = [log.entries[offset] if log.alive(offset) else None for offset in range(log.end)]
        if found.messages != truth:
            wrong = [
                (offset, told, true)
                for offset, (told, true) in enumerate(zip(found.messages, truth, strict=False))
                if told != true
            ]
            self.fail(f"{log.name}: {len(found.messages)} of {log.end} entries; {wrong[:3]}")
        if (found.info.first, found.info.last) != (log.first, log.end - 1):
            self.fail(f"{log.name} is {found.info}, truly {log.first} to {log.end - 1}")

    async def _group(self, group: Group) -> None:
        log = self.history.logs[group.log_id]
        target, name = stream_name(log.name), group.name.encode()

        async def ask(streams: Streams) -> tuple[GroupInfo, list[Pending]]:
            info = await streams.group_info(target, name)
            return info, await streams.group_pending(target, name, 0, ALL)

        info, pending = await self._still(f"look at {log.name}/{group.name}", ask)
        told = (info.last_offset, info.ack_offset, info.pending, info.expired, info.skipped)
        truth = (
            group.next - 1,
            group.ack_offset,
            len(group.pending),
            group.expired,
            group.skipped,
        )
        if told != truth:
            self.fail(f"{log.name}/{group.name} is {told}, truly {truth}")
        listed = {
            entry.offset: (entry.retry_ms, entry.expire_ms or NEVER_MS, entry.deliveries)
            for entry in pending
        }
        wanted = {
            offset: (entry.retry_ms, entry.expire_ms, entry.deliveries)
            for offset, entry in group.pending.items()
        }
        if listed != wanted:
            self.fail(f"{log.name}/{group.name}: pending {listed}, truly {wanted}")

    def _expired(self, group: Group) -> None:
        """O4: what expired is given up, also when nobody reads."""
        before = self.world.loop.time() - PATIENCE + 1
        late = [offset for offset, entry in group.pending.items() if entry.gone < before]
        if late:
            name = self.history.logs[group.log_id].name
            self.fail(f"{name}/{group.name}: {late} expired, and are still pending")

    # -- the end

    async def finish(self) -> None:
        await self.look()
        await self._turns()
        await self._leave()
        await self.world.restart(kill=self.random.random() < 0.5)
        await self.look()
        await self._room()
        for group in self.groups.living():
            await self._drain(group)
        await asyncio.sleep(UPKEEP_SECONDS)
        await self.world.restart(kill=self.random.random() < 0.5)
        await asyncio.sleep(UPKEEP_SECONDS)
        await self.look()
        for plan in self._plans.values():
            log = self.history.log(plan.name)
            if log is not None and not plan.mortal:
                self._edge(log, plan)
                await self._limits(log, plan)

    async def _drain(self, group: Group) -> None:
        """O4: read and acknowledge until everything was delivered; what is not due, falls due."""
        log = self.history.logs[group.log_id]
        target, name = stream_name(log.name), group.name.encode()
        until = self.world.loop.time() + 30 + 2 * log.end
        while group.pending or any(map(log.alive, range(group.next, log.end))):
            found = await self.insist(
                f"drain {log.name}/{group.name}",
                lambda streams: streams.read_group(target, name, 7, block_ms=2000, retry_ms=500),
            )
            offsets = [message.offset for message in found.messages if message is not None]
            if offsets:
                await self._ack(log.name, group.name, offsets)
            if self.world.loop.time() > until:
                self.fail(f"{log.name}/{group.name} never ends: {group.pending}")
                return

    async def _ack(self, stream: str, group: str, offsets: list[int]) -> None:
        pairs = [(offset, offset) for offset in offsets]
        await self.insist(
            f"ack {stream}/{group} {offsets}",
            lambda streams: streams.ack(stream_name(stream), group.encode(), pairs),
        )

    def _edge(self, log: Log, plan: StreamPlan) -> None:
        """O5: the furthest that the edge may be."""
        furthest = plan.up_to + 1
        if plan.keep is not None:
            furthest = max(furthest, log.end - plan.keep)
        if plan.age_ms is not None:
            # The wall clock was anywhere: an age is judged by the limit alone.
            furthest = log.end
        if plan.by_bytes:
            furthest = log.end
        if log.first > furthest:
            self.fail(f"{log.name} begins at {log.first}, though {furthest} was asked")

    async def _limits(self, log: Log, plan: StreamPlan) -> None:
        if plan.max_count is not None and log.end - log.first > plan.max_count:
            self.fail(f"{log.name} has {log.first}-{log.end}, of {plan.max_count}")
        if plan.max_age_ms is not None and log.first < log.end:
            age_ms = (await self.world.served()).now_ms() - log.entries[log.first].time_ms
            if age_ms > plan.max_age_ms + PATIENCE * 1000:
                self.fail(f"{log.name} {log.first} is {age_ms} ms old, of {plan.max_age_ms}")
        if plan.max_bytes is not None:
            info = await self.insist("info", lambda streams: streams.info(stream_name(plan.name)))
            if info.bytes > plan.max_bytes:
                self.fail(f"{log.name} takes {info.bytes} bytes, of {plan.max_bytes}")
        if plan.compacts:
            twice = [
                offset
                for offset in range(log.first, log.end)
                if log.alive(offset)
                and log.entries[offset].tag
                and log.last_of_tag[log.entries[offset].tag] != offset
            ]
            if twice:
                self.fail(f"{log.name}: {twice} are not compacted")

    async def _turns(self) -> None:
        """O6: who waits longest is served first, one entry each."""
        target, process = stream_name("turns"), await self.world.served()
        count = self.random.randrange(2, 6)
        served: list[int] = []

        async def wait(number: int) -> None:
            found = await process.call(
                lambda streams: streams.read_group(target, b"t", 1, block_ms=None, retry_ms=1000)
            )
            served.append(number)
            if len(found.messages) != 1:
                self.fail(f"reader {number} was served {found.messages}")

        tasks: list[asyncio.Task[None]] = []
        for number in range(count):
            tasks.append(asyncio.create_task(wait(number)))
            await asyncio.sleep(0.01)
        order = list(range(count))
        for n in range(2):  # whoever is served goes to the end of the queue
            for i in range(count):
                entry = ("", f"turns.{n * count + i}.0.1".encode(), None)
                await self._write_turn(entry)
                await asyncio.sleep(PATIENCE)
                if n == 0:
                    tasks.append(asyncio.create_task(wait(i)))
                    await asyncio.sleep(0.01)
        if served != order * 2:
            self.fail(f"readers {order} waited in turn, and were served as {served}")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _leave(self) -> None:
        """O4: somebody reads and is never seen again; nobody else reads this group."""
        await self.insist(
            "read turns/left",
            lambda streams: streams.read_group(
                stream_name("turns"), b"left", 1, retry_ms=3_600_000, expire_ms=500
            ),
        )

    async def _room(self) -> None:
        """O2: a full list stops new entries; an acknowledgement makes room and wakes who waits."""
        target, process = stream_name("turns"), await self.world.served()
        await self.insist(
            "create turns/room",
            lambda streams: streams.group_create(target, b"room", max_pending=1),
        )

        def read(streams: Streams) -> Awaitable[Found]:
            return streams.read_group(target, b"room", 1, block_ms=None, retry_ms=3_600_000)

        await self.insist("read turns/room", read)
        second = asyncio.create_task(process.call(read))
        await asyncio.sleep(PATIENCE)
        if second.done():
            self.fail(f"the list was full, and {second.result().messages} came")
        await self._ack("turns", "room", [0])
        await asyncio.sleep(PATIENCE)
        if not second.done():
            self.fail("an acknowledgement made room, and nobody was woken")
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        await self._ack("turns", "room", [1])

    async def _write_turn(self, entry: tuple[str, bytes, bytes | None]) -> None:
        bodies = build_bodies([entry])
        sequence = int(entry[1].split(b".")[1])
        await self.insist(
            f"write {entry}",
            lambda streams: streams.write(
                stream_name("turns"), bodies, producer=b"oracle", sequence=sequence
            ),
        )
