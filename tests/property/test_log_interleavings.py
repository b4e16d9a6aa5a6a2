"""The log under a committer, its upkeep and readers at once, in random interleavings.

Method       Every call of the store takes a drawn number of turns of the event loop, so another
             seed is another interleaving, and the same seed is the same one. Data is unique, so an
             entry tells where it belongs.
Holds        A read gives an offset its own entry, or None where somebody had asked for that. When
             everybody is done and the upkeep has nothing left: every entry that was acknowledged
             and not taken away is at its offset, memory is what the rows say, the check finds
             nothing, and no row remains of what is gone.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.commit import Committer, Shown
from penstock.broker.upkeep import Upkeep
from penstock.codec.keys import KeyType, Kind, prefix, prefix_end
from penstock.errors import NotFoundError
from penstock.log.append import append_step
from penstock.log.batch import build_bodies
from penstock.log.cache import NodeCache
from penstock.log.catalogue import LogName, open_target
from penstock.log.check import check_log
from penstock.log.evict import delete_step, evict_step
from penstock.log.holes import plan_holes
from penstock.log.link import link_step
from penstock.log.read import read, read_range, to_arrow
from penstock.log.staging import begin_step, stage_step
from penstock.log.state import LogState, read_log
from penstock.store.memory import Call, Delay, Fault, Faults, MemoryDisk, MemoryStore
from unit.broker.driver import StepClock

A, B = LogName(Kind.STREAM, b"a"), LogName(Kind.STREAM, b"b")
WORKERS, ACTS = 6, 16
#: What of a log's state in memory the rows must say too.
COUNTED = [
    "first",
    "lowest",
    "next",
    "settled",
    "stored_bytes",
    "unsettled_bytes",
    "unsettled_rows",
]
#: More rounds of the upkeep than any episode has work for.
ROUNDS = 500


class TurnClock(StepClock):
    """A millisecond is a turn of the event loop."""

    async def sleep(self, seconds: float) -> None:
        for _ in range(round(seconds * 1000)):
            await asyncio.sleep(0)


class World:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.names = self.random.choice([[A], [A, B]])
        self.deletes = self.random.random() < 0.3
        self.turns = self.random.choice([10, 30, 60])
        self.clock = TurnClock()
        self.disk = MemoryDisk()
        self.cache = NodeCache(self.random.choice([1 << 10, 1 << 20]))
        self.upkeep = Upkeep(self.clock)
        self.committer = Committer(
            self._open,
            self.clock,
            deadline=1000,
            on_commit=self.cache.forget,
            on_timers=self.upkeep.remind,
            on_open=self.upkeep.look_again,
        )
        self.written = 0
        #: What was acknowledged, and by (log id, offset) what was read.
        self.acknowledged: list[tuple[LogName, int, bytes]] = []
        self.seen: dict[tuple[int, int], bytes] = {}
        #: By log id: what somebody has asked to be taken away, before it is.
        self.edges: dict[int, int] = defaultdict(int)
        self.punched: dict[int, set[int]] = defaultdict(set)
        #: (log id, offset) of punches that were acknowledged.
        self.dead: set[tuple[int, int]] = set()

    async def _open(self, after: int | None) -> MemoryStore:
        return await MemoryStore.open(self.disk, clock=self.clock, faults=Faults(self._slow))

    def _slow(self, call: Call) -> Fault:
        return Fault((self._delay(),), (self._delay(),))

    def _delay(self) -> Delay:
        """Mostly none, sometimes long: then many calls of others come in between."""
        return Delay(self.turns / 1000 if self.random.random() < 0.25 else 0.0)

    def make(self, count: int) -> list[bytes]:
        self.written += count
        return [b"%d" % n for n in range(self.written - count, self.written)]

    async def state(self, name: LogName) -> LogState | None:
        return await self.committer.read(lambda view: open_target(view, name))

    def acknowledge(self, name: LogName, offsets: range, data: list[bytes]) -> None:
        self.acknowledged += zip([name] * len(data), offsets, data, strict=True)

    # -- what the workers do

    async def append(self, name: LogName) -> None:
        data = self.make(self.random.choice([1, 2, 30]))
        (offsets,) = await self.committer.submit(append_step(name, build_bodies(data)))
        self.acknowledge(name, offsets, data)

    async def stage(self, name: LogName) -> None:
        (staging_id,) = await self.committer.submit(begin_step())
        writers = {writer: self.make(5 * self.random.randrange(1, 4)) for writer in range(2)}
        for writer, data in writers.items():
            for n in range(len(data) // 5):
                bodies = build_bodies(data[5 * n : 5 * n + 5])
                await self.committer.submit(stage_step(staging_id, writer, n, bodies))
        winners = self.random.choice([[0], [1, 0]])
        (ranges,) = await self.committer.submit(link_step(staging_id, [(name, winners)]))
        self.acknowledge(name, ranges[0], [entry for w in winners for entry in writers[w]])
        await self.evict(name)  # before all of it is folded

    async def evict(self, name: LogName) -> None:
        state = await self.state(name)
        if state is not None and state.length:
            # Often nearly all of it: what is not folded, merged or read yet must be hit too.
            kept = self.random.randrange(self.random.choice([5, state.length]))
            up_to = max(state.first, state.next - 1 - kept)
            self.edges[state.log_id] = max(self.edges[state.log_id], up_to + 1)
            await self.committer.submit(evict_step(state.log_id, up_to=up_to))

    async def punch(self, name: LogName) -> None:
        state = await self.state(name)
        if state is None or not state.length:
            return
        first = state.first + self.random.randrange(state.length)
        offsets = range(first, min(first + 20, state.next), self.random.choice([1, 3]))
        self.punched[state.log_id].update(offsets)
        left = list(offsets)
        while left:
            step, left = await self.committer.read(
                lambda view, left=left: plan_holes(view.store, state, left)  # type: ignore[misc]
            )
            if step is not None:
                (again,) = await self.committer.submit(step)
                left = sorted({*left, *again})
        self.dead.update((state.log_id, offset) for offset in offsets)

    async def delete(self, name: LogName) -> None:
        if self.deletes:
            await self.committer.submit(delete_step(name))

    async def begin_reading(self, name: LogName) -> LogState | None:
        """A slow reader: much may happen between the state and the first node."""
        state = await self.state(name)
        await self.clock.sleep(self.random.randrange(4 * self.turns) / 1000)
        return state

    async def look(self, name: LogName) -> None:
        dead = frozenset(self.dead)
        reverse, cached = self.random.random() < 0.3, self.random.random() < 0.5
        state = await self.begin_reading(name)
        if state is None or not state.next:
            return
        offset, count = self.random.randrange(state.next), self.random.randrange(200)
        low, high = read_range(state, offset, count, reverse=reverse)
        try:
            found = await self.committer.read(
                lambda view: read(
                    view.store,
                    state,
                    offset,
                    count,
                    reverse=reverse,
                    cache=self.cache if cached else None,
                )
            )
        except NotFoundError:
            assert self.deletes
            return
        if reverse:
            found.reverse()
        assert len(found) == high - low
        for at, message in zip(range(low, high), found, strict=True):
            assert message is None or (message.offset == at and (state.log_id, at) not in dead)
            self.compare(state.log_id, at, None if message is None else message.data)

    async def look_at_columns(self, name: LogName) -> None:
        state = await self.begin_reading(name)
        if state is None:
            return
        try:
            table = await self.committer.read(
                lambda view: to_arrow(view.store, state, 0, state.next)
            )
        except NotFoundError:
            assert self.deletes
            return
        entries = dict(zip(table["offset"].to_pylist(), table["data"].to_pylist(), strict=True))
        assert len(entries) == table.num_rows
        for at in range(state.next):
            self.compare(state.log_id, at, entries.get(at))

    def compare(self, log_id: int, at: int, data: bytes | None) -> None:
        if data is None:
            assert at < self.edges[log_id] or at in self.punched[log_id], (log_id, at)
        else:
            assert self.seen.setdefault((log_id, at), data) == data

    # -- an episode

    async def run(self) -> None:
        await self.committer.open()
        self.upkeep.start(self.committer)
        try:
            await asyncio.gather(*(self.work() for _ in range(WORKERS)))
            self.turns = 0
            await self.settle()
            await self.committer.read(self.inspect)
        finally:
            await self.upkeep.stop()
            await self.committer.close()

    async def work(self) -> None:
        acts = [self.append, self.stage, self.evict, self.look, self.look_at_columns]
        acts = [*acts * 3, *[self.evict] * 3, self.punch, self.punch, self.delete]
        for _ in range(ACTS):
            await self.random.choice(acts)(self.random.choice(self.names))

    async def settle(self) -> None:
        """Until the upkeep has nothing left to do that is due."""
        commits = -1
        for _ in range(ROUNDS):
            for _ in range(200):
                await asyncio.sleep(0)
            if commits == self.committer.health.commits and not any(
                at_ms <= self.committer.now_ms() for at_ms in self.upkeep._due.values()
            ):
                return
            commits = self.committer.health.commits
        raise AssertionError("the upkeep never ends")

    async def inspect(self, view: Shown) -> None:
        assert await check_log(view.store) == []
        for kind in (KeyType.GARBAGE, KeyType.STAGED, KeyType.STAGING):
            scan = view.store.scan(prefix(kind), prefix_end(prefix(kind)))
            assert [rows async for rows in scan] == []
        found: dict[tuple[LogName, int], bytes] = {}
        states: dict[LogName, LogState] = {}
        for name in self.names:
            state = await open_target(view, name)
            if state is None:
                continue
            states[name] = state
            assert state.first == self.edges[state.log_id]
            stored = await read_log(view.store, state.log_id)
            for field in COUNTED:
                assert getattr(state, field) == getattr(stored, field), field
            for at, message in enumerate(await read(view.store, state, 0, state.next)):
                self.compare(state.log_id, at, None if message is None else message.data)
                if message is None:
                    continue
                assert (state.log_id, at) not in self.dead
                found[name, at] = message.data
        alive = set(found.values())
        assert len(alive) == len(found)
        for name, at, data in self.acknowledged:
            if not self.deletes:
                state = states[name]
                gone = at < state.first or at in self.punched[state.log_id]
                assert found.get((name, at)) == (None if gone else data)
            else:
                # It may have been written before the deletion; it is nowhere else then.
                assert data not in alive or found.get((name, at)) == data


@given(seed=st.integers(0, 2**32))
@settings(max_examples=80, deadline=None)
def test_readers_and_upkeep_agree_in_every_interleaving(seed: int) -> None:
    asyncio.run(World(seed).run())


def test_a_seed_is_one_interleaving() -> None:
    ends = []
    for _ in range(2):
        world = World(5)
        asyncio.run(world.run())
        ends.append((world.disk.head, world.acknowledged, world.seen))
    assert ends[0] == ends[1]
