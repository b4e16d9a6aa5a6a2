"""Spark's part in loading files, without a JVM: the same tasks, one after the other, right here.

Contract     What `penstock.spark.Ingest` uses of a session: `range(…).mapInArrow(…).collect()`, and
             how many tasks are worth having. Everything else about it is as with Spark, so that
             tests about processes that die need no seconds for each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

Mapped = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class PlainSpark:
    def __init__(self, tasks: int = 2) -> None:
        self.sparkContext = SimpleNamespace(defaultParallelism=tasks)

    def range(self, start: int, end: int, step: int, partitions: int) -> _Frame:
        assert (start, step, end) == (0, 1, partitions), "a task is a row"
        return _Frame(partitions)


class _Frame:
    def __init__(self, partitions: int, mapped: Mapped | None = None) -> None:
        self._partitions = partitions
        self._mapped = mapped

    def mapInArrow(self, function: Mapped, schema: str) -> _Frame:  # noqa: N802 - Spark's name
        assert schema == "result binary"
        return _Frame(self._partitions, function)

    def collect(self) -> list[Any]:
        assert self._mapped is not None
        return [
            SimpleNamespace(**row)
            for number in range(self._partitions)
            for batch in self._mapped(iter([pa.record_batch({"id": [number]})]))
            for row in batch.to_pylist()
        ]
