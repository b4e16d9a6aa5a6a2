"""A world for Ingest without a JVM: Spark's jobs run here, leases and shards are real.

Contract     `World(folder)` has a location, a queue in memory whose leases end by the clock that a
             test moves, and a table. `ingest(...)` makes an Ingest of it; `table()` reads what
             anybody would read. InProcessSpark does what spark/ingest/task.py asks of Spark.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from deltalake import DeltaTable

import penstock
from penstock.clock import SystemClock
from penstock.source.memoryqueue import MemoryQueue
from penstock.source.requests import GetSource, ListFiles, Shard, SourceInfo
from penstock.spark import Ingest

Work = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class Row(NamedTuple):
    result: bytes


class Frame:
    def __init__(self, tasks: int, before: Callable[[], object]) -> None:
        self._tasks = tasks
        self._before = before
        self._work: Work | None = None

    def mapInArrow(self, work: Work, schema: str) -> Frame:  # noqa: N802
        self._work = work
        return self

    def collect(self) -> list[Row]:
        assert self._work is not None
        self._before()
        found = []
        for number in range(self._tasks):
            batch = pa.record_batch([pa.array([number], pa.int64())], ["id"])
            for answer in self._work(iter([batch])):
                found += [Row(each) for each in answer.column(0).to_pylist()]
        return found


class Context:
    defaultParallelism = 2  # noqa: N815


class InProcessSpark:
    """`before`: called at the start of every job."""

    def __init__(self, before: Callable[[], object] = lambda: None) -> None:
        self.sparkContext = Context()
        self.before = before
        self.jobs = 0

    def range(self, start: int, end: int, step: int, partitions: int) -> Frame:
        assert (start, step, end) == (0, 1, partitions)
        self.jobs += 1
        return Frame(partitions, lambda: self.before())


class MovingClock(SystemClock):
    """The machine's, moved forward by a test."""

    def __init__(self) -> None:
        self.moved = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.moved


class World:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.location = folder / "data"
        self.files = folder / "files"
        self.files.mkdir()
        self.table_path = folder / "table"
        self.clock = MovingClock()
        self.queue = MemoryQueue(lease=30.0, clock=self.clock)
        self.spark = InProcessSpark()
        self.database = penstock.open(self.location)

    def close(self) -> None:
        self.database.close()

    def write(self, name: str, *rows: object, announce: bool = True) -> Path:
        """A file of JSON lines; rows that are bytes are lines as they are."""
        path = self.files / name
        path.write_bytes(
            b"".join(
                (row if isinstance(row, bytes) else json.dumps(row).encode()) + b"\n"
                for row in rows
            )
        )
        if announce:
            self.queue.send(str(path))
        return path

    def ingest(self, **options: Any) -> Ingest:
        settings: dict[str, Any] = {
            "queue": self.queue,
            "table": self.table_path,
            "format": "json",
            "retry_delay": 0.0,
            "spark": self.spark,
            "clock": self.clock,
        } | options
        return Ingest(self.location, **settings)

    def rows(self, *columns: str) -> list[tuple[Any, ...]]:
        """Of the table, sorted."""
        table = DeltaTable(self.table_path).to_pyarrow_table()
        names = list(columns or ["id"])
        return sorted(
            (tuple(row[name] for name in names) for row in table.to_pylist()),
            key=lambda row: tuple((value is None, value) for value in row),
        )

    def ids(self) -> list[Any]:
        return [row[0] for row in self.rows("id")]

    def source(self, name: str | None = None) -> SourceInfo:
        return self.database.sources.ask(GetSource(name or str(self.table_path)))

    def shards(self) -> dict[str, Shard]:
        """By the last part of their names."""
        found = self.database.sources.ask(ListFiles(self.source().id)).shards
        return {each.id.rsplit("/", 1)[-1]: each for each in found}

    def splits(self) -> list[str]:
        """Parquet files that lie in the table's folder."""
        return sorted(path.name for path in self.table_path.rglob("*.parquet"))
