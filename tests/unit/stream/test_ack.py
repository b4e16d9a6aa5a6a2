from __future__ import annotations

from typing import Any

import pytest

from penstock.codec.group import (
    OFFSET_MAX,
    OPERATION_OFFSETS,
    PAGE_SLOTS,
    decode_group_operation,
)
from penstock.errors import InvalidError
from penstock.stream import group
from penstock.stream.ack import Acks, ack_step
from penstock.stream.group import owner_of
from penstock.stream.pending import Page, empty_page
from penstock.stream.timers import group_due
from unit.stream.driver import G, GroupDriver, S

FAR = 1 << 40


async def opened(entries: int = 10, *, restart: bool = False) -> GroupDriver:
    """A group to which everything was delivered."""
    driver = await GroupDriver.open(entries)
    await driver.create(max_pending=1 << 40)
    assert await driver.read(entries, retry_ms=100) == list(range(entries))
    return await driver.restarted() if restart else driver


@pytest.mark.parametrize("restart", [False, True], ids=["warm", "restarted"])
@pytest.mark.parametrize(
    ("acks", "count", "left"),
    [
        ([], 0, "0123456789"),
        ([0], 1, "123456789"),
        ([9, 0, 5], 3, "1234678"),
        ([3, 3, 3], 1, "012456789"),
        ([10, 11, FAR], 0, "0123456789"),
        ([(0, 9)], 10, ""),
        ([(0, FAR)], 10, ""),
        ([(8, OFFSET_MAX - 1)], 2, "01234567"),
        ([(2, 4)], 3, "0156789"),
        ([(2, 2)], 1, "013456789"),
        ([(7, 8), (0, 1)], 4, "234569"),
        ([(0, 5), (3, 7)], 8, "89"),
        ([(0, 5), (1, 2), 3, 9, (0, 5)], 7, "678"),
        ([4, (3, 5), 4], 3, "0126789"),
        ([(20, 30), 5], 1, "012346789"),
    ],
    ids=str,
)
async def test_acks_count_what_was_pending(
    acks: list[int | tuple[int, int]], count: int, left: str, restart: bool
) -> None:
    driver = await opened(restart=restart)
    assert await driver.ack(*acks) == count
    assert await driver.waiting() == [int(digit) for digit in left]
    info = await driver.info()
    assert info.pending == len(left)
    assert info.ack_offset == (int(left[0]) if left else 10)
    assert await driver.ack(*acks) == 0
    assert await (await driver.rebuilt()).seen() == await driver.seen()


async def test_what_was_not_pending_changes_nothing_and_writes_nothing() -> None:
    driver = await opened(5)
    before = await driver.seen()
    await driver.write(3)
    assert await driver.ack(5, 7, 100) == 0
    assert driver.log.written[-1] == {}
    assert await driver.seen() == before


async def test_an_ack_is_one_small_row() -> None:
    driver = await opened(5000)
    await driver.ack((0, 4000), 4500)
    (row,) = driver.log.written[-1].values()
    assert row is not None
    assert len(row) < 150


async def test_nobody_to_acknowledge_to_is_zero() -> None:
    driver = await GroupDriver.open()
    assert await driver.ack(1) == 0
    await driver.write(1)
    assert await driver.ack(0) == 0
    assert driver.log.written[-1] == {}


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        ([(-1, -1)], "offset -1"),
        ([(-1, 5)], "offset -1"),
        ([(0, OFFSET_MAX + 1)], f"offset {OFFSET_MAX + 1}"),
        ([(5, 4)], "range 5-4 ends before it starts"),
        ([(1, 1), (3, 2)], "range 3-2"),
    ],
)
def test_offsets_that_cannot_be_are_refused(pairs: list[tuple[int, int]], words: str) -> None:
    with pytest.raises(InvalidError, match=words):
        ack_step(S, G, pairs)


async def test_acks_of_two_groups_have_nothing_to_do_with_each_other() -> None:
    driver = await opened(4)
    assert await driver.read(4, b"h", retry_ms=100) == [0, 1, 2, 3]
    assert await driver.ack((0, 1), group=b"h") == 2
    assert await driver.waiting() == [0, 1, 2, 3]
    assert await driver.waiting(b"h") == [2, 3]


@pytest.mark.parametrize("flushed", [False, True], ids=["operations", "pages"])
async def test_ranges_across_thousands_of_entries_and_many_pages(flushed: bool) -> None:
    driver = await opened(20_000)
    if flushed:
        await driver.flush()
    driver = await driver.restarted()
    assert await driver.ack((1000, 18_999), 5, (19_500, 19_500)) == 18_002
    left = [i for i in range(20_000) if not 1000 <= i < 19_000 and i not in (5, 19_500)]
    assert await driver.waiting() == left
    assert await (await driver.rebuilt()).waiting() == left
    assert await driver.ack((0, FAR)) == len(left)
    assert (await driver.info()).ack_offset == 20_000
    assert await (await driver.rebuilt()).waiting() == []


async def test_the_ack_offset_is_the_lowest_that_waits() -> None:
    driver = await opened(10)
    offsets = []
    for offset in (3, 0, 1, 9, 2, 4):
        await driver.ack(offset)
        offsets.append((await driver.info()).ack_offset)
    assert offsets == [0, 1, 2, 2, 4, 5]


async def test_a_timer_says_when_the_rest_expires() -> None:
    driver = await GroupDriver.open(3)
    await driver.read(1, retry_ms=5, expire_ms=50)
    driver.wait(10)
    await driver.ack(0)
    await driver.read(2, retry_ms=5, expire_ms=500)
    at_ms = driver.now_ms + 500
    driver.log.timers.clear()
    await driver.ack(1)
    assert driver.log.timers == [group_due(1, "g", at_ms)]
    driver.log.timers.clear()
    await driver.ack(2)
    assert driver.log.timers == []


async def test_an_ack_too_long_for_one_operation_becomes_several_in_one_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = await opened(5000)
    sequence = (await driver.state()).head.sequence
    monkeypatch.setattr(group, "OPERATION_OFFSETS", 1000)
    commits = driver.log.store.head().n
    assert await driver.ack((0, 1999), (2500, 4999)) == 4500
    assert driver.log.store.head().n == commits + 1
    done = driver.log.tail.of(await driver.owner())[-5:]
    assert [operation.sequence for operation in done] == list(range(sequence + 1, sequence + 6))
    lengths = [len(decode_group_operation(operation.body).removed) for operation in done]
    assert lengths == [1000, 1000, 1000, 1000, 500]
    assert await driver.waiting() == list(range(2000, 2500))
    assert await (await driver.rebuilt()).seen() == await driver.seen()


async def test_more_than_one_operation_can_name_are_acknowledged_at_once() -> None:
    count = OPERATION_OFFSETS + 100_000
    driver = await GroupDriver.open()
    for _ in range(0, count, 131_072):
        await driver.log.append(S, [b"x"] * 131_072)
    await driver.create(max_pending=1 << 40)
    while (await driver.info()).pending < count:
        await driver.deliver(100_000, retry_ms=1000)
    pending = (await driver.info()).pending
    assert await driver.ack((0, FAR)) == pending
    assert len(driver.log.tail.of(owner_of((await driver.state()).id))[-1].body) < 100
    assert (await driver.info()).pending == 0
    assert await (await driver.rebuilt()).seen() == await driver.seen()


def test_very_many_ranges_cost_what_they_name() -> None:
    calls = 0
    acks = Acks([(10 * i, 10 * i + 3) for i in range(20_000)])
    page = empty_page(7, 0)
    page.retry[:] = 1
    between = Page.between

    def counted(self: Page, low: int, high: int) -> Any:
        nonlocal calls
        calls += 1
        return between(self, low, high)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Page, "between", counted)
        found = acks.pending(page)
    expected = [o for o in range(page.first, page.first + PAGE_SLOTS) if o % 10 < 4]
    assert found.tolist() == expected
    assert calls <= PAGE_SLOTS // 10 + 2
