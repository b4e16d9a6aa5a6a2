"""Reading ahead: what is claimed next is in memory by then, and a claim never depends on that."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.broker import queueahead
from penstock.broker.pagekeeping import flush_queue
from penstock.codec.keys import KeyType
from penstock.codec.queueoperation import PageKind
from penstock.errors import CorruptError, UnavailableError
from penstock.log.decision import Decision, Step
from penstock.queue import message
from penstock.queue.item import Item
from penstock.queue.state import load_queue, page_row_key
from unit.queue.test_reclaim import Q, World
from unit.queue.test_requests import settle

COUNT = 600
CONTENT = {KeyType.NODE, KeyType.PAYLOAD}


class Looks:
    """Counts the reads of messages' rows, by whether a claim waited for them."""

    def __init__(self, world: World, patch: pytest.MonkeyPatch) -> None:
        self.ahead = self.claims = 0
        store = world.store
        floor, scan = store.floor, store.scan

        def count(key: bytes) -> None:
            if key[1] in CONTENT:
                task = asyncio.current_task()
                assert task is not None
                if "Ahead._read" in repr(task.get_coro()):
                    self.ahead += 1
                else:
                    self.claims += 1

        async def counted(key: bytes, *, low: bytes) -> Any:
            count(key)
            return await floor(key, low=low)

        def counted_scan(low: bytes, high: bytes, **options: Any) -> Any:
            count(low)
            return scan(low, high, **options)

        patch.setattr(store, "floor", counted)
        patch.setattr(store, "scan", counted_scan)


async def cold_world(batch: int = 20, **options: Any) -> World:
    """A queue of messages that memory knows nothing of."""
    world = World()
    await world.open()
    await world.broker.queues.create(Q, backoff=0, **options)
    for n in range(0, COUNT, batch):
        await world.broker.queues.publish([Item(b"m%d" % i) for i in range(n, n + batch)])
    await world.open()
    return world


async def claim_all(world: World, each: int) -> list[bytes]:
    queues, found = world.broker.queues, []
    while messages := await queues.claim(Q, each):
        found += [found.payload for found in messages]
        assert all(await queues.ack(Q, [found.receipt for found in messages]))
        await settle()
    return [payload for payload in found if payload is not None]


@pytest.mark.parametrize("batch", [1, 20])
async def test_claims_of_a_backlog_wait_for_the_first_messages_only(
    monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    world = await cold_world(batch)
    looks, begun, real = Looks(world, monkeypatch), [0], queueahead._next

    async def counted(*args: Any) -> Any:
        begun[0] += 1
        return await real(*args)

    monkeypatch.setattr(queueahead, "_next", counted)
    assert await claim_all(world, 10) == [b"m%d" % i for i in range(COUNT)]
    assert 1 <= begun[0] <= 3  # of 60 claims
    assert 0 < looks.claims <= 6
    assert 0 < looks.ahead <= 10
    await world.clean()


async def test_reading_ahead_goes_on_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queueahead, "AHEAD_COUNT", 100)
    world = await cold_world()
    looks = Looks(world, monkeypatch)
    assert len(await claim_all(world, 10)) == COUNT
    assert 0 < looks.claims <= 4
    assert 6 <= looks.ahead <= 60


async def test_reading_ahead_ends_after_some_looks_and_a_claim_reads_for_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where neighbours in a queue are none in the store, reading ahead is dear."""
    monkeypatch.setattr(message, "LOOKS_MAX", 2)
    monkeypatch.setattr(message, "AHEAD_ROWS", 1)
    world = World()
    await world.open()
    await world.broker.queues.create(Q, priority="p")
    order = [(7 * i) % 60 for i in range(60)]
    for p in order:
        await world.broker.queues.publish([Item(b"%02d" % p, headers={"p": str(p)})])
    await world.open()
    looks = Looks(world, monkeypatch)
    messages = await world.broker.queues.claim(Q, 4)
    assert {each.payload for each in messages} in (
        {b"00", b"01", b"02", b"03"},
        {b"59", b"58", b"57", b"56"},
    )
    await settle()
    assert 0 < looks.ahead <= 5
    payloads = [*(each.payload or b"" for each in messages), *await claim_all(world, 4)]
    assert sorted(payloads) == [b"%02d" % i for i in range(60)]
    assert payloads in (sorted(payloads), sorted(payloads, reverse=True))


async def test_what_was_published_a_moment_ago_is_not_read_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    await world.open()
    await world.broker.queues.create(Q)
    await world.broker.queues.publish([Item(b"%d" % i) for i in range(50)])
    looks = Looks(world, monkeypatch)
    assert len(await claim_all(world, 10)) == 50
    assert (looks.claims, looks.ahead) == (0, 0)


async def test_a_read_ahead_that_fails_hinders_no_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await cold_world()

    async def fails(*_: object) -> int:
        failed.append(1)
        raise UnavailableError("once")

    failed: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr("penstock.broker.queuereading.read_ahead", fails)
        messages = await world.broker.queues.claim(Q, 10)
        await settle()
    assert failed
    task = world.broker.queues._ahead._task
    assert task is not None
    assert task.exception() is None
    assert [each.payload for each in messages] == [b"m%d" % i for i in range(10)]


async def test_large_messages_are_read_ahead_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them than memory keeps would push out those that are claimed next, and be read again
    with every claim."""
    world = World()
    await world.open()
    await world.broker.queues.create(Q, backoff=0)
    count, size = 64, 900 << 10
    for n in range(count):
        await world.broker.queues.publish([Item(bytes([n]) * size)])
    await world.open()
    floor, scan, read = world.store.floor, world.store.scan, [0]

    async def counted(key: bytes, *, low: bytes) -> Any:
        row = await floor(key, low=low)
        read[0] += 0 if row is None else len(row[1])
        return row

    async def counted_scan(low: bytes, high: bytes, **options: Any) -> Any:
        rows_max = min(8, options.pop("batch_rows", 8))  # as SlateDB's begin
        async for rows in scan(low, high, batch_rows=rows_max, **options):
            read[0] += sum(len(value) for _, value in rows)
            yield rows

    monkeypatch.setattr(world.store, "floor", counted)
    monkeypatch.setattr(world.store, "scan", counted_scan)
    looks = Looks(world, monkeypatch)
    found = await claim_all(world, 1)
    assert [payload[0] for payload in found] == list(range(count))
    assert looks.claims <= 4
    assert read[0] <= 1.5 * count * size
    await world.clean()


async def test_nothing_is_remembered_of_deleted_queues() -> None:
    world = await cold_world()
    await world.broker.queues.claim(Q, 10)
    await settle()
    assert Q in world.broker.queues._ahead._left
    await world.broker.queues.delete(Q)
    assert not world.broker.queues._ahead._left
    await world.clean()


async def test_a_page_that_is_an_older_one_is_damage_also_where_it_was_looked_at_ahead() -> None:
    world = World()
    await world.open()
    queues, committer = world.broker.queues, world.broker.committer
    await queues.create(Q)
    await queues.publish([Item(b"x")] * 1000)
    await queues.publish([Item(b"x")] * 10)
    rows: list[bytes | None] = []
    for _ in range(2):
        await flush_queue(committer, Q)
        state = await committer.read(lambda view: load_queue(view, Q))
        lines = state.lines[PageKind.AVAILABLE].here()
        assert len(lines) == 2
        place = int(lines[1]["page"]), int(lines[1]["priority"])
        key = page_row_key(state.queue_id, PageKind.AVAILABLE, *place)
        rows.append(await world.store.get(key))
        await queues.publish([Item(b"x")] * 10)
    await flush_queue(committer, Q)
    put = {key: rows[0]}
    await committer.submit(Step(lambda view, now: Decision(writes=put)))
    committer.states.clear()
    queues.reopened()
    await queues.claim(Q, 10)
    await settle()
    assert len(await queues.claim(Q, 990)) == 990
    with pytest.raises(CorruptError, match="of available messages has 10 of them"):
        await queues.claim(Q, 10)
