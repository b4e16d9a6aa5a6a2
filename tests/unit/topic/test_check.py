"""`check_topics` names what is wrong, and never raises for stored bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from penstock.codec.keys import (
    KeyType,
    error_key,
    hold_key,
    prefix,
    prefix_end,
    topic_key,
    topic_page_key,
)
from penstock.codec.topic import (
    TopicHead,
    decode_topic,
    decode_topic_page,
    encode_topic,
    encode_topic_page,
)
from penstock.codec.topicerror import ErrorRow, encode_error
from penstock.log.pages import trim_step
from penstock.topic.ack import ack_step
from penstock.topic.check import check_topics
from penstock.topic.draft import HOLDER
from penstock.topic.flush import head_step, pages_step, plan_flush
from penstock.topic.given import given
from penstock.topic.item import prepare_push
from penstock.topic.members import join_step
from penstock.topic.poll import poll_step
from penstock.topic.push import push_step
from penstock.topic.replay import replay_step
from penstock.topic.state import owner_of, topic_name
from unit.log.driver import LogDriver

T = topic_name("t")


class Shelf:
    """A topic of which everything is in rows, no operation is left."""

    def __init__(self, driver: LogDriver, topic_id: int) -> None:
        self.driver = driver
        self.id = topic_id

    @classmethod
    async def open(cls) -> Shelf:
        driver = await LogDriver.open()
        keys = [f"k{i % 9}" for i in range(40)]
        data = [b"x"] * 40
        await driver.do(push_step(T, prepare_push(data, keys), slots=4))
        token = (await driver.do(join_step(T, "a"))).token
        await driver.do(join_step(T, "b"))
        emitted = await driver.do(poll_step(T, "a", token, 10))
        (part,) = emitted.parts
        done = given(part.offsets[:4], part.epochs[:4])
        assert all((await driver.do(ack_step(T, "a", token, [done]))).taken)
        await driver.do(replay_step(T, 0, 5))
        shelf = cls(driver, emitted.topic)
        await shelf.flush()
        return shelf

    async def flush(self) -> None:
        tail, owner = self.driver.tail, owner_of(self.id)
        plan = plan_flush(tail.of(owner))
        for part in plan.parts():
            await self.driver.do(pages_step(self.id, part))
        await self.driver.do(head_step(self.id))
        tail.flushed(owner, plan.sequence)
        numbers = tail.unneeded()
        await self.driver.do(trim_step(numbers))
        tail.trimmed(numbers)

    async def write(self, key: bytes, value: bytes | None) -> None:
        store = self.driver.store
        n = store.head().n + 1
        await store.commit(n, [(key, value)], time_ms=self.driver.clock.ms, epoch=store.epoch)

    async def read(self, key: bytes) -> bytes:
        value = await self.driver.store.get(key)
        assert value is not None
        return value

    async def change_head(self, change: Callable[[TopicHead], TopicHead]) -> None:
        key = topic_key(self.id)
        head = decode_topic(await self.read(key), "head")
        await self.write(key, encode_topic(change(head)))

    async def change_shard(self, row: int, **fields: int) -> None:
        def change(head: TopicHead) -> TopicHead:
            shards = head.shards.copy()
            for name, value in fields.items():
                shards[name][row] = value
            return msgspec.structs.replace(head, shards=shards)

        await self.change_head(change)

    async def found(self) -> str:
        return " | ".join(each.what for each in await check_topics(self.driver.store))


@pytest.fixture
async def shelf() -> Shelf:
    shelf = await Shelf.open()
    assert await shelf.found() == ""
    return shelf


@pytest.mark.parametrize(
    ("row", "fields", "what"),
    [
        (0, {"acked": 99}, "counters cannot be"),
        (0, {"emitted": 99}, "counters cannot be"),
        (0, {"running": 9}, "counters cannot be"),
        (0, {"inserted": 30}, "references, "),
        (-1, {"replaying": 3}, "3 replaying, 0 found"),
        (0, {"owner": 77}, "shards of {77}, who is not there"),
        (-1, {"owner": 77}, "slots are owned by"),
        (-1, {"heir": 77}, "slots are owned by"),
        (-1, {"owner": 0}, "a slot has no owner"),
        (-1, {"hint": 1000}, "waits below the hint"),
    ],
)
async def test_a_shard_that_cannot_be(
    shelf: Shelf, row: int, fields: dict[str, int], what: str
) -> None:
    await shelf.change_shard(row, **fields)
    assert what in await shelf.found()


async def test_shares_that_are_not_even(shelf: Shelf) -> None:
    for row in (-1, -2, -3):
        await shelf.change_shard(row, owner=2)
    assert "shares of" in await shelf.found()


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"routed": 41}, "41 routed, 40 fed"),
        ({"folded": (9,) * 7}, "messages were inserted, of 40"),
    ],
)
async def test_a_head_that_cannot_be(shelf: Shelf, fields: dict[str, Any], what: str) -> None:
    await shelf.change_head(lambda head: msgspec.structs.replace(head, **fields))
    assert what in await shelf.found()


async def test_a_reference_in_another_slot_than_its_key(shelf: Shelf) -> None:
    key = topic_page_key(shelf.id, 0, 0)
    row = decode_topic_page(await shelf.read(key), "page")
    slots = (row.slots + 1) % 4
    moved = msgspec.structs.replace(row, slots=slots.astype(np.uint16))
    await shelf.write(key, encode_topic_page(moved))
    assert "is in a slot that its key is not of" in await shelf.found()


async def test_a_reference_to_nothing(shelf: Shelf) -> None:
    key = topic_page_key(shelf.id, 0, 7)
    row = decode_topic_page(await shelf.read(topic_page_key(shelf.id, 0, 0)), "page")
    await shelf.write(key, encode_topic_page(row))
    assert "are outside of it" in await shelf.found()


async def test_a_page_that_is_gone(shelf: Shelf) -> None:
    await shelf.write(topic_page_key(shelf.id, 0, 0), None)
    assert "references, 0 found" in await shelf.found()


async def test_a_hold_that_is_gone(shelf: Shelf) -> None:
    await shelf.write(hold_key(shelf.id, HOLDER), None)
    assert "nothing holds its all-log" in await shelf.found()


@pytest.mark.parametrize("kind", [KeyType.TOPIC, KeyType.TOPIC_PAGE])
async def test_damaged_rows_are_named(shelf: Shelf, kind: KeyType) -> None:
    low = prefix(kind)
    rows = [row async for part in shelf.driver.store.scan(low, prefix_end(low)) for row in part]
    assert rows
    for key, value in rows:
        await shelf.write(key, value[:-1])
        assert "bytes" in await shelf.found()
        await shelf.write(key, value)
    assert await shelf.found() == ""


async def test_rows_of_no_topic_and_damaged_errors(shelf: Shelf) -> None:
    error = encode_error(ErrorRow(1, 1, True, "c", "it broke"))
    await shelf.write(error_key(shelf.id, 3, 0), error)
    assert await shelf.found() == ""
    await shelf.write(error_key(shelf.id, 3, 0), error[:-1])
    assert "error row" in await shelf.found()
    await shelf.write(error_key(shelf.id, 3, 0), None)
    await shelf.write(topic_page_key(999, 0, 0), await shelf.read(topic_page_key(shelf.id, 0, 0)))
    assert await shelf.found() == "no topic 999"
