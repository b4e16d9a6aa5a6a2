"""What a request costs does not depend on how long the pending list is.

Counted, not timed: reads of the store, pages that came into memory, pages and bytes that a decision
changed. One list with a million entries is made once; each test gets its own copy of the disk.
"""

from __future__ import annotations

import asyncio
import copy
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from penstock.store.memory import Call, Fault, Faults, MemoryDisk, MemoryStore
from penstock.stream.deliver import CLEARED_PAGES
from unit.log.driver import LogDriver, StillClock
from unit.stream.driver import GroupDriver, S

PENDING = 1_000_000
PAGES = 977
RETRY_MS, EXPIRE_MS = 100, 1000


async def build() -> tuple[MemoryDisk, int]:
    driver = await GroupDriver.open()
    for _ in range(11):
        await driver.log.append(S, [b"x"] * 100_000)
    await driver.create(max_pending=1 << 40)
    for _ in range(10):
        found = await driver.deliver(100_000, retry_ms=RETRY_MS, expire_ms=EXPIRE_MS)
        assert len(found.messages) == 100_000
    await driver.flush()
    assert (await driver.info()).pending == PENDING
    return driver.log.disk, driver.now_ms


@pytest.fixture(scope="module")
def million() -> tuple[MemoryDisk, int]:
    return asyncio.run(build())


class Counted:
    """A group with a million pending entries, and what the store was asked for."""

    def __init__(self, groups: GroupDriver, calls: Counter[str]) -> None:
        self.groups = groups
        self.calls = calls

    def begin(self) -> None:
        """The group is in memory, its pages are not: then nothing is cheap by accident."""
        states = self.groups.log.states
        for key in [key for key in states if key[0] == "page"]:
            del states[key]
        self.groups.log.written.clear()
        self.calls.clear()

    @property
    def pages(self) -> int:
        """Pages that came into memory."""
        return sum(key[0] == "page" for key in self.groups.log.states)

    @property
    def written_bytes(self) -> int:
        rows = [value for writes in self.groups.log.written for value in writes.values()]
        return sum(len(value or b"") for value in rows)


@pytest.fixture
async def group(million: tuple[MemoryDisk, int]) -> Counted:
    disk, now_ms = copy.copy(million[0]), million[1]
    calls: Counter[str] = Counter()

    def count(call: Call) -> Fault:
        calls[call.operation] += 1
        return Fault()

    clock = StillClock()
    clock.ms = now_ms
    store = await MemoryStore.open(disk, clock=clock, faults=Faults(count))
    groups = GroupDriver(LogDriver(disk, clock, store))
    await groups.log.tail.load(store)
    assert (await groups.info()).pending == PENDING
    counted = Counted(groups, calls)
    counted.begin()
    return counted


def reads(calls: Counter[str]) -> int:
    return calls["get"] + calls["floor"] + calls["scan"]


async def test_opening_a_group_keeps_its_index_and_none_of_its_pages(group: Counted) -> None:
    group.groups.log.forget()
    await group.groups.info()
    assert group.pages == 0
    index = (await group.groups.state()).index
    assert len(index.numbers) == PAGES
    assert index.memory_bytes < 50_000


async def test_operations_over_a_long_list_are_there_after_a_restart(group: Counted) -> None:
    """More pages than are held while a group is read: those that changed are read again."""
    groups = group.groups
    await groups.ack(5, (300_000, 310_000), 999_999)
    groups.wait(RETRY_MS)
    await groups.deliver(2000, retry_ms=RETRY_MS)
    before = await groups.info()
    assert before.pending == PENDING - 10_003
    again = await groups.rebuilt()
    assert await again.info() == before
    for start in (0, 1024, 299_990, 999_900):
        assert await again.pending(start, 200) == await groups.pending(start, 200)


async def test_an_ack_of_neighbours_reads_their_page(group: Counted) -> None:
    assert await group.groups.ack((500_000, 500_099)) == 100
    assert group.calls == {"get": 1, "commit": 1}
    assert group.pages == 1
    assert group.written_bytes < 150


async def test_an_ack_of_scattered_offsets_reads_the_pages_it_names(group: Counted) -> None:
    offsets = [i * 10_000 + 7 for i in range(100)]
    assert await group.groups.ack(*offsets) == 100
    assert group.calls == {"get": 100, "commit": 1}
    assert group.pages == 100
    assert group.written_bytes < 100 * 12 + 150


async def test_an_ack_of_what_is_not_pending_reads_nothing(group: Counted) -> None:
    assert await group.groups.ack((PENDING + 2000, PENDING + 50_000), PENDING + 99_999) == 0
    assert reads(group.calls) == 0


async def test_a_read_of_new_entries_reads_their_page_and_node(group: Counted) -> None:
    found = await group.groups.deliver(100, retry_ms=RETRY_MS)
    assert [m.offset for m in found.messages] == list(range(PENDING, PENDING + 100))
    assert group.pages == 1
    assert reads(group.calls) <= 3
    assert group.written_bytes < 150


async def test_a_read_of_due_entries_reads_their_page_and_node(group: Counted) -> None:
    group.groups.wait(RETRY_MS)
    for i in range(3):
        group.begin()
        found = await group.groups.deliver(100, retry_ms=RETRY_MS)
        assert [m.offset for m in found.messages] == list(range(i * 100, i * 100 + 100))
        assert group.pages == 1
        assert reads(group.calls) <= 3


async def test_what_is_not_due_is_not_looked_at(group: Counted) -> None:
    """Only the very last page is due; all pages before it are not (D1)."""
    await group.groups.deliver(100, retry_ms=1)
    group.groups.wait(1)
    group.begin()
    found = await group.groups.deliver(100, retry_ms=RETRY_MS)
    assert [m.offset for m in found.messages] == list(range(PENDING, PENDING + 100))
    assert group.pages == 1
    assert reads(group.calls) <= 3


async def test_a_look_at_the_list_reads_the_page_it_shows(group: Counted) -> None:
    found = await group.groups.pending(700_000, 100)
    assert [entry.offset for entry in found] == list(range(700_000, 700_100))
    assert reads(group.calls) == group.pages == 1


async def test_looking_at_the_numbers_reads_nothing(group: Counted) -> None:
    assert (await group.groups.info()).pending == PENDING
    assert reads(group.calls) == 0


async def expire(groups: GroupDriver) -> None:
    groups.wait(EXPIRE_MS)


async def evict(groups: GroupDriver) -> None:
    await groups.evict(PENDING - 1)
    groups.wait(RETRY_MS)


@pytest.mark.parametrize("gone", [expire, evict])
async def test_a_read_clears_a_bounded_number_of_pages(
    group: Counted, gone: Callable[[GroupDriver], Any]
) -> None:
    await gone(group.groups)
    group.begin()
    await group.groups.deliver(100, retry_ms=RETRY_MS)
    assert group.pages <= CLEARED_PAGES + 2
    assert reads(group.calls) <= CLEARED_PAGES + 5


async def test_another_group_on_the_stream_does_not_matter(group: Counted) -> None:
    await group.groups.create(b"small", start=10)
    group.begin()
    assert len((await group.groups.deliver(5, b"small", retry_ms=10)).messages) == 5
    assert await group.groups.ack(12, group=b"small") == 1
    assert group.pages == 1
    assert reads(group.calls) <= 4


async def test_a_flush_after_one_ack_writes_one_page(group: Counted) -> None:
    await group.groups.ack(123_456)
    group.begin()
    await group.groups.flush()
    rows = [key for writes in group.groups.log.written for key in writes]
    assert len(rows) == 3  # the page, the head, the operation record that goes
    assert group.pages == 1
    assert reads(group.calls) <= 3
