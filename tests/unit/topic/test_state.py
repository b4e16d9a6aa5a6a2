"""Topics rebuilt from rows: whatever was written of them when a process died."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.codec.keys import topic_key, topic_page_key
from penstock.codec.topic import (
    PAGE_OFFSETS,
    decode_topic,
    decode_topic_page,
    encode_topic,
    encode_topic_page,
)
from penstock.errors import CorruptError, NotFoundError
from penstock.log.rowview import RowView
from penstock.topic.admin import delete_step
from penstock.topic.feed import feed_step
from penstock.topic.flush import head_step, pages_step, plan_flush
from penstock.topic.item import prepare_push
from penstock.topic.members import join_step
from penstock.topic.poll import poll_step
from penstock.topic.push import push_step
from penstock.topic.replay import replay_step
from penstock.topic.state import (
    LIVE,
    TopicState,
    find_by_id,
    load_page,
    load_topic,
    owner_of,
    topic_name,
)
from unit.log.driver import FlushedBehind, LogDriver

T = topic_name("t")


async def rebuilt(driver: LogDriver) -> TopicState:
    return await load_topic(RowView(driver.store, driver.tail), T)


async def test_pages_of_a_replay_that_no_head_knows_yet_are_counted() -> None:
    """The pages were written, the process died before the head was."""
    driver = await LogDriver.open()
    pushed = await driver.do(push_step(T, prepare_push([b"x"] * 10)))
    token = (await driver.do(join_step(T, "c"))).token
    begun = await driver.do(replay_step(T, 0, None))
    await driver.do(feed_step(T))
    await driver.do(poll_step(T, "c", token, 3))
    operations = driver.tail.of(owner_of(pushed.topic))
    for part in plan_flush(operations).parts():
        await driver.do(pages_step(pushed.topic, part))
    state = await rebuilt(driver)
    assert state.references(begun.id).count == 10
    assert state.references(0).count == 10
    assert state.head.sequence == len(operations)


async def test_a_topic_is_found_by_its_id_before_it_was_ever_flushed() -> None:
    driver = await LogDriver.open()
    pushed = await driver.do(push_step(T, prepare_push([b"x"])))
    assert await find_by_id(RowView(driver.store, driver.tail), pushed.topic) == T
    assert await driver.do(head_step(pushed.topic))
    await driver.do(delete_step(T))
    driver.forget()
    assert await find_by_id(RowView(driver.store, driver.tail), pushed.topic) is None
    assert not await driver.do(head_step(pushed.topic))
    again = await driver.do(push_step(T, prepare_push([b"x"])))
    assert again.topic != pushed.topic
    assert await find_by_id(RowView(driver.store, driver.tail), pushed.topic) is None
    with pytest.raises(NotFoundError):
        await load_topic(RowView(driver.store, driver.tail), topic_name("other"))


async def test_a_head_of_another_topic_is_corruption() -> None:
    driver = await LogDriver.open()
    pushed = await driver.do(push_step(T, prepare_push([b"x"]), slots=3))
    await driver.do(head_step(pushed.topic))
    value = await driver.store.get(topic_key(pushed.topic))
    assert value is not None
    head = decode_topic(value, "head")
    for other in (
        encode_topic(type(head)(head.sequence, "u", head.shards)),
        encode_topic(type(head)(head.sequence, "t", head.shards[:2])),
    ):
        n = driver.store.head().n + 1
        row = [(topic_key(pushed.topic), other)]
        await driver.store.commit(n, row, time_ms=driver.clock.ms, epoch=driver.store.epoch)
        with pytest.raises(CorruptError, match="its head is one of"):
            await rebuilt(driver)


async def test_a_page_with_a_slot_that_the_topic_has_not_is_corruption() -> None:
    driver = await LogDriver.open()
    pushed = await driver.do(push_step(T, prepare_push([b"x"] * 6), slots=3))
    token = (await driver.do(join_step(T, "c"))).token
    operations = driver.tail.of(owner_of(pushed.topic))
    for part in plan_flush(operations).parts():
        await driver.do(pages_step(pushed.topic, part))
    key = topic_page_key(pushed.topic, 0, 0)
    value = await driver.store.get(key)
    assert value is not None
    row = decode_topic_page(value, "page")
    slots = row.slots.copy()
    slots[2] = 3
    broken = encode_topic_page(type(row)(row.sequence, row.places, slots, row.epochs))
    n = driver.store.head().n + 1
    await driver.store.commit(n, [(key, broken)], time_ms=driver.clock.ms, epoch=driver.store.epoch)
    driver.forget()
    with pytest.raises(CorruptError, match="a slot is too high"):
        await driver.do(poll_step(T, "c", token, 10))


# ---- read while it is flushed -------------------------------------------------------------------


async def flush(driver: LogDriver) -> None:
    """As upkeep does; the records stay."""
    for owner in driver.tail.owners():
        plan = plan_flush(driver.tail.of(owner))
        for part in plan.parts():
            await driver.do(pages_step(owner.id, part))
        assert await driver.do(head_step(owner.id))
        driver.tail.flushed(owner, plan.sequence)


async def halfway() -> tuple[LogDriver, int, int]:
    """Two pages and a replay of them; the rows have ten messages. -> with ids of both"""
    driver = await LogDriver.open()
    pushed = await driver.do(push_step(T, prepare_push([b"x"] * 10)))
    token = (await driver.do(join_step(T, "c"))).token
    await flush(driver)
    await driver.do(push_step(T, prepare_push([b"x"] * PAGE_OFFSETS)))
    await driver.do(poll_step(T, "c", token, 3))
    begun = await driver.do(replay_step(T, 0, None))
    await driver.do(feed_step(T))
    return driver, pushed.topic, begun.id


@pytest.mark.parametrize("number", range(6))
async def test_a_topic_that_is_read_while_it_is_flushed_has_no_gap(number: int) -> None:
    driver, _, _ = await halfway()
    known = await rebuilt(driver)
    # The name, the head, the pages, then those that have no row yet.
    store: Any = FlushedBehind(driver, lambda: flush(driver), number=number)
    state = await load_topic(RowView(store, driver.tail), T)
    assert store.flushed
    assert state.head.sequence == known.head.sequence
    assert state.head.spaces == known.head.spaces
    assert state.head.shards.tolist() == known.head.shards.tolist()
    assert {space: index.lines.tolist() for space, index in state.index.items()} == {
        space: index.lines.tolist() for space, index in known.index.items()
    }


@pytest.mark.parametrize("replayed", [False, True])
@pytest.mark.parametrize("number", [0, 1])
async def test_a_page_that_is_read_while_it_is_flushed_has_no_gap(
    replayed: bool, number: int
) -> None:
    driver, topic, replay = await halfway()
    place = (replay if replayed else LIVE, number)
    known = await load_page(RowView(driver.store, driver.tail), topic, place)
    store: Any = FlushedBehind(driver, lambda: flush(driver), row=topic_page_key(topic, *place))
    page = await load_page(RowView(store, driver.tail), topic, place)
    assert store.flushed
    assert page.count == known.count > 0
    assert page.sequence == known.sequence
    for field in ("alive", "slots", "epochs"):
        assert getattr(page, field).tolist() == getattr(known, field).tolist()


async def test_a_topic_that_is_flushed_for_the_first_time_while_it_is_looked_for_is_found() -> None:
    driver = await LogDriver.open()
    pushed = await driver.do(push_step(T, prepare_push([b"x"])))
    store: Any = FlushedBehind(driver, lambda: flush(driver), row=topic_key(pushed.topic))
    assert await find_by_id(RowView(store, driver.tail), pushed.topic) == T
    assert store.flushed
