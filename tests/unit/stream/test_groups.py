"""Setting groups up, moving them, looking at them, forgetting them."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.codec.group import GroupRow
from penstock.codec.keys import KeyType
from penstock.errors import ConflictError, CorruptError, InvalidError, NotFoundError
from penstock.log.append import append_step
from penstock.log.batch import build_bodies
from penstock.log.decision import StateKey
from penstock.log.pages import Tail
from penstock.stream import groups
from penstock.stream.ack import ack_step
from penstock.stream.check import check_groups
from penstock.stream.delete import delete_step
from penstock.stream.deliver import MAX_PENDING, deliver_step
from penstock.stream.group import (
    GroupsState,
    group_name,
    groups_state_key,
    list_groups,
    load_group,
    with_group,
)
from penstock.stream.groups import (
    GroupInfo,
    Pending,
    create_step,
    destroy_step,
    info_step,
    infos_step,
    pending_step,
    set_step,
)
from unit.log.driver import TickView, stream
from unit.stream.driver import DEAD, NOTHING, G, GroupDriver, S


async def test_a_group_can_be_made_before_its_stream() -> None:
    driver = await GroupDriver.open()
    await driver.create(start="new", max_pending=7, dead=DEAD)
    assert await driver.info() == GroupInfo("g", -1, 0, 0, 0, 0, 7, "dead")
    await driver.write(2)
    assert await driver.read(5) == [0, 1]
    assert await (await driver.rebuilt()).info() == GroupInfo("g", 1, 2, 0, 0, 0, 7, "dead")
    # Naming a dead stream does not make it.
    assert await driver.log.state(DEAD) is None


async def test_making_a_group_again_changes_nothing() -> None:
    driver = await GroupDriver.open(5)
    await driver.create(max_pending=2, dead=DEAD)
    await driver.read(2, retry_ms=10)
    before = await driver.seen()
    await driver.create(max_pending=2, dead=DEAD, start="new")
    assert driver.log.written[-1] == {}
    assert await driver.seen() == before


@pytest.mark.parametrize("other", [{"max_pending": 3}, {"dead": stream("x")}, {"dead": None}])
async def test_making_a_group_again_with_other_settings_is_a_conflict(
    other: dict[str, Any],
) -> None:
    driver = await GroupDriver.open(5)
    settings: dict[str, Any] = {"max_pending": 2, "dead": DEAD}
    await driver.create(**settings)
    with pytest.raises(ConflictError, match="group 'g' exists with other settings"):
        await driver.create(**(settings | other))
    assert (await driver.info()).max_pending == 2


async def test_a_group_made_by_a_read_has_the_settings_that_create_has() -> None:
    driver = await GroupDriver.open(5)
    await driver.read(1)
    await driver.create()
    assert (await driver.info()).max_pending == MAX_PENDING


@pytest.mark.parametrize(
    "options",
    [
        {"max_pending": 0},
        {"max_pending": -1},
        {"max_pending": 1 << 63},
        {"start": -1},
        {"start": "last"},
        {"dead": S},
    ],
    ids=str,
)
def test_settings_that_cannot_be_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidError):
        create_step(S, G, **options)


async def test_a_start_behind_the_end_is_refused() -> None:
    driver = await GroupDriver.open(5)
    with pytest.raises(InvalidError, match="behind the end"):
        await driver.create(start=6)
    assert await driver.destroy() is False
    await driver.create(start=5)


async def test_a_group_and_its_stream_in_one_tick() -> None:
    driver = await GroupDriver.open()
    await driver.log.submit(
        append_step(S, build_bodies([b"0"])),
        create_step(S, G, start="new"),
        create_step(S, b"h"),
        append_step(S, build_bodies([b"1"])),
    )
    assert await driver.asked(5) == ([1], False)
    assert await driver.asked(5, b"h") == ([0, 1], False)
    assert await check_groups(driver.log.store) == []


@pytest.mark.parametrize("name", ["", "x" * 256])
def test_names_are_checked(name: str) -> None:
    with pytest.raises(InvalidError, match="group name"):
        group_name(name)


async def test_names_may_hold_anything() -> None:
    driver = await GroupDriver.open(3)
    names = [group_name(name) for name in ("a", "a\0b", "ä/../ö", "\x01", "x" * 255)]
    for i, name in enumerate(names):
        await driver.create(name, max_pending=i + 1)
    again = await driver.rebuilt()
    for i, name in enumerate(names):
        info = await again.info(name)
        assert (info.name.encode(), info.max_pending) == (name, i + 1)
    listed = await list_groups(driver.log.store, 1)
    assert list(listed) == sorted(names)
    assert sorted(row.max_pending for row in listed.values()) == [1, 2, 3, 4, 5]
    assert await list_groups(driver.log.store, 2) == {}


@pytest.mark.parametrize(
    ("to", "left", "next_offset"),
    [
        (0, [], 0),
        (2, [0, 1], 2),
        (3, [0, 1, 2], 3),
        (5, [0, 1, 2, 3, 4], 5),
        (8, [0, 1, 2, 3, 4], 8),
        (10, [0, 1, 2, 3, 4], 10),
        ("first", [], 0),
        ("new", [0, 1, 2, 3, 4], 10),
    ],
)
@pytest.mark.parametrize("flushed", [False, True])
async def test_set_moves_the_group(
    to: Any, left: list[int], next_offset: int, flushed: bool
) -> None:
    driver = await GroupDriver.open(10)
    await driver.read(5, retry_ms=10)
    if flushed:
        await driver.flush()
        driver = await driver.restarted()
    await driver.set(to)
    info = await driver.info()
    assert await driver.waiting() == left
    assert (info.last_offset, info.pending) == (next_offset - 1, len(left))
    assert (info.ack_offset, info.expired, info.skipped) == (min([*left, next_offset]), 0, 0)
    assert await (await driver.rebuilt()).seen() == await driver.seen()
    assert await driver.read(20) == list(range(next_offset, 10))


async def test_what_comes_again_as_new_is_delivered_for_the_first_time() -> None:
    driver = await GroupDriver.open(3)
    await driver.read(3, retry_ms=10, expire_ms=50)
    driver.wait(10)
    await driver.read(3, retry_ms=10)
    await driver.set(1)
    assert await driver.read(5, retry_ms=100) == [1, 2]
    assert await driver.pending() == [
        Pending(0, driver.now_ms + 10, driver.now_ms + 40, 2),
        Pending(1, driver.now_ms + 100, None, 1),
        Pending(2, driver.now_ms + 100, None, 1),
    ]


async def test_set_across_many_pages() -> None:
    driver = await GroupDriver.open(5000)
    await driver.create(max_pending=10_000)
    await driver.read(5000, retry_ms=10)
    await driver.set(1500)
    assert await driver.waiting() == list(range(1500))
    assert await (await driver.rebuilt()).seen() == await driver.seen()


async def test_set_below_the_edge_skips_what_is_gone() -> None:
    driver = await GroupDriver.open(5)
    await driver.read(5)
    await driver.evict(2)
    await driver.set(0)
    assert await driver.read(5) == [3, 4]
    assert (await driver.info()).skipped == 3
    await driver.set("first")
    assert await driver.read(5) == [3, 4]
    assert (await driver.info()).skipped == 3


async def test_set_behind_the_end_is_refused() -> None:
    driver = await GroupDriver.open(5)
    await driver.read(2, retry_ms=10)
    before = await driver.seen()
    with pytest.raises(InvalidError, match="behind the end"):
        await driver.set(6)
    assert await driver.seen() == before
    with pytest.raises(InvalidError):
        set_step(S, G, -1)


@pytest.mark.parametrize("entries", [0, 3], ids=["no stream", "no group"])
async def test_looking_at_or_moving_what_is_not_there(entries: int) -> None:
    driver = await GroupDriver.open(entries)
    for step in (info_step(S, G), set_step(S, G, 0), pending_step(S, G, 0, 1)):
        with pytest.raises(NotFoundError, match="there is no group 'g' on this stream"):
            await driver.log.do(step)
    assert await driver.destroy() is False
    assert driver.log.written[-1] == {}


async def test_the_pending_list_can_be_paged_through() -> None:
    driver = await GroupDriver.open(3000)
    await driver.create(max_pending=10_000)
    await driver.read(3000, retry_ms=10)
    await driver.ack((5, 1500))
    expected = [*range(5), *range(1501, 3000)]
    found: list[int] = []
    while page := await driver.pending(found[-1] + 1 if found else 0, 400):
        assert len(page) == 400 or page[-1].offset == 2999
        found += [entry.offset for entry in page]
    assert found == expected
    assert await driver.pending(0, 0) == []
    assert [entry.offset for entry in await driver.pending(3, 3)] == [3, 4, 1501]
    assert await driver.pending(3000, 5) == []


async def test_a_look_at_the_pending_list_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "COUNT_MAX", 5)
    driver = await GroupDriver.open(10)
    await driver.read(10, retry_ms=10)
    assert [entry.offset for entry in await driver.pending(2, 1 << 60)] == [2, 3, 4, 5, 6]


async def test_those_that_are_gone_are_left_out_of_a_look_at_many() -> None:
    driver = await GroupDriver.open(3)
    for name in (b"a", b"b"):
        await driver.create(name)
    found = await driver.log.do(infos_step(S, [b"a", b"gone", b"b"]))
    assert [info.name for info in found] == ["a", "b"]
    assert await driver.log.do(infos_step(stream("none"), [b"a"])) == []


class Compared(bytes):
    """A name that counts how often it is compared."""

    times = 0

    def __lt__(self, other: bytes) -> bool:
        Compared.times += 1
        return bytes(self) < bytes(other)


def test_a_group_joins_the_list_of_its_stream_without_a_look_at_the_others() -> None:
    row = GroupRow(1, 5, "")
    rows: dict[bytes, GroupRow] = {Compared(b"%d" % n): row for n in range(100)}

    class View:
        def state(self, key: StateKey) -> GroupsState:
            return GroupsState(dict(rows))

    shows: Any = View()
    made = with_group(shows, 7, Compared(b"new"), row)
    assert made == {groups_state_key(7): GroupsState({**rows, b"new": row})}
    gone = with_group(shows, 7, Compared(b"5"), None)
    assert gone == {groups_state_key(7): GroupsState({k: row for k in rows if k != b"5"})}
    assert Compared.times == 0


def test_the_pending_list_is_not_asked_backwards() -> None:
    for start, count in ((-1, 1), (0, -1)):
        with pytest.raises(InvalidError):
            pending_step(S, G, start, count)


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("restarted", [False, True])
async def test_a_group_that_was_destroyed_is_gone_and_starts_anew(
    flushed: bool, restarted: bool
) -> None:
    driver = await GroupDriver.open(5)
    await driver.create(max_pending=3, dead=DEAD)
    await driver.read(3, retry_ms=10)
    old = await driver.owner()
    if flushed:
        await driver.flush()
    assert await driver.destroy() is True
    assert await driver.destroy() is False
    if restarted:
        driver = await driver.restarted()
    assert await driver.ack((0, 9)) == 0
    assert await driver.asked(5, make=False) == NOTHING
    with pytest.raises(NotFoundError):
        await driver.info()
    assert await check_groups(driver.log.store) == []
    assert await driver.read(2, retry_ms=10) == [0, 1]
    assert await driver.owner() != old
    assert (await driver.info()).max_pending == MAX_PENDING
    assert await (await driver.rebuilt()).seen() == await driver.seen()


async def test_the_rows_of_a_destroyed_group_are_collected() -> None:
    driver = await GroupDriver.open(3000)
    await driver.create(max_pending=10_000)
    await driver.read(3000, retry_ms=10)
    await driver.read(5, b"h", retry_ms=10)
    old = await driver.owner()
    await driver.flush()
    assert len(await driver.rows(KeyType.PAGE)) == 3 + 2
    await driver.destroy()
    await driver.log.chore(("collect", None))
    assert len(await driver.rows(KeyType.PAGE)) == 1
    assert await driver.waiting(b"h") == [0, 1, 2, 3, 4]
    # Its operations are forgotten as well, though nobody can write its pages any more.
    await driver.read(1, retry_ms=10)
    await driver.destroy()
    for owner in driver.log.tail.owners():
        await driver.flush(owner)
    assert old not in driver.log.tail.owners()
    assert await driver.rows(KeyType.OPERATIONS) == {}


async def test_destroyed_and_made_again_in_one_tick() -> None:
    driver = await GroupDriver.open(5)
    await driver.read(3, retry_ms=10)
    replies = await driver.log.submit(
        ack_step(S, G, [(0, 0)]),
        destroy_step(S, G),
        ack_step(S, G, [(1, 1)]),
        deliver_step(S, G, 1, retry_ms=10, start=4),
        ack_step(S, G, [(1, 9)]),
        info_step(S, G),
    )
    assert replies[:3] == [1, True, 0]
    assert [message.offset for message in replies[3].messages] == [4]
    assert replies[4] == 1
    assert replies[5] == GroupInfo("g", 4, 5, 0, 0, 0, MAX_PENDING, None)
    assert await (await driver.rebuilt()).seen() == await driver.seen()
    assert await check_groups(driver.log.store) == []


async def test_a_stream_is_deleted_with_its_groups() -> None:
    driver = await GroupDriver.open(5)
    for name in (b"a", b"b"):
        await driver.read(3, name, retry_ms=10)
    assert await driver.log.do(delete_step(S)) is True
    assert await driver.ack((0, 9), group=b"a") == 0
    await driver.write(2)
    assert await driver.read(5, b"a", retry_ms=10) == [0, 1]
    with pytest.raises(NotFoundError):
        await driver.info(b"b")
    assert await check_groups(driver.log.store) == []
    for owner in driver.log.tail.owners():
        await driver.flush(owner)
    await driver.log.chore(("collect", None))
    assert await driver.rows(KeyType.OPERATIONS) == {}
    assert len(await driver.rows(KeyType.GROUP)) == 1
    assert len(await driver.rows(KeyType.PAGE)) == 2
    assert await (await driver.rebuilt()).waiting(b"a") == [0, 1]


async def test_a_group_that_is_made_in_the_tick_that_deletes_its_stream_leaves_nothing() -> None:
    driver = await GroupDriver.open(5)
    await driver.log.submit(deliver_step(S, G, 2, retry_ms=10), delete_step(S))
    assert await check_groups(driver.log.store) == []
    for owner in driver.log.tail.owners():
        await driver.flush(owner)
    await driver.log.chore(("collect", None))
    assert await driver.rows(KeyType.PAGE) == {}


async def test_a_head_that_is_missing_is_corrupt() -> None:
    driver = await GroupDriver.open(5)
    await driver.read(1)
    rows = await driver.rows(KeyType.PAGE)
    store = driver.log.store
    await store.commit(
        store.head().n + 1, [(key, None) for key in rows], time_ms=1, epoch=store.epoch
    )
    driver.log.forget()
    with pytest.raises(CorruptError, match="its head is missing"):
        await driver.info()


async def test_what_is_kept_of_a_name_is_also_that_there_is_none() -> None:
    driver = await GroupDriver.open(1)
    driver.log.tail = Tail()
    assert await load_group(TickView(driver.log), 1, b"nobody") is None
    driver.log.store.crash()  # nothing is read any more
    assert await load_group(TickView(driver.log), 1, b"nobody") is None
