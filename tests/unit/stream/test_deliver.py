"""Reading in a group, rule by rule (D1 to D5 in stream/deliver.py)."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.codec.keys import KeyType
from penstock.errors import InvalidError
from penstock.log.append import append_step
from penstock.log.batch import build_bodies
from penstock.log.cache import NodeCache
from penstock.log.check import check_log
from penstock.log.evict import evict_step
from penstock.stream import deliver
from penstock.stream.ack import ack_step
from penstock.stream.delete import delete_step
from penstock.stream.deliver import MAX_PENDING, deliver_step
from penstock.stream.groups import Pending, set_step
from penstock.stream.timers import group_due
from unit.log.driver import data_of
from unit.stream.driver import DEAD, MOVED, NOTHING, G, GroupDriver, S

FAR = 1 << 40


# Where a group starts, and what is new to it.


@pytest.mark.parametrize(
    ("start", "before", "found", "skipped"),
    [
        ("first", 2, [3, 4, 5, 6], 0),
        ("new", 5, [6], 0),
        (0, -1, [3, 4, 5, 6], 3),
        (2, 1, [3, 4, 5, 6], 1),
        (3, 2, [3, 4, 5, 6], 0),
        (5, 4, [5, 6], 0),
        (6, 5, [6], 0),
    ],
)
@pytest.mark.parametrize("created", [False, True], ids=["by a read", "by CREATE"])
async def test_a_group_starts_where_it_is_told(
    start: Any, before: int, found: list[int], skipped: int, created: bool
) -> None:
    driver = await GroupDriver.open(6)
    await driver.evict(2)
    if created:
        await driver.create(start=start)
    else:
        await driver.read(0, start=start)
    assert (await driver.info()).last_offset == before
    await driver.write(1)
    # The start counts where the group is made, and never again.
    assert await driver.read(10, start="new") == found
    info = await driver.info()
    assert (info.last_offset, info.ack_offset, info.skipped) == (6, 7, skipped)


async def test_the_first_read_makes_the_group_and_delivers_in_one_commit() -> None:
    driver = await GroupDriver.open(5)
    n = driver.log.store.head().n
    assert await driver.read(2, retry_ms=10) == [0, 1]
    assert driver.log.store.head().n == n + 1
    assert await (await driver.rebuilt()).seen() == await driver.seen()
    assert (await driver.info()).max_pending == MAX_PENDING


@pytest.mark.parametrize(
    "options",
    [
        {"count": -1},
        {"retry_ms": 0},
        {"retry_ms": -5},
        {"expire_ms": 5},
        {"retry_ms": 5, "expire_ms": 0},
        {"start": -1},
        {"start": "last"},
        {"start": True},
        {"start": None},
        {"start": 1.5},
    ],
    ids=str,
)
def test_arguments_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidError):
        deliver_step(S, G, **({"count": 1} | options))


async def test_a_start_behind_the_end_is_refused_and_makes_no_group() -> None:
    driver = await GroupDriver.open(5)
    with pytest.raises(InvalidError, match="offset 6 lies behind the end of the stream, 5"):
        await driver.read(1, start=6)
    assert await driver.destroy() is False


async def test_a_stream_that_does_not_exist_has_nothing_and_gets_no_group() -> None:
    driver = await GroupDriver.open()
    assert await driver.asked(5) == NOTHING
    await driver.write(2)
    assert await driver.read(5) == [0, 1]


async def test_without_make_there_is_no_group_and_nothing_is_delivered() -> None:
    driver = await GroupDriver.open(5)
    assert await driver.asked(5, make=False) == NOTHING
    assert driver.log.written[-1] == {}
    assert await driver.destroy() is False


async def test_each_entry_is_new_once() -> None:
    driver = await GroupDriver.open(5)
    assert await driver.read(2) == [0, 1]
    assert await driver.read(0) == []
    assert await driver.read(2, retry_ms=10) == [2, 3]
    assert await driver.read(9) == [4]
    assert await driver.asked(9) == NOTHING
    await driver.write(1)
    assert await driver.read(9) == [5]


async def test_what_changes_nothing_writes_nothing() -> None:
    driver = await GroupDriver.open(2)
    await driver.read(2, retry_ms=10)
    for count in (0, 5):
        assert await driver.asked(count, retry_ms=10) == NOTHING
        assert driver.log.written[-1] == {}


async def test_messages_come_whole() -> None:
    driver = await GroupDriver.open()
    await driver.log.append(S, [("tag", b"data", b"meta"), (b"\xff", b"", b"")])
    first, second = (await driver.deliver(2)).messages
    assert (first.offset, first.tag, first.data, first.meta) == (0, "tag", b"data", b"meta")
    assert (second.offset, second.tag, second.data) == (1, "\udcff", b"")
    assert first.time_ms == driver.now_ms


async def test_several_groups_are_independent() -> None:
    driver = await GroupDriver.open(6)
    assert await driver.read(2, b"a", retry_ms=10) == [0, 1]
    assert await driver.read(3, b"b", retry_ms=10, start=2) == [2, 3, 4]
    assert await driver.read(9, b"c") == [0, 1, 2, 3, 4, 5]
    assert await driver.ack(0, 3, group=b"a") == 1
    driver.wait(10)
    assert await driver.read(9, b"b", retry_ms=10) == [2, 3, 4, 5]
    assert await driver.read(9, b"a", retry_ms=10) == [1, 2, 3, 4, 5]
    assert [(await driver.info(name)).pending for name in (b"a", b"b", b"c")] == [5, 4, 0]
    for name in (b"a", b"b", b"c"):
        assert await (await driver.rebuilt()).seen(name) == await driver.seen(name)


async def test_the_cache_shows_the_same() -> None:
    driver = await GroupDriver.open(3000)
    cache = NodeCache(1 << 20)
    await driver.create(max_pending=FAR)
    for _ in range(3):
        assert await driver.read(1000, retry_ms=10, cache=cache)
    driver.wait(10)
    assert await driver.read(5000, retry_ms=10, cache=cache) == list(range(3000))


# D1: what is due, wherever it stands.


async def test_without_retry_nothing_is_pending() -> None:
    driver = await GroupDriver.open(5)
    assert await driver.read(3) == [0, 1, 2]
    info = await driver.info()
    assert (info.pending, info.ack_offset, info.last_offset) == (0, 3, 2)
    assert await driver.pending() == []
    assert await driver.ack((0, 2)) == 0


async def test_an_entry_comes_again_at_its_very_millisecond() -> None:
    driver = await GroupDriver.open(2)
    begun = driver.now_ms
    assert await driver.read(2, retry_ms=100, expire_ms=1000) == [0, 1]
    driver.wait(99)
    assert await driver.read(2, retry_ms=50) == []
    driver.wait(1)
    assert await driver.read(1, retry_ms=50, expire_ms=7) == [0]
    # The retry time is new, the expiry that of the first delivery.
    assert await driver.pending() == [
        Pending(0, begun + 150, begun + 1000, 2),
        Pending(1, begun + 100, begun + 1000, 1),
    ]
    driver.wait(50)
    assert await driver.read(2, retry_ms=50) == [0, 1]
    assert [entry.deliveries for entry in await driver.pending()] == [3, 2]


async def test_due_entries_come_in_the_order_of_offsets_and_before_new_ones() -> None:
    driver = await GroupDriver.open(8)
    await driver.read(2, retry_ms=30)
    await driver.read(2, retry_ms=10)
    await driver.read(1, retry_ms=20)
    driver.wait(30)
    assert await driver.read(6, retry_ms=99) == [0, 1, 2, 3, 4, 5]
    assert await driver.read(9, retry_ms=99) == [6, 7]


@pytest.mark.parametrize("flushed", [False, True])
async def test_a_first_entry_that_is_not_due_holds_nothing_up(flushed: bool) -> None:
    driver = await GroupDriver.open(4000)
    await driver.create(max_pending=FAR)
    await driver.read(1, retry_ms=10_000)
    await driver.read(1500, retry_ms=10)
    await driver.read(1, retry_ms=10_000)
    await driver.read(1000, retry_ms=20)
    if flushed:
        await driver.flush()
        driver = await driver.restarted()
    driver.wait(10)
    assert await driver.read(1499, retry_ms=5000) == list(range(1, 1500))
    driver.wait(10)
    assert await driver.read(3, retry_ms=5000) == [1500, 1502, 1503]
    assert await driver.read(2000, retry_ms=5000) == [*range(1504, 2502), *range(2502, 3504)]


async def test_due_entries_read_without_retry_leave_the_list() -> None:
    driver = await GroupDriver.open(6)
    await driver.read(4, retry_ms=10)
    driver.wait(10)
    assert await driver.read(2) == [0, 1]
    assert await driver.waiting() == [2, 3]
    assert await driver.read(9) == [2, 3, 4, 5]
    info = await driver.info()
    assert (info.pending, info.ack_offset, info.expired, info.skipped) == (0, 6, 0, 0)
    assert await (await driver.rebuilt()).seen() == await driver.seen()


async def test_acknowledged_entries_do_not_come_again() -> None:
    driver = await GroupDriver.open(5)
    await driver.read(5, retry_ms=10)
    await driver.ack((1, 2))
    driver.wait(10)
    assert await driver.read(9, retry_ms=10) == [0, 3, 4]


# D2: a full list.


async def test_a_full_list_stops_new_entries_and_not_those_that_are_due() -> None:
    driver = await GroupDriver.open(9)
    await driver.create(max_pending=3)
    assert await driver.read(9, retry_ms=10) == [0, 1, 2]
    assert await driver.asked(9, retry_ms=10) == NOTHING
    assert await driver.asked(9) == NOTHING
    driver.wait(10)
    assert await driver.read(9, retry_ms=10) == [0, 1, 2]
    assert await driver.ack(1) == 1
    assert await driver.read(9, retry_ms=10) == [3]
    await driver.ack((0, 3))
    assert await driver.read(2, retry_ms=10) == [4, 5]
    assert await driver.read(2, retry_ms=10) == [6]


async def test_what_leaves_the_list_in_a_read_makes_room_in_it() -> None:
    driver = await GroupDriver.open(12)
    await driver.create(max_pending=4)
    await driver.read(1, retry_ms=500, expire_ms=20)  # 0 will have expired
    await driver.read(2, retry_ms=20)  # 1 will be evicted, 2 compacted
    await driver.read(1, retry_ms=500)  # 3 stays
    await driver.compact([2])
    await driver.evict(1)
    driver.wait(20)
    assert await driver.read(9, retry_ms=500) == [4, 5, 6]
    info = await driver.info()
    assert (info.pending, info.expired, info.skipped) == (4, 1, 2)


async def test_due_entries_that_are_read_without_retry_make_room_too() -> None:
    driver = await GroupDriver.open(9)
    await driver.create(max_pending=2)
    await driver.read(2, retry_ms=10)
    driver.wait(10)
    assert await driver.read(3) == [0, 1, 2]


async def test_the_read_that_makes_a_group_keeps_to_max_pending() -> None:
    driver = await GroupDriver.open(3000)
    assert len(await driver.read(2500, retry_ms=10)) == MAX_PENDING


# D3: expired entries.


@pytest.mark.parametrize("count", [0, 9])
async def test_expired_entries_leave_the_list_and_are_counted(count: int) -> None:
    driver = await GroupDriver.open(4)
    await driver.read(2, retry_ms=10, expire_ms=30)
    await driver.read(2, retry_ms=10, expire_ms=31)
    driver.wait(29)
    assert await driver.read(1, retry_ms=100) == [0]
    driver.wait(1)
    expected = [2, 3] if count else []
    assert await driver.read(count, retry_ms=100) == expected
    info = await driver.info()
    assert (info.expired, info.pending, info.ack_offset, info.skipped) == (2, 2, 2, 0)
    driver.wait(1)
    assert await driver.asked(count, retry_ms=10) == MOVED
    assert (await driver.info()).expired == 4
    assert (await driver.info()).ack_offset == 4
    assert await driver.ack((0, 3)) == 0
    assert await (await driver.rebuilt()).seen() == await driver.seen()


async def test_an_entry_that_is_due_and_expired_has_expired() -> None:
    driver = await GroupDriver.open(1)
    await driver.read(1, retry_ms=10, expire_ms=10)
    driver.wait(10)
    assert await driver.read(1, retry_ms=10) == []
    assert (await driver.info()).expired == 1


async def test_expired_entries_move_to_the_dead_stream_in_the_same_commit() -> None:
    driver = await GroupDriver.open(5)
    await driver.create(dead=DEAD)
    await driver.read(3, retry_ms=10, expire_ms=20)
    await driver.ack(1)
    driver.wait(20)
    n = driver.log.store.head().n
    assert await driver.read(1, retry_ms=10, expire_ms=20) == [3]
    assert driver.log.store.head().n == n + 1
    buried = await driver.log.read(DEAD, 0, 9)
    assert [m and (m.tag, m.data, m.meta) for m in buried] == [
        ("t0", b"0", b"m0"),
        ("t2", b"2", b"m2"),
    ]
    driver.wait(20)
    await driver.read(0)
    assert await data_of(driver.log, DEAD) == [b"0", b"2", b"3"]
    assert (await driver.info()).expired == 3
    assert await check_log(driver.log.store) == []
    again = await driver.restarted()
    assert await data_of(again.log, DEAD) == [b"0", b"2", b"3"]
    assert (await again.info()).expired == 3


async def test_what_expired_and_is_gone_is_counted_and_cannot_be_moved() -> None:
    driver = await GroupDriver.open(4)
    await driver.create(dead=DEAD)
    await driver.read(4, retry_ms=10, expire_ms=20)
    await driver.compact([2])
    await driver.evict(0)
    driver.wait(20)
    await driver.read(0)
    info = await driver.info()
    assert (info.expired, info.skipped, info.pending) == (4, 0, 0)
    assert await data_of(driver.log, DEAD) == [b"1", b"3"]


async def test_two_groups_can_share_a_dead_stream() -> None:
    driver = await GroupDriver.open(2)
    for name in (b"a", b"b"):
        await driver.create(name, dead=DEAD)
        await driver.read(1, name, retry_ms=10, expire_ms=10)
    driver.wait(10)
    # In one tick, and the stream is made by the first of them.
    await driver.log.submit(deliver_step(S, b"a", 0), deliver_step(S, b"b", 0))
    assert await data_of(driver.log, DEAD) == [b"0", b"0"]
    assert await check_log(driver.log.store) == []


async def test_a_dead_stream_that_was_deleted_is_made_again() -> None:
    driver = await GroupDriver.open(2)
    await driver.create(dead=DEAD)
    await driver.read(1, retry_ms=10, expire_ms=10)
    driver.wait(10)
    await driver.read(1, retry_ms=10, expire_ms=10)
    driver.wait(10)
    await driver.log.submit(delete_step(DEAD), deliver_step(S, G, 0))
    assert await data_of(driver.log, DEAD) == [b"1"]


async def test_a_timer_says_when_entries_expire() -> None:
    driver = await GroupDriver.open(3)
    await driver.read(1, retry_ms=10)
    assert driver.log.timers == []
    await driver.read(1, retry_ms=10, expire_ms=70)
    await driver.read(1, retry_ms=10, expire_ms=50)
    first, second = driver.log.timers
    assert first == group_due(1, "g", driver.now_ms + 70)
    assert second == group_due(1, "g", driver.now_ms + 50)


async def test_many_pages_of_expired_entries_are_cleared_a_part_at_a_time() -> None:
    driver = await GroupDriver.open(20_000)
    await driver.create(max_pending=FAR)
    await driver.deliver(20_000, retry_ms=10, expire_ms=10)
    driver.wait(10)
    counts = []
    while (await driver.info()).pending:
        assert await driver.asked(5, retry_ms=10) == MOVED
        counts.append((await driver.info()).expired)
    assert counts == [16 * 1024, 20_000]


# D4: evicted and compacted entries.


async def test_evicted_entries_are_skipped_and_counted() -> None:
    driver = await GroupDriver.open(10)
    await driver.read(4, retry_ms=10)
    await driver.ack(1)
    await driver.evict(5)  # 0, 2, 3 wait; 4 and 5 were never delivered
    assert await driver.waiting() == [0, 2, 3]
    assert await driver.read(2, retry_ms=10) == [6, 7]
    info = await driver.info()
    assert (info.skipped, info.pending, info.ack_offset) == (5, 2, 6)
    assert await driver.waiting() == [6, 7]
    assert await driver.ack((0, 5)) == 0
    assert await (await driver.rebuilt()).seen() == await driver.seen()


async def test_an_evicted_entry_that_still_waits_can_be_acknowledged() -> None:
    driver = await GroupDriver.open(3)
    await driver.read(3, retry_ms=10)
    await driver.evict(1)
    assert await driver.ack(0) == 1
    await driver.read(0)
    assert (await driver.info()).skipped == 1


async def test_compacted_entries_are_skipped_and_counted() -> None:
    driver = await GroupDriver.open(10)
    await driver.read(4, retry_ms=10)
    await driver.compact([1, 3, 5, 6, 9])
    driver.wait(10)
    assert await driver.read(4, retry_ms=10) == [0, 2, 4, 7]
    info = await driver.info()
    assert (info.skipped, info.pending, info.last_offset) == (4, 4, 7)
    assert await driver.read(4) == [8]
    assert (await driver.info()).skipped == 5
    assert await (await driver.rebuilt()).seen() == await driver.seen()


async def test_a_group_moves_over_a_stream_of_holes() -> None:
    driver = await GroupDriver.open(3000)
    await driver.compact(range(2999))
    assert await driver.read(5, retry_ms=10) == [2999]
    assert (await driver.info()).skipped == 2999


async def test_a_group_moves_over_very_many_holes_a_part_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(deliver, "LOOKED_NODES", 2)
    driver = await GroupDriver.open(5000)
    await driver.compact(range(4999))
    for offset in (1999, 3999):
        assert await driver.asked(5, retry_ms=10) == MOVED
        assert (await driver.info()).last_offset == offset
    assert await driver.read(5, retry_ms=10) == [4999]
    assert (await driver.info()).skipped == 4999


async def test_all_that_waits_is_gone() -> None:
    driver = await GroupDriver.open(5)
    await driver.read(5, retry_ms=10)
    await driver.evict(4)
    assert await driver.asked(5, retry_ms=10) == MOVED
    info = await driver.info()
    assert (info.skipped, info.pending, info.ack_offset) == (5, 0, 5)
    assert await driver.asked(5, retry_ms=10) == NOTHING


async def test_evicted_entries_on_many_pages_are_cleared_a_part_at_a_time() -> None:
    driver = await GroupDriver.open(20_000)
    await driver.create(max_pending=FAR)
    await driver.deliver(20_000, retry_ms=10)
    await driver.evict(19_998)
    driver.wait(10)
    counts = []
    for _ in range(2):
        assert await driver.read(1, retry_ms=10) in ([19_999], [])
        counts.append((await driver.info()).skipped)
    assert counts == [16 * 1024, 19_999]
    assert await driver.waiting() == [19_999]


# Bounds of one answer.


#: Ten bytes of data, of tag, data and meta, and so on.
TEN = (b"0123456789", (b"012", b"3", b"456789"), (b"0123456789", b""), (b"", b"0", b"123456789"))


@pytest.mark.parametrize("entry", TEN)
async def test_an_answer_holds_a_bounded_number_of_bytes(
    monkeypatch: pytest.MonkeyPatch, entry: Any
) -> None:
    monkeypatch.setattr(deliver, "BYTES_MAX", 25)
    driver = await GroupDriver.open()
    await driver.log.append(S, [entry] * 8)

    async def offsets(count: int) -> list[int]:
        return [m.offset for m in (await driver.deliver(count, retry_ms=10)).messages]

    assert await offsets(8) == [0, 1, 2]
    assert await driver.ack((0, 7)) == 3
    assert await offsets(8) == [3, 4, 5]
    assert await offsets(8) == [6, 7]
    driver.wait(10)
    # Some that are due are cut off: they stay as they were, and are not taken for compacted.
    assert await offsets(8) == [3, 4, 5]
    by_offset = {entry.offset: entry.deliveries for entry in await driver.pending()}
    assert [by_offset[offset] for offset in (3, 4, 5, 6, 7)] == [2, 2, 2, 1, 1]
    assert (await driver.info()).skipped == 0
    assert await offsets(8) == [6, 7]


async def test_others_have_their_turn_between_the_nodes_of_what_is_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns = 0

    async def give_way() -> None:
        nonlocal turns
        turns += 1

    driver = await GroupDriver.open()
    for _ in range(3):
        await driver.log.append(S, [b"x"] * 1000)
    await driver.create(max_pending=3000)
    assert (await driver.deliver(3000, retry_ms=10)).count == 3000
    driver.wait(10)
    monkeypatch.setattr(deliver, "give_way", give_way)
    assert (await driver.deliver(3000, retry_ms=10)).count == 3000
    assert turns == 2


async def test_nothing_new_comes_before_what_is_due_and_did_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The count leaves room, the bytes do not: new entries would overtake those that are due."""
    monkeypatch.setattr(deliver, "BYTES_MAX", 25)
    driver = await GroupDriver.open()
    await driver.log.append(S, [b"0123456789"] * 8)

    async def offsets(count: int) -> list[int]:
        return [m.offset for m in (await driver.deliver(count, retry_ms=10)).messages]

    assert await offsets(3) == [0, 1, 2]
    assert await offsets(2) == [3, 4]
    driver.wait(10)
    assert await offsets(8) == [0, 1, 2]
    assert await offsets(8) == [3, 4, 5, 6, 7], "the bytes of each kind are counted apart"


@pytest.mark.parametrize("entry", TEN)
async def test_a_burial_is_bounded_in_bytes_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, entry: Any
) -> None:
    monkeypatch.setattr(deliver, "BURY_BYTES", 25)
    driver = await GroupDriver.open()
    await driver.log.append(S, [entry] * 8)
    await driver.create(dead=DEAD)
    await driver.deliver(8, retry_ms=10, expire_ms=20)
    driver.wait(20)
    buried = []
    for _ in range(4):
        await driver.deliver(0)
        buried.append(len(await data_of(driver.log, DEAD)))
    assert buried == [3, 6, 8, 8]
    assert (await driver.info()).expired == 8


async def test_an_entry_larger_than_an_answer_comes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliver, "BYTES_MAX", 5)
    driver = await GroupDriver.open()
    await driver.log.append(S, [b"0123456789"] * 2)
    for offset in (0, 1):
        (message,) = (await driver.deliver(8, retry_ms=10)).messages
        assert message.offset == offset
    driver.wait(10)
    assert [m.offset for m in (await driver.deliver(1, retry_ms=10)).messages] == [0]


async def test_a_count_beyond_the_bound_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliver, "COUNT_MAX", 3)
    driver = await GroupDriver.open(5)
    assert await driver.read(1 << 60) == [0, 1, 2]


@pytest.mark.parametrize("times", [{"retry_ms": 2**63 - 1}, {"retry_ms": 1, "expire_ms": 1 << 63}])
async def test_times_beyond_the_end_of_time_are_refused_or_never(times: dict[str, Any]) -> None:
    driver = await GroupDriver.open(1)
    try:
        assert await driver.read(1, **times) == [0]
    except InvalidError:
        return
    driver.wait(1 << 50)
    assert await driver.waiting() == [0]


# D5: within one tick.


@pytest.mark.parametrize("known", [False, True], ids=["new group", "known group"])
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
async def test_nothing_is_delivered_that_the_tick_itself_writes(known: bool, warm: bool) -> None:
    driver = await GroupDriver.open(2)
    if known:
        await driver.create()
    if not warm:
        driver.log.forget()
    _, found = await driver.log.submit(
        append_step(S, build_bodies([b"2", b"3"])), deliver_step(S, G, 9, retry_ms=10)
    )
    assert [message.offset for message in found.messages] == [0, 1]
    assert [m.offset for m in (await driver.deliver(9)).messages] == [2, 3]


async def test_a_stream_that_this_tick_makes_has_nothing_to_deliver_yet() -> None:
    driver = await GroupDriver.open()
    _, found = await driver.log.submit(
        append_step(S, build_bodies([b"0"])), deliver_step(S, G, 9, retry_ms=10)
    )
    assert (found.messages, found.moved) == NOTHING
    assert await driver.asked(9) == ([0], False)


async def test_steps_of_one_tick_see_each_other() -> None:
    driver = await GroupDriver.open(10)
    first, acked, second, third = await driver.log.submit(
        deliver_step(S, G, 3, retry_ms=10),
        ack_step(S, G, [(0, 1)]),
        deliver_step(S, G, 3, retry_ms=10),
        deliver_step(S, b"h", 1),
    )
    assert [m.offset for m in first.messages] == [0, 1, 2]
    assert acked == 2
    assert [m.offset for m in second.messages] == [3, 4, 5]
    assert [m.offset for m in third.messages] == [0]
    assert await driver.waiting() == [2, 3, 4, 5]
    for name in (G, b"h"):
        assert await (await driver.rebuilt()).seen(name) == await driver.seen(name)


async def test_a_page_on_which_nothing_is_pending_is_not_looked_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its row may still say otherwise: it is written again with what becomes of it."""
    driver = await GroupDriver.open(2000)
    await driver.create(max_pending=2000)
    assert len(await driver.read(1500, retry_ms=10)) == 1500
    await driver.flush()
    await driver.ack((0, 1499))
    await driver.set(0)
    for key in [key for key in driver.log.states if key[0] == "page"]:
        del driver.log.states[key]
    get = driver.log.store.get

    async def checked(key: bytes) -> bytes | None:
        assert key[1] != KeyType.PAGE
        return await get(key)

    with monkeypatch.context() as patch:
        patch.setattr(driver.log.store, "get", checked)
        assert await driver.read(3, retry_ms=10) == [0, 1, 2]
        for low, high in ((3, 900), (900, 1103)):
            assert await driver.read(high - low, retry_ms=10) == list(range(low, high))
    assert await driver.waiting() == list(range(1103))
    assert await (await driver.rebuilt()).seen() == await driver.seen()
    await driver.flush()
    assert await (await driver.rebuilt()).seen() == await driver.seen()
    driver.wait(10)
    assert await driver.read(2, retry_ms=10) == [0, 1]


async def test_a_set_and_an_eviction_of_the_same_tick_count() -> None:
    driver = await GroupDriver.open(10)
    await driver.read(5, retry_ms=10)
    _, _, found = await driver.log.submit(
        set_step(S, G, 1), evict_step(S, up_to=2), deliver_step(S, G, 3, retry_ms=10)
    )
    assert [m.offset for m in found.messages] == [3, 4, 5]
    info = await driver.info()
    assert (info.pending, info.skipped) == (3, 3)
    assert await (await driver.rebuilt()).seen() == await driver.seen()


async def test_an_eviction_of_what_this_tick_writes_is_skipped_once() -> None:
    driver = await GroupDriver.open(2)
    await driver.create()
    _, _, found = await driver.log.submit(
        append_step(S, build_bodies([b"2", b"3"])),
        evict_step(S, up_to=2),
        deliver_step(S, G, 9, retry_ms=10),
    )
    assert (found.messages, found.moved) == MOVED
    assert [m.offset for m in (await driver.deliver(9)).messages] == [3]
    assert (await driver.info()).skipped == 3
