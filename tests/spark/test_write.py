"""Writing from Spark in one batch: all of it or nothing, in order."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark calls it

import penstock
from penstock.spark.staging import StreamStage
from spark.tables import save


@pytest.fixture
def db(tmp_path: Path) -> Iterator[penstock.Database]:
    with penstock.open(tmp_path / "d") as db:
        yield db


def place(db: penstock.Database) -> Path:
    return Path(db.location)


def data_of(db: penstock.Database, name: str = "s") -> list[bytes | None]:
    return [None if found is None else found.data for found in db.stream(name).read(0, 100_000)]


def test_rows_become_entries_in_the_order_of_their_partitions(
    spark: SparkSession, db: penstock.Database
) -> None:
    db.stream("s").write(b"before")
    frame = spark.range(0, 5000, numPartitions=4).selectExpr(
        "cast(id AS string) AS data", "concat('t', id % 3) AS tag"
    )
    save(frame, place(db), stream="s")
    assert data_of(db) == [b"before", *(b"%d" % i for i in range(5000))]
    found = db.stream("s").read(1, 4)
    assert [message and message.tag for message in found] == ["t0", "t1", "t2", "t0"]
    # One commit: all have one time.
    assert len({m.time_ms for m in db.stream("s").read(1, 5000) if m is not None}) == 1


def test_nothing_is_written_where_one_task_fails(
    spark: SparkSession, db: penstock.Database
) -> None:
    db.stream("s").write(b"before")
    frame = spark.range(0, 3000, numPartitions=3).select(
        F.when(F.col("id") == 2999, F.raise_error(F.lit("no"))).otherwise(
            F.col("id").cast("string")
        ).alias("data")
    )  # fmt: skip
    with pytest.raises(PySparkException):
        save(frame, place(db), stream="s")
    assert data_of(db) == [b"before"]


def test_an_empty_frame_writes_nothing(spark: SparkSession, db: penstock.Database) -> None:
    save(spark.range(0).selectExpr("cast(id AS string) AS data"), place(db), stream="s")
    assert data_of(db) == []


def test_a_named_batch_is_written_once(spark: SparkSession, db: penstock.Database) -> None:
    frame = spark.range(0, 10, numPartitions=2).selectExpr("cast(id AS string) AS data")
    for _ in range(2):
        save(frame, place(db), stream="s", producer="nightly", sequence=1)
    assert len(data_of(db)) == 10
    save(frame, place(db), stream="s", producer="nightly", sequence=2)
    assert len(data_of(db)) == 20
    with pytest.raises(PySparkException, match="sequence 1 is below 2"):
        save(frame, place(db), stream="s", producer="nightly", sequence=1)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("id", "columns data and"),
        ("cast(id AS string) AS data, id", "not data, id"),
        ("id AS data", "column data cannot be bigint"),
        ("cast(null AS string) AS data", "data is null in some row"),
    ],
)
def test_what_cannot_be_written_is_told(
    spark: SparkSession, db: penstock.Database, columns: str, message: str
) -> None:
    with pytest.raises(PySparkException, match=message):
        save(spark.range(3).selectExpr(*columns.split(", ")), place(db), stream="s")
    assert data_of(db) == []


def test_a_stream_is_not_overwritten(spark: SparkSession, db: penstock.Database) -> None:
    frame = spark.range(3).selectExpr("cast(id AS string) AS data")
    with pytest.raises(PySparkException, match="never overwritten"):
        save(frame, place(db), mode="overwrite", stream="s")
    with pytest.raises(PySparkException, match="but published"):
        save(frame, place(db), queue="q")


def test_rows_become_messages_that_are_routed(spark: SparkSession, db: penstock.Database) -> None:
    eu = db.create_queue("eu", filter="region = 'eu'")
    mine = db.create_queue("mine", filter="false")
    frame = spark.range(0, 300, numPartitions=3).selectExpr(
        "cast(id AS string) AS data",
        "map('region', if(id % 3 = 0, 'eu', 'us')) AS headers",
        "if(id = 1, 'mine', null) AS to",
        "cast(0 AS double) AS delay",
        "cast(if(id = 0, 3600, 0) AS int) AS retention",
    )
    save(frame, place(db), messages="true")
    found: list[bytes | None] = []
    while len(found) < 100:
        claimed = eu.claim(100, wait=20)
        assert claimed
        found += [message.payload for message in claimed]
    # Partitions are staged side by side, and a queue orders by time and id.
    assert sorted(map(int, filter(None, found))) == list(range(0, 300, 3))
    (addressed,) = mine.claim(10, wait=20)
    assert (addressed.payload, addressed.headers) == (b"1", {"region": "us"})


def test_a_queue_that_is_not_there_fails_the_write(
    spark: SparkSession, db: penstock.Database
) -> None:
    everything = db.create_queue("all")
    frame = spark.range(0, 10, numPartitions=2).selectExpr(
        "cast(id AS string) AS data", "if(id = 9, 'nowhere', null) AS to"
    )
    with pytest.raises(PySparkException, match="nowhere"):
        save(frame, place(db), messages="true")
    db.publish(b"after")
    assert [message.payload for message in everything.claim(10, wait=20)] == [b"after"]


def test_a_task_that_has_no_rows_yet_keeps_the_staging_of_its_job(
    db: penstock.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the lease of what the others staged could end before its first rows come."""
    monkeypatch.setattr("penstock.spark.staging.RENEW_SECONDS", 0.01)
    stage = StreamStage(db.bulk, b"job")
    with stage.running():
        while stage._staging is None:
            time.sleep(0.01)
    assert db.bulk.begin(key=b"job") == stage._staging
