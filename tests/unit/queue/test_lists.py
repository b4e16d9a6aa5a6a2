"""Failed and done messages, and sending failed ones round again."""

from __future__ import annotations

import pytest

from penstock.codec.queueoperation import PageKind
from penstock.queue.item import Item
from penstock.queue.lease import claim_step
from penstock.queue.lists import list_page, read_attempts, redrive_step
from unit.queue.driver import Q, QueueDriver, messages, small_pages


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_pages(monkeypatch)


async def failed(count: int, **options: int) -> QueueDriver:
    driver = await QueueDriver.start(max_attempts=1)
    await driver.publish(*messages(count, **options))
    await driver.fail(*await driver.claim(count))
    return driver


async def test_lists_come_page_by_page_oldest_first() -> None:
    driver = await failed(10)
    found: list[int] = []
    after: int | None = 0
    while after is not None:
        page = await list_page(await driver.rows_alone(), Q, PageKind.FAILED, after)
        found += page.entries["message_id"].tolist()
        assert page.next is None or page.next > after
        after = page.next
    assert found == await driver.ids(PageKind.FAILED)
    assert len(found) == 10
    empty = await list_page(await driver.rows_alone(), Q, PageKind.DONE)
    assert (len(empty.entries), empty.next) == (0, None)


async def test_redrive_begins_the_attempts_anew_and_keeps_the_history() -> None:
    driver = await failed(1)
    assert (await driver.do(redrive_step(Q, None))).count == 1
    claimed = await driver.do(claim_step(Q, 1, consumer="again"))
    assert claimed.entries["attempts"].tolist() == [1]
    message_id = int(claimed.entries["message_id"][0])
    assert len(await read_attempts(await driver.rows_alone(), Q, message_id)) == 1
    await driver.clean()


async def test_a_redriven_message_comes_behind_those_that_wait_already() -> None:
    driver = await failed(1)
    (waiting,) = await driver.publish(b"later")
    (message_id,) = await driver.ids(PageKind.FAILED)
    driver.clock.ms += 1
    await driver.do(redrive_step(Q, None))
    assert [lease.message_id for lease in await driver.claim(2)] == [waiting, message_id]


async def test_redrive_of_all_goes_over_all_sheets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.queue.lists.REDRIVE_PAGES", 4)
    driver = await failed(60)
    await driver.flush()
    driver.forget()
    assert len((await driver.queue()).lines[PageKind.FAILED].parts) == 5
    counts: list[int] = []
    after: int | None = 0
    while after is not None:
        part = await driver.do(redrive_step(Q, None, after))
        counts.append(part.count)
        after = part.next
    assert counts == [16, 16, 16, 12]
    assert await driver.ids(PageKind.FAILED) == []
    await driver.clean()


async def test_redrive_of_some_leaves_the_others() -> None:
    driver = await failed(10)
    ids = await driver.ids(PageKind.FAILED)
    redriven = await driver.do(redrive_step(Q, [ids[7], ids[0], 999]))
    assert (redriven.count, redriven.expired, redriven.next) == (2, 0, None)
    assert await driver.ids(PageKind.FAILED) == [*ids[1:7], *ids[8:]]
    assert await driver.ids(PageKind.AVAILABLE) == [ids[0], ids[7]]
    await driver.clean()


async def test_redrive_skips_and_counts_those_past_their_retention() -> None:
    driver = await failed(2, retention_s=1)
    await driver.publish(Item(b"lives"))
    await driver.fail(*await driver.claim(1))
    driver.clock.ms += 1001
    redriven = await driver.do(redrive_step(Q, None))
    assert (redriven.count, redriven.expired) == (1, 2)
    assert len(await driver.ids(PageKind.FAILED)) == 2
    await driver.clean()


async def test_redrive_goes_on_where_its_last_part_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.queue.lists.REDRIVE_PAGES", 1)
    driver = await failed(10)
    parts, after = [], 0
    while after is not None:
        part = await driver.do(redrive_step(Q, None, after))
        parts.append(part.count)
        after = part.next
        driver = await driver.restarted()
    assert parts == [4, 4, 2]
    assert len(await driver.ids(PageKind.AVAILABLE)) == 10
    await driver.clean()


async def test_redrive_of_ids_that_no_message_can_have_finds_none() -> None:
    driver = await failed(1)
    assert (await driver.do(redrive_step(Q, [-1, 1 << 64]))).count == 0
