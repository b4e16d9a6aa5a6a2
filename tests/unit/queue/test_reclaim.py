"""Messages that nobody needs go: payloads, metadata, objects, and what counted them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Sequence
from typing import Any

import pytest

from penstock.broker.broker import Broker
from penstock.broker.queuekeeping import GRACE_MS, ORPHAN_MS, QueueKeeping
from penstock.codec.keys import KeyType, prefix, prefix_end
from penstock.codec.payload import BytesPayload, PayloadBlock, decode_payload
from penstock.errors import UnavailableError
from penstock.log.catalogue import open_target
from penstock.log.check import check_log
from penstock.log.decision import Decision, Step, View
from penstock.log.holes import plan_holes
from penstock.log.pages import Tail
from penstock.log.read import read_nodes
from penstock.log.rowview import RowView
from penstock.queue.check import check_queues
from penstock.queue.item import Item, PreparedBatch
from penstock.queue.publish import payload_records
from penstock.queue.route import ROUTER, backfill_step, catch_up_step
from penstock.queue.state import queue_name
from penstock.queue.taken import METADATA, RECLAIM_MS
from penstock.store.memory import MemoryDisk, MemoryStore
from penstock.store.objects import MemoryObjects
from unit.broker.driver import StepClock, upkeep_of

Q = queue_name("q")
MODULES = (
    "codec.taken",
    "queue.reclaim",
    "queue.route",
    "queue.flush",
    "queue.check_messages",
    "broker.queuekeeping",
)


class Crash(BaseException):
    """The process is dead."""


class World:
    def __init__(self) -> None:
        self.clock, self.disk, self.objects = StepClock(), MemoryDisk(), MemoryObjects()

    async def open(self) -> Broker:
        async def opener(after: int | None) -> MemoryStore:
            return await MemoryStore.open(self.disk, clock=self.clock)

        self.broker = await Broker.start(opener, self.clock, deadline=30, objects=self.objects)
        await upkeep_of(self.broker).stop()
        return self.broker

    @property
    def store(self) -> Any:
        return self.broker.committer._require_store()

    def die_after(self, commits: int) -> None:
        """The next one behind these raises Crash."""
        submit, left = self.broker.committer.submit, [commits]

        async def counted(*steps: Step, begun: float | None = None) -> list[Any]:
            if not left[0]:
                raise Crash
            left[0] -= 1
            return await submit(*steps, begun=begun)

        self.broker.committer.submit = counted  # type: ignore[method-assign]

    async def upkeep(self) -> None:
        """Everything that is due."""
        upkeep = upkeep_of(self.broker)
        for _ in range(20):
            now_ms = self.broker.committer.now_ms()
            for what in [what for what, at_ms in upkeep._due.items() if at_ms <= now_ms]:
                del upkeep._due[what]
                await upkeep._do(self.broker.committer, what)

    async def payloads(self) -> dict[bytes, Any]:
        low = prefix(KeyType.PAYLOAD)
        return {
            key: decode_payload(value)
            async for rows in self.store.scan(low, prefix_end(low))
            for key, value in rows
        }

    async def living(self) -> int:
        return sum(
            record.count if isinstance(record, PayloadBlock) else 1
            for record in (await self.payloads()).values()
        )

    async def metadata(self) -> list[int]:
        """Offsets of the messages that are there."""
        log = await open_target(RowView(self.store, Tail()), METADATA)
        assert log is not None
        return [
            offset
            async for node, start, stop in read_nodes(self.store, log, log.first, log.next)
            for first, last, living in node.runs(start, stop)
            if living
            for offset in range(node.first + first, node.first + last)
        ]

    async def edge(self) -> tuple[int, int]:
        log = await open_target(RowView(self.store, Tail()), METADATA)
        assert log is not None
        return log.first, log.next

    async def clean(self) -> None:
        assert await check_queues(self.store) == []
        assert await check_log(self.store) == []

    async def work(self, count: int) -> None:
        found = await self.broker.queues.claim(Q, count)
        assert len(found) == count
        assert all(await self.broker.queues.ack(Q, [message.receipt for message in found]))
        self.clock.pass_ms(RECLAIM_MS)
        await self.upkeep()
        await self.clean()


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> World:
    for module in MODULES:
        monkeypatch.setattr(f"penstock.{module}.PAGE_SLOTS", 8)
    world = World()
    await world.open()
    await world.broker.queues.create(Q)
    return world


async def test_what_every_queue_is_done_with_goes_and_the_edge_moves(world: World) -> None:
    await world.broker.queues.create(queue_name("b"))
    await world.broker.queues.publish([Item(b"%d" % i) for i in range(20)])
    await world.work(20)
    assert await world.living() == 20, "b holds them"
    await world.broker.queues.purge(queue_name("b"))
    world.clock.pass_ms(RECLAIM_MS)
    await world.upkeep()
    await world.clean()
    assert await world.living() == 0
    assert await world.edge() == (16, 20), "it moves by whole pages of takers"


@pytest.mark.parametrize("broken_off", [False, True])
async def test_what_is_left_of_a_record_goes_too_where_it_was_written_anew(
    world: World, monkeypatch: pytest.MonkeyPatch, broken_off: bool
) -> None:
    """Its messages were published together a moment ago, and their payloads lie apart since then.
    Either their retention ends, which asks for all of them, also for those that went before; or the
    metadata of those is still there, as the request that was about to remove it failed."""
    queues = world.broker.queues
    await queues.create(queue_name("keeps"), filter="kept = 'yes'")
    await queues.publish([Item(b"first", headers={"kept": "yes"})])
    await queues.publish([Item(b"%d" % i, retention_s=60) for i in range(6)])
    found = await queues.claim(Q, 7)

    async def turned_away(*args: Any) -> None:
        raise UnavailableError("too many requests")

    await queues.ack(Q, [found[i].receipt for i in (0, 1, 2, 4, 6)])
    world.clock.pass_ms(RECLAIM_MS)
    if broken_off:
        with monkeypatch.context() as patch:
            patch.setattr("penstock.log.holes.PUNCH_BYTES", 0)
            patch.setattr(QueueKeeping, "_punch", turned_away)
            with pytest.raises(UnavailableError):
                await world.upkeep()
        await queues.ack(Q, [found[i].receipt for i in (3, 5)])
        world.clock.pass_ms(RECLAIM_MS)
    else:
        await world.upkeep()
        world.clock.pass_ms(60_000 + GRACE_MS)
    apart = [BytesPayload(payload) for payload in (b"first", b"2", b"4")]
    assert list((await world.payloads()).values()) == apart
    await world.upkeep()
    await world.clean()
    assert list((await world.payloads()).values()) == [BytesPayload(b"first")]


async def test_what_is_evicted_at_once_gets_no_holes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    punched: list[int] = []

    async def planned(store: Any, log: Any, offsets: Sequence[int]) -> Any:
        punched.extend(offsets)
        return await plan_holes(store, log, offsets)

    monkeypatch.setattr("penstock.broker.queuekeeping.plan_holes", planned)
    await world.broker.queues.publish([Item(b"x")] * 20)
    await world.work(18)
    assert await world.edge() == (16, 20)
    assert punched == [16, 17]
    assert await world.living() == 2
    await world.work(2)
    assert await world.payloads() == {}


async def test_a_block_is_written_anew_when_half_of_it_is_dead(world: World) -> None:
    ids = await world.broker.queues.publish([Item(b"%d" % i) for i in range(8)])
    await world.work(3)
    assert await world.living() == 8
    await world.work(1)
    assert await world.living() == 4
    left = await world.broker.queues.claim(Q, 8)
    assert [(m.id, m.payload) for m in left] == [(i, b"%d" % (i - ids[0])) for i in ids[4:]]


async def test_a_block_over_the_edge_goes_with_its_last_message(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first messages have no page of takers any more by then, and no operations either."""
    monkeypatch.setattr("penstock.log.pages.TAIL_RECORDS", 2)
    await world.broker.queues.publish([Item(b"")] * 5)
    await world.broker.queues.publish([Item(b"x")] * 10)
    await world.work(8)
    assert (await world.edge())[0] == 8
    assert await world.living() == 10, "three of ten are dead"
    await world.work(7)
    assert await world.payloads() == {}


async def test_pages_of_takers_below_the_edge_are_not_written_again(world: World) -> None:
    await world.broker.queues.publish([Item(b"x")] * 20)
    await world.work(20)
    tail = world.broker.committer.tail
    while not tail.long:
        await world.broker.queues.publish([Item(b"y")])
    await world.upkeep()
    assert tail.short
    await world.clean()


async def test_messages_past_their_retention_go_after_a_grace(world: World) -> None:
    await world.broker.queues.create(queue_name("none"), filter="false")
    await world.broker.queues.publish([Item(b"x", retention_s=1), Item(b"y")])
    world.clock.pass_ms(1001)
    await world.upkeep()
    assert await world.living() == 2
    world.clock.pass_ms(GRACE_MS)
    await world.upkeep()
    await world.clean()
    assert await world.living() == 1
    left = await world.broker.queues.claim(Q, 5)
    assert [message.payload for message in left] == [b"y"]
    assert (await world.broker.queues.stats(Q)).expired == 1


async def test_a_failed_message_keeps_its_payload_until_its_retention(world: World) -> None:
    await world.broker.queues.alter(Q, max_attempts=1)
    await world.broker.queues.publish([Item(b"x", retention_s=5), Item(b"y")])
    found = await world.broker.queues.claim(Q, 2)
    await world.broker.queues.fail(Q, [message.receipt for message in found])
    for passed, payloads in ((1000, [b"x", b"y"]), (4000 + GRACE_MS + 1, [None, b"y"])):
        world.clock.pass_ms(passed)
        await world.upkeep()
        page = await world.broker.queues.failed(Q)
        assert [m.payload for m in page.messages if hasattr(m, "payload")] == payloads
        await world.clean()
    redriven = await world.broker.queues.redrive(Q)
    assert (redriven.count, redriven.expired) == (1, 1)


async def test_the_object_of_a_spilled_payload_goes_with_its_message(world: World) -> None:
    large = b"x" * (1 << 20) + b"y"
    (number,) = await world.broker.queues.publish([Item(large)])
    assert world.objects.objects == {number: large}
    world.broker.queues._reading.fresh.clear()
    (message,) = await world.broker.queues.claim(Q, 1)
    assert message.payload == large
    await world.broker.queues.ack(Q, [message.receipt])
    world.clock.pass_ms(RECLAIM_MS)
    await world.upkeep()
    assert world.objects.objects == {}
    await world.clean()


async def test_an_object_without_a_message_is_collected_and_one_with_a_message_is_not(
    world: World,
) -> None:
    large = b"x" * (1 << 20) + b"y"
    (number,) = await world.broker.queues.publish([Item(large)])
    world.objects.objects[number + 1] = b"its broker died"
    await world.open()
    await world.upkeep()
    assert len(world.objects.objects) == 2, "it may be about to be committed"
    world.clock.pass_ms(ORPHAN_MS)
    await world.upkeep()
    assert world.objects.objects == {number: large}


async def test_a_crash_after_any_commit_of_a_reclaim_loses_nothing(world: World) -> None:
    ids = await world.broker.queues.publish([Item(b"%d" % i) for i in range(30)])
    found = await world.broker.queues.claim(Q, 20)
    await world.broker.queues.ack(Q, [message.receipt for message in found])
    world.clock.pass_ms(RECLAIM_MS)

    for commits in range(12):
        world.die_after(commits)
        try:
            await world.upkeep()
        except Crash:
            await world.open()
            await world.clean()
    await world.upkeep()
    assert await world.living() == 10
    left_over = await world.broker.queues.claim(Q, 30)
    assert [message.id for message in left_over] == ids[20:]


async def test_a_store_that_opens_again_twice_costs_no_object_of_a_message_under_way(
    world: World,
) -> None:
    """Its payload is an object, its message is about to be committed."""
    world.objects.objects[500] = b"large"
    for _ in range(2):
        upkeep_of(world.broker).look_again()
        await world.upkeep()
    assert 500 in world.objects.objects


async def test_an_object_without_a_message_is_collected_by_a_broker_that_stays_open(
    world: World,
) -> None:
    await world.upkeep()
    large = b"x" * (1 << 20) + b"y"
    await world.broker.queues.publish([Item(large, dedup_id="d")])
    await world.broker.queues.publish([Item(large, dedup_id="d")])
    for _ in range(3):
        world.clock.pass_ms(ORPHAN_MS)
        await world.upkeep()
    assert len(world.objects.objects) == 1


async def test_the_edge_moves_behind_messages_that_went_by_their_retention(world: World) -> None:
    await world.broker.queues.publish([Item(b"x", retention_s=1)] * 20)
    world.clock.pass_ms(1001 + GRACE_MS)
    await world.upkeep()
    assert await world.payloads() == {}
    await world.clean()
    assert (await world.edge())[0] == 20


async def stage(world: World, items: Sequence[Item]) -> None:
    """Publish them as Spark does: linked, and left to the router."""
    bulk = world.broker.bulk
    staging = await bulk.begin()
    ids, now_ms = await bulk.reserve(staging, 1, len(items))
    batch = PreparedBatch(items)
    bodies = batch.bodies(batch.fixed(ids, now_ms))
    await bulk.stage(staging, 1, 0, bodies, list(payload_records(ids, batch)))
    await bulk.link(staging, None, [1])


async def test_what_the_router_has_not_seen_is_not_removed(world: World) -> None:
    """A new queue gets it by its backfill and is done with it before the router comes by."""
    queues = world.broker.queues
    await stage(world, [Item(b"%d" % i) for i in range(20)])
    late = queue_name("late")
    await queues.create(late, start="first")
    router = upkeep_of(world.broker)._due.pop(ROUTER)
    await world.upkeep()
    found = await queues.claim(late, 20)
    assert len(found) == 20
    assert all(await queues.ack(late, [message.receipt for message in found]))
    world.clock.pass_ms(RECLAIM_MS)
    await world.upkeep()
    await world.clean()
    assert await world.living() == 20
    upkeep_of(world.broker)._due[ROUTER] = router
    await world.upkeep()
    await world.work(20)
    assert await world.living() == 0


async def test_a_block_that_the_router_is_within_keeps_what_it_has_not_seen(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.queue.route.ROUTE_COUNT", 12)
    queues, late = world.broker.queues, queue_name("late")
    await stage(world, [Item(b"%d" % i) for i in range(20)])
    await queues.create(late, start="first")
    router = upkeep_of(world.broker)._due.pop(ROUTER)
    await world.upkeep()
    found = await queues.claim(late, 20)
    assert all(await queues.ack(late, [message.receipt for message in found]))
    await world.broker.committer.submit(catch_up_step())
    await world.work(12)
    assert await world.living() == 8
    upkeep_of(world.broker)._due[ROUTER] = router
    await world.upkeep()
    await world.work(8)
    assert await world.living() == 0


async def test_under_retention_a_block_keeps_what_is_done_when_others_of_it_expire(
    world: World,
) -> None:
    queues = world.broker.queues
    await queues.configure(reclaim="retention")
    await queues.publish([Item(b"x", retention_s=1)] * 5 + [Item(b"y")] * 3)
    await world.work(8)
    world.clock.pass_ms(1001 + GRACE_MS)
    await world.upkeep()
    await world.clean()
    assert len(await world.metadata()) == 3
    assert await world.living() == 3


async def test_under_retention_a_new_queue_gets_what_the_others_are_done_with(
    world: World,
) -> None:
    """RFC: payload and metadata of done messages stay, since other queues could still use them."""
    queues, late = world.broker.queues, queue_name("late")
    await queues.configure(reclaim="retention")
    ids = await queues.publish([Item(b"x", retention_s=1), *[Item(b"y")] * 20, Item(b"z", to="q")])
    await world.work(22)
    world.clock.pass_ms(1001)
    await queues.create(late, start="first")
    await world.upkeep()
    await world.clean()
    found = await queues.claim(late, 30)
    assert [message.id for message in found] == ids[1:-1]
    assert all(await queues.ack(late, [message.receipt for message in found]))
    await queues.configure(reclaim="done")
    world.clock.pass_ms(RECLAIM_MS + GRACE_MS)
    await world.upkeep()
    await world.clean()
    assert await world.living() == 0


async def test_a_step_of_a_backfill_looks_for_a_bounded_part_of_the_payloads(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everybody's commits wait for it, and payloads may be large."""
    monkeypatch.setattr("penstock.queue.route.LOOK_BYTES", 250_000)
    queues, late = world.broker.queues, queue_name("late")
    await queues.configure(reclaim="retention")
    ids = [(await queues.publish([Item(b"x" * 40_000)]))[0] for _ in range(10)]
    await world.work(10)
    ids += await queues.publish([Item(b"y")])
    await queues.create(late, start="first")
    for stop in (3, 6, 9, 11):
        (more,) = await world.broker.committer.submit(backfill_step(late))
        assert (more, (await queues.stats(late)).available) == (stop < 11, stop)
    assert [message.id for message in await queues.claim(late, 20)] == ids


async def test_what_lost_its_payload_before_retention_was_set_is_for_no_new_queue(
    world: World,
) -> None:
    late = queue_name("late")
    ids = await world.broker.queues.publish([Item(b"%d" % i) for i in range(30)])
    found = await world.broker.queues.claim(Q, 20)
    await world.broker.queues.ack(Q, [message.receipt for message in found])
    world.clock.pass_ms(RECLAIM_MS)
    world.die_after(2)
    with pytest.raises(Crash):
        await world.upkeep()
    await world.open()
    assert (len(await world.metadata()), await world.living()) == (14, 10)
    await world.broker.queues.configure(reclaim="retention")
    await world.broker.queues.create(late, start="first")
    await world.upkeep()
    await world.clean()
    assert [m.id for m in await world.broker.queues.claim(late, 30)] == ids[20:]


@pytest.mark.parametrize("commits", range(6))
@pytest.mark.parametrize("retention_s", [0, 1])
async def test_a_crash_between_two_parts_of_metadata_leaves_nothing_behind(
    world: World, monkeypatch: pytest.MonkeyPatch, retention_s: int, commits: int
) -> None:
    """One node to a commit, below something that lives: a message is gone with its metadata, and
    the row that says when it goes stays until all of its are. Whoever comes next goes on."""
    monkeypatch.setattr("penstock.log.holes.PUNCH_BYTES", 1)
    queues = world.broker.queues
    await queues.create(queue_name("keeps"), filter="kept = 'yes'")
    await queues.publish([Item(b"first", headers={"kept": "yes"})])
    for i in range(4):
        await queues.publish([Item(b"%d" % i, retention_s=retention_s)])
    found = await queues.claim(Q, 5)
    await queues.ack(Q, [message.receipt for message in found])
    world.clock.pass_ms(1001 + GRACE_MS)
    world.die_after(commits)
    with contextlib.suppress(Crash):
        await world.upkeep()
    await world.open()
    await world.clean()
    await world.upkeep()
    await world.clean()
    assert await world.edge() == (0, 5)
    assert await world.metadata() == [0]
    assert list((await world.payloads()).values()) == [BytesPayload(b"first")]


async def test_nothing_goes_in_a_commit_whose_time_is_before_the_end_of_its_retention(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tick has one time, and may take long over what it looks up: the removal comes in late."""
    committer, looked_up = world.broker.committer, asyncio.Event()
    await world.broker.queues.publish([Item(b"x", retention_s=1)])
    end_ms = committer.now_ms() + 1000
    times: list[int] = []
    on_commit = committer._on_commit

    def heard(keys: Collection[bytes]) -> None:
        if any(key.startswith(prefix(KeyType.PAYLOAD)) for key in keys):
            times.append(world.store.head().time_ms)
        on_commit(keys)

    async def slow(view: View) -> None:
        await looked_up.wait()

    monkeypatch.setattr(committer, "_on_commit", heard)
    tick = committer.request(Step(lambda view, now: Decision(), slow))
    await asyncio.sleep(0)
    world.clock.pass_ms(1001 + GRACE_MS)
    upkeep = asyncio.create_task(upkeep_of(world.broker)._do(committer, ("messages", None)))
    for _ in range(100):
        await asyncio.sleep(0)
    assert not upkeep.done()
    looked_up.set()
    await tick
    await upkeep
    assert len(times) == 1
    assert times[0] > end_ms
    assert await world.payloads() == {}
    await world.clean()
