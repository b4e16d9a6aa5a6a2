"""Messages that are staged and linked: what the router, retention and `check` make of them."""

from __future__ import annotations

import pytest

from penstock.codec.keys import KeyType, prefix, prefix_end
from penstock.log.link import link_step
from penstock.log.staging import begin_step, reserve_step, revoke_step, stage_step
from penstock.queue.check import check_queues
from penstock.queue.item import Item, PreparedBatch
from penstock.queue.publish import payload_records
from penstock.queue.route import backfill_step, catch_up_step, leave_step
from penstock.queue.state import queue_name
from penstock.queue.taken import METADATA
from unit.queue.driver import QueueDriver


async def stage(driver: QueueDriver, staging: int, writer: int, *items: Item) -> range:
    ids, now_ms = await driver.do(reserve_step(staging, writer, len(items)))
    batch = PreparedBatch(items)
    bodies = batch.bodies(batch.fixed(ids, now_ms))
    payloads = list(payload_records(ids, batch))
    await driver.do(stage_step(staging, writer, 0, bodies, payloads))
    return range(ids.start, ids.stop)


async def link(driver: QueueDriver, staging: int, *writers: int) -> range:
    _, (offsets,) = await driver.submit(leave_step(), link_step(staging, [(METADATA, writers)]))
    return offsets  # type: ignore[no-any-return]


async def catch_up(driver: QueueDriver) -> None:
    while await driver.do(catch_up_step()):
        pass


async def payloads(driver: QueueDriver) -> int:
    low = prefix(KeyType.PAYLOAD)
    return sum([len(rows) async for rows in driver.store.scan(low, prefix_end(low))])


async def test_linked_messages_wait_for_the_router_and_come_in_order() -> None:
    driver = await QueueDriver.start()
    (before,) = await driver.publish(b"before")
    staging = await driver.do(begin_step())
    ids = await stage(driver, staging, 1, Item(b"x"), Item(b"y"))
    assert await check_queues(driver.store) == []  # payloads without a message, which are staged
    assert await link(driver, staging, 1) == range(1, 3)
    (after,) = await driver.publish(b"after")
    assert (await driver.stats()).available == 1
    assert await check_queues(driver.store) == []
    await catch_up(driver)
    leases = await driver.claim(10)
    assert [lease.message_id for lease in leases] == [before, *ids, after]
    assert await check_queues(driver.store) == []


async def test_linking_again_neither_leaves_nor_gives_anything() -> None:
    driver = await QueueDriver.start()
    staging = await driver.do(begin_step())
    await stage(driver, staging, 1, Item(b"x"))
    await link(driver, staging, 1)
    await catch_up(driver)
    assert await link(driver, staging, 1) == range(1)
    await catch_up(driver)
    assert (await driver.stats()).available == 1
    await driver.publish(b"y")  # the router is at the tail again
    assert (await driver.stats()).available == 2


@pytest.mark.parametrize("ends", ["revoked", "lost"])
async def test_payloads_of_who_does_not_win_are_collected(ends: str) -> None:
    driver = await QueueDriver.start()
    staging = await driver.do(begin_step())
    await stage(driver, staging, 1, Item(b"x"), Item(b"y"))
    if ends == "revoked":
        await driver.do(revoke_step(staging, force=True))
    else:
        await stage(driver, staging, 2, Item(b"winner"))
        await link(driver, staging, 2)
        await catch_up(driver)
    assert await check_queues(driver.store) == []
    await driver.chore(("collect", None))
    assert await payloads(driver) == (0 if ends == "revoked" else 1)
    assert await check_queues(driver.store) == []


@pytest.mark.parametrize("taken", [False, True])
@pytest.mark.parametrize("backfilled_first", [False, True])
async def test_a_queue_made_while_the_router_is_behind_gets_each_message_once(
    backfilled_first: bool, taken: bool
) -> None:
    """Also what no other queue takes: the router must not bury what the backfill gave away."""
    driver = await QueueDriver.start(filter=None if taken else "false")
    staging = await driver.do(begin_step())
    await stage(driver, staging, 1, *(Item(b"%d" % i) for i in range(5)))
    await link(driver, staging, 1)
    await driver.create("late", start="first", backoff=0)
    await driver.create("later", backoff=0)

    async def backfill() -> None:
        while await driver.do(backfill_step(queue_name("late"))):
            pass

    if backfilled_first:
        await backfill()
        await catch_up(driver)
    else:
        await catch_up(driver)
        await backfill()
    assert (await driver.stats()).available == (5 if taken else 0)
    assert (await driver.stats("late")).available == 5
    assert (await driver.stats("later")).available == 0
    assert await check_queues(driver.store) == []
    for name in ("q", "late"):
        leases = await driver.claim(10, name)
        assert all(await driver.ack(*leases, name=name))
    assert await check_queues(driver.store) == []


async def test_the_retention_of_a_linked_message_counts_from_its_staging() -> None:
    driver = await QueueDriver.start()
    staging = await driver.do(begin_step(lease_ms=3_600_000))
    await stage(driver, staging, 1, Item(b"short", retention_s=10), Item(b"long", retention_s=99))
    driver.clock.ms += 20_000
    await link(driver, staging, 1)
    assert await check_queues(driver.store) == []
    await catch_up(driver)
    assert await check_queues(driver.store) == []
    assert len(await driver.claim(10)) == 1


async def test_what_a_backfill_was_done_with_before_the_router_came_is_still_given() -> None:
    driver = await QueueDriver.start()
    staging = await driver.do(begin_step())
    await stage(driver, staging, 1, *(Item(b"%d" % i) for i in range(5)))
    await link(driver, staging, 1)
    await driver.create("late", start="first", backoff=0)
    while await driver.do(backfill_step(queue_name("late"))):
        pass
    assert all(await driver.ack(*await driver.claim(10, "late"), name="late"))
    await catch_up(driver)
    assert (await driver.stats()).available == 5
    assert await check_queues(driver.store) == []
    assert all(await driver.ack(*await driver.claim(10)))
    assert await check_queues(driver.store) == []
