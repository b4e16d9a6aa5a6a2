"""Reading and writing in tests: the usual options, and rows as plain values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery


def load(spark: SparkSession, location: Path | str, **options: object) -> DataFrame:
    reader = spark.read.format("penstock").option("location", str(location))
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()


def load_stream(spark: SparkSession, location: Path | str, **options: object) -> DataFrame:
    reader = spark.readStream.format("penstock").option("location", str(location))
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()


def save(frame: DataFrame, location: Path | str, mode: str = "append", **options: object) -> None:
    writer = frame.write.format("penstock").mode(mode).option("location", str(location))
    for name, value in options.items():
        writer = writer.option(name, str(value))
    writer.save()


def copy(
    frame: DataFrame, location: Path | str, checkpoint: Path, **options: object
) -> StreamingQuery:
    """Everything that is there now, then it ends."""
    writer = frame.writeStream.format("penstock").option("location", str(location))
    for name, value in options.items():
        writer = writer.option(name, str(value))
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    query = writer.start()
    query.awaitTermination()
    return query


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in frame.collect()]
