"""Ingest on a real Spark: from a queue of the location to a table that anybody can read."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

import penstock
from penstock.errors import InvalidError
from penstock.spark import Ingest
from penstock.spark.ingest.schema import given_schema
from penstock.spark.ingest.sparkjob import crashes, reason_of


def test_announced_files_are_in_the_table_once(spark: SparkSession, tmp_path: Path) -> None:
    files = tmp_path / "in"
    files.mkdir()
    wanted = []
    for n in range(20):
        rows = [{"id": 10 * n + i, "tag": f"é{i}", "list": [i]} for i in range(10)]
        (files / f"ä {n}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
        wanted += rows
    with penstock.open(tmp_path / "d") as db:
        db.create_queue("uploads", max_attempts=5)
        for path in sorted(files.iterdir()):
            db.publish(penstock.URI(path.as_uri()), to="uploads")
        for path in sorted(files.iterdir())[:6]:
            db.publish(str(path).encode(), to="uploads")
        report = Ingest(
            tmp_path / "d", queue="uploads", table=tmp_path / "t", format="json", spark=spark
        ).run(once=True)
        assert (report.files, report.rows, report.duplicates, report.failed) == (20, 200, 6, 0)
        stats = db.queue("uploads").stats()
        assert (stats.available, stats.in_flight, stats.done) == (0, 0, 26)
        assert db.queue("uploads").describe().max_attempts == 0
    found = DeltaTable(tmp_path / "t").to_pyarrow_table().sort_by("id")
    assert found.select(["id", "tag", "list"]).to_pylist() == wanted
    assert set(found["_file"].to_pylist()) == {f"file://{path}" for path in files.iterdir()}
    # Spark reads the same files.
    paths = DeltaTable(tmp_path / "t").file_uris()
    assert spark.read.parquet(*paths).count() == 200


def test_times_that_spark_wrote_to_parquet_are_the_same_in_the_table(
    spark: SparkSession, tmp_path: Path
) -> None:
    """With its defaults: INT96, in which an instant has no zone."""
    days = ["2024-01-01", "9999-12-31", "0001-01-01"]
    rows = [
        f"select {n}L id, timestamp'{day} 12:00:00+00:00' at, "
        f"array(named_struct('at', timestamp'{day} 12:00:00+00:00')) l, "
        f"timestamp_ntz'{day} 12:00:00' local"
        for n, day in enumerate(days)
    ]
    assert spark.conf.get("spark.sql.parquet.outputTimestampType") == "INT96"
    spark.sql(" union all ".join(rows)).coalesce(1).write.parquet(f"{tmp_path}/in")
    (path,) = (tmp_path / "in").glob("*.parquet")
    with penstock.open(tmp_path / "d") as db:
        db.create_queue("uploads")
        db.publish(penstock.URI(path.as_uri()), to="uploads")
        Ingest(
            tmp_path / "d", queue="uploads", table=tmp_path / "t", format="parquet", spark=spark
        ).run(once=True)
    local = [datetime.fromisoformat(f"{day}T12:00") for day in days]
    wanted = [
        {"id": n, "at": at, "l": [{"at": at}], "local": at.replace(tzinfo=None)}
        | {"_rescued_data": None}
        for n, at in enumerate(each.replace(tzinfo=UTC) for each in local)
    ]
    found = DeltaTable(tmp_path / "t").to_pyarrow_table().sort_by("id")
    assert found.drop_columns(["_file", "_position"]).to_pylist() == wanted


def test_a_schema_of_spark_or_its_ddl(spark: SparkSession, tmp_path: Path) -> None:
    struct = StructType([StructField("id", LongType()), StructField("name", StringType())])
    wanted = pa.schema([("id", pa.int64()), ("name", pa.string())])
    assert given_schema(struct) == wanted
    assert given_schema("id BIGINT, name STRING") == wanted
    assert given_schema("at TIMESTAMP, d DATE, x DECIMAL(10,2), l ARRAY<INT>") == pa.schema(
        [
            ("at", pa.timestamp("us", tz="UTC")),
            ("d", pa.date32()),
            ("x", pa.decimal128(10, 2)),
            ("l", pa.list_(pa.field("element", pa.int32()))),
        ]
    )
    with pytest.raises(InvalidError, match="not a schema"):
        given_schema("id NUMBER OF SOMETHING")


def test_a_worker_that_dies_is_told_from_other_errors(spark: SparkSession) -> None:
    def die(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        os._exit(1)

    def fail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise ValueError("of all things")

    with pytest.raises(crashes()) as died:
        spark.range(1).mapInArrow(die, "id long").collect()
    assert "Python worker exited unexpectedly" in reason_of(died.value)
    with pytest.raises(crashes()) as failed:
        spark.range(1).mapInArrow(fail, "id long").collect()
    assert reason_of(failed.value) == "ValueError: of all things"
