"""Publishing: payload records, dedup ids, ids."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from penstock.codec.keys import KeyType, payload_key, prefix
from penstock.codec.payload import BytesPayload, PayloadBlock, UriPayload, decode_payload
from penstock.errors import CorruptError, InvalidError
from penstock.log.decision import Decision, Step
from penstock.queue.item import INLINE_BYTES, Item, PreparedBatch
from penstock.queue.message import Fresh, Payloads, read_contents
from penstock.queue.publish import (
    BLOCK_COUNT,
    DEDUP_MS,
    Published,
    check_spilled,
    publish_step,
    reserve_step,
    spilled_id,
    spilled_uri,
)
from unit.queue.driver import QueueDriver, messages


async def record(driver: QueueDriver, message_id: int) -> object:
    value = await driver.store.get(payload_key(message_id))
    return None if value is None else decode_payload(value)


async def test_a_payload_alone_is_the_rfcs_record_and_neighbours_share_a_block() -> None:
    driver = await QueueDriver.start()
    (alone,) = await driver.publish(b"x")
    first, second = await driver.publish(b"y", b"z")
    assert await record(driver, alone) == BytesPayload(b"x")
    assert isinstance(await record(driver, first), PayloadBlock)
    assert await record(driver, second) is None


async def test_a_uri_between_payloads_has_a_record_of_its_own() -> None:
    driver = await QueueDriver.start()
    ids = await driver.publish(Item(b"a"), Item(b"b"), Item(uri="s3://c"), Item(b"d"))
    assert ids == list(range(ids[0], ids[0] + 4))
    assert await record(driver, ids[2]) == UriPayload("s3://c")
    contents = await read_contents(await driver.rows_alone(), ids, range(4))
    found = [content and (content.payload, content.uri) for content in contents]
    assert found == [(b"a", None), (b"b", None), (None, "s3://c"), (b"d", None)]


@pytest.mark.parametrize(("name", "limit"), [("BLOCK_BYTES", 5), ("BLOCK_COUNT", 2)])
async def test_a_block_has_a_size(monkeypatch: pytest.MonkeyPatch, name: str, limit: int) -> None:
    monkeypatch.setattr(f"penstock.queue.publish.{name}", limit)
    driver = await QueueDriver.start()
    ids = await driver.publish(b"abc", b"de", b"f")
    assert isinstance(await record(driver, ids[0]), PayloadBlock)
    assert await record(driver, ids[2]) == BytesPayload(b"f")
    contents = await read_contents(await driver.rows_alone(), ids, range(3))
    assert [content and content.payload for content in contents] == [b"abc", b"de", b"f"]


async def test_payloads_whose_ids_are_not_neighbours_share_no_block() -> None:
    driver = await QueueDriver.start()
    (known,) = await driver.publish(Item(b"x", dedup_id="d"))
    first, between, last = await driver.do(reserve_step(3))
    ids = await driver.publish(
        Item(b"a", reserved=first),
        Item(b"x", dedup_id="d", reserved=between),
        Item(b"b", reserved=last),
    )
    assert ids == [first, known, last]
    assert await record(driver, first) == BytesPayload(b"a")
    assert await record(driver, last) == BytesPayload(b"b")
    await driver.clean()


async def test_a_spilled_payload_keeps_the_id_that_was_reserved_for_it() -> None:
    driver = await QueueDriver.start()
    numbers = await driver.do(reserve_step(3))
    uri = spilled_uri(numbers[1], b"large")
    large = Item(uri=uri, reserved=numbers[1])
    ids = await driver.publish(
        Item(b"a", reserved=numbers[0]), large, Item(b"b", reserved=numbers[2])
    )
    assert ids == list(numbers)
    contents = await read_contents(await driver.rows_alone(), ids, range(3))
    assert [content and content.payload for content in contents] == [b"a", None, b"b"]
    await driver.clean()


async def test_blocks_end_at_their_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.queue.publish.BLOCK_COUNT", 3)
    monkeypatch.setattr("penstock.queue.publish.BLOCK_BYTES", 10)
    driver = await QueueDriver.start()
    payloads = [b"", b"", b"", b"1" * 6, b"2" * 6, b"3" * 11, b"4"]
    ids = await driver.publish(*payloads)
    assert len(await driver.keys(KeyType.PAYLOAD)) == 5
    contents = await read_contents(await driver.rows_alone(), ids, range(7))
    assert [content and content.payload for content in contents] == payloads


def test_a_spilled_uri_names_its_message_and_proves_its_payload() -> None:
    uri = spilled_uri(7, b"payload")
    assert spilled_id(uri) == 7
    assert spilled_id("s3://7") is None
    check_spilled(uri, b"payload")
    with pytest.raises(CorruptError):
        check_spilled(uri, b"Payload")
    with pytest.raises(CorruptError):
        spilled_id(uri.replace("7", "seven", 1))


async def test_a_dedup_id_gives_the_first_message_within_its_window() -> None:
    driver = await QueueDriver.start()
    (first,) = await driver.publish(Item(b"x", dedup_id="d"))
    driver.clock.ms += DEDUP_MS - 1
    assert await driver.publish(Item(b"y", dedup_id="d")) == [first]
    driver.clock.ms += 1
    (later,) = await driver.publish(Item(b"z", dedup_id="d"))
    assert later != first
    assert (await driver.stats()).routed == 2


async def test_a_dedup_id_counts_within_a_batch_and_across_a_restart() -> None:
    driver = await QueueDriver.start()
    ids = await driver.publish(
        Item(b"a", dedup_id="d"), Item(b"b"), Item(b"c", dedup_id="d"), Item(b"e", dedup_id="e")
    )
    assert ids[0] == ids[2]
    assert len(set(ids)) == 3
    driver = await driver.restarted()
    assert await driver.publish(Item(b"f", dedup_id="e"), Item(b"g", dedup_id="e")) == [ids[3]] * 2
    assert (await driver.stats()).routed == 3


async def test_dedup_ids_of_queues_are_apart_and_end_with_the_queue() -> None:
    driver = await QueueDriver.start()
    await driver.create("other")
    batch = [Item(b"", dedup_id="d", to=to) for to in (None, "q", "other", "q")]
    ids = await driver.publish(*batch)
    assert ids[1] == ids[3]
    assert len(set(ids)) == 3
    await driver.delete("other")
    await driver.create("other")
    assert (await driver.publish(Item(b"", dedup_id="d", to="other")))[0] not in ids


@pytest.mark.parametrize(
    "item",
    [
        Item(b"x" * (INLINE_BYTES + 1)),
        Item(headers={"_x": "y"}),
        Item(headers={str(i): "" for i in range(256)}),
        Item(headers={"a": 5}),  # type: ignore[dict-item]
        Item(headers={"a": "x" * 65536}),
        Item(uri=""),
        Item(uri="x" * 65536),
        Item(uri=" Penstock-Payload:7:x"),
        Item(to=""),
        Item(dedup_id=""),
        Item(dedup_id="d" * 256),
        Item(delay_ms=-1),
        Item(retention_s=-1),
        Item(retention_s=1 << 32),
        Item(visible_at_ms=-1),
        Item(visible_at_ms=1 << 63),
        Item(created_at_ms=1 << 63),
        Item(headers={"\ud800": ""}),
        Item(to="\ud800"),
        Item(dedup_id="\ud800"),
        Item(uri="\ud800"),
    ],
)
def test_a_message_that_cannot_be_stored_is_refused_and_named(item: Item) -> None:
    with pytest.raises(InvalidError, match="message 1"):
        PreparedBatch([Item(), item])


async def test_255_headers_and_extreme_times_are_stored() -> None:
    driver = await QueueDriver.start()
    headers = {f"h{i}": "v" * (i % 3) for i in range(255)}
    ids = await driver.publish(
        Item(headers=headers, visible_at_ms=0),
        Item(delay_ms=1 << 62, retention_s=(1 << 32) - 1, created_at_ms=(1 << 63) - 1),
    )
    contents = await read_contents(await driver.rows_alone(), ids, [0, 1])
    assert contents[0] is not None
    assert contents[0].headers == headers
    assert contents[1] is not None
    assert contents[1].created_at_ms == (1 << 63) - 1
    await driver.clean()


@pytest.mark.parametrize(
    ("rows", "size", "asked"), [(16, 1000, 1), (2, 1000, 2), (16, 10, 4)], ids=str
)
async def test_small_payloads_behind_one_that_is_read_are_read_with_it(
    monkeypatch: pytest.MonkeyPatch, rows: int, size: int, asked: int
) -> None:
    monkeypatch.setattr("penstock.queue.message.AHEAD_ROWS", rows)
    monkeypatch.setattr("penstock.queue.message.AHEAD_BYTES", size)
    driver = await QueueDriver.start()
    ids = [number for n in range(4) for number in await driver.publish(b"%d" % n, b"x" * 20)]
    view, payloads = await driver.rows_alone(), Payloads()
    floor, floors = driver.store.floor, []

    async def counted(key: bytes, *, low: bytes) -> object:
        if key.startswith(prefix(KeyType.PAYLOAD)):
            floors.append(key)
        return await floor(key, low=low)

    monkeypatch.setattr(view.store, "floor", counted)
    found = [
        content and content.payload
        for n, number in enumerate(ids)
        for content in await read_contents(view, [number], [n], None, payloads)
    ]
    assert found == [b"0", b"x" * 20, b"1", b"x" * 20, b"2", b"x" * 20, b"3", b"x" * 20]
    assert len(floors) == asked


async def test_a_payload_is_looked_for_as_far_down_as_a_record_can_begin() -> None:
    driver = await QueueDriver.start()
    ids = await driver.publish(*(b"%d" % n for n in range(BLOCK_COUNT + 1)))
    places = [0, BLOCK_COUNT - 1, BLOCK_COUNT]
    for place in places:  # each by itself, with nothing in memory
        view = await driver.rows_alone()
        (content,) = await read_contents(view, [ids[place]], [place])
        assert content is not None
        assert content.payload == b"%d" % place


async def test_a_payload_that_is_gone_is_none_though_an_older_one_is_there() -> None:
    driver = await QueueDriver.start()
    ids = [number for n in range(3) for number in await driver.publish(b"%d" % n)]
    await driver.do(Step(lambda view, now: Decision(writes={payload_key(ids[1]): None})))
    contents = await read_contents(await driver.rows_alone(), ids, range(3))
    assert [content and content.payload for content in contents] == [b"0", None, b"2"]


async def test_fresh_messages_are_found_by_offset_and_id_until_they_are_too_many() -> None:
    fresh = Fresh(bytes_max=1200)
    items = list(messages(4))
    fresh.add(Published([7, 8], PreparedBatch(items[:2]), [7, 8], 0, 5))
    fresh.add(Published([7, 9], PreparedBatch(items[3:]), [9], 2, 6))
    found = fresh.find([9, 8, 7, 7, 9, 9], [2, 1, 1, 0, 3, 2])
    payloads = [None if content is None else content.payload for content in found]
    assert payloads == [b"3", b"1", None, b"0", None, b"3"], "None: another message, or none"
    assert [content.received_at_ms for content in found if content] == [6, 5, 5, 6]
    fresh.add(Published([10], PreparedBatch(items[:1]), [10], 3, 6))
    old, new = fresh.find([8, 10], [1, 3])
    assert old is None, "the oldest went"
    assert new is not None
    large = Item(b"", headers={"a": "x" * 2000})
    fresh.add(Published([11], PreparedBatch([large]), [11], 4, 6))
    assert fresh.find([11], [4]) == [None], "headers count too"


@pytest.mark.parametrize("size", [10, 5000])
def test_payloads_in_memory_keep_to_their_bound_however_small_they_are(size: int) -> None:
    """What holds a payload of ten bytes takes forty times as much."""
    tracemalloc.start()
    try:
        payloads = Payloads(bytes_max=1 << 20)
        before, _ = tracemalloc.get_traced_memory()
        for number in range(10_000):
            payloads.keep(number, BytesPayload(bytes([number % 251]) * size), size)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert payloads.find(9_999) is not None
    assert 1 << 19 < after - before < 3 << 19


@pytest.mark.parametrize(("count", "headers"), [(100, 0), (1, 0), (100, 1), (20, 50)])
def test_fresh_messages_keep_to_their_bound_whatever_they_are_made_of(
    count: int, headers: int
) -> None:
    """Of a message with fifty headers these are nearly all that it takes."""

    def message(number: int) -> Item:
        names = {f"name {i}": f"value {number}" for i in range(headers)}
        return Item(b"%d" % number, headers=names)

    bytes_max, ids = 1 << 20, range(count)
    tracemalloc.start()
    try:
        fresh = Fresh(bytes_max)
        before, _ = tracemalloc.get_traced_memory()
        while fresh.has(0) or not ids.start:
            batch = PreparedBatch([message(number) for number in ids])
            fresh.add(Published(list(ids), batch, ids, ids.start, 0))
            ids = range(ids.stop, ids.stop + count)
            del batch
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert bytes_max // 2 < after - before <= bytes_max


async def test_an_empty_batch_stores_nothing() -> None:
    driver = await QueueDriver.start()
    published = await driver.do(publish_step(PreparedBatch([])))
    assert published.ids == []
    assert await driver.keys(KeyType.PAYLOAD) == []


def test_fresh_messages_tell_which_records_are_dead_as_a_whole() -> None:
    """Nothing is read to remove those; what a record still holds, or does not hold alone, is."""
    fresh = Fresh()
    fresh.add(Published([5, 6, 7], PreparedBatch(messages(3)), range(5, 8), 10, 0))
    fresh.add(Published([8, 9], PreparedBatch(messages(2)), range(8, 10), 13, 0))
    linked = PreparedBatch([Item(uri="s3://b/k"), Item(b"x")])
    fresh.add(Published([10, 11], linked, range(10, 12), 15, 0))

    def asked(*offsets: int) -> tuple[list[int], list[int]]:
        ids, others = fresh.whole_records(np.array(offsets, np.uint64))
        return ids, others.tolist()

    assert asked(10, 11, 12, 13, 14) == ([5, 8], [])
    assert asked(2, 10, 11, 13, 14, 15, 16, 99) == ([8], [2, 10, 11, 15, 16, 99])
    assert asked(12, 13) == ([], [12, 13])
    assert asked(10, 11, 12, 13, 14) == ([], [10, 11, 12, 13, 14]), "they may lie apart"
    assert asked() == ([], [])
    fresh.clear()
    fresh.add(Published([5, 6, 7], PreparedBatch(messages(3)), range(5, 8), 10, 0))
    assert asked(10, 11, 12) == ([5], [])
    fresh.clear()
    assert asked(10, 11, 12) == ([], [10, 11, 12])
