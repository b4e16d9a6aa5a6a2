"""A topic in Spark: its log of all messages is read, rows are pushed, exactly once."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import penstock
from spark.tables import copy, load, load_stream, rows, save


@pytest.fixture
def db(tmp_path: Path) -> Iterator[penstock.Database]:
    with penstock.open(tmp_path / "d") as db:
        yield db


def place(db: penstock.Database) -> Path:
    return Path(db.location)


def until(true: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.01)


def handled(topic: penstock.Topic, count: int) -> list[penstock.TopicMessage]:
    """What consumers get of a topic that has so many messages."""
    seen: list[penstock.TopicMessage] = []
    with topic.tail(seen.append, workers=2), topic.tail(seen.append):
        until(lambda: topic.stats().acked == count)
    return sorted(seen, key=lambda message: message.offset)


def test_a_topic_is_a_table_of_all_its_messages(spark: SparkSession, db: penstock.Database) -> None:
    topic = db.topic("t")
    topic.push_many([("a", b"0"), ("ü", b""), (None, b"\xff\x00"), ("a", b"3")])
    seen = handled(topic, 4)  # what is acknowledged stays in the log
    frame = load(spark, place(db), topic="t")
    assert frame.schema.simpleString() == (
        "struct<offset:bigint,time:timestamp,shard_key:string,data:binary>"
    )
    assert [(row["offset"], row["shard_key"], bytes(row["data"])) for row in rows(frame)] == [
        (message.offset, message.shard_key, message.data) for message in seen
    ]
    assert frame.where("shard_key IS NULL").count() == 1
    filtering = load(spark, place(db), topic="t", pushFilters="true").where("shard_key = 'a'")
    assert [row["offset"] for row in rows(filtering)] == [0, 3]
    empty = load(spark, place(db), topic="t", pushFilters="true").where("shard_key = ''")
    assert rows(empty) == []


def test_rows_are_pushed_in_one_commit_and_reach_consumers_in_order(
    spark: SparkSession, db: penstock.Database
) -> None:
    topic = db.topic("t")
    topic.push(b"before", shard_key="k0")
    frame = spark.range(0, 20_000, numPartitions=4).selectExpr(
        "cast(id AS string) AS data",
        "CASE WHEN id % 10 = 9 THEN NULL ELSE concat('k', id % 10) END AS shard_key",
    )
    save(frame, place(db), topic="t")
    topic.push(b"after", shard_key="k0")
    seen = handled(topic, 20_002)
    assert len(seen) == 20_002
    assert [message.data for message in seen[:2]] == [b"before", b"0"]
    by_key: dict[str | None, list[bytes]] = defaultdict(list)
    for message in seen:
        by_key[message.shard_key].append(message.data)
    assert by_key["k3"] == [b"%d" % i for i in range(3, 20_000, 10)]
    assert by_key["k0"] == [b"before", *(b"%d" % i for i in range(0, 20_000, 10)), b"after"]
    assert len(by_key[None]) == 2000
    # The same slots as a push gives.
    slots = {message.slot for message in seen if message.shard_key == "k0"}
    assert len(slots) == 1
    stats = topic.stats()
    assert (stats.inserted, stats.acked, stats.waiting) == (20_002, 20_002, 0)


@pytest.mark.slow
def test_a_topic_is_copied_by_a_query_once_however_often_it_runs(
    spark: SparkSession, db: penstock.Database, tmp_path: Path
) -> None:
    source, target = db.topic("t"), db.topic("u")
    source.push_many([(f"k{i % 5}", b"%d" % i) for i in range(1000)])
    frame = load_stream(spark, place(db), topic="t", startingOffsets="earliest")
    chosen = frame.select("data", "shard_key")
    for more in (0, 500, 0):
        if more:
            source.push_many([(f"k{i % 5}", b"%d" % i) for i in range(1000, 1000 + more)])
        copy(chosen, place(db), tmp_path / "checkpoint", topic="u")
    assert [message.data for message in handled(target, 1500)] == [b"%d" % i for i in range(1500)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"topic": "t", "stream": "s"}, "stream and topic"),
        ({"topic": "t", "includeHeaders": "true"}, "no headers"),
        ({"topic": ""}, "topic"),
    ],
)
def test_wrong_options_are_refused(
    spark: SparkSession, db: penstock.Database, options: dict[str, str], words: str
) -> None:
    with pytest.raises(PySparkException, match=words):
        load(spark, place(db), **options).collect()


def test_other_columns_are_refused(spark: SparkSession, db: penstock.Database) -> None:
    frame = spark.range(3).selectExpr("cast(id AS string) AS data", "'x' AS tag")
    with pytest.raises(PySparkException, match="shard_key"):
        save(frame, place(db), topic="t")
    assert db.topics() == []
