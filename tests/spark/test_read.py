"""Reading a stream, messages and the state of a queue into Spark."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import penstock
from integration.resp_server import RespServer
from penstock.broker.bulk import Checkpoint
from penstock.broker.progress import Progress
from penstock.clock import SystemClock
from penstock.log.catalogue import stream_name
from penstock.spark.options import read_options
from penstock.spark.planning import DIRECT_BYTES, Chosen, Part
from penstock.spark.reader import BatchReader
from penstock.spark.reading import read_part
from spark.tables import copy, load, rows, save


@pytest.fixture
def db(tmp_path: Path) -> Iterator[penstock.Database]:
    with penstock.open(tmp_path / "d") as db:
        yield db


def place(db: penstock.Database) -> Path:
    return Path(db.location)


def last_read(db: penstock.Database) -> Progress:
    return [told for told in db.bulk.progress() if told.kind == "read"][-1]


def fill(db: penstock.Database, count: int, *, node: int = 1000) -> None:
    """Nodes of one tag each."""
    for first in range(0, count, node):
        batch = [(f"t{first // node}", b"%d" % i) for i in range(first, min(count, first + node))]
        db.stream("s").write_many(batch)


def test_a_stream_is_a_table_of_its_entries(spark: SparkSession, db: penstock.Database) -> None:
    db.stream("s").write_many([("a", b"0"), ("ü", b""), ("", b"\xff\x00")])
    frame = load(spark, place(db), stream="s")
    assert frame.schema.simpleString() == (
        "struct<offset:bigint,time:timestamp,tag:string,data:binary>"
    )
    expected = [
        (m.offset, m.tag, m.data, m.time) for m in db.stream("s").read(0, 10) if m is not None
    ]
    found = [
        (row["offset"], row["tag"], bytes(row["data"]), row["time"].replace(tzinfo=UTC))
        for row in rows(frame)
    ]
    assert found == expected
    with_meta = load(spark, place(db), stream="s", includeHeaders="true")
    assert with_meta.columns == ["offset", "time", "tag", "data", "meta"]
    frame.createOrReplaceTempView("s")
    assert spark.sql("SELECT max(offset) AS last FROM s").collect()[0]["last"] == 2


def test_a_stream_that_was_never_written_is_empty(
    spark: SparkSession, db: penstock.Database
) -> None:
    assert load(spark, place(db), stream="nothing").count() == 0


def test_filters_prune_nodes(spark: SparkSession, db: penstock.Database) -> None:
    fill(db, 20_000)

    def chosen(where: str) -> int:
        return load(spark, place(db), stream="s", pushFilters="true").where(where).count()

    assert load(spark, place(db), stream="s").count() == 20_000
    assert (last_read(db).nodes, last_read(db).skipped) == (20, 0)
    assert chosen("offset >= 5500 AND offset < 6500") == 1000
    assert last_read(db).nodes == 2
    assert chosen("tag = 't7'") == 1000
    assert last_read(db).nodes + last_read(db).skipped == 20
    assert last_read(db).nodes < 6  # a signature has 32 bits: some others may look alike
    assert chosen("tag IN ('t7', 't8') AND offset < 7100") == 100
    (last,) = db.stream("s").read(19_999, 1)
    assert last is not None
    later = last.time.isoformat(sep=" ")
    assert chosen(f"time > timestamp'{later}'") == 0
    assert chosen(f"time <= timestamp'{later}'") == 20_000
    assert chosen("time < timestamp'1960-01-01 00:00:00'") == 0
    # Filters that we cannot use are Spark's own.
    assert chosen("cast(data AS string) = '77' AND tag = 't0'") == 1


def test_a_frame_answers_every_question_rightly(spark: SparkSession, db: penstock.Database) -> None:
    """Spark keeps what was pushed down last with the frame: so nothing is, by default."""
    db.stream("s").write_many([("a", b"0"), ("b", b"1"), ("a", b"2"), ("b", b"3")])
    frame = load(spark, place(db), stream="s")
    assert frame.where("offset >= 3").count() == 1
    assert frame.count() == 4
    assert frame.where("tag = 'a'").count() == 2
    assert frame.where("substr(tag, 1, 1) = 'b'").count() == 2
    both = frame.where("tag = 'a'").unionAll(frame.where("tag = 'b'"))
    assert sorted(row["offset"] for row in rows(both)) == [0, 1, 2, 3]


def test_edges_are_offsets_times_or_words(spark: SparkSession, db: penstock.Database) -> None:
    fill(db, 10)
    (first,) = db.stream("s").read(0, 1)
    assert first is not None

    def count(**options: object) -> int:
        return load(spark, place(db), stream="s", **options).count()

    assert count(startingOffsets=3, endingOffsets=7) == 4
    assert count(startingOffsets="latest") == 0
    assert count(startingOffsets="earliest", endingOffsets=99) == 10
    assert count(startingOffsets=7, endingOffsets=3) == 0
    assert count(startingOffsets=first.time.isoformat()) == 10
    assert count(endingOffsets=first.time.isoformat()) == 0


def test_a_large_read_is_cut_and_comes_from_the_store_itself(
    spark: SparkSession, db: penstock.Database
) -> None:
    big = [b"%06d" % i + bytes((i * 7919 + j) % 256 for j in range(0, 90)) for i in range(3000)]
    for _ in range(60):
        db.stream("s").write_many(big)
    frame = load(spark, place(db), stream="s", rowsPerPartition=50_000)
    assert frame.rdd.getNumPartitions() == 4
    db.stream("s").write(b"later")
    found = frame.selectExpr("count(*) AS n", "sum(offset) AS total", "count(DISTINCT offset) AS d")
    (row,) = rows(found)
    n = row["n"]
    assert n == row["d"] >= 180_000
    assert row["total"] == n * (n - 1) // 2
    assert last_read(db).rows == n


def test_what_is_dead_is_left_out(spark: SparkSession, db: penstock.Database) -> None:
    db.stream("s").write_many([("a", b"0"), ("b", b"1"), ("a", b"2")])
    db.stream("s").configure(compact=True)
    for _ in range(300):
        if db.stream("s").read(0, 1) == [None]:
            break
        time.sleep(0.05)
    assert [row["offset"] for row in rows(load(spark, place(db), stream="s"))] == [1, 2]


def test_evicted_entries_are_an_error_or_are_counted(
    spark: SparkSession, db: penstock.Database, caplog: pytest.LogCaptureFixture
) -> None:
    fill(db, 200, node=100)
    db.stream("s").evict(up_to=99)
    with pytest.raises(PySparkException, match="95 entries of stream s from offset 5 on"):
        load(spark, place(db), stream="s", startingOffsets=5).count()
    skipping = load(spark, place(db), stream="s", startingOffsets=5, failOnDataLoss="false")
    assert skipping.count() == 100
    assert last_read(db).evicted == 95
    # A planner of Spark's says so on stderr.
    given = {"location": db.location, "stream": "s", "startingOffsets": "5"}
    BatchReader(read_options(given | {"failOnDataLoss": "false"}, streaming=False)).partitions()
    assert "95 entries of stream s from offset 5 on are gone and left out" in caplog.text
    # "earliest" is where the stream begins.
    assert load(spark, place(db), stream="s").count() == 100


@pytest.mark.parametrize("fails", [True, False])
def test_what_is_evicted_between_planning_and_reading_is_found_by_the_task(
    db: penstock.Database, caplog: pytest.LogCaptureFixture, fails: bool
) -> None:
    fill(db, 200, node=100)
    size = db.bulk.log_size(stream_name("s"))
    options = read_options(
        {"location": db.location, "stream": "s", "failOnDataLoss": str(fails)}, streaming=False
    )
    part = Part("r", 0, 0, 200, log_id=size.log_id)
    db.stream("s").evict(up_to=99)
    if fails:
        with pytest.raises(penstock.InvalidError, match="100 entries of stream s"):
            list(read_part(options, Chosen(), part))
        return
    assert sum(batch.num_rows for batch in read_part(options, Chosen(), part)) == 100
    assert last_read(db).evicted == 100
    assert "100 entries of stream s from offset 0 on are gone and left out" in caplog.text


def test_a_task_whose_checkpoint_lapsed_goes_on_through_the_broker(db: penstock.Database) -> None:
    fill(db, 2500)
    options = read_options({"location": db.location, "stream": "s"}, streaming=False)
    size = db.bulk.log_size(stream_name("s"))
    made = db.bulk.checkpoint(60_000)
    db.bulk.drop_checkpoint(made.id)
    for checkpoint in (made, Checkpoint(made.id, "/nowhere/at/all")):
        part = Part("r", 0, 100, 2400, log_id=size.log_id, checkpoint=checkpoint)
        found = [
            offset
            for batch in read_part(options, Chosen(), part)
            for offset in batch.column("offset").to_pylist()
        ]
        assert found == list(range(100, 2400))


def test_messages_are_a_table(spark: SparkSession, db: penstock.Database) -> None:
    db.create_queue("eu", filter="region = 'eu'")
    ids = db.publish_many(
        [
            penstock.Publish(b"a", headers={"region": "eu", "x": ""}),
            penstock.Publish(b"b", to="eu", delay=60, retention=3600),
            penstock.Publish(penstock.URI("s3://bucket/key")),
        ]
    )
    found = rows(load(spark, place(db), messages="true"))
    assert [row["id"] for row in found] == ids
    assert [row["payload"] and bytes(row["payload"]) for row in found] == [b"a", b"b", None]
    assert [row["uri"] for row in found] == [None, None, "s3://bucket/key"]
    assert [row["to"] for row in found] == [None, "eu", None]
    assert [row["headers"] for row in found] == [{"region": "eu", "x": ""}, {}, {}]
    assert [row["retention"] for row in found] == [0, 3600, 0]
    assert (found[1]["visible_at"] - found[1]["received_at"]).total_seconds() == 60
    bare = load(spark, place(db), messages="true", includeHeaders="false", includePayload="false")
    assert bare.columns[-1] == "to"
    assert bare.where("offset >= 1").count() == 2


def test_the_state_of_a_queue_is_a_table(spark: SparkSession, db: penstock.Database) -> None:
    queue = db.create_queue("q", max_attempts=1)
    db.publish_many([b"%d" % i for i in range(20)])
    db.publish(b"later", delay=600)
    taken = queue.claim(10, consumer="w1", lease=600)
    queue.ack(taken[:4])
    queue.fail(taken[4:7], reason="broken")
    frame = load(spark, place(db), queue="q")
    frame.createOrReplaceTempView("q")
    counted = rows(spark.sql("SELECT state, count(*) AS n FROM q GROUP BY state"))
    assert {row["state"]: row["n"] for row in counted} == {
        "available": 11,
        "in_flight": 3,
        "done": 4,
        "failed": 3,
    }
    held = rows(load(spark, place(db), queue="q", state="in_flight"))
    assert {row["id"] for row in held} == {message.id for message in taken[7:]}
    assert {row["consumer"] for row in held} == {"w1"}
    failed = rows(load(spark, place(db), queue="q", state="failed", includePayload="true"))
    assert {row["reason"] for row in failed} == {"broken"}
    assert {bytes(row["payload"]) for row in failed} == {b"4", b"5", b"6"}


class Later(SystemClock):
    """Two hours from now."""

    def wall_ms(self) -> int:
        return super().wall_ms() + 7_200_000


def test_messages_past_their_retention_are_hidden_at_once(
    db: penstock.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their rows stay some seconds longer, for who holds them."""
    queue = db.create_queue("q", max_attempts=1)
    db.publish_many([penstock.Publish(b"old", retention=3600), b"new"])
    queue.fail(queue.claim(2))
    monkeypatch.setattr("penstock.spark.reader.SystemClock", Later)
    monkeypatch.setattr("penstock.spark.reading.SystemClock", Later)
    given = {"location": db.location, "queue": "q", "includePayload": "true"}
    reader = BatchReader(read_options(given, streaming=False))
    (part,) = reader.partitions()
    (failed,) = reader.read(part)
    assert failed.column("payload").to_pylist() == [None, b"new"]
    options = read_options({"location": db.location, "messages": "true"}, streaming=False)
    part = Part("r", 0, 0, 2, checkpoint=db.bulk.checkpoint(60_000))
    (batch,) = read_part(options, Chosen(), part)
    assert batch.column("payload").to_pylist() == [b"new"]


def test_a_queue_that_is_not_there_is_told(spark: SparkSession, db: penstock.Database) -> None:
    db.stream("s").write(b"x")
    with pytest.raises(PySparkException, match="nothing"):
        load(spark, place(db), queue="nothing").count()


def test_a_queue_whose_store_is_elsewhere_is_told() -> None:
    with RespServer() as served:
        address = f"penstock://127.0.0.1:{served.port}"
        with penstock.open(address) as db:
            db.create_queue("q")
        reader = BatchReader(read_options({"location": address, "queue": "q"}, streaming=False))
        with pytest.raises(penstock.NotFoundError, match="queue q cannot be read here") as caught:
            reader.partitions()
        assert "from the store itself" in caught.value.hint


def test_a_wrong_option_is_told_with_its_hint(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match=r"hint: did you mean stream or topic\?"):
        load(spark, tmp_path, subscribe="x")


def test_a_server_is_a_location_too(spark: SparkSession) -> None:
    """One whose store nobody else can open: everything comes through it."""
    with RespServer() as served:
        address = f"penstock://127.0.0.1:{served.port}"
        frame = spark.range(0, 30_000, numPartitions=2).selectExpr(
            "concat(id, repeat(uuid(), 8)) AS data"  # large enough for a checkpoint
        )
        save(frame, address, stream="s")
        found = load(spark, address, stream="s").selectExpr(
            "count(*) AS n", "sum(offset) AS total", "min(length(data)) AS least"
        )
        assert rows(found) == [{"n": 30_000, "total": 30_000 * 29_999 // 2, "least": 289}]


def test_reading_makes_no_location(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match="there is no such folder"):
        load(spark, tmp_path / "misspelt", stream="s").count()
    assert list(tmp_path.iterdir()) == []


def test_a_task_where_the_location_is_missing_fails_and_makes_none(tmp_path: Path) -> None:
    """A node where the folder is not mounted would give no rows."""
    given = {"location": str(tmp_path / "unmounted"), "messages": "true"}
    with pytest.raises(penstock.NotFoundError, match="there is no such folder"):
        list(read_part(read_options(given, streaming=False), Chosen(), Part("r", 0, 0, 20)))
    assert list(tmp_path.iterdir()) == []


def only(
    spark: SparkSession, db: penstock.Database, schema: str, **options: object
) -> list[dict[str, Any]]:
    reader = spark.read.format("penstock").schema(schema).option("location", db.location)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return rows(reader.load())


def test_columns_are_what_they_are(spark: SparkSession, db: penstock.Database) -> None:
    db.stream("s").write(b"x")
    with pytest.raises(PySparkException, match=r"leave \.schema"):
        only(spark, db, "offset int", stream="s")


def test_a_schema_names_the_columns_that_are_read(
    spark: SparkSession, db: penstock.Database
) -> None:
    db.stream("s").write_many([("a", b"0"), ("b", b"1")])
    assert only(spark, db, "data binary", stream="s") == [{"data": b"0"}, {"data": b"1"}]
    found = only(spark, db, "tag string, offset bigint not null", stream="s")
    assert found == [{"tag": "a", "offset": 0}, {"tag": "b", "offset": 1}]
    db.topic("t").push_many([("k", b"x"), (None, b"y")])
    found = only(spark, db, "shard_key string, data binary", topic="t")
    assert found == [{"shard_key": "k", "data": b"x"}, {"shard_key": None, "data": b"y"}]
    db.create_queue("q")
    db.publish_many([b"x", b"yy"])
    assert only(spark, db, "payload binary", messages="true") == [
        {"payload": b"x"},
        {"payload": b"yy"},
    ]
    assert only(spark, db, "state string", queue="q") == [{"state": "available"}] * 2
    stream = spark.readStream.format("penstock").schema("data binary")
    stream = stream.option("location", db.location).option("stream", "s")
    copy(stream.option("startingOffsets", "earliest").load(), place(db), place(db).parent / "c",
         stream="copied")  # fmt: skip
    assert [m and m.data for m in db.stream("copied").read(0, 10)] == [b"0", b"1"]


def test_a_schema_names_the_columns_that_tasks_read_from_the_store(
    spark: SparkSession, db: penstock.Database
) -> None:
    width = DIRECT_BYTES // 100
    noise = random.Random(1)  # which zstd cannot make small
    for first in range(0, 200, 100):
        entries = [(f"t{first}", noise.randbytes(width)) for _ in range(100)]
        db.stream("s").write_many(entries)
    assert only(spark, db, "tag string", stream="s") == [
        {"tag": f"t{first}"} for first in (0, 100) for _ in range(100)
    ]
    told = last_read(db)
    assert (told.rows, told.brokered, told.bytes) == (200, 0, 0)
    reader = spark.read.format("penstock").schema("data binary, tag string")
    reader = reader.option("location", db.location).option("stream", "s")
    frame = reader.option("pushFilters", "true").load().where("tag = 't100'")
    assert rows(frame.selectExpr("count(*) AS n", "min(length(data)) AS least")) == [
        {"n": 100, "least": width}
    ]
    assert last_read(db).brokered == 0


@pytest.mark.parametrize("again", [False, True])
def test_a_stream_that_was_deleted_after_planning_is_lost_and_not_another_one(
    db: penstock.Database, again: bool
) -> None:
    fill(db, 20)
    size = db.bulk.log_size(stream_name("s"))
    part = Part("r", 0, 0, 20, log_id=size.log_id)
    db.stream("s").delete()
    if again:
        db.stream("s").write_many([b"new"] * 30)
    given = {"location": db.location, "stream": "s"}
    with pytest.raises(penstock.InvalidError, match="20 entries of stream s"):
        list(read_part(read_options(given, streaming=False), Chosen(), part))
    skipping = read_options({**given, "failOnDataLoss": "false"}, streaming=False)
    assert list(read_part(skipping, Chosen(), part)) == []
    assert last_read(db).evicted == 20
