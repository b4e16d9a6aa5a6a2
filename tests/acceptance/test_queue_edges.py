"""Edges of queues, on a real folder: right, or a clear error, never damage.

The bytes that the RFC prescribes are read here by a parser of this file's own, from raw keys.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.broker import Broker
from penstock.broker.pagekeeping import _flush
from penstock.broker.queueanswers import DoneMessage
from penstock.cli.check import inspect
from penstock.errors import ConflictError, InvalidError, NotFoundError
from penstock.log.catalogue import open_target
from penstock.log.pages import Tail
from penstock.log.read import read
from penstock.log.rowview import RowView
from penstock.queue.item import Item
from penstock.queue.state import queue_name
from penstock.queue.taken import METADATA

pytestmark = pytest.mark.filterwarnings("ignore:.*a power cut loses:RuntimeWarning")

Q = queue_name("q")
MIB = 1 << 20


class Place:
    """A folder with a broker that can be killed and opened again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def open(self) -> Broker:
        self.broker = await Broker.open(str(self.folder), durability="os", deadline=30)
        return self.broker

    async def again(self) -> Broker:
        await self.broker.close()
        return await self.open()

    async def end(self) -> None:
        """Nothing was damaged."""
        await self.broker.close()
        assert (await inspect(str(self.folder))).findings == []


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    place = Place(tmp_path / "store")
    await place.open()
    yield place
    await place.end()


async def claim_all(broker: Broker, count: int, name: str = "q") -> list[Any]:
    found: list[Any] = []
    while len(found) < count:
        part = await broker.queues.claim(queue_name(name), count - len(found))
        assert part, f"only {len(found)} of {count} came"
        found += part
    return found


async def test_there_is_a_65536th_message_in_each_state(place: Place) -> None:
    """The RFC's arrays end at 65,535 entries; pages do not."""
    count = 65_537
    queues = place.broker.queues
    await queues.create(Q, max_attempts=1, lease_ms=3_600_000)
    for low in range(0, count, 16_000):
        await queues.publish([Item(b"%d" % i) for i in range(low, min(low + 16_000, count))])
    assert (await queues.stats(Q)).available == count
    messages = await claim_all(place.broker, count)
    assert [message.payload for message in messages] == [b"%d" % i for i in range(count)]
    assert (await queues.stats(Q)).in_flight == count
    assert await queues.claim(Q, 1) == []
    # Given back all at once, into the middle of what is there.
    receipts = [message.receipt for message in messages]
    assert await queues.release(Q, receipts) == [True] * count
    queues = (await place.again()).queues
    assert await queues.ack(Q, receipts[:1]) == [False]
    receipts = [message.receipt for message in await claim_all(place.broker, count)]
    assert await queues.fail(Q, receipts) == [True] * count
    assert (await queues.stats(Q)).failed == count
    assert (await queues.redrive(Q)).count == count
    receipts = [message.receipt for message in await claim_all(place.broker, count)]
    assert await queues.ack(Q, receipts) == [True] * count
    stats = await (await place.again()).queues.stats(Q)
    assert (stats.done, stats.acked, stats.available, stats.in_flight) == (count, count, 0, 0)


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, MIB, MIB + 1, 64 * MIB])
async def test_a_payload_of_any_size_comes_back_as_it_was(place: Place, size: int) -> None:
    payload = (b"0123456789abcde" * (size // 15 + 1))[:size]
    await place.broker.queues.create(Q)
    await place.broker.queues.publish([Item(b"before"), Item(payload), Item(b"after")])
    for _ in range(2):
        # From memory, then from rows.
        found = await place.broker.queues.claim(Q, 3)
        assert {message.payload for message in found} == {b"before", payload, b"after"}
        await place.broker.queues.release(Q, [message.receipt for message in found])
        await place.again()


async def test_a_payload_of_more_than_64_mib_is_refused(place: Place) -> None:
    await place.broker.queues.create(Q)
    with pytest.raises(InvalidError, match="at most 67,108,864"):
        await place.broker.queues.publish([Item(b"x"), Item(bytes(64 * MIB + 1))])
    assert (await place.broker.queues.stats(Q)).routed == 0


async def test_255_headers_are_right_and_256_are_refused(place: Place) -> None:
    await place.broker.queues.create(Q)
    headers = {f"header {i}": "é" * i for i in range(255)}
    await place.broker.queues.publish([Item(b"x", headers=headers)])
    with pytest.raises(InvalidError, match="256 headers"):
        await place.broker.queues.publish([Item(b"y", headers=headers | {"one more": ""})])
    await place.again()
    (message,) = await place.broker.queues.claim(Q, 5)
    assert message.headers == headers


async def test_a_header_name_that_begins_with_an_underscore_is_refused(place: Place) -> None:
    await place.broker.queues.create(Q)
    with pytest.raises(InvalidError, match="_x"):
        await place.broker.queues.publish([Item(b"x", headers={"_x": "y"})])
    assert await place.broker.queues.claim(Q, 1) == []


@pytest.mark.parametrize(
    "name",
    [
        "a\x00b",
        "\x00",
        "\"double\" 'single' `back`",
        "\U0001f426 queue",
        "n" * 254,
        "é" * 127,
        "a/../b",
        "%s",
        "q\nq",
        " ",
        "\x7f\x01\xff",
        "*",
    ],
)
async def test_a_queue_may_have_an_odd_name(place: Place, name: str) -> None:
    queues = place.broker.queues
    log = queue_name(name)
    await queues.create(log)
    await queues.create(queue_name(name + "x"))
    await queues.publish([Item(b"x"), Item(b"y", to=name)])
    await place.again()
    queues = place.broker.queues
    assert await queues.names() == sorted([name, name + "x"])
    assert (await queues.describe(log)).name == name
    found = await queues.claim(log, 5)
    assert [message.payload for message in found] == [b"x", b"y"]
    assert await queues.ack(log, [found[0].receipt]) == [True]
    assert await queues.delete(log)
    assert await queues.names() == [name + "x"]
    with pytest.raises(NotFoundError):
        await queues.claim(log, 1)


@pytest.mark.parametrize("name", ["", "\ud800", "n" * 256, "n" * 300, "\U0001f426" * 64])
async def test_a_name_that_cannot_be_is_refused(place: Place, name: str) -> None:
    with pytest.raises(InvalidError):
        await place.broker.queues.create(queue_name(name))


async def test_what_was_published_can_be_claimed_at_once(place: Place) -> None:
    await place.broker.queues.create(Q)
    for i in range(20):
        (number,) = await place.broker.queues.publish([Item(b"%d" % i)])
        (message,) = await place.broker.queues.claim(Q, 1, wait_ms=0)
        assert (message.id, message.payload, message.attempts) == (number, b"%d" % i, 1)


@pytest.mark.parametrize("how", ["redrive", "release", "purge", "delete", "takeover"])
async def test_a_receipt_from_before_is_stale_for_ever(place: Place, how: str) -> None:
    queues = place.broker.queues
    await queues.create(Q, max_attempts=1, backoff=0)
    await queues.publish([Item(b"x")])
    (message,) = await queues.claim(Q, 1)
    match how:
        case "redrive":
            assert await queues.fail(Q, [message.receipt]) == [True]
            assert (await queues.redrive(Q)).count == 1
        case "release":
            assert await queues.release(Q, [message.receipt]) == [True]
        case "purge":
            assert await queues.purge(Q) == 1
        case "delete":
            assert await queues.delete(Q)
            await queues.create(Q, max_attempts=1, backoff=0)
            await queues.publish([Item(b"x")])
        case _:
            # It survives the takeover itself, as the lease does; not what comes after it.
            queues = (await place.again()).queues
            assert await queues.extend(Q, [message.receipt], 30_000) == [True]
            assert await queues.release(Q, [message.receipt]) == [True]
    for _ in range(2):
        queues = place.broker.queues
        for attempt in range(3):
            assert await queues.ack(Q, [message.receipt]) == [False]
            assert await queues.fail(Q, [message.receipt]) == [False]
            assert await queues.release(Q, [message.receipt]) == [False]
            assert await queues.extend(Q, [message.receipt], 1000) == [False]
            again = await queues.claim(Q, 1)
            if how != "purge":
                (later,) = again
                assert later.receipt != message.receipt
                assert attempt == 2 or await queues.release(Q, [later.receipt]) == [True]
        await place.again()
        held = [each.receipt for each in again]
        assert await place.broker.queues.release(Q, held) == [True] * len(held)


async def test_a_queue_of_the_same_name_with_other_settings_is_a_conflict(place: Place) -> None:
    await place.broker.queues.create(Q)
    await place.broker.queues.create(Q)
    with pytest.raises(ConflictError):
        await place.broker.queues.create(Q, max_attempts=9)


# ---- the RFC's bytes, by a parser that knows nothing but the RFC ---------------------------------


def unescaped(data: bytes) -> tuple[bytes, bytes]:
    """TerminatedBytes of OpenData-Log, and what follows: 01 escapes 00 and 01."""
    found, i = bytearray(), 0
    while data[i]:
        if data[i] == 1:
            i += 1
            found.append({1: 0x00, 2: 0x01}[data[i]])
        else:
            found.append(data[i])
        i += 1
    return bytes(found), data[i + 1 :]


def utf8(data: bytes, at: int) -> tuple[str, int]:
    (size,) = struct.unpack_from("<H", data, at)
    return data[at + 2 : at + 2 + size].decode(), at + 2 + size


def array(data: bytes, at: int, form: str) -> tuple[list[tuple[int, ...]], int]:
    (count,) = struct.unpack_from("<H", data, at)
    one = struct.Struct("<" + form)
    found = [one.unpack_from(data, at + 2 + i * one.size) for i in range(count)]
    return found, at + 2 + count * one.size


async def rows_of(place: Place, kind: int) -> dict[bytes, bytes]:
    store = place.broker.committer._require_store()
    low, high = bytes((1, kind)), bytes((1, kind + 1))
    return {key[2:]: value async for rows in store.scan(low, high) for key, value in rows}


async def written(place: Place) -> None:
    """Pages are written when the upkeep comes to it; here at once."""
    tail = place.broker.committer.tail
    for owner in tail.owners():
        tail.flushed(owner, await _flush(place.broker.committer, owner))


async def test_raw_keys_hold_the_rfcs_bytes(place: Place) -> None:
    queues = place.broker.queues
    await queues.create(Q, filter="a = 'b'", max_attempts=2, done_retention_s=77, backoff=0)
    headers = {"a": "b", "é": "", "priority": "9"}
    await queues.publish([Item(b"payload", headers=headers, created_at_ms=5, retention_s=60)])
    await queues.publish([Item(uri="s3://b/k", headers={"a": "b"})])
    await queues.publish([Item(b"fails", headers={"a": "b"})])
    await queues.publish([Item(b"waits", headers={"a": "b"}, delay_ms=3_600_000)])
    await queues.publish([Item(b"flies", headers={"a": "b"})])
    first, second, third, flying = await queues.claim(Q, 4, consumer="eater", lease_ms=9000)
    assert first.payload == b"payload"
    assert await queues.ack(Q, [first.receipt]) == [True]
    for _ in range(2):
        assert await queues.fail(Q, [third.receipt], delay_ms=0) == [True]
        third = ([*await queues.claim(Q, 1, consumer="other"), third])[0]
    assert await queues.release(Q, [second.receipt]) == [True]
    await written(place)

    # 01: payloads, by id
    payloads = {struct.unpack(">Q", k)[0]: v for k, v in (await rows_of(place, 1)).items()}
    uri = b"s3://b/k"
    assert payloads[second.id] == b"\x02" + struct.pack("<H", len(uri)) + uri
    assert payloads[flying.id] == b"\x01\x05\x00flies"

    # 02: active messages
    available: list[tuple[int, ...]] = []
    in_flight: list[tuple[int, ...]] = []
    for key, value in (await rows_of(place, 2)).items():
        identifier, rest = unescaped(key)
        assert identifier.startswith(b"q")
        assert len(rest) == 1 + 8
        here, at = array(value, 0, "QBqqH")
        assert all(entry[1] == rest[0] for entry in here)
        available += here
        in_flight += array(value, at, "QBqqH")[0]
    never = (1 << 63) - 1
    assert [(e[0], e[1], e[3], e[4]) for e in sorted(available)] == [
        (second.id, 128, never, 0),
        (second.id + 2, 128, never, 0),
    ]
    assert sorted(available)[1][2] >= second.received_at_ms + 3_600_000
    assert in_flight == [
        (flying.id, 128, flying.claimed_at_ms, flying.claimed_at_ms + 9000, 1),
    ]

    # 03 and 04: done and failed messages
    (value,) = (await rows_of(place, 3)).values()
    ((done_id, done_at, attempts),), _ = array(value, 0, "QqH")
    assert (done_id, attempts) == (first.id, 1)
    (done,) = (await queues.done(Q)).messages
    assert done == DoneMessage(done_id, done_at, attempts)
    (value,) = (await rows_of(place, 4)).values()
    ((failed_id, _, attempts),), _ = array(value, 0, "QqH")
    assert (failed_id, attempts) == (third.id, 2)

    # 05: attempts, with who claimed it, oldest first
    ((key, value),) = (await rows_of(place, 5)).items()
    identifier, rest = unescaped(key)
    assert (identifier[:1], struct.unpack(">Q", rest)) == (b"q", (third.id,))
    assert value[:2] == b"\x02\x00"
    who, at = utf8(value, 2)
    assert (who, utf8(value, at)[0]) == ("eater", "other")

    # 06: the config
    ((key, value),) = (await rows_of(place, 6)).items()
    identifier, rest = unescaped(key)
    assert (identifier[:1], rest) == (b"q", b"")
    text, at = utf8(value, 0)
    assert text == (await queues.describe(Q)).filter
    assert struct.unpack_from("<HI", value, at) == (2, 77)


async def test_the_metadata_log_holds_the_rfcs_record(place: Place) -> None:
    await place.broker.queues.create(Q)
    headers = {"a": "b", "é": "", "priority": "9"}
    (number,) = await place.broker.queues.publish(
        [Item(b"x", headers=headers, created_at_ms=5, retention_s=60, visible_at_ms=99)]
    )
    assert METADATA.name == b"opendata-queue/messages/metadata"
    store = place.broker.committer._require_store()
    log = await open_target(RowView(store, Tail()), METADATA)
    assert log is not None
    (entry,) = await read(store, log, 0, 10)
    assert entry is not None
    fixed = struct.unpack_from("<QqqqIB", entry.data)
    assert (fixed[0], fixed[1], *fixed[3:]) == (number, 5, 99, 60, 3)
    at, found = struct.calcsize("<QqqqIB"), {}
    for _ in range(fixed[5]):
        name, at = utf8(entry.data, at)
        found[name], at = utf8(entry.data, at)
    assert found == headers
    assert at == len(entry.data)
    (message,) = await place.broker.queues.claim(Q, 1)
    assert fixed[2] == message.received_at_ms
