"""A driver to be killed: it opens nothing itself but Spark.

    python -m spark.once_driver stream MASTER LOCATION CHECKPOINT ROWS
    python -m spark.once_driver batch MASTER LOCATION FOLDER ROWS

stream       From the stream `in` to the stream `out`, ROWS of the input at a time at most, without
             end. It begins when a line tells it to "begin". Told to "end" by another one, it takes
             what is there by then, and ends.
batch        ROWS rows in four partitions to the stream `out`, as sequence 1 of the producer "job".
             The last partition makes the file `held` in FOLDER and waits there for the file `go`;
             as two tasks run at a time, at least two have ended by then.
Both end when their standard input does: whoever started them is gone.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

from penstock.spark import register, session
from spark.lean import CLUSTER, LEAN
from spark.once_rows import transformed

PARTITIONS = 4

told = {word: threading.Event() for word in ("begin", "end")}


def listen() -> None:
    for line in sys.stdin:
        told[line.strip()].set()
    os._exit(1)


def stream(spark: SparkSession, location: str, checkpoint: str, rows: int) -> None:
    told["begin"].wait()
    frame = (
        spark.readStream.format("penstock")
        .option("location", location)
        .option("stream", "in")
        .option("startingOffsets", "earliest")
        .option("maxMessagesPerTrigger", rows)
        .option("minPartitions", 3)
        .load()
    )
    query = (
        transformed(frame)
        .writeStream.format("penstock")
        .option("location", location)
        .option("stream", "out")
        .option("checkpointLocation", checkpoint)
        .start()
    )
    while not query.awaitTermination(1):
        if told["end"].is_set():
            query.processAllAvailable()
            query.stop()


def batch(spark: SparkSession, location: str, folder: str, rows: int) -> None:
    # Defined here, so that it travels by value: executors need not have this file.
    def held(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        for found in batches:
            yield found
            if context.partitionId() == PARTITIONS - 1:
                Path(folder, "held").touch()
                while not Path(folder, "go").exists():
                    time.sleep(0.02)

    (
        spark.range(0, rows, numPartitions=PARTITIONS)
        .selectExpr("cast(id AS string) AS data")
        .mapInArrow(held, "data string")
        .write.format("penstock")
        .mode("append")
        .option("location", location)
        .option("stream", "out")
        .option("producer", "job")
        .option("sequence", 1)
        .save()
    )


def main() -> None:
    work, master, location, place, rows = sys.argv[1:]
    threading.Thread(target=listen, daemon=True).start()
    spark = session("once", master, LEAN if master.startswith("local") else CLUSTER)
    register(spark)
    {"stream": stream, "batch": batch}[work](spark, location, place, int(rows))
    spark.stop()


if __name__ == "__main__":
    main()
