"""Queues come, change and go; purging takes what is there and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock.codec.keys import KeyType, Kind, config_key
from penstock.codec.queueoperation import PageKind
from penstock.errors import ConflictError, CorruptError, InvalidError, NotFoundError
from penstock.log.catalogue import list_names
from penstock.log.chores import plan_chore
from penstock.log.decision import Decision, Step
from penstock.queue.admin import (
    alter_step,
    configure_step,
    create_step,
    delete_step,
    purge_step,
)
from penstock.queue.allqueues import load_all_queues
from penstock.queue.item import Item
from penstock.queue.lists import redrive_step
from penstock.queue.state import queue_name
from unit.queue.driver import Q, QueueDriver, messages, small_pages

RECORDS = (KeyType.ACTIVE, KeyType.DONE, KeyType.FAILED, KeyType.ATTEMPTS, KeyType.CONFIG)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_pages(monkeypatch)


async def test_a_new_queue_has_empty_records_of_each_kind() -> None:
    driver = await QueueDriver.start()
    counts = [len(await driver.keys(kind)) for kind in RECORDS]
    assert counts == [1, 1, 1, 0, 1]
    await driver.clean()


async def test_creating_it_again_is_nothing_or_a_conflict() -> None:
    driver = await QueueDriver.start(max_attempts=7)
    number = (await driver.queue()).id
    await driver.do(alter_step(Q, {"paused": True}))
    assert await driver.create("q", backoff=0, max_attempts=7) == number
    with pytest.raises(ConflictError):
        await driver.create("q", backoff=0)


@pytest.mark.parametrize(
    "options",
    [
        {"lease_ms": 0},
        {"lease_ms": 10, "max_lease_ms": 9},
        {"max_attempts": -1},
        {"max_attempts": 65536},
        {"max_attempts": True},
        {"done_retention_s": 1 << 32},
        {"filter": "color ="},
        {"filter": 5},
        {"priority": "'x' ||"},
        {"backoff": -1},
        {"color": "red"},
    ],
)
async def test_a_setting_that_makes_no_sense_is_refused(options: dict[str, object]) -> None:
    driver = await QueueDriver.start()
    with pytest.raises(InvalidError):
        create_step(queue_name("other"), options, secret=bytes(32))
    before = (await driver.queue()).settings
    with pytest.raises(InvalidError):
        await driver.do(alter_step(Q, options))
    assert (await driver.queue()).settings.max_attempts == before.max_attempts


async def test_an_alteration_reaches_what_is_published_after_it() -> None:
    driver = await QueueDriver.start()
    await driver.publish(b"x")
    await driver.do(alter_step(Q, {"filter": "false"}))
    await driver.publish(b"y")
    assert (await driver.stats()).routed == 1
    driver = await driver.restarted()
    await driver.publish(b"z")
    assert (await driver.stats()).routed == 1


async def test_a_queue_that_is_deleted_while_all_are_read_is_none_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = await QueueDriver.start()
    await driver.create("r")

    async def listed(store: Any, kind: Kind) -> AsyncIterator[Any]:
        async for name, row in list_names(store, kind):
            if name == "r":
                await driver.delete("r")
            yield name, row

    monkeypatch.setattr("penstock.queue.allqueues.list_names", listed)
    view = await driver.rows_alone()
    assert list((await load_all_queues(view)).names.values()) == ["q"]


async def test_a_queue_without_its_config_is_damage() -> None:
    driver = await QueueDriver.start()
    key = config_key((await driver.queue()).queue_id)
    await driver.do(Step(lambda view, now: Decision(writes={key: None})))
    with pytest.raises(CorruptError, match="its config is gone"):
        await load_all_queues(await driver.rows_alone())


async def test_purging_takes_what_is_available_and_in_flight_and_leaves_the_lists() -> None:
    driver = await QueueDriver.start(max_attempts=1)
    await driver.publish(*messages(20))
    leases = await driver.claim(10)
    await driver.ack(*leases[:3])
    await driver.fail(*leases[3:5])
    assert await driver.purge() == 15
    stats = await driver.stats()
    assert (stats.available, stats.in_flight, stats.purged) == (0, 0, 15)
    assert (stats.done, stats.failed) == (3, 2)
    assert await driver.ack(*leases[5:]) == [False] * 5
    assert (await driver.do(redrive_step(Q, None))).count == 2
    await driver.clean()


async def test_purging_forgets_the_history_of_what_it_takes() -> None:
    driver = await QueueDriver.start()
    await driver.publish(*messages(3))
    await driver.fail(*await driver.claim(3))
    assert len(await driver.keys(KeyType.ATTEMPTS)) == 3
    await driver.purge()
    assert await driver.keys(KeyType.ATTEMPTS) == []


async def test_a_purge_leaves_what_comes_while_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.queue.admin.PURGE_PAGES", 1)
    driver = await QueueDriver.start()
    await driver.publish(*messages(10))
    old = await driver.claim(2)
    purged = await driver.do(purge_step(Q))
    new = await driver.publish(*(Item(b"%d" % i, headers={"priority": "1"}) for i in range(20)))
    while purged.more:
        purged = await driver.do(purge_step(Q, purged.bounds))
    assert sorted(await driver.ids(PageKind.AVAILABLE)) == new
    assert await driver.ack(*old) == [False, False]
    await driver.clean()


async def test_a_purge_that_dies_between_its_parts_has_purged_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.queue.admin.PURGE_PAGES", 1)
    driver = await QueueDriver.start()
    await driver.publish(*messages(10))
    purged = await driver.do(purge_step(Q))
    assert (purged.count, purged.more) == (4, True)
    driver = await driver.restarted()
    assert (await driver.stats()).available == 6
    await driver.clean()
    assert await driver.purge() == 6
    await driver.clean()


async def test_a_deleted_queue_leaves_no_row_and_releases_what_it_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.queue.admin.PURGE_PAGES", 1)
    driver = await QueueDriver.start(max_attempts=1)
    await driver.publish(*messages(20))
    leases = await driver.claim(9)
    await driver.ack(*leases[:3])
    await driver.fail(*leases[3:6])
    await driver.flush()
    assert await driver.delete() is True
    assert await driver.delete() is False
    await driver.clean()
    while (step := await plan_chore(driver.store, ("collect", None))) is not None:
        await driver.do(step)
    assert [len(await driver.keys(kind)) for kind in RECORDS] == [0] * 5
    with pytest.raises(NotFoundError):
        await driver.stats()
    await driver.publish(b"for nobody")
    driver = await driver.restarted()
    await driver.clean()


async def test_a_delete_that_dies_between_its_parts_leaves_a_queue_that_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.queue.admin.PURGE_PAGES", 1)
    driver = await QueueDriver.start()
    await driver.publish(*messages(10))
    assert await driver.do(delete_step(Q)) is None
    driver = await driver.restarted()
    await driver.clean()
    assert len(await driver.claim(10)) == 6


async def test_reclaim_is_done_or_retention() -> None:
    with pytest.raises(InvalidError):
        configure_step("never")  # type: ignore[arg-type]


async def test_a_message_for_a_queue_that_is_not_there_is_refused_with_its_whole_batch() -> None:
    driver = await QueueDriver.start()
    with pytest.raises(NotFoundError):
        await driver.publish(Item(b"x"), Item(b"y", to="nobody"))
    assert (await driver.stats()).routed == 0
    assert await driver.ids(PageKind.AVAILABLE) == []
