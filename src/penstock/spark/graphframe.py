"""A step of a processor that is a function from DataFrame to DataFrame.

Contract     `FrameJob.run(attempt)` calls the function with a frame of the step's range: columns
             offset, time, tag, data and meta; of a join one frame per argument, with a column
             `position` that says which entries belong together; of a sink with a column
             `delivery_hash`. It gives a frame with data (binary or text) and, if wanted, tag; of a
             fork a dict of them, stream -> frame. Rows follow `order_by`, and carry the hash of the
             step with their number in that order.
Errors       Every exception is unhandled here, a SystemExit too: it belongs to no message. A frame
             reads its stream by name, and when it likes: one that was deleted and made anew by then
             is found out behind it, and nothing is committed.
Bounds       The outputs of one step pass through the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls them

from penstock.client.bulk import Bulk
from penstock.errors import InvalidError
from penstock.graph.hashes import message_hashes, row_hash
from penstock.graph.machine import Outcome, Run
from penstock.graph.model import Processor
from penstock.graph.outputs import pack
from penstock.graph.requests import Output
from penstock.spark.graphjob import StepError, ranges_of, why
from penstock.spark.graphlay import Laying
from penstock.spark.graphread import InputRange, check_same
from penstock.spark.session import register
from penstock.spark.sinks import TableSink

_SCHEMA = "offset long, time timestamp, tag string, data binary, meta binary, delivery_hash string"


class FrameJob:
    def __init__(
        self, spark: SparkSession, bulk: Bulk, location: str, processor: Processor
    ) -> None:
        if isinstance(processor.function, TableSink):
            raise InvalidError(
                f"{processor.topology.id}: a ready-made sink takes messages, not frames",
                hint="leave df=True out",
            )
        register(spark)
        self._spark = spark
        self._bulk = bulk
        self._location = location
        self._processor = processor
        self._topology = processor.topology

    def run(self, attempt: Run) -> Outcome:
        inputs = ranges_of(attempt)
        try:
            made = self._call(attempt, inputs)
            tables = {} if self._topology.kind == "sink" else self._tables(made)
            for each in inputs:
                check_same(self._bulk, each)
        except BaseException as error:
            raise StepError(why(error)) from error
        return self._outcome(attempt, inputs, tables)

    def _call(self, attempt: Run, inputs: list[InputRange]) -> Any:
        function = self._processor.function
        if self._topology.kind == "join":
            return function(
                **{
                    each.alias: self._frame(each).withColumn(
                        "position", F.col("offset") - F.lit(each.start)
                    )
                    for each in inputs
                }
            )
        frame = self._frame(inputs[0])
        if self._topology.kind == "sink":
            frame = frame.mapInArrow(_hashing(attempt.processor_id, inputs[0].stream_id), _SCHEMA)
        return function(frame)

    def _frame(self, wanted: InputRange) -> DataFrame:
        return (
            self._spark.read.format("penstock")
            .option("location", self._location)
            .option("stream", wanted.stream)
            .option("startingOffsets", wanted.start)
            .option("endingOffsets", wanted.end)
            .option("includeHeaders", "true")
            .option("failOnDataLoss", str(self._topology.on_evicted == "stop").lower())
            .load()
        )

    def _tables(self, made: Any) -> dict[str, pa.Table]:
        if self._topology.kind != "fork":
            made = {self._topology.outputs[0]: made}
        elif made is not None and not isinstance(made, Mapping):
            raise InvalidError("a fork returns a dict, stream -> frame")
        tables: dict[str, pa.Table] = {}
        for stream, frame in (made or {}).items():
            if stream not in self._topology.outputs:
                raise InvalidError(f"{stream!r} is none of the outputs of {self._topology.id}")
            if frame is not None:
                tables[stream] = self._collected(frame)
        return tables

    def _collected(self, frame: Any) -> pa.Table:
        if not isinstance(frame, DataFrame):
            raise InvalidError(
                f"{self._topology.id}: df=True returns a DataFrame, not {type(frame).__name__}"
            )
        unknown = [name for name in frame.columns if name not in ("data", "tag")]
        left = [name for name in unknown if name not in self._processor.order_by]
        if "data" not in frame.columns or left:
            raise InvalidError(
                f"{self._topology.id}: a frame has data and, if wanted, tag; not "
                f"{', '.join(frame.columns)}",
                hint="select them; columns of order_by may be there too",
            )
        if self._processor.order_by:
            frame = frame.orderBy(*self._processor.order_by)
        columns = [F.col(name).cast("binary") for name in ("tag", "data") if name in frame.columns]
        table = frame.select(*columns).toArrow()
        if table.column("data").null_count:
            raise InvalidError(f"{self._topology.id}: data is null in some row")
        return table

    def _outcome(
        self, attempt: Run, inputs: list[InputRange], tables: dict[str, pa.Table]
    ) -> Outcome:
        outputs: list[Output] = []
        laying = Laying(self._bulk)
        rows = 0
        for stream, table in tables.items():
            if not table.num_rows:
                continue
            rows += table.num_rows
            hashes = [row_hash(attempt.step_hash, n) for n in range(table.num_rows)]
            table = table.append_column("meta", pa.array(hashes, pa.binary()))
            if laying.fits(table.nbytes):
                outputs.append(pack(stream, table))
            else:
                outputs.append(laying.stage(stream, table.to_batches()))
        count = inputs[0].end - inputs[0].start
        return Outcome(outputs=outputs, nil=0 if rows else count, staging=laying.staging)


def _hashing(
    processor_id: str, stream_id: int
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def hashed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            offsets = batch.column("offset").to_pylist()
            hashes = [found.hex() for found in message_hashes(processor_id, stream_id, offsets)]
            yield batch.append_column("delivery_hash", pa.array(hashes, pa.string()))

    return hashed
