"""What leaves by time, a part at a time; sparse pages join."""

from __future__ import annotations

import pytest

from penstock.codec.keys import KeyType
from penstock.codec.queueoperation import PageKind
from penstock.queue.admin import alter_step
from penstock.queue.expire import clear_step
from penstock.queue.item import Item
from unit.queue.driver import Q, QueueDriver, messages, small_pages


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_pages(monkeypatch)


async def test_messages_past_their_retention_leave_and_the_pages_join() -> None:
    driver = await QueueDriver.start()
    await driver.publish(*(Item(b"", retention_s=1 if i % 4 else 0) for i in range(16)))
    assert len(await driver.pages(PageKind.AVAILABLE)) == 4
    driver.clock.ms += 1001
    assert await driver.do(clear_step(Q)) is False
    stats = await driver.stats()
    assert (stats.available, stats.expired) == (4, 12)
    assert len(await driver.pages(PageKind.AVAILABLE)) < 4
    ids = await driver.ids(PageKind.AVAILABLE)
    assert ids == sorted(ids)
    await driver.clean()
    await driver.flush()
    await (await driver.restarted()).clean()


async def test_a_long_queue_is_cleared_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.queue.expire.CLEAR_PAGES", 1)
    driver = await QueueDriver.start()
    await driver.publish(*messages(12, retention_s=1))
    driver.clock.ms += 1001
    assert [await driver.do(clear_step(Q)) for _ in range(4)] == [True, True, False, False]
    assert (await driver.stats()).expired == 12


async def test_done_entries_are_forgotten_with_their_history_after_their_own_retention() -> None:
    driver = await QueueDriver.start(done_retention_s=1)
    await driver.publish(*messages(9))
    await driver.fail(*await driver.claim(3))
    await driver.ack(*await driver.claim(9))
    driver.clock.ms += 1000
    await driver.do(clear_step(Q))
    assert len(await driver.ids(PageKind.DONE)) == 9
    assert len(await driver.keys(KeyType.ATTEMPTS)) == 3
    driver.clock.ms += 1
    await driver.do(clear_step(Q))
    assert await driver.ids(PageKind.DONE) == []
    assert await driver.keys(KeyType.ATTEMPTS) == []
    assert (await driver.stats()).acked == 9
    await driver.clean()


async def test_a_shorter_retention_of_done_entries_is_noticed() -> None:
    driver = await QueueDriver.start(done_retention_s=0)
    await driver.publish(b"x")
    await driver.ack(*await driver.claim(1))
    driver.timers.clear()
    await driver.do(alter_step(Q, {"done_retention_s": 5}))
    assert [timer.at_ms for timer in driver.timers] == [driver.clock.ms + 5001]
