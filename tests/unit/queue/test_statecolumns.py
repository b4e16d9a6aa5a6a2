"""Queue state as columns is what requests of the queue say: stats, peek, claims, done, failed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from penstock.broker.broker import Broker
from penstock.broker.pagekeeping import flush_queue
from penstock.broker.queueanswers import FailedMessage
from penstock.broker.queuekeeping import GRACE_MS
from penstock.codec.keys import KeyType, prefix, prefix_end
from penstock.codec.queueoperation import LINES, PageKind, join
from penstock.errors import CorruptError, InvalidError, NotFoundError
from penstock.log.columns import Counts
from penstock.log.decision import Decision, Step
from penstock.log.pages import Tail
from penstock.log.rowview import RowView
from penstock.queue import statecolumns
from penstock.queue.item import INLINE_BYTES, Item
from penstock.queue.payloadcolumns import payloads_of
from penstock.queue.state import (
    load_page,
    load_queue,
    owner_of,
    page_row_key,
    queue_name,
    read_lines,
)
from penstock.queue.statecolumns import STATES, PageRange, queue_ranges, state_columns
from penstock.store.memory import MemoryDisk, MemoryStore
from penstock.store.objects import MemoryObjects
from unit.broker.driver import StepClock, upkeep_of
from unit.queue.driver import small_pages

Q = queue_name("q")
LARGE = b"x" * INLINE_BYTES + b"y"


def at(ms: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)


class World:
    broker: Broker

    def __init__(self) -> None:
        self.clock, self.disk, self.objects = StepClock(), MemoryDisk(), MemoryObjects()

    @classmethod
    async def start(cls, **options: Any) -> World:
        world = cls()

        async def opener(after: int | None) -> MemoryStore:
            return await MemoryStore.open(world.disk, clock=world.clock)

        world.broker = await Broker.start(opener, world.clock, deadline=30, objects=world.objects)
        await upkeep_of(world.broker).stop()
        await world.queues.create(Q, **({"backoff": 0, "max_attempts": 2} | options))
        return world

    @property
    def queues(self) -> Any:
        return self.broker.queues

    @property
    def store(self) -> Any:
        return self.broker.committer._require_store()

    @property
    def now_ms(self) -> int:
        return self.broker.committer.now_ms()

    async def publish(self, *items: Item) -> list[int]:
        return list(await self.queues.publish(items))

    async def claim(self, count: int, **options: Any) -> Any:
        return await self.queues.claim(Q, count, **options)

    async def ack(self, messages: Any) -> None:
        assert all(await self.queues.ack(Q, [message.receipt for message in messages]))

    async def fail(self, messages: Any, **options: Any) -> None:
        receipts = [message.receipt for message in messages]
        assert all(await self.queues.fail(Q, receipts, **options))

    async def upkeep(self) -> None:
        upkeep = upkeep_of(self.broker)
        for _ in range(20):
            for what in [what for what, ms in upkeep._due.items() if ms <= self.now_ms]:
                del upkeep._due[what]
                await upkeep._do(self.broker.committer, what)

    async def rows(self, *states: str, **options: Any) -> list[dict[str, Any]]:
        given: dict[str, Any] = {"count": Counts()} | options
        found = state_columns(self.store, "q", states or tuple(STATES), **given)
        batches = [batch async for batch in found]
        for batch in batches:
            batch.validate(full=True)
        return [row for batch in batches for row in batch.to_pylist()]

    async def counted(self, **options: Any) -> dict[str, int]:
        rows = await self.rows(**options)
        return {state: sum(row["state"] == state for row in rows) for state in STATES}


async def agree(world: World) -> None:
    """Columns and requests say the same. What time takes away is taken by then: stats do it."""
    stats = await world.queues.stats(Q)
    now_ms = world.now_ms
    rows = await world.rows(now_ms=now_ms, headers=True, payload=True, objects=world.objects)
    of = {state: [row for row in rows if row["state"] == state] for state in STATES}
    visible = [row for row in of["available"] if row["visible_at"] <= at(now_ms)]
    assert (
        len(visible), len(of["available"]), len(of["in_flight"]), len(of["done"]), len(of["failed"])
    ) == (
        stats.available, stats.available + stats.delayed, stats.in_flight, stats.done, stats.failed
    )  # fmt: skip
    assert [
        (m.id, m.priority, m.attempts, at(m.visible_at_ms), m.payload, m.uri, dict(m.headers))
        for m in await world.queues.peek(Q, 1000)
    ] == [
        (
            row["id"], row["priority"], row["attempts"], row["visible_at"],
            row["payload"], row["uri"], dict(row["headers"]),
        )
        for row in visible
    ]  # fmt: skip
    done = await listed(world.queues.done)
    assert [(m.id, at(m.done_at_ms), m.attempts) for m in done] == [
        (row["id"], row["finished_at"], row["attempts"]) for row in of["done"]
    ]
    failed: list[FailedMessage] = await listed(world.queues.failed)
    assert [
        (
            m.id, at(m.failed_at_ms), m.attempts, m.priority, m.payload, m.uri, dict(m.headers),
            m.history[-1].consumer if m.history else None,
            m.history[-1].reason or None if m.history else None,
        )
        for m in failed
    ] == [
        (
            row["id"], row["finished_at"], row["attempts"], row["priority"],
            row["payload"], row["uri"], dict(row["headers"] or ()), row["consumer"], row["reason"],
        )
        for row in of["failed"]
    ]  # fmt: skip


async def listed(read: Any) -> list[Any]:
    found: list[Any] = []
    after: int | None = 0
    while after is not None:
        page = await read(Q, after)
        found += page.messages
        after = page.next
    return found


async def lively(world: World) -> None:
    """A bit of everything."""
    await world.publish(
        *(Item(b"%d" % i, headers={"n": str(i), "priority": str(i % 3)}) for i in range(20)),
        Item(uri="s3://b/k"),
        Item(LARGE, headers={"large": "yes"}),
        *(Item(b"later", delay_ms=60_000 + i) for i in range(6)),
        *(Item(b"old", retention_s=5) for _ in range(6)),
    )
    await world.ack(await world.claim(5, consumer="a"))
    await world.claim(4, consumer="b", lease_ms=2000)
    first = await world.claim(6, consumer="c")
    await world.fail(first[:2], reason="too early")
    await world.fail(first[2:4], delay_ms=70_000)
    await world.fail(await world.claim(2, consumer="d"), reason="too late")


@pytest.mark.parametrize("flushed", [False, True])
async def test_columns_say_what_stats_peek_done_and_failed_say(
    flushed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_pages(monkeypatch)
    world = await World.start()
    for passed_ms in (0, 1000, 2000, 3000, 60_000, GRACE_MS, 10_000):
        world.clock.pass_ms(passed_ms)
        if passed_ms:
            await world.upkeep()
        else:
            await lively(world)
        if flushed:
            await flush_queue(world.broker.committer, Q)
        await agree(world)
    await lively(world)
    await agree(world)
    await world.queues.redrive(Q)
    await agree(world)
    await world.queues.purge(Q)
    await agree(world)
    assert (await world.counted())["available"] == 0


async def test_every_column_of_every_state() -> None:
    world = await World.start(max_attempts=1, lease_ms=9000)
    ids = await world.publish(
        Item(b"done"), Item(b"failed", retention_s=50), Item(b"held"), Item(b"next", delay_ms=300)
    )
    began_ms = world.now_ms
    first, second, third = await world.claim(3, consumer="me")
    world.clock.pass_ms(10)
    await world.ack([first])
    await world.fail([second], reason="so")
    assert third.id == ids[2]
    none = dict.fromkeys(statecolumns.state_schema().names)
    begun, ended = at(began_ms), at(began_ms + 10)
    assert {row["state"]: row for row in await world.rows()} == {
        "available": none | {
            "id": ids[3], "state": "available", "priority": 128, "attempts": 0,
            "visible_at": at(began_ms + 300), "offset": 3,
        },
        "in_flight": none | {
            "id": ids[2], "state": "in_flight", "priority": 128, "attempts": 1,
            "visible_at": begun, "claimed_at": begun, "lease_deadline": at(began_ms + 9000),
            "consumer": "me", "offset": 2,
        },
        "done": none | {"id": ids[0], "state": "done", "attempts": 1, "finished_at": ended},
        "failed": none | {
            "id": ids[1], "state": "failed", "priority": 128, "attempts": 1, "finished_at": ended,
            "consumer": "me", "reason": "so", "offset": 1,
            "retention_deadline": at(began_ms + 50_000),
        },
    }  # fmt: skip
    (row,) = await world.rows("failed", history=False)
    assert (row["consumer"], row["reason"]) == (None, None)


async def test_who_holds_a_lease_is_told_on_every_page(monkeypatch: pytest.MonkeyPatch) -> None:
    small_pages(monkeypatch)
    world = await World.start()
    await world.publish(*(Item(b"%d" % i) for i in range(12)))
    held: dict[int, str] = {}
    for who, count in (("a", 3), ("ü🐟", 5), ("b", 1), ("a", 3)):
        held |= {message.id: who for message in await world.claim(count, consumer=who)}
    rows = await world.rows("in_flight")
    assert {row["id"]: row["consumer"] for row in rows} == held


async def test_by_the_clock_what_is_over_is_left_out_though_nobody_looked() -> None:
    world = await World.start(done_retention_s=10, max_attempts=1)
    await world.publish(Item(b"old", retention_s=5), Item(b"kept"), Item(b"done"), Item(b"f"))
    messages = await world.claim(4)
    await world.queues.release(Q, [messages[0].receipt, messages[1].receipt])
    await world.ack([messages[2]])
    await world.fail([messages[3]])
    soon, late = world.now_ms + 5000, world.now_ms + 10_001
    everything = {"available": 2, "in_flight": 0, "done": 1, "failed": 1}
    assert await world.counted() == everything
    assert await world.counted(now_ms=soon) == everything
    assert await world.counted(now_ms=late) == everything | {"available": 1, "done": 0}
    assert await world.counted(now_ms=late, payload=True) == everything | {
        "available": 1, "done": 0
    }  # fmt: skip


async def test_the_payload_of_a_message_past_its_retention_is_null_before_it_is_removed() -> None:
    world = await World.start(max_attempts=1)
    await world.publish(Item(b"x", retention_s=5, headers={"a": "b"}), Item(b"y"))
    await world.fail(await world.claim(2))
    over = world.now_ms + 5001
    rows = await world.rows("failed", payload=True, headers=True)
    assert [(row["payload"], row["headers"]) for row in rows] == [(b"x", [("a", "b")]), (b"y", [])]
    rows = await world.rows("failed", payload=True, headers=True, now_ms=over)
    assert [(row["payload"], row["headers"]) for row in rows] == [(None, None), (b"y", [])]


async def test_a_dead_payload_that_its_block_still_holds_is_not_shown() -> None:
    """Its metadata is gone by then, and the block is written anew only when half of it is dead."""
    world = await World.start(max_attempts=1)
    (number, *_) = await world.publish(Item(b"x", retention_s=5), *(Item(b"y") for _ in range(5)))
    await world.fail(await world.claim(1))
    world.clock.pass_ms(5001 + GRACE_MS)
    await world.upkeep()
    (row,) = await world.rows("failed", payload=True, headers=True)
    assert (row["id"], row["payload"], row["headers"]) == (number, None, None)
    held = await payloads_of(world.store, np.array([number], np.uint64))
    assert held.data.to_pylist() == [b"x"], "else this test says nothing"


async def test_large_payloads_make_smaller_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.queue.payloadcolumns.PART_BYTES", 3 << 20)
    world = await World.start()
    ids = await world.publish(*(Item(LARGE, headers={"n": str(i)}) for i in range(8)))
    found = state_columns(
        world.store,
        "q",
        {"available"},
        payload=True,
        headers=True,
        objects=world.objects,
        count=Counts(),
    )
    batches = [batch async for batch in found]
    assert len(batches) > 1
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [row["id"] for row in rows] == ids
    assert all(row["payload"] == LARGE for row in rows)
    assert [row["headers"] for row in rows] == [[("n", str(i))] for i in range(8)]


# ---- ranges -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("gap_pages", "scan_rows"), [(16, 32), (1, 2), (0, 1)])
async def test_ranges_together_are_every_message_once_and_always_the_same(
    gap_pages: int, scan_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_pages(monkeypatch)
    monkeypatch.setattr(statecolumns, "GAP_PAGES", gap_pages)
    monkeypatch.setattr(statecolumns, "SCAN_ROWS", scan_rows)
    world = await World.start()
    await lively(world)
    await flush_queue(world.broker.committer, Q)
    await world.publish(*(Item(b"not flushed") for _ in range(6)))
    ranges = await queue_ranges(world.store, "q", range_rows=5)
    assert ranges == await queue_ranges(world.store, "q", range_rows=5)
    assert {each.state for each in ranges} == set(STATES)
    assert max(each.rows for each in ranges) <= 12
    assert sum(each.state == "available" for each in ranges) > 2
    together: list[dict[str, Any]] = []
    for each in ranges:
        rows = await world.rows(ranges=[each])
        assert len(rows) == each.rows
        together += rows
    assert together == await world.rows()
    assert len({row["id"] for row in together}) == len(together) == 40
    assert await world.rows(ranges=[]) == []
    only = await queue_ranges(world.store, "q", ["done"])
    assert [each.state for each in only] == ["done"]


async def test_batches_have_as_many_rows_as_asked_for_or_a_page_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small_pages(monkeypatch)
    world = await World.start()
    await world.publish(*(Item(b"%d" % i) for i in range(40)))
    count = Counts()
    found = state_columns(world.store, "q", ["available"], batch_rows=10, count=count)
    sizes = [len(batch) async for batch in found]
    assert sizes == [12, 12, 12, 4]
    assert (count.rows, count.nodes) == (40, 10)


async def test_pages_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    small_pages(monkeypatch)
    world = await World.start()
    await world.publish(*(Item(b"%d" % i) for i in range(40)))
    view, queue = await statecolumns._open(world.store, "q")
    page = await load_page(view, queue, PageKind.AVAILABLE, 1, 128)
    assert len(page.entries) == 4
    assert {key[0] for key in view._states} == {"name", "queue"}


async def test_unknown_states_and_queues_are_refused() -> None:
    world = await World.start()
    with pytest.raises(InvalidError, match="'delayed' is no state"):
        await world.rows("delayed")
    with pytest.raises(InvalidError, match="'gone' is no state"):
        await world.rows(ranges=[PageRange("gone", (), 0)])
    with pytest.raises(NotFoundError):
        await queue_ranges(world.store, "nobody")
    assert await world.rows() == []


# ---- flushing -----------------------------------------------------------------------------------


async def test_after_a_flush_the_rows_alone_say_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    small_pages(monkeypatch)
    world = await World.start()
    await world.queues.create(queue_name("other"))
    await lively(world)
    await flush_queue(world.broker.committer, Q)
    without = RowView(world.store, Tail())
    queue = await load_queue(without, Q)
    stats = await world.queues.stats(Q)
    assert [queue.count(kind) for kind in PageKind] == [
        stats.available + stats.delayed, stats.in_flight, stats.done, stats.failed
    ]  # fmt: skip
    assert world.broker.committer.tail.of(owner_of(queue.id)) == []
    other = await load_queue(without, queue_name("other"))
    assert world.broker.committer.tail.of(owner_of(other.id)), "only this one was written"
    await flush_queue(world.broker.committer, Q)
    await agree(world)


async def test_a_flush_first_ends_leases_and_lets_go_what_is_over() -> None:
    world = await World.start(max_attempts=1)
    await world.publish(Item(b"x"), Item(b"old", retention_s=1))
    await world.claim(1, lease_ms=1000)
    world.clock.pass_ms(1001)
    await flush_queue(world.broker.committer, Q)
    assert await world.counted() == {"available": 0, "in_flight": 0, "done": 0, "failed": 1}
    with pytest.raises(NotFoundError):
        await flush_queue(world.broker.committer, queue_name("nobody"))


@pytest.mark.parametrize("state", STATES)
async def test_a_page_whose_row_is_lost_is_damage_and_no_smaller_table(state: str) -> None:
    world = await World.start(max_attempts=1)
    await world.publish(*[Item(b"x")] * 9)
    await world.ack(await world.claim(2))
    await world.fail(await world.claim(2))
    await world.claim(2)
    await flush_queue(world.broker.committer, Q)
    view, kind = RowView(world.store, Tail()), STATES[state]
    queue = await load_queue(view, Q)
    line = join(LINES[kind], [part async for part in read_lines(view, queue, kind)])[0]
    priority = int(line["priority"]) if state == "available" else 0
    key = page_row_key(queue.queue_id, kind, int(line["page"]), priority)
    low = prefix(KeyType.OPERATIONS)
    scan = world.store.scan(low, prefix_end(low))
    gone = dict.fromkeys([key, *[key async for rows in scan for key, _ in rows]])
    await world.broker.committer.submit(Step(lambda view, now: Decision(writes=gone)))
    with pytest.raises(CorruptError, match=f"pages of {state.replace('_', ' ')} messages have 0"):
        await world.rows()
