"""Rows and operations give back what was in memory, wherever the writing of pages stopped."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.codec.keys import KeyType, head_key, page_key
from penstock.codec.queueoperation import PageKind
from penstock.errors import CorruptError, NotFoundError
from penstock.log.catalogue import open_target
from penstock.log.decision import Decision, Step
from penstock.log.pages import trim_step
from penstock.log.rowview import RowView
from penstock.queue.flush import head_step, pages_step, plan_flush
from penstock.queue.state import owner_of
from penstock.queue.taken import METADATA, load_head, load_taken_page
from unit.log.driver import FlushedBehind
from unit.queue.driver import QueueDriver, messages, small_pages


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_pages(monkeypatch)


async def test_a_page_that_changed_while_others_were_written_is_counted_right_after_a_crash() -> (
    None
):
    """The head is newer than the page then, and the page's own operations lie before it."""
    driver = await QueueDriver.start()
    await driver.publish(b"1")
    owner = owner_of((await driver.queue()).id)
    plan = plan_flush(driver.tail.of(owner))
    await driver.do(pages_step(owner.id, plan.places))
    await driver.publish(b"2")
    await driver.do(head_step(owner.id))
    await driver.publish(b"3")
    assert (await driver.queue()).count(PageKind.AVAILABLE) == 3
    restarted = await driver.restarted()
    assert len(await restarted.claim(10)) == 3
    await restarted.clean()


async def test_every_point_of_a_flush_is_a_good_one_to_die_at() -> None:
    driver = await QueueDriver.start(max_attempts=1)
    await driver.publish(*messages(20))
    leases = await driver.claim(15)
    await driver.ack(*leases[:5])
    await driver.fail(*leases[5:8])
    owner = owner_of((await driver.queue()).id)
    plan = plan_flush(driver.tail.of(owner))
    steps = [pages_step(owner.id, [place]) for place in plan.places] + [head_step(owner.id)]
    expected = await driver.stats()
    for step in steps:
        await driver.do(step)
        driver = await driver.restarted()
        assert await driver.stats() == expected
        await driver.clean()
    await driver.flush()
    for owner in driver.tail.owners():
        driver.tail.flushed(owner, driver.tail.of(owner)[-1].sequence)
    await driver.do(trim_step(driver.tail.unneeded()))
    driver = await driver.restarted()
    assert driver.tail.owners() == ()
    assert await driver.stats() == expected
    await driver.clean()


async def test_a_page_that_became_empty_loses_its_row_and_stays_empty() -> None:
    driver = await QueueDriver.start()
    await driver.publish(*messages(9))
    await driver.flush()
    before = len(await driver.keys(KeyType.ACTIVE))
    await driver.ack(*await driver.claim(9))
    await driver.flush()
    assert len(await driver.keys(KeyType.ACTIVE)) < before
    restarted = await driver.restarted()
    assert await restarted.claim(9) == []
    await restarted.clean()


async def test_a_queue_without_head_or_config_is_corrupt_and_one_without_name_is_not_there() -> (
    None
):
    driver = await QueueDriver.start()
    with pytest.raises(NotFoundError):
        await driver.stats("nobody")
    (key,) = await driver.keys(KeyType.CONFIG)
    await driver.do(Step(lambda view, now: Decision(writes={key: None})))
    driver.forget()
    with pytest.raises(CorruptError, match="config"):
        await driver.stats()


async def test_takers_that_are_read_while_they_are_flushed_are_all_there() -> None:
    driver = await QueueDriver.start()
    await driver.publish(*messages(5))
    await driver.ack(*await driver.claim(2))
    log = await open_target(await driver.rows_alone(), METADATA)
    assert log is not None
    store: Any = FlushedBehind(driver, driver.flush, row=page_key(log.log_id, 0))
    page = await load_taken_page(RowView(store, driver.tail), log.log_id, 0)
    assert store.flushed
    known = await load_taken_page(await driver.rows_alone(), log.log_id, 0)
    assert page.slots.tolist() == known.slots.tolist() != [0] * len(known.slots)


async def test_the_sequence_of_takers_that_is_read_while_they_are_flushed_is_the_last() -> None:
    driver = await QueueDriver.start()
    await driver.publish(*messages(5))
    await driver.ack(*await driver.claim(2))
    log = await open_target(await driver.rows_alone(), METADATA)
    assert log is not None
    known = await load_head(await driver.rows_alone(), log.log_id)
    store: Any = FlushedBehind(driver, driver.flush, row=head_key(log.log_id))
    assert await load_head(RowView(store, driver.tail), log.log_id) == known
    assert store.flushed
    assert known.sequence > 0
