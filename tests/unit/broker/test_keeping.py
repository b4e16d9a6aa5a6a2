"""Retention, compaction, expiry and the writing of pages, through a broker on a set clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from penstock.broker import groups, keeping, streams
from penstock.broker.broker import Broker
from penstock.broker.keeping import COMPACT_MS, RETAIN_MS
from penstock.codec.keys import KeyType, prefix
from penstock.log import holes, read
from penstock.log.batch import build_bodies
from penstock.log.catalogue import LogName, stream_name
from penstock.log.check import check_log
from penstock.log.decision import Step
from penstock.log.hold import hold_step
from penstock.log.pages import TAIL_RECORDS
from penstock.store.memory import Fault, Stall
from penstock.stream import compact
from penstock.stream import groups as group_steps
from penstock.stream.check import check_groups
from unit.broker.driver import BrokerWorld
from unit.broker.test_upkeep import rows_of

S, D, G = stream_name("s"), stream_name("dead"), b"g"


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> BrokerWorld:
    return BrokerWorld(monkeypatch)


async def write(broker: Broker, count: int, tag: str = "") -> range:
    return await broker.streams.write(S, build_bodies([(tag, b"%d" % i) for i in range(count)]))


async def edge(broker: Broker) -> tuple[int, int]:
    info = await broker.streams.info(S)
    return info.first, info.last


async def alive(broker: Broker) -> list[int]:
    found = (await broker.streams.read(S, 0, 100_000)).messages
    return [message.offset for message in found if message is not None]


async def clean(broker: Broker) -> None:
    store = broker.committer._require_store()
    assert await check_log(store) == []
    assert await check_groups(store) == []


async def test_a_limit_on_the_number_holds_soon_after_it_is_set_and_after_every_write(
    world: BrokerWorld,
) -> None:
    broker = await world.open()
    await write(broker, 50)
    await broker.streams.configure(S, max_count=20)
    await world.settle()
    assert await edge(broker) == (30, 49)
    await write(broker, 5)
    await world.settle()
    assert await edge(broker) == (30, 54), "many writes share one look"
    await world.pass_ms(broker, RETAIN_MS)
    assert await edge(broker) == (35, 54)
    assert (await broker.streams.info(S)).config.max_count == 20
    await clean(broker)
    await broker.close()


async def test_limits_are_kept_after_a_restart(world: BrokerWorld) -> None:
    broker = await world.open()
    await broker.streams.configure(S, max_count=20)
    await broker.close()
    broker = await world.open(upkeep=False)
    await write(broker, 50)
    assert await edge(broker) == (0, 49)
    await broker.close()
    broker = await world.open()
    await world.settle()
    assert await edge(broker) == (30, 49)
    await broker.close()


async def test_a_limit_on_bytes_removes_whole_nodes(world: BrokerWorld) -> None:
    broker = await world.open()
    for _ in range(5):
        await write(broker, 1000)
    size = (await broker.streams.info(S)).bytes
    await broker.streams.configure(S, max_bytes=size // 2)
    await world.settle()
    first, last = await edge(broker)
    assert first % 1000 == 0
    assert 2000 <= first <= 4000
    assert last == 4999
    await broker.close()


async def test_a_limit_on_the_age_needs_no_further_write(world: BrokerWorld) -> None:
    broker = await world.open()
    await write(broker, 3)
    world.clock.pass_ms(5_000)
    await write(broker, 2)
    await broker.streams.configure(S, max_age_ms=10_000)
    await world.pass_ms(broker, 4_000)
    assert await edge(broker) == (0, 4)
    await world.pass_ms(broker, 1_001)
    assert await edge(broker) == (3, 4)
    await world.pass_ms(broker, 5_000)
    assert await edge(broker) == (5, 4)
    await broker.close()


async def test_a_limit_can_be_taken_away_and_the_others_stay(world: BrokerWorld) -> None:
    broker = await world.open()
    await broker.streams.configure(S, max_count=5, max_age_ms=60_000)
    await broker.streams.configure(S, max_count=None)
    config = (await broker.streams.info(S)).config
    assert (config.max_count, config.max_age_ms) == (None, 60_000)
    await write(broker, 50)
    await world.pass_ms(broker, RETAIN_MS)
    assert await edge(broker) == (0, 49)
    await broker.close()


async def test_retention_stops_at_a_hold_and_eviction_does_not(world: BrokerWorld) -> None:
    broker = await world.open()
    await write(broker, 50)
    await broker.committer.submit(hold_step(1, b"reader", 10))
    await broker.streams.configure(S, max_count=20)
    await world.settle()
    assert await edge(broker) == (10, 49)
    assert await broker.streams.evict(S, up_to=14) == 5
    await broker.close()


async def test_a_read_of_what_was_evicted_looks_for_no_node(
    world: BrokerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Downwards in particular: in windows of a thousand it would not end soon."""
    broker = await world.open()
    await write(broker, 20_000)
    await broker.streams.evict(S, up_to=19_989)
    looks = 0

    async def read_nodes(*args: Any, **options: Any) -> AsyncIterator[Any]:
        nonlocal looks
        looks += 1
        async for piece in read.read_nodes(*args, **options):
            yield piece

    monkeypatch.setattr(streams, "read_nodes", read_nodes)
    for offset, reverse, low, high in (
        (19_999, True, 0, 20_000),
        (19_994, True, 0, 19_995),
        (19_000, True, 0, 19_001),
        (0, False, 0, 20_000),
    ):
        found = await broker.streams.read_nodes(S, offset, 20_000, reverse=reverse)
        assert (found.low, found.high) == (low, high)
        assert sum(stop - start for _, start, stop in found.pieces) == max(high - 19_990, 0)
    assert looks <= 4
    await broker.close()


async def test_a_long_read_lets_others_have_their_turn_while_its_messages_are_made(
    world: BrokerWorld,
) -> None:
    broker = await world.open()
    await write(broker, 5_000)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.ensure_future(others())
    found = (await broker.streams.read(S, 0, 5_000)).messages
    beside.cancel()
    assert len(found) == 5_000
    assert turns >= 5
    await broker.close()


async def test_of_each_tag_the_last_entry_stays(world: BrokerWorld) -> None:
    broker = await world.open()
    for tag in ("a", "b", "a", "", "b", ""):
        await write(broker, 1, tag)
    await broker.streams.configure(S, compact=True)
    await world.settle()
    assert await alive(broker) == [2, 3, 4, 5]
    await write(broker, 1, "a")
    await world.pass_ms(broker, COMPACT_MS)
    assert await alive(broker) == [3, 4, 5, 6]
    await clean(broker)
    await broker.close()


async def test_compaction_works_through_merged_nodes(world: BrokerWorld) -> None:
    broker = await world.open()
    await broker.streams.configure(S, compact=True)
    for n in range(4):
        entries = [(f"k{i % 700}", b"%d %d" % (n, i)) for i in range(1000)]
        await broker.streams.write(S, build_bodies(entries))
    await world.pass_ms(broker, COMPACT_MS)
    found = await alive(broker)
    assert len(found) == 700
    assert found[-1] == 3999
    await clean(broker)
    await broker.close()


async def test_a_compaction_of_a_long_stream_is_cut_into_small_parts(
    world: BrokerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No read sees more than a part, and no round of holes has more than its share: a long stream
    is compacted within the deadline of each."""
    monkeypatch.setattr(compact, "COMPACT_ENTRIES", 5_000)
    monkeypatch.setattr(compact, "DEAD_MAX", 700)
    parts: list[int] = []
    rounds: list[int] = []
    turns: list[int] = []

    async def read_nodes(*args: Any) -> AsyncIterator[Any]:
        parts.append(0)
        async for node, start, stop in read.read_nodes(*args):
            parts[-1] += stop - start
            yield node, start, stop

    async def plan_holes(store: Any, state: Any, offsets: Sequence[int]) -> Any:
        rounds.append(len(offsets))
        return await holes.plan_holes(store, state, offsets)

    async def give_way() -> None:
        turns.append(1)
        await asyncio.sleep(0)

    monkeypatch.setattr(compact, "read_nodes", read_nodes)
    monkeypatch.setattr(compact, "give_way", give_way)
    monkeypatch.setattr(keeping, "plan_holes", plan_holes)
    broker = await world.open()
    for n in range(20):
        entries = [(f"k{i % 600}", b"%d %d" % (n, i)) for i in range(1000)]
        await broker.streams.write(S, build_bodies(entries))
    await broker.streams.configure(S, compact=True)
    for _ in range(20):
        await world.settle()
    found = await alive(broker)
    assert len(found) == 600
    assert found[-1] == 19_999
    assert max(parts) <= 5_000
    assert max(rounds) <= 700 + 1_000
    assert len(turns) == sum(parts) // 1000, "others have their turn after every node"
    await clean(broker)
    await broker.close()


async def test_a_compaction_of_many_tags_knows_a_bounded_number_of_them_at_a_time(
    world: BrokerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (compact, keeping):
        monkeypatch.setattr(module, "TAGS_MAX", 400)
    known: list[int] = []

    async def superseded(store: Any, state: Any, last: dict[bytes, int], *edges: int) -> Any:
        known.append(len(last))
        return await compact.superseded(store, state, last, *edges)

    monkeypatch.setattr(keeping, "superseded", superseded)
    broker = await world.open()
    for n in range(10):
        entries = [(f"k{n % 5}-{i % 600}", b"%d" % i) for i in range(1000)]
        await broker.streams.write(S, build_bodies(entries))
    await broker.streams.configure(S, compact=True)
    for _ in range(10):
        await world.settle()
    found = await alive(broker)
    assert len(found) == 5 * 600
    assert min(found) == 5_400
    assert max(known) < 400 + 600
    await clean(broker)
    await broker.close()


async def test_a_hold_keeps_entries_from_compaction_until_it_moves(world: BrokerWorld) -> None:
    broker = await world.open()
    for _ in range(4):
        await write(broker, 1, "a")
    await broker.committer.submit(hold_step(1, b"reader", 1))
    await broker.streams.configure(S, compact=True)
    await world.settle()
    assert await alive(broker) == [1, 2, 3]
    await broker.committer.submit(hold_step(1, b"reader", None))
    await write(broker, 1, "b")
    await world.pass_ms(broker, COMPACT_MS)
    assert await alive(broker) == [3, 4]
    await broker.close()


async def test_entries_expire_without_a_reader_and_go_to_the_dead_stream(
    world: BrokerWorld,
) -> None:
    broker = await world.open()
    await write(broker, 5)
    await broker.streams.group_create(S, G, dead=D)
    await broker.streams.read_group(S, G, 3, retry_ms=100, expire_ms=1_000)
    await broker.streams.ack(S, G, [(0, 0)])
    await world.pass_ms(broker, 999)
    assert (await broker.streams.group_info(S, G)).expired == 0
    await world.pass_ms(broker, 1)
    info = await broker.streams.group_info(S, G)
    assert (info.expired, info.pending, info.ack_offset) == (2, 0, 3)
    buried = (await broker.streams.read(D, 0, 10)).messages
    assert [message and message.data for message in buried] == [b"1", b"2"]
    await clean(broker)
    await broker.close()


async def test_expiry_goes_on_after_a_restart(world: BrokerWorld) -> None:
    broker = await world.open()
    await write(broker, 5)
    await broker.streams.read_group(S, G, 5, retry_ms=100, expire_ms=1_000)
    await broker.close()
    broker = await world.open()
    await world.pass_ms(broker, 1_000)
    assert (await broker.streams.group_info(S, G)).expired == 5
    await broker.close()


async def test_a_later_expiry_is_not_forgotten_when_the_earlier_one_is_acknowledged(
    world: BrokerWorld,
) -> None:
    broker = await world.open()
    await write(broker, 2)
    await broker.streams.read_group(S, G, 1, retry_ms=100, expire_ms=1_000)
    await broker.streams.read_group(S, G, 1, retry_ms=100, expire_ms=2_000)
    await broker.streams.ack(S, G, [(0, 0)])
    await world.pass_ms(broker, 1_000)
    await world.pass_ms(broker, 1_000)
    assert (await broker.streams.group_info(S, G)).expired == 1
    await broker.close()


async def test_the_tail_of_operations_stays_short_and_nothing_is_forgotten(
    world: BrokerWorld,
) -> None:
    broker = await world.open()
    await write(broker, 3 * TAIL_RECORDS)
    before_requests = broker.committer.health.requests
    for n in range(3 * TAIL_RECORDS):
        await broker.streams.read_group(S, G, 1, retry_ms=1_000_000)
        if n % 3:
            await broker.streams.ack(S, G, [(n, n)])
    await world.settle()
    assert await rows_of(broker, prefix(KeyType.OPERATIONS)) < TAIL_RECORDS
    # Pages are written once in a while, not beside every commit.
    extra = broker.committer.health.requests - before_requests - 5 * TAIL_RECORDS
    assert extra < TAIL_RECORDS / 4
    before = (
        await broker.streams.group_info(S, G),
        await broker.streams.group_pending(S, G, 0, 9999),
    )
    assert before[0].pending == TAIL_RECORDS
    await clean(broker)
    await broker.close()
    broker = await world.open()
    after = await broker.streams.group_info(S, G), await broker.streams.group_pending(S, G, 0, 9999)
    assert after == before
    await broker.close()


async def test_a_deleted_stream_takes_its_groups_along(world: BrokerWorld) -> None:
    broker = await world.open()
    await write(broker, 10)
    await broker.streams.read_group(S, G, 5, retry_ms=100)
    assert await broker.streams.delete(S)
    assert not await broker.streams.delete(S)
    await world.settle()
    for kind in (KeyType.NODE, KeyType.GROUP, KeyType.PAGE):
        assert await rows_of(broker, prefix(kind)) == 0
    await clean(broker)
    await write(broker, 3)
    found = (await broker.streams.read_group(S, G, 10)).messages
    assert [message and message.offset for message in found] == [0, 1, 2], "another stream"
    await broker.close()


async def test_a_write_right_behind_the_request_of_a_reader_is_not_missed(
    world: BrokerWorld,
) -> None:
    """The reader's request is the first that speaks of this stream: before its answer is there
    nobody knows that the write is of the same one."""
    broker = await world.open()
    await write(broker, 1)
    await broker.streams.read_group(S, G, 1)
    await broker.close()
    broker = await world.open()
    stall = Stall()
    world.faults.next("get", Fault(before=[stall]))
    waits = asyncio.create_task(broker.streams.read_group(S, G, 10, block_ms=None))
    await stall.reached.wait()
    wrote = asyncio.create_task(write(broker, 2))
    await world.settle()
    stall.release()
    await world.settle()
    assert wrote.done()
    assert waits.done()
    assert [each and each.offset for each in waits.result().messages] == [1, 2]
    await broker.close()


async def test_groups_are_looked_at_a_part_at_a_time_and_listed_in_order(
    world: BrokerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await world.open()
    names = [f"g{n:03}" for n in range(250)]
    for name in reversed(names):
        await broker.streams.group_create(S, name.encode())
    parts: list[int] = []

    def infos_step(name: LogName, part: Sequence[bytes]) -> Step:
        parts.append(len(part))
        return group_steps.infos_step(name, part)

    monkeypatch.setattr(groups, "infos_step", infos_step)
    for _ in range(2):  # by memory, then by rows
        assert [info.name for info in await broker.streams.groups(S)] == names
        assert parts == [groups.GROUPS_PART, groups.GROUPS_PART, 50]
        parts.clear()
        broker.committer.states.clear()
    await broker.close()


async def test_evicting_what_is_pending_makes_room_for_a_reader_that_waits(
    world: BrokerWorld,
) -> None:
    broker = await world.open()
    await write(broker, 15)
    await broker.streams.group_create(S, G, max_pending=10)
    await broker.streams.read_group(S, G, 10, retry_ms=1_000_000)
    waits = asyncio.create_task(
        broker.streams.read_group(S, G, 10, retry_ms=1_000_000, block_ms=None)
    )
    await world.settle()
    assert not waits.done()
    await broker.streams.evict(S, up_to=9)
    found = (await waits).messages
    assert [message and message.offset for message in found] == [10, 11, 12, 13, 14]
    await broker.close()


@pytest.mark.parametrize("again", [False, True])
async def test_others_have_their_turn_while_a_large_answer_to_a_group_is_made(
    world: BrokerWorld, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """And what was delivered is its reader's, also where that one gives up meanwhile."""
    broker = await world.open()
    await broker.streams.write(S, build_bodies([b"x"] * 5000))
    if again:
        await broker.streams.read_group(S, G, 5000, retry_ms=1)
        world.clock.pass_ms(10)
    turns, begun = [0], asyncio.Event()

    async def count() -> None:
        turns[0] += 1
        begun.set()
        await asyncio.sleep(0)

    monkeypatch.setattr(read, "give_way", count)
    reader = asyncio.create_task(broker.streams.read_group(S, G, 5000, block_ms=None))
    await begun.wait()
    reader.cancel()
    assert [each and each.offset for each in (await reader).messages] == [*range(5000)]
    assert turns[0] >= 4
    assert (await broker.streams.group_info(S, G)).pending == 0
    await broker.close()
