"""What `penstock bench spark` measures: a stream in Spark beside the same rows in Parquet.

Contract     Both sides take turns within one run, each first in every other one; figures are
             medians. Spark reads every column of every row, into its noop sink, and to count: the
             rows, and of each column something that needs all of its values. Then it counts rows
             and adds up the sizes of their data alone, for which Parquet reads that one column and
             makes no rows. Spark tells no source in Python what a query needs, so ours is told by
             `.schema()`; the same without that stands beside it. ARCHITECTURE.md says what such a
             count costs a source that does nothing: no ratio is asked of those two.
             The Parquet files are zstd, in row groups of 100,000, as many files as Spark has cores.
Setup        The stream is written and its nodes are merged before the clock starts; sessions,
             workers and both sides are warmed up with one read each.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

import penstock
from penstock.cli.payloads import Payload, make_batches
from penstock.clock import perf_counter
from penstock.spark import register, session

SIZE_BYTES = 100
BATCH = 10_000
CORES = 2
#: Of different batches; they are written again and again.
KINDS = 20

ALL = "read all columns"
COUNTED = "read all columns and count"
ONE = "count, sum of sizes: .schema('data binary')"
UNTOLD = "the same without .schema"
ARROW = "to_arrow in one process"


class SparkCase(msgspec.Struct, frozen=True):
    name: str
    ours: float  # rows/s
    parquet: float | None = None
    wanted: float | None = None  # as a ratio to Parquet
    wanted_rows: float | None = None  # rows/s

    @property
    def ratio(self) -> float | None:
        return None if self.parquet is None else self.ours / self.parquet

    @property
    def met(self) -> bool:
        ratio = self.ratio
        enough = self.wanted is None or (ratio is not None and ratio >= self.wanted)
        return enough and (self.wanted_rows is None or self.ours >= self.wanted_rows)


class SparkResult(msgspec.Struct, frozen=True):
    rows: int
    cases: list[SparkCase]


Report = Callable[[str], None]


def measure_spark(folder: Path, *, rows: int, turns: int, report: Report) -> SparkResult:
    with penstock.open(folder / "d") as db:
        _fill(db, folder / "parquet", rows, report)
        report("starting Spark")
        spark = session("penstock bench", cores=CORES)
        register(spark)
        try:
            return SparkResult(rows, _measure(spark, db, folder, rows, turns, report))
        finally:
            spark.stop()


def _fill(db: penstock.Database, parquet: Path, rows: int, report: Report) -> None:
    form = pa.schema([("tag", pa.string()), ("data", pa.binary())])
    batches = [
        pa.table([[tag for tag, _ in batch], [data for _, data in batch]], schema=form)
        for batch in make_batches(Payload.JSON, size_bytes=SIZE_BYTES, batch=BATCH, count=KINDS)
    ]
    parquet.mkdir()
    stream = db.stream("bench")
    schema = pa.schema(
        [
            pa.field("offset", pa.int64(), nullable=False),
            pa.field("time", pa.timestamp("us", tz="UTC"), nullable=False),
            pa.field("tag", pa.string(), nullable=False),
            pa.field("data", pa.binary(), nullable=False),
        ]
    )
    per_file = -(-rows // CORES)
    at = 0
    for number in range(CORES):
        end = min(rows, at + per_file)
        path = parquet / f"{number}.parquet"
        with pq.ParquetWriter(path, schema, compression="zstd") as writer:
            while at < end:
                if at % (50 * BATCH) == 0:
                    report(f"writing {at:,} of {rows:,} rows")
                batch = batches[at // BATCH % KINDS].slice(0, min(BATCH, end - at))
                stream.write_many(batch)
                count = batch.num_rows
                times = pa.array([1_700_000_000_000_000 + at] * count, schema.field("time").type)
                columns = [pa.array(range(at, at + count)), times, *batch.columns]
                writer.write_table(pa.table(columns, schema=schema), row_group_size=100_000)
                at += count


def _measure(
    spark: Any, db: penstock.Database, folder: Path, rows: int, turns: int, report: Report
) -> list[SparkCase]:
    def reader() -> Any:
        made = spark.read.format("penstock").option("location", db.location)
        return made.option("stream", "bench")

    ours, ours_data = reader(), reader().schema("data binary")
    parquet = spark.read.parquet(str(folder / "parquet"))

    def noop(frame: Any) -> None:
        frame.write.format("noop").mode("overwrite").save()

    def count(frame: Any, *others: str) -> None:
        # Parquet alone would count from its footers: the sum makes both read their data.
        sums = ("count(*) AS n", "sum(length(data)) AS size", *others)
        (row,) = frame.selectExpr(*sums).collect()
        assert row["n"] == rows, f"{row['n']} of {rows} rows"
        assert row["size"] == rows * SIZE_BYTES

    def count_all(frame: Any) -> None:
        count(frame, "sum(offset)", "max(time)", "sum(length(tag))")

    def arrow(_: Any) -> None:
        found, step = 0, 500_000
        while found < rows:
            found += db.stream("bench").to_arrow(found, step).num_rows

    sides: dict[str, tuple[Callable[[Any], None], Any, bool]] = {
        ALL: (noop, ours, True),
        COUNTED: (count_all, ours, True),
        ONE: (count, ours_data, True),
        UNTOLD: (count, ours, False),
        ARROW: (arrow, ours, False),
    }
    times: dict[tuple[str, bool], list[float]] = {}
    for turn in range(-1, turns):
        for name, (run, mine_of, peer) in sides.items():
            for mine in sorted({True, not peer}, reverse=turn % 2 == 0):
                report(f"{name}: {'penstock' if mine else 'parquet'}")
                frame = mine_of.load() if mine else parquet
                begun = perf_counter()
                run(frame)
                if turn >= 0:  # the first one warms up
                    times.setdefault((name, mine), []).append(perf_counter() - begun)

    def rate(name: str, mine: bool) -> float:
        return rows / statistics.median(times[name, mine])

    return [
        SparkCase(ALL, rate(ALL, True), rate(ALL, False), 0.6, 2_500_000),
        SparkCase(COUNTED, rate(COUNTED, True), rate(COUNTED, False), 0.6, 2_500_000),
        SparkCase(ONE, rate(ONE, True), rate(ONE, False)),
        SparkCase(UNTOLD, rate(UNTOLD, True), rate(ONE, False)),
        SparkCase(ARROW, rate(ARROW, True), rate(ALL, False), 0.6, 2_500_000),
    ]  # fmt: skip
