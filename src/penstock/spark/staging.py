"""One task's part of a write: rows become nodes, and nodes are staged as they come.

Contract     `TaskStage` is used by one task: `add` any number of times, `finish` at the end.
             Nothing is begun for a short task without rows. All tasks of a job share a staging by
             its key; each has a random writer number of its own, so that a task that runs twice, at
             once or after a failure, stages beside itself, and the driver names which one counts.
Lease        A thread renews it while the task runs, also while it waits for rows: as long as one
             task of the job runs, everything that the job has staged stays.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar

import pyarrow as pa

from penstock.client.bulk import Bulk
from penstock.client.publish import items_of
from penstock.clock import SystemClock
from penstock.codec.node import Body
from penstock.errors import InvalidError, PenstockError
from penstock.log.batch import build_bodies
from penstock.log.staging import STAGE_BYTES_MAX, PayloadRow
from penstock.queue.item import PreparedBatch
from penstock.queue.publish import payload_records

T = TypeVar("T")

LEASE_MS = 600_000
RENEW_SECONDS = 60.0
#: Rows are gathered until they fill some nodes.
GATHER_ROWS = 50_000
GATHER_BYTES = 8 << 20


class TaskStage(ABC):
    def __init__(self, bulk: Bulk, key: bytes) -> None:
        self._bulk = bulk
        self._key = key
        self._writer = int.from_bytes(SystemClock().entropy(8), "little") >> 1
        self._staging: int | None = None
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_bytes = self._gathered_rows = 0
        self._nodes = self._rows = 0
        self._stopped = threading.Event()

    @property
    def staging(self) -> int:
        if self._staging is None:
            self._staging = self._bulk.begin(key=self._key, lease_ms=LEASE_MS)
        return self._staging

    @contextmanager
    def running(self) -> Iterator[None]:
        renewing = threading.Thread(target=self._renew, name="penstock-lease", daemon=True)
        renewing.start()
        try:
            yield
        finally:
            self._stopped.set()
            renewing.join()

    def _renew(self) -> None:
        while not self._stopped.wait(RENEW_SECONDS):
            # Also one that has no rows yet: others of its job may have staged theirs. Where it
            # cannot be renewed any more, the next stage says so.
            with suppress(PenstockError):
                self._bulk.renew(self.staging)

    def add(self, batch: pa.RecordBatch) -> None:
        self._gathered.append(batch)
        self._gathered_rows += batch.num_rows
        self._gathered_bytes += batch.nbytes
        if self._gathered_rows >= GATHER_ROWS or self._gathered_bytes >= GATHER_BYTES:
            self._flush()

    def add_bodies(self, bodies: Sequence[Body]) -> None:
        """Rows that are nodes already."""
        self._flush()
        self._stage_bodies(bodies)
        self._rows += sum(body.count for body in bodies)

    def finish(self) -> tuple[int | None, int, int]:
        """-> staging (None: no rows), writer, rows"""
        self._flush()
        return self._staging, self._writer, self._rows

    def _flush(self) -> None:
        rows = self._gathered_rows
        if rows:
            batch = pa.Table.from_batches(self._gathered).combine_chunks()
            self._stage(batch)
            self._rows += rows
        self._gathered = []
        self._gathered_rows = self._gathered_bytes = 0

    @abstractmethod
    def _stage(self, table: pa.Table) -> None: ...

    def _stage_bodies(self, bodies: Sequence[Body]) -> None:
        for part in parts_of(bodies, [len(body.stored) for body in bodies]):
            self._nodes = self._bulk.stage(self.staging, self._writer, self._nodes, part)


def parts_of(items: Sequence[T], sizes: Sequence[int]) -> Iterator[list[T]]:
    """Neighbours that fit into one commit; what is larger goes alone."""
    part: list[T] = []
    total = 0
    for item, size in zip(items, sizes, strict=True):
        if part and total + size > STAGE_BYTES_MAX:
            yield part
            part, total = [], 0
        part.append(item)
        total += size
    if part:
        yield part


class StreamStage(TaskStage):
    """Rows of data and, where they are there, tag and meta."""

    def _stage(self, table: pa.Table) -> None:
        columns = {name: _binary(table.column(name), name) for name in table.column_names}
        self._stage_bodies(build_bodies(pa.table(columns)))


class TopicStage(StreamStage):
    """Rows of data and, where they are there, shard_key: the tags of a topic's log."""

    def _stage(self, table: pa.Table) -> None:
        names = ["tag" if name == "shard_key" else name for name in table.column_names]
        super()._stage(table.rename_columns(names))


class MessageStage(TaskStage):
    """Rows of messages: their ids are taken while they are staged, their payloads stored."""

    def _stage(self, table: pa.Table) -> None:
        names = ["payload" if name == "data" else name for name in table.column_names]
        table = table.rename_columns(names)
        at = names.index("payload")
        table = table.set_column(at, "payload", _binary(table.column(at), "data"))
        items = items_of(table)
        queues = sorted({item.to for item in items if item.to is not None})
        prepared = PreparedBatch(items)
        ids, now_ms = self._bulk.reserve(self.staging, self._writer, len(items), queues)
        bodies = prepared.bodies(prepared.fixed(ids, now_ms))
        self._stage_payloads(list(payload_records(ids, prepared)))
        self._stage_bodies(bodies)

    def _stage_payloads(self, payloads: Sequence[PayloadRow]) -> None:
        for part in parts_of(payloads, [len(value) for _, value in payloads]):
            self._bulk.stage(self.staging, self._writer, self._nodes, [], part)


def _binary(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        column = column.cast(pa.binary() if pa.types.is_string(column.type) else pa.large_binary())
    if name == "data" and column.null_count:
        raise InvalidError("data is null in some row", hint="filter those, or coalesce")
    return column
