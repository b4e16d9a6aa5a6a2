"""Bulk writes and reads, as Spark's processes ask for them: in process and over the wire."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

import penstock
from penstock.broker import bulk as bulk_file
from penstock.broker.bulk import Wanted
from penstock.broker.progress import PROGRESS_MAX, Part, Position, Table, decode_report
from penstock.client.bulk import Bulk
from penstock.errors import ConflictError, InvalidError, NotFoundError
from penstock.log.batch import build_bodies
from penstock.log.bulkread import read_at
from penstock.log.catalogue import stream_name
from penstock.log.columns import Counts, columns
from penstock.log.state import LogRange
from penstock.queue.item import Item, PreparedBatch
from penstock.queue.publish import payload_records

A = stream_name("a")


class Door:
    """A handle, and whether its broker is in this process."""

    def __init__(self, db: penstock.Database, outside: penstock.Database) -> None:
        self.db = db
        self.bulk = outside.bulk


@pytest.fixture(params=["in process", "over the socket"])
def door(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Door]:
    with penstock.open(tmp_path / "d") as db:
        if request.param == "in process":
            yield Door(db, db)
            return
        with penstock.open(tmp_path / "d") as other:
            # The first handle serves; the second one is a client like any other process.
            assert other._session.link.broker is None
            yield Door(db, other)


def stage(bulk: Bulk, staging: int, writer: int, *entries: bytes, n: int = 0) -> None:
    bulk.stage(staging, writer, n, build_bodies([("t", entry) for entry in entries]))


def data_of(db: penstock.Database, name: str = "a") -> list[bytes | None]:
    return [None if found is None else found.data for found in db.stream(name).read(0, 1000)]


def test_what_is_staged_is_hidden_and_linked_in_the_order_of_the_writers(door: Door) -> None:
    staging = door.bulk.begin(key=b"job")
    stage(door.bulk, staging, 7, b"c", b"d")
    stage(door.bulk, staging, 1 << 62, b"a")
    stage(door.bulk, staging, 1 << 62, b"b", n=1)
    stage(door.bulk, staging, 9, b"loser")
    assert data_of(door.db) == []
    assert door.bulk.link(staging, A, [1 << 62, 7]) == range(4)
    assert data_of(door.db) == [b"a", b"b", b"c", b"d"]
    assert door.bulk.link(staging, A, [1 << 62, 7]) == range(4)  # again: the first answer
    assert len(data_of(door.db)) == 4


def test_who_uses_a_key_shares_the_staging_while_it_is_open(door: Door) -> None:
    staging = door.bulk.begin(key=b"job")
    assert door.bulk.begin(key=b"job") == staging
    assert door.bulk.begin(key=b"another") != staging
    assert door.bulk.begin() != staging
    assert door.bulk.drop(staging) is True
    assert door.bulk.drop(staging) is False
    with pytest.raises((ConflictError, NotFoundError)):
        stage(door.bulk, staging, 1, b"late")
    again = door.bulk.begin(key=b"job")
    assert again != staging
    stage(door.bulk, again, 1, b"x")
    door.bulk.renew(again)
    assert door.bulk.link(again, A, [1]) == range(1)


def test_a_batch_of_a_producer_is_linked_once_whatever_it_was_staged_as(door: Door) -> None:
    for batch, entries in enumerate([(b"0",), (b"1", b"2")]):
        staging = door.bulk.begin()
        stage(door.bulk, staging, 1, *entries)
        found = door.bulk.link(staging, A, [1], producer=b"query", sequence=batch)
        assert len(found) == len(entries)
    again = door.bulk.begin()
    stage(door.bulk, again, 5, b"1", b"2")
    assert door.bulk.link(again, A, [5], producer=b"query", sequence=1) == range(1, 3)
    assert data_of(door.db) == [b"0", b"1", b"2"]
    assert door.bulk.drop(again) is True  # it was left alone
    late = door.bulk.begin()
    stage(door.bulk, late, 5, b"0")
    with pytest.raises(InvalidError, match="sequence 0 is below 1"):
        door.bulk.link(late, A, [5], producer=b"query", sequence=0)
    # The same names elsewhere are another's.
    assert door.bulk.link(late, stream_name("b"), [5], producer=b"query", sequence=0) == range(1)
    # A write through the stream itself is the same producer.
    offsets = door.db.stream("a").write_many([b"1", b"2"], producer="query", sequence=1)
    assert offsets == range(1, 3)


def test_a_producer_that_links_is_remembered_for_ever(door: Door) -> None:
    staging = door.bulk.begin()
    stage(door.bulk, staging, 1, b"x")
    door.bulk.link(staging, A, [1], producer=b"query", sequence=3)
    broker = door.db._require()
    clock = broker.committer._clock
    years_ms = int(timedelta(days=4000).total_seconds() * 1000)
    real = clock.wall_ms
    clock.wall_ms = lambda: real() + years_ms  # type: ignore[method-assign]
    again = door.bulk.begin()
    stage(door.bulk, again, 1, b"x")
    assert door.bulk.link(again, A, [1], producer=b"query", sequence=3) == range(1)
    assert data_of(door.db) == [b"x"]


# ---- messages ---------------------------------------------------------------------------------


def stage_messages(bulk: Bulk, staging: int, writer: int, items: list[Item]) -> range:
    to = sorted({item.to for item in items if item.to is not None})
    ids, now_ms = bulk.reserve(staging, writer, len(items), to)
    batch = PreparedBatch(items)
    bodies = batch.bodies(batch.fixed(ids, now_ms))
    bulk.stage(staging, writer, 0, [], list(payload_records(ids, batch)))
    bulk.stage(staging, writer, 0, bodies)
    return ids


def claimed(queue: penstock.Queue, count: int) -> list[bytes | None]:
    return [found.payload for found in queue.claim(count, wait=10)]


def test_staged_messages_are_routed_once_they_are_linked(door: Door) -> None:
    eu = door.db.create_queue("eu", filter="region = 'eu'")
    mine = door.db.create_queue("mine", filter="region = 'nowhere'")
    staging = door.bulk.begin()
    items = [
        Item(b"0", headers={"region": "eu"}),
        Item(b"1", headers={"region": "us"}),
        Item(b"2", to="mine"),
    ]
    ids = stage_messages(door.bulk, staging, 1, items)
    lost = stage_messages(door.bulk, staging, 2, [Item(b"loser", headers={"region": "eu"})])
    assert eu.claim(1) == []
    door.bulk.link(staging, None, [1])
    # The router catches up by itself; what is published meanwhile keeps its place behind.
    after = door.db.publish(b"after", headers={"region": "eu"})
    assert not {*ids, *lost} & {after}
    first = eu.claim(10, wait=10)
    while len(first) < 2:
        first += eu.claim(10, wait=10)
    assert [each.payload for each in first] == [b"0", b"after"]
    assert claimed(mine, 10) == [b"2"]
    assert door.bulk.link(staging, None, [1]) == range(0, 3)
    assert eu.claim(1) == []


def test_a_queue_that_a_staged_message_names_must_exist(door: Door) -> None:
    staging = door.bulk.begin()
    with pytest.raises(NotFoundError, match="nowhere"):
        door.bulk.reserve(staging, 1, 1, ["nowhere"])


def test_payloads_go_in_under_reserved_ids_only(door: Door) -> None:
    staging = door.bulk.begin()
    ids, _ = door.bulk.reserve(staging, 1, 2)
    (record,) = payload_records(range(ids.start, ids.start + 1), PreparedBatch([Item(b"x")]))
    with pytest.raises(InvalidError, match="is not reserved"):
        door.bulk.stage(staging, 2, 0, [], [record])
    with pytest.raises(InvalidError, match="is not reserved"):
        door.bulk.stage(staging, 1, 0, [], [(ids.stop, record[1])])
    door.bulk.stage(staging, 1, 0, [], [record])


# ---- reading ----------------------------------------------------------------------------------


def rows_of(found: bytes) -> list[dict[str, object]]:
    with pa.ipc.open_stream(found) as stream:
        return stream.read_all().to_pylist()  # type: ignore[no-any-return]


def test_rows_are_read_through_the_broker(door: Door) -> None:
    door.db.stream("a").write_many([("x", b"0"), ("y", b"1"), ("x", b"2")])
    found = door.bulk.read(A, 1, 3, Wanted())
    assert [(row["offset"], row["data"]) for row in rows_of(found.batches)] == [
        (1, b"1"),
        (2, b"2"),
    ]
    assert found.count.end == 3
    chosen = door.bulk.read(A, 0, 3, Wanted(tags=[b"x"], headers=True))
    assert [(row["data"], row["meta"]) for row in rows_of(chosen.batches)] == [
        (b"0", None),
        (b"2", None),
    ]
    door.db.publish(b"p", headers={"a": "b"})
    told = door.bulk.read(None, 0, 5, Wanted(headers=True))
    assert [(row["payload"], row["headers"]) for row in rows_of(told.batches)] == [
        (b"p", [("a", "b")])
    ]
    with pytest.raises(InvalidError):
        door.bulk.read(A, 3, 1, Wanted())


def test_an_answer_ends_where_it_has_enough_and_says_where(door: Door) -> None:
    door.db.stream("a").write_many([bytes([65 + i]) * (1 << 20) for i in range(40)])
    at, data = 0, []
    answers = 0
    while at < 40:
        found = door.bulk.read(A, at, 40, Wanted())
        data += [row["data"] for row in rows_of(found.batches)]
        assert found.count.end > at
        at, answers = found.count.end, answers + 1
    assert [chunk[:1] for chunk in data] == [bytes([65 + i]) for i in range(40)]  # type: ignore[index]
    assert answers > 1


def test_an_answer_ends_where_it_looked_for_long_and_says_where(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(8):
        door.db.stream("a").write(b"x", tag="rare" if i == 6 else "often")
    monkeypatch.setattr(bulk_file, "LOOK_BYTES", 3 * 4096)
    ends, found, low = [], [], 0
    while low < 8:
        answer = door.bulk.read(A, low, 8, Wanted(tags=[b"rare"]))
        found += rows_of(answer.batches)
        ends.append(low := answer.count.end)
    assert ends == [3, 6, 8]
    assert [row["offset"] for row in found] == [6]


def test_a_checkpoint_shows_its_moment_to_who_reads_the_store(door: Door) -> None:
    door.db.stream("a").write_many([b"%d" % i for i in range(10)])
    made = door.bulk.checkpoint(60_000)
    door.db.stream("a").write(b"later")
    size = door.bulk.log_size(A)
    assert (size.first, size.next) == (0, 11)
    log = LogRange(size.log_id, 0, 10)

    def read() -> list[bytes]:
        count = Counts()
        batches = read_at(
            made.location, made.id, lambda store: columns(store, log, 0, 10, count=count)
        )
        return [data for batch in batches for data in batch.column("data").to_pylist()]

    assert read() == [b"%d" % i for i in range(10)]
    door.bulk.renew_checkpoint(made.id, 60_000)
    door.bulk.drop_checkpoint(made.id)
    with pytest.raises(NotFoundError):
        read()
    with pytest.raises(NotFoundError):
        door.bulk.renew_checkpoint(made.id, 60_000)
    with pytest.raises(InvalidError):
        door.bulk.checkpoint(0)


def test_a_time_becomes_an_offset(door: Door) -> None:
    door.db.stream("a").write(b"0")
    (first,) = door.db.stream("a").read(0, 1)
    assert first is not None
    assert door.bulk.seek_time(A, first.time_ms) == 0
    assert door.bulk.seek_time(A, first.time_ms + 1) == 1
    assert door.bulk.seek_time(stream_name("none"), 0) == 0


# ---- what is told -----------------------------------------------------------------------------


def test_reports_become_progress(door: Door) -> None:
    for part in (0, 1, 1):  # one task twice
        door.bulk.report(Part("r", "stream a", part, 10, 100, 1, 2, query="q", batch=0))
    door.bulk.report(Part("r", "stream a", 0, 5, 50, 1, 0, 3, 2, query="q", batch=1))
    door.bulk.report(Position("r", "stream a", 40, 100))
    (found,) = door.bulk.progress()
    assert (found.rows, found.bytes, found.nodes, found.skipped, found.evicted) == (5, 50, 1, 0, 3)
    assert found.brokered == 2
    assert (found.total_rows, found.total_bytes, found.batch, found.query) == (25, 250, 1, "q")
    door.bulk.report(Part("r", "stream a", 0, 5, 50, 1, 0, query="q", batch=2))
    (found,) = door.bulk.progress()
    assert (found.evicted, found.total_evicted) == (0, 3)
    assert (found.offset, found.latest, found.lag) == (40, 100, 60)


@pytest.mark.parametrize(
    "report",
    [b"", b"{", b"[]", b'{"type":"x"}', b"\xff", b'{"type":"position","read":"r"}',
     b'{"type":"position","read":"r","source":"s","offset":-1,"latest":0}',
     b'{"type":"position","read":"r","source":"s","offset":1e400,"latest":0}'],
)  # fmt: skip
def test_a_report_that_is_none_is_refused(report: bytes) -> None:
    with pytest.raises(InvalidError):
        decode_report(report)


def test_what_was_told_longest_ago_is_forgotten_first() -> None:
    table = Table()
    for i in range(PROGRESS_MAX + 10):
        table.add(Position(f"r{i}", "stream a", 0, 0), i)
        table.add(Position("again", "stream a", i, i), i)
    told = table.progress()
    assert len(told) == PROGRESS_MAX
    assert {told[0].id, told[-1].id} == {"r11", "again"}
