"""Writing from Spark: batch writes are all or nothing, streaming writes happen once.

Contract     Tasks stage (staging.py); the driver's commit links what the tasks that count have
             staged, in one commit, ordered by partition and within one as it came. A streaming
             batch is named by (query id, batch id), as a producer's sequence: however often Spark
             repeats it, and whoever dies in between, it is linked once. A batch write is named only
             where the options `producer` and `sequence` say so.
Processes    `write` runs in the workers, `commit` and `abort` in a short-lived process beside the
             driver: nothing is shared but what the commit messages carry.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from penstock.client.bulk import Bulk
from penstock.clock import SystemClock
from penstock.errors import ConflictError, InvalidError, PenstockError
from penstock.spark.handles import database
from penstock.spark.options import WriteOptions
from penstock.spark.schema import check_written
from penstock.spark.ship import shipped
from penstock.spark.staging import MessageStage, StreamStage, TaskStage, TopicStage

_log = logging.getLogger("penstock")

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"


@dataclass
class Staged(WriterCommitMessage):
    """What one task has staged."""

    partition: int
    staging: int | None  # None: no rows
    writer: int
    rows: int
    query: str | None = None


def _write(
    options: WriteOptions, key: bytes, iterator: Iterator[pa.RecordBatch], query: str | None
) -> Staged:
    context = TaskContext.get()
    assert context is not None, "Spark calls this in a task"
    bulk = database(options.location, waits=True).bulk
    kinds: dict[str, type[TaskStage]] = {
        "stream": StreamStage,
        "topic": TopicStage,
        "messages": MessageStage,
    }
    stage = kinds[options.source.kind](bulk, key)
    with stage.running():
        for batch in iterator:
            stage.add(batch)
        staging, writer, rows = stage.finish()
    return Staged(context.partitionId(), staging, writer, rows, query)


def _link(
    bulk: Bulk,
    options: WriteOptions,
    messages: Sequence[Staged],
    producer: str | None,
    sequence: int | None,
) -> None:
    staged = sorted((each for each in messages if each.rows), key=lambda each: each.partition)
    if not staged:
        return
    stagings = {each.staging for each in staged}
    if len(stagings) > 1:
        # The lease of the first one was over before its last task was done.
        raise ConflictError("what the first tasks had staged is gone", hint="run the job again")
    (staging,) = stagings
    assert staging is not None, "there are rows"
    linked = bulk.link(
        staging,
        options.source.log,
        [each.writer for each in staged],
        producer=None if producer is None else producer.encode(),
        sequence=sequence,
    )
    rows = sum(each.rows for each in staged)
    if len(linked) != rows:
        _log.warning(
            "batch %s of %s was written before, with %d rows; this time it has %d, and they are "
            "left out. If its checkpoint was restored from a copy, rows are missing",
            sequence, producer, len(linked), rows,
        )  # fmt: skip
    # Linked before, by another staging: then this one is of no use any more. What is linked stays
    # so, whatever becomes of this call.
    with suppress(PenstockError):
        bulk.drop(staging)


def _abandon(bulk: Bulk, messages: Sequence[Staged | None]) -> None:
    for staging in {each.staging for each in messages if each is not None}:
        if staging is not None:
            bulk.drop(staging)


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_written(options.source, schema)
        self._options = options
        self._key = b"job " + SystemClock().entropy(16).hex().encode()

    def __reduce__(self) -> Any:
        return shipped(self)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _write(self._options, self._key, iterator, None)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        options = self._options
        bulk = database(options.location, waits=True).bulk
        _link(bulk, options, _all(messages), options.producer, options.sequence)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _abandon(database(self._options.location).bulk, _some(messages))


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_written(options.source, schema)
        self._options = options

    def __reduce__(self) -> Any:
        return shipped(self)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None, "Spark calls this in a task"
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        if not query or not batch:
            raise InvalidError("this task belongs to no streaming query")
        # A staging is linked once, into one target. Where a checkpoint was copied, two drivers may
        # write the same batch of the same query to two places.
        target = hashlib.blake2s(str(self._options.source).encode(), digest_size=16).hexdigest()
        return _write(self._options, f"query {query} {batch} {target}".encode(), iterator, query)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        staged = _all(messages)
        query = next((each.query for each in staged if each.query), None)
        bulk = database(self._options.location, waits=True).bulk
        try:
            _link(bulk, self._options, staged, query, batchId)
        except InvalidError as error:
            raise InvalidError(
                f"batch {batchId} of query {query}: {error}",
                hint="the query's checkpoint is older than what the query has written; restore "
                "it, or begin with a new checkpoint",
            ) from error

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        _abandon(database(self._options.location).bulk, _some(messages))


def _some(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    return [each for each in messages if isinstance(each, Staged)]


def _all(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    """A commit has the messages of all its tasks; without one of them rows would be missing."""
    staged = _some(messages)
    if len(staged) < len(messages):
        raise InvalidError(f"{len(messages) - len(staged)} tasks of this write told nothing")
    return staged
