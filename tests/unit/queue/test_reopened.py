"""A queue that is opened again with a long tail of operations: what that costs."""

from __future__ import annotations

import random
from typing import Any

import pytest

from penstock.codec import queueoperation
from penstock.codec.queueoperation import PageKind, decode_queue_operation
from penstock.queue import page as pages
from penstock.queue.flush import head_step, pages_step, plan_flush
from penstock.queue.item import Item
from penstock.queue.state import owner_of
from unit.queue.driver import QueueDriver, small_pages


@pytest.mark.parametrize("opened", [True, False])
async def test_a_page_reads_its_own_part_of_each_operation(
    monkeypatch: pytest.MonkeyPatch, opened: bool
) -> None:
    """Publishes with random delays touch many pages each. Whether the queue was opened with them or
    they are loaded one by one: reading whole operations for each would be pages x operations x
    deltas, and half a million delayed messages took minutes."""
    small_pages(monkeypatch)
    driver = await QueueDriver.start()
    rolled = random.Random(5)
    for _ in range(40):
        items = [Item(b"x", delay_ms=rolled.randrange(1000, 10**6)) for _ in range(30)]
        await driver.publish(*items)
    queue = (await driver.queue()).id
    operations = driver.tail.of(owner_of(queue))
    deltas = sum(len(decode_queue_operation(each.body).deltas) for each in operations)
    before = await driver.ids(PageKind.AVAILABLE)
    flush = plan_flush(operations)
    assert len(flush.places) > 20
    driver.forget()
    await driver.stats()  # opens the queue
    if not opened:
        for key in [key for key in driver.states if key[0] == "queue page"]:
            del driver.states[key]
    reads = sorts = 0
    read, in_order = queueoperation._read_delta, pages.in_order

    def counted(*args: Any) -> Any:
        nonlocal reads
        reads += 1
        return read(*args)

    def ordered(entries: Any) -> Any:
        nonlocal sorts
        sorts += 1
        return in_order(entries)

    monkeypatch.setattr(queueoperation, "_read_delta", counted)
    monkeypatch.setattr(pages, "in_order", ordered)
    for part in flush.parts():
        await driver.do(pages_step(queue, part))
    await driver.do(head_step(queue))
    assert reads == (0 if opened else deltas)
    assert sorts <= len(flush.places)
    monkeypatch.undo()
    assert await driver.ids(PageKind.AVAILABLE) == before
    await driver.clean()
