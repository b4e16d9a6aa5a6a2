"""A batch as one Spark job, and what its failure means.

Contract     run_job: task n does the nth list of pieces; the answers of all of them. Whatever a
             task could foresee is in its answer; a job that ends with one of `crashes()` had a task
             that died, and `reason_of` tells of what.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa

from penstock.errors import UnavailableError
from penstock.spark.ingest import task
from penstock.spark.ingest.pieces import Piece
from penstock.spark.ingest.readers import Reading
from penstock.spark.ingest.task import Job, TaskResult

#: Of the many lines that a failed job tells: what a Python task or its worker died of.
_REASONS = (
    re.compile(
        r"^(?:[a-z_]\w*\.)*(?!Py4J)[A-Z]\w*(?:Error|Exception): (?!Traceback).+", re.MULTILINE
    ),
    re.compile(r"Python worker exited unexpectedly[^\n]*"),
    re.compile(r"^\S.*", re.MULTILINE),
)


class TaskRunner:
    """The function of a job. Without `job` its tasks tell the schema of what they read."""

    def __init__(self, tasks: list[list[Piece]], job: Job | None, reading: Reading) -> None:
        self.count = len(tasks)
        self._tasks = msgspec.msgpack.encode(tasks)
        self._job = job
        self._reading = reading

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tasks = msgspec.msgpack.decode(self._tasks, type=list[list[Piece]])
        for batch in batches:
            for number in batch.column(0).to_pylist():
                data = msgspec.msgpack.encode(self._run(tasks[number]))
                yield pa.RecordBatch.from_arrays([pa.array([data], pa.binary())], ["result"])

    def _run(self, pieces: list[Piece]) -> TaskResult:
        if self._job is None:
            return task.infer_task(self._reading, pieces)
        try:
            return task.run_task(self._job, pieces)
        except UnavailableError as error:
            return TaskResult(fault=str(error))

    def __reduce__(self) -> Any:
        from penstock.spark.ship import shipped

        return shipped(self)


def run_job(spark: Any, runner: TaskRunner) -> list[TaskResult]:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return runner(batches)

    frame = spark.range(0, runner.count, 1, runner.count).mapInArrow(work, "result binary")
    return [msgspec.msgpack.decode(bytes(row.result), type=TaskResult) for row in frame.collect()]


def crashes() -> tuple[type[BaseException], ...]:
    """What a job ends with when one of its tasks did; a worker that died, for example."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    return (Py4JError, PySparkException)


def reason_of(error: BaseException) -> str:
    text = str(error)
    found = next((match for match in (each.search(text) for each in _REASONS) if match), None)
    return type(error).__name__ if found is None else found[0][:500]
