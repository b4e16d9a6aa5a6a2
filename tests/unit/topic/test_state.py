"""Topics rebuilt from rows: whatever was written of them when a process died."""

from __future__ import annotations

import pytest

from penstock.codec.keys import topic_key, topic_page_key
from penstock.codec.topic import (
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
from penstock.topic.state import TopicState, find_by_id, load_topic, owner_of, topic_name
from unit.log.driver import LogDriver

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
