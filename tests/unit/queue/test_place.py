"""Where available messages go: pages stay in order, whatever is put in between."""

from __future__ import annotations

import random

import pytest

from penstock.codec.queueoperation import PageKind
from penstock.queue.item import Item
from unit.queue.driver import QueueDriver, messages, small_pages


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_pages(monkeypatch)


async def ordered(driver: QueueDriver) -> list[tuple[int, int]]:
    return [
        (int(entry["visible_at_ms"]), int(entry["message_id"]))
        for page in await driver.pages(PageKind.AVAILABLE)
        for entry in page.entries
    ]


@pytest.mark.parametrize("seed", range(8))
async def test_messages_with_one_visible_at_stand_by_id_however_they_come_back(seed: int) -> None:
    chance = random.Random(seed)
    driver = await QueueDriver.start(max_attempts=0)
    ids = await driver.publish(*messages(30, visible_at_ms=5))
    for _ in range(12):
        leases = await driver.claim(chance.randrange(1, 20))
        chance.shuffle(leases)
        await driver.release(*leases[: chance.randrange(len(leases) + 1)])
        await driver.release(*leases)
        await driver.clean()
    assert await ordered(driver) == [(5, i) for i in ids]


@pytest.mark.parametrize("seed", range(8))
async def test_random_delays_end_up_in_order(seed: int) -> None:
    chance = random.Random(seed)
    driver = await QueueDriver.start()
    for _ in range(15):
        batch = [Item(b"", delay_ms=chance.randrange(6)) for _ in range(chance.randrange(1, 9))]
        await driver.publish(*batch)
        await driver.clean()
    found = await ordered(driver)
    assert found == sorted(found)
    assert len(found) == (await driver.stats()).routed


async def test_a_page_in_the_middle_is_cut_into_even_parts_and_none_becomes_too_long() -> None:
    driver = await QueueDriver.start()
    await driver.publish(*messages(4, delay_ms=10))
    await driver.publish(*messages(4, delay_ms=1000))
    await driver.publish(*messages(5, delay_ms=20))
    counts = [len(page.entries) for page in await driver.pages(PageKind.AVAILABLE)]
    assert counts == [3, 3, 3, 4]
    await driver.publish(*messages(100, delay_ms=30))
    counts = [len(page.entries) for page in await driver.pages(PageKind.AVAILABLE)]
    assert max(counts) <= 8
    assert sum(counts) == 113
    await driver.clean()


async def test_the_last_page_is_filled_before_another_begins() -> None:
    driver = await QueueDriver.start()
    for _ in range(9):
        await driver.publish(b"x")
        driver.clock.ms += 1
    counts = [len(page.entries) for page in await driver.pages(PageKind.AVAILABLE)]
    assert counts == [4, 4, 1]


async def test_priorities_have_pages_of_their_own() -> None:
    driver = await QueueDriver.start()
    await driver.publish(*(Item(b"", headers={"priority": str(i % 3)}) for i in range(20)))
    pages = await driver.pages(PageKind.AVAILABLE)
    assert [page.priority for page in pages] == [0, 0, 1, 1, 2, 2]
    await driver.clean()


async def test_done_and_failed_messages_are_listed_as_they_ended() -> None:
    driver = await QueueDriver.start(max_attempts=1)
    await driver.publish(*messages(20))
    leases = await driver.claim(20)
    for lease in reversed(leases):
        await (driver.ack(lease) if lease.number % 2 else driver.fail(lease))
    odd = [lease.message_id for lease in reversed(leases) if lease.number % 2]
    even = [lease.message_id for lease in reversed(leases) if not lease.number % 2]
    assert await driver.ids(PageKind.DONE) == odd
    assert await driver.ids(PageKind.FAILED) == even
    await driver.clean()
