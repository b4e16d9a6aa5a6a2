"""Messages as columns are what the plain decoders and readers say, one message at a time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.broker.broker import Broker
from penstock.broker.queuekeeping import GRACE_MS
from penstock.codec.keys import payload_key
from penstock.codec.metadata import Metadata, decode_metadata, encode_metadata
from penstock.codec.payload import PayloadBlock, decode_payload, encode_payload
from penstock.codec.scalars import I64_MAX
from penstock.errors import CorruptError
from penstock.log.columns import Counts
from penstock.log.pages import Tail
from penstock.log.rowview import RowView
from penstock.queue import messagecolumns
from penstock.queue.arrays import FIRST_MS, LAST_MS, instants
from penstock.queue.item import INLINE_BYTES, Item
from penstock.queue.message import read_contents, read_metadata
from penstock.queue.messagecolumns import (
    message_columns,
    message_schema,
    metadata_at,
    open_metadata,
)
from penstock.queue.metadatacolumns import Records, metadata_columns
from penstock.queue.payloadcolumns import payload_parts, payloads_of
from penstock.queue.publish import spilled_uri
from penstock.queue.state import queue_name
from penstock.queue.taken import RECLAIM_MS
from penstock.store.memory import MemoryDisk, MemoryStore
from penstock.store.objects import MemoryObjects
from unit.broker.driver import StepClock, upkeep_of

Q = queue_name("q")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


# ---- decoding -----------------------------------------------------------------------------------

texts = st.text(max_size=8) | st.sampled_from(["", "\0", "a\0b", "_", "🐟", "ü" * 200, "\ufeff"])
times = st.integers(-(2**63), 2**63 - 1)
few = st.dictionaries(texts, texts, max_size=4)
many = st.integers(5, 255).map(lambda n: {f"h{i}": str(i) * (i % 3) for i in range(n)})
metadata = st.builds(
    Metadata,
    message_id=st.integers(0, 2**64 - 1),
    created_at_ms=times,
    received_at_ms=times,
    visible_at_ms=times,
    retention_s=st.integers(0, 2**32 - 1),
    headers=(few | many).map(lambda headers: tuple(headers.items())),
    to=st.none() | texts,
    dedup_id=st.none() | texts,
)


def records_of(parts: list[bytes], between: bytes = b"") -> Records:
    """Records in one blob, with something between them."""
    blob, begin, end = b"", [], []
    for part in parts:
        blob += between
        begin.append(len(blob))
        blob += part
        end.append(len(blob))
    return Records(blob, np.array(begin, np.int64), np.array(end, np.int64))


def listed(records: Records) -> list[Metadata]:
    """Columns as plain values; the dedup id is no column."""
    found = metadata_columns(records)
    assert found.headers is not None
    for column in (found.headers, found.to):
        column.validate(full=True)
    return [
        Metadata(*(*fixed[:5], tuple(headers), to))
        for fixed, headers, to in zip(
            found.fixed.tolist(), found.headers.to_pylist(), found.to.to_pylist(), strict=True
        )
    ]


def plain(parts: list[bytes]) -> list[Metadata]:
    found = map(decode_metadata, parts)
    return [Metadata(*(getattr(each, name) for name in FIELDS)) for each in found]


FIELDS = [name for name in Metadata.__struct_fields__ if name != "dedup_id"]
FULL = Metadata(1, 2, 3, 4, 5, tuple((f"n{i}", "v" * i) for i in range(255)), "q", "d")


@settings(max_examples=100, deadline=None)
@given(st.lists(metadata, max_size=12), st.binary(max_size=3))
@example([], b"")
@example([FULL, Metadata(0, 0, 0, 0, 0), FULL], b"")
def test_columns_are_what_the_plain_decoder_says(made: list[Metadata], between: bytes) -> None:
    parts = [encode_metadata(each) for each in made]
    assert listed(records_of(parts, between)) == plain(parts)


def spoiled(raw: bytes, cut: int, at: int, value: int) -> bytes:
    raw = raw[: len(raw) - cut % (len(raw) + 1)] if cut % 3 == 0 else raw
    at = at % len(raw) if raw else 0
    return raw[:at] + bytes((value,)) + raw[at + 1 :]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(metadata, min_size=1, max_size=4),
    st.integers(0, 3),
    st.integers(0, 10_000),
    st.integers(0, 10_000),
    st.integers(0, 255),
)
def test_damaged_records_are_corrupt_where_and_as_the_plain_decoder_says(
    made: list[Metadata], which: int, cut: int, at: int, value: int
) -> None:
    parts = [encode_metadata(each) for each in made]
    parts[which % len(parts)] = spoiled(parts[which % len(parts)], cut, at, value)
    assert outcome(lambda: listed(records_of(parts))) == outcome(lambda: plain(parts))


def outcome(decode: Callable[[], list[Metadata]]) -> list[Metadata] | str:
    try:
        return decode()
    except CorruptError as error:
        return str(error)


BARE = encode_metadata(Metadata(1, 2, 3, 4, 5))[:-1]


# With few names and with many, which are compared in another way.
@pytest.mark.parametrize("good", [Metadata(1, 2, 3, 4, 5, (("a", "b"),)), FULL])
@pytest.mark.parametrize(
    ("tail", "says"),
    [
        (b"", "number of headers"),
        (b"\x01", "length of header name"),
        (b"\x01\x01\x00", "header name"),
        (b"\x01\x01\x00a\x05\x00", "header value"),
        (b"\x02\x01\x00a\x00\x00\x01\x00a\x00\x00", "occurs twice"),
        (b"\x01\x01\x00\xff\x00\x00", "not UTF-8"),
        (b"\x01\x02\x00\xc3\xbc\x01\x00\xc3", "not UTF-8"),
        # Two halves of one character are no text, though the blob as a whole is.
        (b"\x02\x01\x00\xc3\x00\x00\x01\x00\xbc\x00\x00", "not UTF-8"),
        (b"\x00\x00", "unknown parts"),
        (b"\x00\x04", "unknown parts"),
        (b"\x00\x01", "length of to"),
        (b"\x00\x01\x01\x00\xff", "not UTF-8"),
        (b"\x00\x02\x01\x00\xff", "not UTF-8"),
        (b"\x00\x02\x01\x00dx", "left over"),
    ],
)
def test_every_rule_of_a_record_is_checked(good: Metadata, tail: bytes, says: str) -> None:
    # Before a good one, whose bytes a record that is too short must not take for its own.
    around = encode_metadata(good)
    with pytest.raises(CorruptError, match=says):
        listed(records_of([around, BARE + tail, around]))


@pytest.mark.parametrize("behind", [[], [encode_metadata(Metadata(256, 0, 0, 0, 0))]])
def test_a_record_that_ends_before_its_headers_is_corrupt(behind: list[bytes]) -> None:
    """The first byte behind it would say that it has none."""
    with pytest.raises(CorruptError, match="number of headers"):
        listed(records_of([BARE, *behind]))


def test_headers_that_nobody_asks_for_are_stepped_over() -> None:
    found = metadata_columns(records_of([encode_metadata(FULL)]), headers=False)
    assert found.headers is None
    assert found.to.to_pylist() == ["q"]


def test_times_outside_of_the_calendar_become_its_ends() -> None:
    found = instants(np.array([-(2**63), FIRST_MS, 0, LAST_MS, I64_MAX], np.int64)).to_pylist()
    assert found == [
        datetime(1, 1, 2, tzinfo=UTC),
        datetime(1, 1, 2, tzinfo=UTC),
        EPOCH,
        datetime(9999, 12, 31, tzinfo=UTC),
        datetime(9999, 12, 31, tzinfo=UTC),
    ]


# ---- reading ------------------------------------------------------------------------------------


class World:
    def __init__(self) -> None:
        self.clock, self.disk, self.objects = StepClock(), MemoryDisk(), MemoryObjects()

    @classmethod
    async def start(cls) -> World:
        world = cls()

        async def opener(after: int | None) -> MemoryStore:
            return await MemoryStore.open(world.disk, clock=world.clock)

        world.broker = await Broker.start(opener, world.clock, deadline=30, objects=world.objects)
        await upkeep_of(world.broker).stop()
        await world.broker.queues.create(Q)
        return world

    broker: Broker

    @property
    def store(self) -> Any:
        return self.broker.committer._require_store()

    async def pass_ms(self, ms: int) -> None:
        """And everything is done that is due then."""
        self.clock.pass_ms(ms)
        upkeep = upkeep_of(self.broker)
        for _ in range(20):
            now_ms = self.broker.committer.now_ms()
            for what in [what for what, at_ms in upkeep._due.items() if at_ms <= now_ms]:
                del upkeep._due[what]
                await upkeep._do(self.broker.committer, what)

    async def publish(self, *items: Item) -> list[int]:
        return await self.broker.queues.publish(items)

    async def work(self, count: int) -> None:
        found = await self.broker.queues.claim(Q, count)
        assert all(await self.broker.queues.ack(Q, [message.receipt for message in found]))
        await self.pass_ms(RECLAIM_MS)

    async def columns(
        self, low: int = 0, high: int = 10**6, **options: Any
    ) -> list[dict[str, Any]]:
        given: dict[str, Any] = {"objects": self.objects, "count": Counts()} | options
        batches = [batch async for batch in message_columns(self.store, low, high, **given)]
        for batch in batches:
            batch.validate(full=True)
        return [row for batch in batches for row in batch.to_pylist()]

    async def plain(self, low: int = 0, high: int = 10**6) -> list[dict[str, Any]]:
        """The same, by the readers of requests."""
        view = RowView(self.store, Tail())
        log = await open_metadata(self.store)
        assert log is not None
        offsets = list(range(max(low, log.first), min(high, log.next)))
        about = await read_metadata(view, offsets)
        living = [offset for offset in offsets if offset in about]
        contents = await read_contents(view, [about[i].message_id for i in living], living)
        rows = []
        for offset, content in zip(living, contents, strict=True):
            found = about[offset]
            data, uri = (None, None) if content is None else (content.payload, content.uri)
            if uri is not None and uri.startswith("penstock-payload:"):
                data, uri = await self.objects.get(found.message_id), None
            rows.append(
                {
                    "offset": offset,
                    "id": found.message_id,
                    "created_at": EPOCH + timedelta(milliseconds=found.created_at_ms),
                    "received_at": EPOCH + timedelta(milliseconds=found.received_at_ms),
                    "visible_at": EPOCH + timedelta(milliseconds=found.visible_at_ms),
                    "retention": found.retention_s,
                    "to": found.to,
                    "headers": list(found.headers),
                    "payload": data,
                    "uri": uri,
                }
            )
        return rows


LARGE = b"x" * INLINE_BYTES + b"y"
MIXED = [
    Item(b""),
    Item(b"one", headers={"a": "1", "🐟": "\0"}),
    Item(uri="s3://bucket/key", delay_ms=5000),
    Item(b"two", to="q", dedup_id="d", retention_s=7, created_at_ms=12),
    Item(b"three" * 100, headers={"b": ""}),
]


async def test_columns_are_what_requests_read_whatever_was_published() -> None:
    world = await World.start()
    for item in MIXED:
        await world.publish(item)
    await world.publish(*MIXED, Item(LARGE), Item(b"behind it"), *MIXED)
    expected = await world.plain()
    assert len(expected) == 15  # a dedup id counts once
    assert [row["payload"] for row in expected].count(LARGE) == 1
    for rows in (1, 3, 100):
        assert await world.columns(batch_rows=rows) == expected
    assert await world.columns(4, 9) == expected[4:9]
    less = await world.columns(headers=False, payload=False)
    assert less == [
        {name: row[name] for name in message_schema(headers=False, payload=False).names}
        for row in expected
    ]


async def test_what_is_done_expired_or_evicted_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("codec.taken", "queue.reclaim", "queue.route", "broker.queuekeeping"):
        monkeypatch.setattr(f"penstock.{module}.PAGE_SLOTS", 8)
    world = await World.start()
    await world.publish(*(Item(b"%d" % i) for i in range(30)))
    await world.publish(*(Item(b"old", retention_s=1) for _ in range(4)), *MIXED)
    await world.work(3)
    assert [row["offset"] for row in await world.columns()] == list(range(3, 39))
    await world.work(17)
    await world.pass_ms(7001 + GRACE_MS)
    expected = await world.plain()
    assert [row["payload"] for row in expected[:10]] == [b"%d" % i for i in range(20, 30)]
    count = Counts()
    assert await world.columns(2, count=count) == expected
    assert len(expected) == count.rows == 14, "one of the mixed ones was old, too"
    assert count.evicted == 16 - 2
    assert count.nodes


@pytest.mark.parametrize("payload", [True, False])
async def test_what_expired_is_hidden_before_it_is_removed(payload: bool) -> None:
    world = await World.start()
    await world.publish(Item(b"a", retention_s=1), Item(b"b"), Item(b"c", retention_s=2))
    published_ms = world.broker.committer.now_ms()

    async def offsets(after_ms: int, high: int = 3) -> list[int]:
        now_ms, count = published_ms + after_ms, Counts()
        rows = await world.columns(0, high, payload=payload, now_ms=now_ms, count=count)
        assert (count.rows, count.end) == (len(rows), high)
        return [row["offset"] for row in rows]

    assert await offsets(1000) == [0, 1, 2]
    assert await offsets(1001) == [1, 2]
    assert await offsets(1001, high=1) == []
    assert await offsets(2001) == [1]


async def test_where_nothing_was_published_there_is_nothing() -> None:
    world = await World.start()
    assert await world.columns() == []
    await world.publish(Item(b"x"))
    assert await world.columns(5, 9) == []
    assert await world.columns(1, 1) == []


async def test_a_damaged_record_is_told_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await World.start()
    await world.publish(Item(b"x"), Item(b"y"))

    def refuse(records: Records, *, headers: bool) -> Any:
        raise CorruptError("metadata record: to at byte 5 is odd")

    monkeypatch.setattr(messagecolumns, "metadata_columns", refuse)
    with pytest.raises(CorruptError, match="offsets 0 to 1: metadata record: to at byte 5"):
        await world.columns()


async def test_an_id_that_spark_cannot_hold_is_corrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await World.start()
    await world.publish(Item(b"x"))
    found = metadata_columns(records_of([encode_metadata(Metadata(2**63, 0, 0, 0, 0))]))
    monkeypatch.setattr(messagecolumns, "metadata_columns", lambda records, headers: found)
    with pytest.raises(CorruptError, match="message id 9223372036854775808"):
        await world.columns()


async def test_metadata_of_single_offsets_is_that_of_the_living_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(messagecolumns, "GAP_OFFSETS", 3)
    world = await World.start()
    ids = await world.publish(*(Item(b"%d" % i, headers={"n": str(i)}) for i in range(20)))
    await world.work(3)
    log = await open_metadata(world.store)
    assert log is not None
    wanted = np.array([1, 2, 3, 5, 9, 19, 25], np.uint64)
    found, living = await metadata_at(world.store, log, wanted)
    assert living.tolist() == [False, False, True, True, True, True, False]
    assert found.fixed["message_id"].tolist() == [ids[i] for i in (3, 5, 9, 19)]
    assert found.headers is not None
    assert found.headers.to_pylist() == [[("n", str(i))] for i in (3, 5, 9, 19)]
    found, living = await metadata_at(world.store, log, wanted[:0])
    assert (len(found.fixed), len(living)) == (0, 0)


# ---- payloads -----------------------------------------------------------------------------------


def numbers(*ids: int) -> Any:
    return np.array(ids, np.uint64)


async def test_payloads_come_in_the_order_of_the_ids_and_null_where_there_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.queue.payloadcolumns.GAP_IDS", 2)
    world = await World.start()
    block = await world.publish(*(Item(b"%d" % i) for i in range(8)))
    (alone,) = await world.publish(Item(b"alone"))
    (linked,) = await world.publish(Item(uri="s3://b/k"))
    (last,) = await world.publish(Item(b""))
    asked = [last, block[6], 10**9, linked, block[1], alone, block[6], 2**64 - 1, 0]
    found = await payloads_of(world.store, numbers(*asked))
    assert found.data.to_pylist() == [b"", b"6", None, None, b"1", b"alone", b"6", None, None]
    assert found.uri.to_pylist() == [None, None, None, "s3://b/k", *[None] * 5]
    nothing = await payloads_of(world.store, numbers())
    assert (nothing.data.type, nothing.uri.type) == (pa.binary(), pa.string())


async def test_those_that_are_not_alive_are_not_looked_for() -> None:
    world = await World.start()
    ids = await world.publish(*(Item(b"%d" % i) for i in range(3)), Item(uri="s3://b/k"))
    ids += await world.publish(Item(LARGE))
    world.objects.objects[ids[-1]] = b"who looks at this raises"
    alive = np.array([True, False, True, False, False])
    found = payload_parts(world.store, numbers(*ids), world.objects, alive=alive)
    (part,) = [part async for part in found]
    assert part.data.to_pylist() == [b"0", None, b"2", None, None]
    assert part.uri.to_pylist() == [None] * 5
    (part,) = [
        part async for part in payload_parts(world.store, numbers(*ids), alive=alive ^ alive)
    ]
    assert part.data.to_pylist() == [None] * 5


async def test_large_payloads_come_in_parts_and_none_is_missing_or_doubled() -> None:
    world = await World.start()
    ids: list[int] = []
    for i in range(20):
        ids += await world.publish(Item(b"%02d" % i * 500), Item(b"%02d" % i * 600))
    ids += await world.publish(*(Item(b"%d" % i) for i in range(100)))
    for wanted in (ids, ids[::-1], [*ids, *ids]):
        parts = [
            part async for part in payload_parts(world.store, numbers(*wanted), bytes_max=5000)
        ]
        assert len(parts) > 8
        # A block comes whole, and ends a part that is full by it.
        assert max(len(b"".join(filter(None, part.data.to_pylist()))) for part in parts) < 8000
        expected = await payloads_of(world.store, numbers(*wanted))
        assert pa.concat_arrays([part.data for part in parts]).equals(expected.data)
        assert None not in expected.data.to_pylist()


async def test_a_payload_that_is_an_object_is_read_where_there_are_objects() -> None:
    world = await World.start()
    (number,) = await world.publish(Item(LARGE))
    found = await payloads_of(world.store, numbers(number), world.objects)
    assert (found.data.to_pylist(), found.uri.to_pylist()) == ([LARGE], [None])
    found = await payloads_of(world.store, numbers(number))
    assert (found.data.to_pylist(), found.uri.to_pylist()) == ([None], [None])
    world.objects.objects[number] = LARGE[1:]
    with pytest.raises(CorruptError, match="checksum"):
        await payloads_of(world.store, numbers(number), world.objects)
    # It was removed after the state that is read: its row went first.
    del world.objects.objects[number]
    found = await payloads_of(world.store, numbers(number), world.objects)
    assert found.data.to_pylist() == [None]
    assert spilled_uri(number, LARGE) not in found.uri.to_pylist()


async def test_a_block_that_is_written_anew_meanwhile_gives_each_payload_once() -> None:
    world = await World.start()
    ids = await world.publish(*(Item(b"%d" % i) for i in range(8)))
    before = decode_payload(await world.store.get(payload_key(ids[0])))
    assert isinstance(before, PayloadBlock)
    claimed = await world.broker.queues.claim(Q, 8)
    done = [message.receipt for message in claimed if message.id not in ids[3:5]]
    await world.broker.queues.ack(Q, done)
    await world.pass_ms(RECLAIM_MS)
    assert await world.store.get(payload_key(ids[0])) is None
    assert await world.store.get(payload_key(ids[3])) is not None

    class Between:
        """The floor lookup sees the old block, the scan behind it the new ones."""

        async def floor(self, key: bytes, *, low: bytes) -> Any:
            return payload_key(ids[0]), encode_payload(before)

        def scan(self, low: bytes, high: bytes, **options: Any) -> Any:
            return world.store.scan(low, high, **options)

    found = await payloads_of(Between(), numbers(*ids))  # type: ignore[arg-type]
    assert found.data.to_pylist() == [b"%d" % i for i in range(8)]
