"""Which tasks read what: edges, filters and ranges become parts.

Contract     `resolve` turns a starting or ending offset of the options into an offset. `plan_log`
             cuts a range into parts along the borders of full nodes. A large read pins a
             checkpoint, and its tasks read the store themselves; a small one, and the tail of a
             streaming one, asks the broker: that spares a flush and an opening of the store.
             Filters are used only where a frame asks for it (reader.py).
Parts        are plain values that travel to other processes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from penstock.broker.bulk import Checkpoint, LogSize
from penstock.client.bulk import Bulk
from penstock.errors import InvalidError
from penstock.log.batch import NODE_ENTRIES
from penstock.queue.statecolumns import PageRange
from penstock.spark.options import Edge, ReadOptions, Source
from penstock.spark.schema import TAG_COLUMNS
from penstock.store.folder import require_location
from penstock.store.location import folder_of
from penstock.words import counted

#: A read that is not larger comes through the broker.
DIRECT_BYTES = 8 << 20
#: Nor one of fewer entries; what was linked a moment ago looks smaller than it is.
DIRECT_ROWS = 200_000
#: Enough work for one task more.
WORTH_ROWS = 100_000
#: While nobody renews it; tasks do, as long as they read.
CHECKPOINT_MS = 15 * 60_000
OFFSET_MAX = (1 << 63) - 1


class Part(InputPartition):
    """What one task reads: offsets low <= offset < high, or some pages of a queue."""

    def __init__(
        self,
        read: str,
        number: int,
        low: int = 0,
        high: int = 0,
        *,
        log_id: int = 0,
        checkpoint: Checkpoint | None = None,
        pages: PageRange | None = None,
        now_ms: int | None = None,
    ) -> None:
        super().__init__(number)
        self.read = read  # the id of the whole read
        self.number = number
        self.low, self.high = low, high
        self.log_id = log_id
        self.checkpoint = checkpoint  # None: ask the broker
        self.pages = pages
        self.now_ms = now_ms  # the moment of a queue


@dataclass
class Chosen:
    """What filters leave of a log, as far as they can be used."""

    low: int = 0
    high: int = OFFSET_MAX
    tags: frozenset[bytes] | None = None
    time_low_ms: int | None = None
    time_high_ms: int | None = None
    #: Filters that Spark must look at again.
    left: list[Filter] = field(default_factory=list)

    def add(self, source: Source, each: Filter) -> None:
        if source.kind == "queue" or not self._use(source, each):
            self.left.append(each)

    def _use(self, source: Source, each: Filter) -> bool:
        """-> whether it is answered wholly; half is fine too, and then Spark does the rest"""
        column = getattr(each, "attribute", ())
        if column == ("offset",):
            return self._offsets(each)
        if column == (TAG_COLUMNS.get(source.kind),):
            return self._tags(each, source)
        if column == ("time",) and source.kind in TAG_COLUMNS:
            self._times(each)
        return False

    def _offsets(self, each: Filter) -> bool:
        match each:
            case EqualTo(value=int(n)) | EqualNullSafe(value=int(n)):
                self.low, self.high = max(self.low, n), min(self.high, n + 1)
            case GreaterThan(value=int(n)):
                self.low = max(self.low, n + 1)
            case GreaterThanOrEqual(value=int(n)):
                self.low = max(self.low, n)
            case LessThan(value=int(n)):
                self.high = min(self.high, n)
            case LessThanOrEqual(value=int(n)):
                self.high = min(self.high, n + 1)
            case _:
                return False
        return True

    def _tags(self, each: Filter, source: Source) -> bool:
        match each:
            case EqualTo(value=str(text)) | EqualNullSafe(value=str(text)):
                texts: Sequence[object] = (text,)
            case In(value=values):
                texts = tuple(values)
            case _:
                return False
        # A tag that is not UTF-8 is shown with this sign, which its bytes do not have.
        sign = "\N{REPLACEMENT CHARACTER}"
        if not all(isinstance(text, str) and sign not in text for text in texts):
            return False
        if source.kind == "topic" and "" in texts:
            return False  # no message has an empty key: those without one have none
        tags = frozenset(str(text).encode() for text in texts)
        self.tags = tags if self.tags is None else self.tags & tags
        return True

    def _times(self, each: Filter) -> None:
        value = getattr(each, "value", None)
        if not isinstance(value, datetime):
            return
        us = _microseconds(value)
        match each:
            case EqualTo() | EqualNullSafe():
                self._not_before(us)
                self._not_after(us)
            case GreaterThan() | GreaterThanOrEqual():
                self._not_before(us)
            case LessThan() | LessThanOrEqual():
                self._not_after(us)

    def _not_before(self, us: int) -> None:
        self.time_low_ms = max(self.time_low_ms or 0, us // 1000)

    def _not_after(self, us: int) -> None:
        end_ms = max(0, us // 1000 + 1)
        self.time_high_ms = end_ms if self.time_high_ms is None else min(self.time_high_ms, end_ms)


def _microseconds(time: datetime) -> int:
    aware = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    since = aware - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def resolve(edge: Edge, bulk: Bulk, source: Source, size: LogSize) -> int:
    match edge:
        case "earliest":
            return size.first
        case "latest":
            return size.next
        case int():
            return edge
        case _:
            return bulk.seek_time(source.log, max(0, _microseconds(edge) // 1000))


def plan_log(
    options: ReadOptions, bulk: Bulk, read: str, size: LogSize, low: int, high: int
) -> list[Part]:
    rows = high - low
    if rows <= 0:
        return []
    checkpoint = None
    if rows > DIRECT_ROWS or rows * size.mean_bytes > DIRECT_BYTES:
        checkpoint = bulk.checkpoint(CHECKPOINT_MS)
    edges = _edges(options, low, high)
    return [
        Part(read, i, start, stop, log_id=size.log_id, checkpoint=checkpoint)
        for i, (start, stop) in enumerate(pairwise(edges))
    ]


def _edges(options: ReadOptions, low: int, high: int) -> list[int]:
    rows = high - low
    wanted = max(math.ceil(rows / options.rows_per_partition), options.min_partitions or 0)
    if options.min_partitions is None:
        # How many cores Spark has is not known here; those of the driver's machine are a guess.
        wanted = max(wanted, min(len(os.sched_getaffinity(0)), rows // WORTH_ROWS))
    wanted = min(wanted, rows)
    step = rows // wanted // NODE_ENTRIES * NODE_ENTRIES
    if not step:
        return [low + rows * i // wanted for i in range(wanted + 1)]
    # Along the borders of full nodes: two tasks would both open one that lies over theirs.
    first = low // NODE_ENTRIES * NODE_ENTRIES
    return [low, *(edge for edge in range(first + step, high, step) if edge > low), high]


def check_there(options: ReadOptions) -> None:
    """A read makes no location: one that is misspelt, or not mounted here, would be empty."""
    folder = None if "://" in options.location else folder_of(options.location)
    if folder is not None:
        require_location(folder)


def check_lost(options: ReadOptions, low: int, first: int) -> int:
    """What was evicted before it was read: an error, or how much it is. Messages that every queue
    is done with leave their log in the course of things: those are only counted."""
    lost = max(0, first - low)
    if lost and options.fail_on_data_loss and options.source.kind in TAG_COLUMNS:
        raise InvalidError(
            f"{counted(lost, 'entry', 'entries')} of {options.source} from offset {low} on "
            f"{'is' if lost == 1 else 'are'} evicted; it begins at {first}",
            hint="start there, keep more, or set failOnDataLoss to false to skip them",
        )
    return lost
