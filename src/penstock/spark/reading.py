"""What a task does: its part becomes Arrow batches, from the store itself or through the broker.

Contract     `read_part` gives the batches of one part and tells the broker what it read when it is
             done (memory only: a report that is lost changes no row). A part of a log whose store
             cannot be read here, because its checkpoint lapsed, it lies on another machine or the
             variables of its bucket are missing here, goes on through the broker from where it is,
             and says so in the executor's log. What is evicted is an error, or is counted and told
             in that log, as `failOnDataLoss` says.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress

import pyarrow as pa
from pyspark import TaskContext

from penstock.broker import progress
from penstock.broker.bulk import Wanted
from penstock.client.bulk import Bulk
from penstock.clock import SystemClock
from penstock.errors import InvalidError, NotFoundError, PenstockError, UnavailableError
from penstock.log.bulkread import read_at
from penstock.log.columns import Counts, columns
from penstock.log.state import LogRange
from penstock.queue.messagecolumns import message_columns
from penstock.queue.statecolumns import state_columns
from penstock.spark.handles import database
from penstock.spark.options import ReadOptions
from penstock.spark.planning import CHECKPOINT_MS, Chosen, Part, check_lost, check_there
from penstock.spark.schema import TAG_COLUMNS, made_columns, shown
from penstock.spark.writer import BATCH_ID, QUERY_ID
from penstock.store.objects import open_objects
from penstock.store.port import Reader
from penstock.words import counted

_log = logging.getLogger("penstock")

RENEW_SECONDS = 60.0
BATCH_ROWS = 20_000


class TaskCounts(Counts):
    brokered: int = 0  # rows that the broker gave


def read_part(options: ReadOptions, chosen: Chosen, part: Part) -> Iterator[pa.RecordBatch]:
    check_there(options)  # on this node, too
    bulk = database(options.location, waits=True).bulk
    count = TaskCounts(end=part.low)
    for batch in _batches(options, chosen, part, bulk, count):
        check_lost(options, part.low, part.low + count.evicted)
        yield shown(options, batch)
    check_lost(options, part.low, part.low + count.evicted)
    warn_lost(options, part.low, count.evicted)
    _tell(bulk, options, part, count)


def warn_lost(options: ReadOptions, low: int, lost: int) -> None:
    """Where it is no error. Messages that every queue is done with are no loss."""
    if lost and options.source.kind in TAG_COLUMNS:
        _log.warning(
            "%s of %s from offset %d on %s gone and left out: failOnDataLoss is false",
            counted(lost, "entry", "entries"), options.source, low, "is" if lost == 1 else "are",
        )  # fmt: skip


def _tell(bulk: Bulk, options: ReadOptions, part: Part, count: TaskCounts) -> None:
    context = TaskContext.get()
    query = context and context.getLocalProperty(QUERY_ID)
    batch = context and context.getLocalProperty(BATCH_ID)
    report = progress.Part(
        read=part.read,
        source=str(options.source),
        part=part.number,
        rows=count.rows,
        bytes=count.bytes,
        nodes=count.nodes,
        skipped=count.skipped,
        evicted=count.evicted,
        brokered=count.brokered,
        query=query or None,
        batch=int(batch or 0),
    )
    with suppress(PenstockError):
        bulk.report(report)


def _batches(
    options: ReadOptions, chosen: Chosen, part: Part, bulk: Bulk, count: TaskCounts
) -> Iterator[pa.RecordBatch]:
    if part.checkpoint is not None:
        try:
            yield from _from_store(options, chosen, part, bulk, count)
            return
        except (NotFoundError, UnavailableError, InvalidError) as error:
            # The rows of a log do not change, so the broker's are the same ones.
            if part.pages is not None:
                raise NotFoundError(
                    f"the moment of {options.source} that this frame shows cannot be read: {error}",
                    hint="load it again; a frame's moment is kept for 15 minutes after its last "
                    "task, and is read from the store itself",
                ) from error
            _log.warning("%s goes on through the broker: %s", options.source, error)
    wanted = _wanted(options, chosen, part)
    while count.end < part.high:
        found = bulk.read(options.source.log, count.end, part.high, wanted)
        _add(count, found.count)
        count.brokered += found.count.rows
        count.end = found.count.end
        with pa.ipc.open_stream(found.batches) as stream:
            yield from stream


def _add(count: Counts, more: Counts) -> None:
    for name in ("nodes", "skipped", "rows", "bytes", "evicted"):
        setattr(count, name, getattr(count, name) + getattr(more, name))


def _wanted(options: ReadOptions, chosen: Chosen, part: Part) -> Wanted:
    return Wanted(
        log_id=part.log_id,
        tags=None if chosen.tags is None else sorted(chosen.tags),
        time_low_ms=chosen.time_low_ms,
        time_high_ms=chosen.time_high_ms,
        headers=options.headers,
        payload=options.payload,
    )


def _from_store(
    options: ReadOptions, chosen: Chosen, part: Part, bulk: Bulk, count: Counts
) -> Iterator[pa.RecordBatch]:
    checkpoint = part.checkpoint
    assert checkpoint is not None
    clock = SystemClock()
    bulk.renew_checkpoint(checkpoint.id, CHECKPOINT_MS)
    renewed = clock.monotonic()
    make = _maker(options, chosen, part, count)
    for batch in read_at(checkpoint.location, checkpoint.id, make):
        yield batch
        if clock.monotonic() > renewed + RENEW_SECONDS:
            bulk.renew_checkpoint(checkpoint.id, CHECKPOINT_MS)
            renewed = clock.monotonic()


def _maker(
    options: ReadOptions, chosen: Chosen, part: Part, count: Counts
) -> Callable[[Reader], AsyncIterator[pa.RecordBatch]]:
    assert part.checkpoint is not None
    location = part.checkpoint.location
    objects = open_objects(location, sync=False) if options.payload else None
    now_ms = SystemClock().wall_ms()
    match options.source.kind:
        case "stream" | "topic":
            log, names = LogRange(part.log_id, 0, part.high), made_columns(options)
            return lambda store: columns(
                store, log, part.low, part.high,
                count=count, tags=chosen.tags,
                time_low_ms=chosen.time_low_ms, time_high_ms=chosen.time_high_ms,
                batch_rows=BATCH_ROWS, meta=options.headers, names=names,
            )  # fmt: skip
        case "messages":
            return lambda store: message_columns(
                store, part.low, part.high,
                headers=options.headers, payload=options.payload,
                objects=objects, batch_rows=BATCH_ROWS, now_ms=now_ms, count=count,
            )  # fmt: skip
        case "queue":
            pages = part.pages
            assert pages is not None, "a part of a queue is some of its pages"
            return lambda store: state_columns(
                store, options.source.name, ranges=[pages], now_ms=part.now_ms,
                headers=options.headers, payload=options.payload,
                objects=objects, batch_rows=BATCH_ROWS, count=count,
            )  # fmt: skip
