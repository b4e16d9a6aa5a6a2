"""Writing pages, trimming operations, and restarts behind every commit of it."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.codec.group import decode_head, decode_page
from penstock.codec.keys import KeyType, head_key, operations_key, page_key
from penstock.codec.operations import Operation, Owner, PagedView
from penstock.errors import CorruptError
from penstock.log.pages import TAIL_RECORDS, TRIM_ROWS, Tail
from penstock.log.rowview import RowView
from penstock.stream import flush
from penstock.stream.ack import ack_step
from penstock.stream.check import check_groups
from penstock.stream.deliver import deliver_step
from penstock.stream.flush import FLUSH_PAGES, Flush, head_step, pages_step, plan_flush
from penstock.stream.group import load_group, load_page
from unit.log.driver import FlushedBehind
from unit.stream.driver import G, GroupDriver, S, Stop

FAR = 1 << 40


async def busy(entries: int = 5000) -> GroupDriver:
    """A group with a history: several pages, holes in them, entries delivered again."""
    driver = await GroupDriver.open(entries)
    await driver.create(max_pending=FAR)
    for _ in range(4):
        await driver.read(1000, retry_ms=10, expire_ms=100_000)
        driver.wait(1)
    await driver.ack((100, 2900), 3, 3999)
    driver.wait(10)
    await driver.read(60, retry_ms=50)
    return driver


async def stored(driver: GroupDriver) -> dict[int, list[int]]:
    """What the rows of pages say: offsets by page."""
    group_id = (await driver.owner()).id
    found = {}
    for key, value in (await driver.rows(KeyType.PAGE)).items():
        if key != head_key(group_id):
            number = int.from_bytes(key[-8:], "big")
            slots = decode_page(value, "page").slots
            found[number] = [number * 1024 + slot for slot in slots.tolist()]
    return found


def test_a_plan_names_all_pages_and_the_last_sequence() -> None:
    owner = Owner(PagedView.GROUP, 1)
    operations = [
        Operation(owner, 4, b"", frozenset((7, 1))),
        Operation(owner, 5, b"", frozenset()),
        Operation(owner, 6, b"", frozenset((7, 300))),
    ]
    assert plan_flush(operations) == Flush(6, (1, 7, 300))


def test_a_plan_comes_in_parts() -> None:
    plan = Flush(1, tuple(range(FLUSH_PAGES * 2 + 1)))
    assert [len(part) for part in plan.parts()] == [FLUSH_PAGES, FLUSH_PAGES, 1]
    assert sum(plan.parts(), ()) == plan.pages
    assert Flush(1, ()).parts() == []


async def test_a_plan_from_stored_operations_names_the_same_pages() -> None:
    driver = await busy()
    owner = await driver.owner()
    again = await driver.rebuilt()
    assert plan_flush(again.log.tail.of(owner)) == plan_flush(driver.log.tail.of(owner))


async def test_pages_are_not_written_before_the_flush_and_whole_after_it() -> None:
    driver = await busy()
    assert await stored(driver) == {}
    head = decode_head((await driver.rows(KeyType.PAGE))[head_key(2)], "head")
    assert (head.sequence, head.next) == (0, 0)
    waiting, state = await driver.waiting(), await driver.state()
    assert await driver.flush() == 6
    assert [offset for page in (await stored(driver)).values() for offset in page] == waiting
    assert await driver.rows(KeyType.OPERATIONS) == {}
    assert driver.log.tail.owners() == ()
    head = decode_head((await driver.rows(KeyType.PAGE))[head_key(2)], "head")
    assert head == state.head
    assert await (await driver.rebuilt()).seen() == await driver.seen()
    assert await check_groups(driver.log.store) == []


async def test_a_page_without_entries_has_no_row() -> None:
    driver = await busy()
    await driver.flush()
    assert 1 not in await stored(driver)  # its entries were acknowledged before
    assert sorted(await stored(driver)) == [0, 2, 3]
    await driver.ack((2048, 3071))
    await driver.flush()
    assert sorted(await stored(driver)) == [0, 3]
    await driver.ack((0, FAR))
    await driver.flush()
    assert await stored(driver) == {}
    assert (await (await driver.rebuilt()).info()).ack_offset == 4000


async def test_only_what_changed_is_written() -> None:
    driver = await busy()
    await driver.flush()
    await driver.ack(5)
    n = driver.log.store.head().n
    driver.log.written.clear()
    await driver.flush()
    assert [set(writes) for writes in driver.log.written if writes] == [
        {page_key(2, 0)},
        {head_key(2)},
        {operations_key(n)},
    ]


STOPS: list[Stop | None] = ["pages", "head", "flushed", None]


@pytest.mark.parametrize("stop", STOPS, ids=str)
@pytest.mark.parametrize("later", [False, True], ids=["at once", "after more"])
async def test_a_restart_behind_any_commit_of_a_flush_sees_the_same(
    stop: Stop | None, later: bool
) -> None:
    driver = await busy()
    await driver.flush()
    # On pages that are stored: entries leave, come again, are new; page 2 becomes empty.
    await driver.ack((0, 10), (2048, 3071))
    driver.wait(60)
    await driver.read(2500, retry_ms=70, expire_ms=99)
    await driver.ack(3999, 4500)
    await driver.flush(stop=stop)
    if later:
        await driver.ack(4501)
        driver.wait(80)
        assert len(await driver.read(3, retry_ms=5)) == 3
    before = await driver.seen()
    again = await driver.restarted()
    assert await again.seen() == before
    assert await check_groups(again.log.store) == []
    # And it goes on from there, as if nothing had happened.
    if again.log.tail.owners():
        await again.flush()
    assert await again.seen() == before
    assert await again.rows(KeyType.OPERATIONS) == {}
    assert await (await again.restarted()).seen() == before


async def halfway() -> GroupDriver:
    """Some of it is in the rows. Of the rest: page 2 becomes empty, page 4 is new."""
    driver = await busy()
    await driver.flush()
    await driver.ack((0, 10), (2048, 3071))
    driver.wait(60)
    await driver.read(2500, retry_ms=70, expire_ms=99)
    await driver.ack(3999, 4500)
    return driver


@pytest.mark.parametrize("number", range(3))
async def test_a_group_that_is_read_while_it_is_flushed_has_no_gap(number: int) -> None:
    driver = await halfway()
    log, known = await driver.log.state(S), await driver.state()
    assert log is not None
    # The name, the rows, a page that has none yet.
    store: Any = FlushedBehind(driver.log, driver.flush, number=number)
    state = await load_group(RowView(store, driver.log.tail), log.log_id, G)
    assert store.flushed
    assert state is not None
    assert state.head == known.head
    assert state.index.lines.tolist() == known.index.lines.tolist()


@pytest.mark.parametrize("number", [0, 2, 3, 4])
async def test_a_page_that_is_read_while_it_is_flushed_has_no_gap(number: int) -> None:
    driver = await halfway()
    owner = await driver.owner()
    known = await load_page(RowView(driver.log.store, driver.log.tail), owner.id, number)
    store: Any = FlushedBehind(driver.log, driver.flush, row=page_key(owner.id, number))
    page = await load_page(RowView(store, driver.log.tail), owner.id, number)
    assert store.flushed
    assert page.sequence == known.sequence
    for field in ("retry", "expire", "deliveries"):
        assert getattr(page, field).tolist() == getattr(known, field).tolist()


async def test_a_restart_behind_only_some_of_the_pages_sees_the_same() -> None:
    driver = await busy()
    before = await driver.seen()
    plan = plan_flush(driver.log.tail.of(await driver.owner()))
    assert plan.pages == (0, 1, 2, 3)
    for number in plan.pages:
        await driver.log.do(pages_step(2, [number]))
        assert await (await driver.rebuilt()).seen() == before
    driver = await driver.restarted()
    assert await driver.seen() == before


async def test_operations_between_pages_and_head_stay_in_the_tail() -> None:
    driver = await busy()
    owner = await driver.owner()
    plan = plan_flush(driver.log.tail.of(owner))
    await driver.log.do(pages_step(owner.id, plan.pages[:2]))
    await driver.ack(0, 3500)
    await driver.log.do(pages_step(owner.id, plan.pages[2:]))
    await driver.read(2, retry_ms=10)
    assert await driver.log.do(head_step(owner.id)) is True
    await driver.ack(1)
    driver.log.tail.flushed(owner, plan.sequence)
    assert len(driver.log.tail.of(owner)) == 3
    before = await driver.seen()
    driver.log.forget()
    assert await driver.seen() == before
    await driver.trim()
    assert len(await driver.rows(KeyType.OPERATIONS)) == 3
    assert await (await driver.rebuilt()).seen() == before
    assert await check_groups(driver.log.store) == []
    await driver.flush()
    assert await (await driver.rebuilt()).seen() == before


async def test_within_a_tick_a_flush_writes_what_earlier_steps_did() -> None:
    driver = await busy()
    owner = await driver.owner()
    pages = plan_flush(driver.log.tail.of(owner)).pages
    await driver.log.submit(
        ack_step(S, G, [(0, 50)]), pages_step(owner.id, pages), head_step(owner.id)
    )
    before = await driver.seen()
    assert before[1][0].offset == 51
    assert (await stored(driver))[0][0] == 51
    assert await (await driver.rebuilt()).seen() == before


async def test_a_record_stays_while_one_of_its_owners_needs_it() -> None:
    driver = await GroupDriver.open(10)
    await driver.log.submit(deliver_step(S, b"a", 2, retry_ms=10), deliver_step(S, b"b", 1))
    await driver.read(3, b"b", retry_ms=10)
    a, b = await driver.owner(b"a"), await driver.owner(b"b")
    assert driver.log.tail.oldest() in (a, b)
    assert await driver.flush(b) == 0
    assert driver.log.tail.owners() == (a,)
    assert driver.log.tail.oldest() == a
    for name in (b"a", b"b"):
        assert await (await driver.rebuilt()).seen(name) == await driver.seen(name)
    assert await driver.flush(a) == 2
    assert await driver.rows(KeyType.OPERATIONS) == {}
    for name in (b"a", b"b"):
        assert await (await driver.rebuilt()).seen(name) == await driver.seen(name)


@pytest.mark.parametrize("restarted", [False, True])
async def test_the_operations_of_a_group_that_is_gone_can_be_trimmed(restarted: bool) -> None:
    driver = await busy()
    owner = await driver.owner()
    await driver.destroy()
    await driver.read(1, retry_ms=10)  # another group under the same name
    if restarted:
        driver = await driver.restarted()
    driver.log.written.clear()
    await driver.flush(owner, stop="flushed")
    assert [writes for writes in driver.log.written if writes] == []
    assert owner not in driver.log.tail.owners()
    await driver.trim()
    assert await driver.waiting() == [0]


async def test_the_pages_of_one_commit_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flush, "FLUSH_PAGES", 2)
    driver = await busy()
    before = await driver.seen()
    driver.log.written.clear()
    await driver.flush()
    assert max(len(writes) for writes in driver.log.written[:-1]) <= 2
    assert await (await driver.rebuilt()).seen() == before


def operation(owner_id: int, sequence: int) -> Operation:
    return Operation(Owner(PagedView.GROUP, owner_id), sequence, b"")


def test_a_gap_in_the_sequences_of_an_owner_is_corrupt() -> None:
    tail = Tail()
    tail.add(5, [operation(1, 3), operation(2, 9), operation(1, 4)], 10)
    tail.add(6, [operation(1, 5)], 10)
    for sequence in (4, 5, 7):
        with pytest.raises(CorruptError, match=f"sequence {sequence} of .* follows 5"):
            tail.add(7, [operation(1, sequence)], 10)


def test_the_tail_is_long_by_records_or_by_bytes_and_short_at_half() -> None:
    tail = Tail()
    for n in range(TAIL_RECORDS - 1):
        tail.add(n, [operation(1, n)], 10)
    assert (tail.long, tail.short) == (False, False)
    tail.add(TAIL_RECORDS, [operation(1, TAIL_RECORDS - 1)], 10)
    assert tail.long
    tail.flushed(Owner(PagedView.GROUP, 1), TAIL_RECORDS // 2)
    numbers = tail.unneeded()
    assert numbers == list(range(TAIL_RECORDS // 2 + 1))
    tail.trimmed(numbers)
    assert (tail.long, tail.short) == (False, True)
    tail.add(TAIL_RECORDS + 1, [operation(1, TAIL_RECORDS)], 8 << 20)
    assert (tail.long, tail.short) == (True, False)


def test_a_trim_takes_a_bounded_number_of_rows_from_the_oldest_on() -> None:
    tail = Tail()
    for n in range(TRIM_ROWS + 5):
        tail.add(n, [operation(1, n)], 1)
    assert tail.unneeded() == []
    tail.flushed(Owner(PagedView.GROUP, 1), TRIM_ROWS + 2)
    first = tail.unneeded()
    assert first == list(range(TRIM_ROWS))
    tail.trimmed(first)
    assert tail.unneeded() == [TRIM_ROWS, TRIM_ROWS + 1, TRIM_ROWS + 2]
    tail.flushed(Owner(PagedView.GROUP, 1), None)
    assert tail.owners() == ()
    assert tail.oldest() is None
    assert tail.unneeded() == [TRIM_ROWS + i for i in range(5)]
