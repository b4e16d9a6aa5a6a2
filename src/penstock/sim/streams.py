"""Clients of streams: they write, read, read in groups, acknowledge, evict, configure, delete.

Contract     `draw_clients` draws a cast from the seed. Every client checks each answer against the
             truth (history.py, grouplog.py) as it gets it. Data is unique, so an entry says where
             it comes from: `client.batch.index.count`.
Invariants   R1  a read shows everything that was shown before it began, and nothing else
             R2  what was dead before a read began is not shown
             R3  a write that was answered is durable, at the offsets that were told
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from penstock.broker.answers import Found
from penstock.errors import ConflictError, NotFoundError
from penstock.log.batch import build_bodies
from penstock.log.catalogue import stream_name
from penstock.log.read import Message
from penstock.sim.client import Actor, Lost
from penstock.sim.grouplog import ANYWHERE
from penstock.sim.history import Log
from penstock.sim.world import Blocked, World
from penstock.stream.deliver import Start

TAGS = ("", "a", "b", "c", "ä", "\udcff")


class StreamPlan(msgspec.Struct):
    """One stream, and all that was ever asked to be done to it."""

    name: str
    evicted: bool = False  # by callers
    limited: bool = False  # by retention
    compact: bool = False
    mortal: bool = False  # deleted and made again
    #: What moves its edge: the highest offset, the fewest entries, the lowest age ever asked for.
    up_to: int = -1
    keep: int | None = None
    age_ms: int | None = None
    by_bytes: bool = False
    #: What it is configured to now, as far as that is known.
    max_count: int | None = None
    max_age_ms: int | None = None
    max_bytes: int | None = None
    compacts: bool = False

    def kept(self, keep: int) -> None:
        self.keep = keep if self.keep is None else min(self.keep, keep)


class GroupPlan(msgspec.Struct):
    stream: StreamPlan
    name: str
    #: Retry times of reads; None: nobody has to acknowledge.
    retries: tuple[int | None, ...]
    expires: tuple[int | None, ...]
    max_pending: int | None  # None: made by its first read
    dead: str | None
    moves: bool
    start: Start = "first"
    destroyed: bool = False


class Cast(msgspec.Struct):
    streams: list[StreamPlan]
    groups: list[GroupPlan]
    clients: list[Actor]


class StreamClient(Actor):
    def __init__(self, world: World, name: str, plan: StreamPlan) -> None:
        super().__init__(world, name)
        self.plan = plan
        self.target = stream_name(plan.name)

    def log(self) -> Log | None:
        return self.history.log(self.plan.name)

    def _have(self, messages: Sequence[Message | None]) -> list[Log]:
        """The logs that these may come from, the oldest first; they may be deleted by now. Several
        where a producer repeats itself in the stream that was made again, in one millisecond."""
        found = [
            log
            for log in self.history.since(self.plan.name, self.n)
            if all(
                message is None
                or (message.offset < log.end and log.entries[message.offset] == message)
                for message in messages
            )
        ]
        if not found and any(messages):
            self.fail(f"{self.plan.name} never had {messages!r:.300}")
        return found

    async def create(self, group: GroupPlan) -> None:
        dead = None if group.dead is None else stream_name(group.dead)
        assert group.max_pending is not None
        most = group.max_pending
        await self.insist(
            f"create {self.plan.name}/{group.name}",
            lambda streams: streams.group_create(
                self.target, group.name.encode(), max_pending=most, dead=dead
            ),
        )


class Writer(StreamClient):
    """Appends; as a producer it repeats until it knows."""

    def __init__(self, world: World, name: str, plan: StreamPlan) -> None:
        super().__init__(world, name, plan)
        self._batch = 0
        self._sequence = 0
        self._produces = self.random.random() < 0.6

    async def step(self) -> None:
        random = self.random
        self._batch += 1
        count = random.choice((1, 1, 2, 3, 5, 12))
        entries = []
        for i in range(count):
            data = f"{self.name}.{self._batch}.{i}.{count}".encode()
            meta = b"m" * random.randrange(1, 9) if random.random() < 0.2 else None
            entries.append((random.choice(TAGS), data, meta))
        backlog = None
        if self.plan.evicted and random.random() < 0.2:
            backlog = random.randrange(0, 30)
            self.plan.kept(backlog)
        if self._produces and random.random() < 0.8:
            self._sequence += random.randrange(1, 3)
            sequence, repeats = self._sequence, random.choice((1, 1, 1, 2))
            for _ in range(repeats):  # also when nothing went wrong
                await self._write(entries, backlog, sequence)
        else:
            await self._write(entries, backlog, None)

    async def _write(
        self, entries: list[tuple[str, bytes, bytes | None]], backlog: int | None, seq: int | None
    ) -> None:
        bodies = build_bodies(entries)
        producer = None if seq is None else self.name.encode()
        what = f"write {self.plan.name} {entries[0][1].decode()} sequence {seq}"
        while True:
            try:
                offsets = await self.ask(
                    what,
                    lambda streams: streams.write(
                        self.target, bodies, backlog=backlog, producer=producer, sequence=seq
                    ),
                )
            except Lost:
                if seq is None:
                    raise
            except (ConflictError, NotFoundError):
                pass  # nothing was written: the stream was made by another, the staging too slow
            else:
                self._check(offsets, entries)
                return
            await asyncio.sleep(0.02 + self.random.random() * 0.2)

    def _check(self, offsets: range, entries: list[tuple[str, bytes, bytes | None]]) -> None:
        wanted = [(tag, data, meta or b"") for tag, data, meta in entries]
        there: list[tuple[str, bytes, bytes]] = []
        for log in self.history.since(self.plan.name, self.n):
            found = log.entries[offsets.start : offsets.stop]
            there = [(entry.tag, entry.data, entry.meta or b"") for entry in found]
            if there == wanted:
                return
        if self.plan.mortal and self.history.replaced_since(self.plan.name, self.n):
            return  # deleted since; in the very commit that wrote it, even
        self.fail(f"wrote {wanted} at {offsets}, there is {there}")


class Reader(StreamClient):
    """Reads anywhere, follows the end, and looks at what there is."""

    async def step(self) -> None:
        try:
            await self._look()
        except NotFoundError as error:
            if not self.plan.mortal:
                self.fail(f"{self.plan.name} is never deleted: {error}")
            # else it was deleted while it was read

    async def _look(self) -> None:
        random = self.random
        log = self.log()
        end = 0 if log is None else log.end
        match random.choice(("read", "read", "follow", "follow", "reverse", "info", "names")):
            case "read":
                offset = random.randrange(end + 3)
                await self._read(offset, random.choice((0, 1, 3, 10, 1000)))
            case "follow":
                offset = max(end - random.randrange(-2, 4), 0)
                block = random.choice((1, 50, 2000, None))
                await self._read(offset, random.choice((1, 5)), block_ms=block)
            case "reverse":
                await self._reverse(random.randrange(end + 5), random.choice((0, 1, 4, 100)))
            case "info":
                await self._info()
            case _:
                await self.ask("names", lambda streams: streams.names())

    async def _read(self, offset: int, count: int, *, block_ms: int | None = 0) -> None:
        found = await self.ask(
            f"read {self.plan.name} {offset} +{count} block {block_ms}",
            lambda streams: streams.read(self.target, offset, count, block_ms=block_ms),
            block=None if block_ms is None else block_ms / 1000,
            blocked=None if block_ms == 0 else Blocked(self.plan.name, offset),
        )
        self._check(found, list(range(offset, offset + len(found.messages))), offset, count)

    async def _reverse(self, offset: int, count: int) -> None:
        found = await self.ask(
            f"read {self.plan.name} {offset} -{count}",
            lambda streams: streams.read(self.target, offset, count, reverse=True),
        )
        top = min(offset, found.info.last)
        self._check(found, [top - i for i in range(len(found.messages))], None, count)

    def _check(self, found: Found, offsets: list[int], low: int | None, count: int) -> None:
        if len(found.messages) > count:
            self.fail(f"{len(found.messages)} entries, {count} were asked for")
        logs = self._have(found.messages)
        if not logs or not found.messages:
            self._nothing(low, count)
            return
        wrong = [self._wrong(log, found, offsets, low, count) for log in logs]
        if None not in wrong:
            self.fail("; ".join(map(str, wrong)))

    def _wrong(
        self, log: Log, found: Found, offsets: list[int], low: int | None, count: int
    ) -> str | None:
        """Why these cannot be what was read from this log."""
        for offset, message in zip(offsets, found.messages, strict=True):
            if message is None:
                if log.alive(offset) and not self.plan.mortal:
                    return f"{offset} reads as dead, and is alive"
            elif message.offset != offset:
                return f"{message} stands for {offset}"
            elif log.dead_at(offset, self.n):
                return f"{offset} was dead before the read began"
        if low is not None and not self.plan.mortal:
            missing = min(count, log.end_at(self.n) - low) - len(offsets)
            if missing > 0:
                return f"{missing} entries behind {offsets} were not shown"
        return None

    def _nothing(self, low: int | None, count: int) -> None:
        log = self.log()
        if low is None or log is None or self.plan.mortal or not count:
            return
        if log.end_at(self.n) > low:
            self.fail(f"nothing at {low}, though {log.name} went to {log.end_at(self.n)}")

    async def _info(self) -> None:
        info = await self.ask(f"info {self.plan.name}", lambda streams: streams.info(self.target))
        log = self.log()
        if log is None or self.plan.mortal:
            return
        if not log.end_at(self.n) - 1 <= info.last < log.end:
            self.fail(f"last is {info.last}, truly {log.end_at(self.n) - 1} to {log.end - 1}")
        if not log.first_at(self.n) <= info.first <= log.first:
            self.fail(f"first is {info.first}, truly {log.first_at(self.n)} to {log.first}")


class Member(StreamClient):
    """Reads in a group; acknowledges sooner, later, twice, in ranges, or never."""

    def __init__(self, world: World, name: str, group: GroupPlan) -> None:
        super().__init__(world, name, group.stream)
        self.group = group
        self._group = group.name.encode()
        self._held: list[int] = []
        self._acked: list[int] = []

    async def step(self) -> None:
        if self._held and self.random.random() < 0.5:
            await self._ack()
        else:
            await self._read()

    async def _read(self) -> None:
        random, group = self.random, self.group
        if group.max_pending is not None and self.groups.group(self.log(), group.name) is None:
            with suppress(ConflictError):
                await self.create(group)
        retry_ms, expire_ms = random.choice(group.retries), random.choice(group.expires)
        if retry_ms is None:
            expire_ms = None
        block_ms = random.choice((0, 0, 1, 300, 5000, None))
        count = random.choice((1, 2, 5, 20))
        found = await self.ask(
            f"read {self.plan.name}/{group.name} +{count} block {block_ms} retry {retry_ms}"
            f" expire {expire_ms}",
            lambda streams: streams.read_group(
                self.target,
                self._group,
                count,
                block_ms=block_ms,
                retry_ms=retry_ms,
                expire_ms=expire_ms,
                start=group.start,
            ),
            block=None if block_ms is None else block_ms / 1000,
            blocked=None if block_ms == 0 else Blocked(self.plan.name, group=group.name),
        )
        if not found.messages:
            return
        offsets = [message.offset for message in found.messages if message is not None]
        if len(offsets) > count:
            self.fail(f"{len(offsets)} entries, {count} were asked for")
        retried = retry_ms is not None
        wrong: str | None = None
        # Up to the first that says so: what it says is told, and is nobody else's answer.
        for log in self._have(found.messages):
            wrong = self.groups.delivered(log, group.name, self.n, offsets, retried=retried)
            if wrong is None:
                break
        if wrong is not None:
            self.fail(wrong)
        if retry_ms is not None:
            self._held += offsets

    async def _ack(self) -> None:
        random = self.random
        some = sorted(random.sample(self._held, random.randrange(1, len(self._held) + 1)))
        if self._acked and random.random() < 0.2:
            some.append(random.choice(self._acked))
        pairs = [(offset, offset) for offset in some]
        if random.random() < 0.4:
            pairs = [(some[0], some[0] + random.randrange(4)), *pairs[1:]]
        if random.random() < 0.1:
            pairs.append((1 << 40, 1 << 40))
        self._held = [offset for offset in self._held if offset not in some]
        if random.random() < 0.15:
            return  # forgotten: it comes again
        self._acked += some
        count = await self.ask(
            f"ack {self.plan.name}/{self.group.name} {pairs}",
            lambda streams: streams.ack(self.target, self._group, pairs),
        )
        if not count:
            return
        wanted = {offset for low, high in pairs for offset in range(low, high + 1)}
        found: list[str] = []
        for log in self.history.since(self.plan.name, self.n):
            wrong = self.groups.acked(log, self.group.name, self.n, wanted, count)
            if wrong is None:
                return
            found.append(wrong)
        self.fail(f"{found} of {pairs}")


class Keeper(StreamClient):
    """Evicts, configures; makes, moves and destroys groups; deletes streams that may be deleted."""

    def __init__(self, world: World, name: str, plan: StreamPlan, groups: list[GroupPlan]) -> None:
        super().__init__(world, name, plan)
        self._groups = [group for group in groups if group.stream is plan]

    async def step(self) -> None:
        random, plan = self.random, self.plan
        may = ["look"]
        may += ["evict"] * plan.evicted + ["limit"] * plan.limited + ["compact"] * plan.compact
        may += ["delete"] * plan.mortal
        group = random.choice(self._groups) if self._groups else None
        if group is not None:
            may += ["create"] * (group.max_pending is not None) + ["set"] * group.moves
            may += ["destroy"] * group.destroyed + ["groups"]
        match random.choice(may):
            case "evict":
                await self._evict()
            case "limit":
                await self._limit()
            case "compact":
                plan.compacts = await self._compact()
            case "delete":
                await self.insist(
                    f"delete {plan.name}", lambda streams: streams.delete(self.target)
                )
            case "look" | "groups":
                await self._look(group)
            case what if group is not None:
                await self._setup(group, what)

    async def _evict(self) -> None:
        random, log = self.random, self.log()
        end = 0 if log is None else log.end
        if random.random() < 0.5:
            up_to = random.randrange(end + 2)
            self.plan.up_to = max(self.plan.up_to, up_to)
            await self.ask(
                f"evict {self.plan.name} up to {up_to}",
                lambda streams: streams.evict(self.target, up_to=up_to),
            )
        else:
            keep = random.randrange(end + 2)
            self.plan.kept(keep)
            await self.ask(
                f"evict {self.plan.name} but {keep}",
                lambda streams: streams.evict(self.target, keep=keep),
            )

    async def _limit(self) -> None:
        plan, random = self.plan, self.random
        max_count = random.choice((None, 1, 10, 50))
        age_ms = random.choice((None, None, 500, 20_000))
        max_bytes = random.choice((None, None, 500))
        if max_count is not None:
            plan.kept(max_count)
        if age_ms is not None:
            plan.age_ms = age_ms if plan.age_ms is None else min(plan.age_ms, age_ms)
        plan.by_bytes |= max_bytes is not None
        await self.insist(
            f"configure {plan.name} count {max_count} age {age_ms} bytes {max_bytes}",
            lambda streams: streams.configure(
                self.target, max_count=max_count, max_age_ms=age_ms, max_bytes=max_bytes
            ),
        )
        plan.max_count, plan.max_age_ms, plan.max_bytes = max_count, age_ms, max_bytes

    async def _compact(self) -> bool:
        compact = self.random.random() < 0.7
        self.history.compacted_names.add(self.plan.name)
        await self.insist(
            f"configure {self.plan.name} compact {compact}",
            lambda streams: streams.configure(self.target, compact=compact),
        )
        return compact

    async def _look(self, group: GroupPlan | None) -> None:
        try:
            if group is None or self.random.random() < 0.3:
                await self.ask("groups", lambda streams: streams.groups(self.target))
            else:
                name = group.name.encode()
                await self.ask(
                    f"pending {self.plan.name}/{group.name}",
                    lambda streams: streams.group_pending(self.target, name, 0, 5),
                )
        except NotFoundError:
            pass  # nobody made it yet

    async def _setup(self, group: GroupPlan, what: str) -> None:
        name, log = group.name.encode(), self.log()
        text = f"{what} {self.plan.name}/{group.name}"
        try:
            if what == "create":
                await self.create(group)
            elif what == "destroy":
                await self.insist(text, lambda streams: streams.group_destroy(self.target, name))
            else:
                end = 0 if log is None else log.end
                to = self.random.choice((0, max(end - 3, 0), end))
                start = self.random.choice(("first", "new", to, to))
                wanted = self.groups.moves.setdefault((self.plan.name, group.name), set())
                wanted.add(start if isinstance(start, int) else ANYWHERE)
                await self.ask(
                    f"{text} {start}",
                    lambda streams: streams.group_set(self.target, name, start),  # type: ignore[arg-type]
                )
        except (NotFoundError, ConflictError):
            pass


def draw_cast(world: World) -> Cast:
    random = world.random("cast")
    streams = [
        StreamPlan(
            f"s{i}",
            evicted=random.random() < 0.4,
            limited=random.random() < 0.3,
            compact=random.random() < 0.5,
            mortal=random.random() < 0.25,
        )
        for i in range(random.choice((1, 2, 3)))
    ]
    groups = [
        _draw_group(world, stream, i) for stream in streams for i in range(random.choice((0, 1, 2)))
    ]
    clients: list[Actor] = []
    for stream in streams:
        for i in range(random.choice((1, 2, 3))):
            clients.append(Writer(world, f"{stream.name}w{i}", stream))
        for i in range(random.choice((0, 1, 2))):
            clients.append(Reader(world, f"{stream.name}r{i}", stream))
        clients.append(Keeper(world, f"{stream.name}k", stream, groups))
    for group in groups:
        for i in range(random.choice((1, 2, 4))):
            clients.append(Member(world, f"{group.stream.name}{group.name}m{i}", group))
    return Cast(streams, groups, clients)


def _draw_group(world: World, stream: StreamPlan, number: int) -> GroupPlan:
    random = world.random(f"group {stream.name} {number}")
    explicit = random.random() < 0.5
    dead = f"{stream.name}-dead{number}" if explicit and random.random() < 0.5 else None
    if dead is not None:
        world.history.dead_names.add(dead)
    return GroupPlan(
        stream,
        f"g{number}",
        retries=random.choice(((50,), (20, 1000), (300, 5000), (None,), (None, 100))),
        expires=random.choice(((None,), (None, 400), (30, 3000))),
        max_pending=random.choice((1, 3, 20)) if explicit else None,
        dead=dead,
        moves=random.random() < 0.25,
        start=random.choice(("first", "first", "new", 0)),
        destroyed=random.random() < 0.15,
    )
