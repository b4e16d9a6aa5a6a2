"""Reading into Spark: a batch read of one moment, and a streaming read that goes on.

Contract     A batch read fixes its edges when it is planned. A streaming one gives ranges of
             offsets that never change, so that a batch that Spark repeats is the same; its offsets
             in Spark's progress are {"log": id of the log, "made": when it was made, "offset": the
             next one}, and what is there beyond them is `latestOffset`: the difference is the lag.
Processes    Planners come and go; the streaming reader lives beside the driver for as long as the
             query; `read` runs in the workers. The objects here are pickled from one to the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from penstock.broker import progress
from penstock.broker.bulk import LogSize
from penstock.client.bulk import Bulk
from penstock.clock import SystemClock
from penstock.errors import InvalidError, NotFoundError, PenstockError, UnavailableError
from penstock.log.bulkread import ask_at
from penstock.queue.state import queue_name
from penstock.queue.statecolumns import queue_ranges
from penstock.spark.handles import database
from penstock.spark.options import ReadOptions
from penstock.spark.planning import (
    CHECKPOINT_MS,
    Chosen,
    Part,
    check_lost,
    check_there,
    plan_log,
    resolve,
)
from penstock.spark.reading import read_part, warn_lost
from penstock.spark.ship import shipped

#: The number of the part that tells what was evicted before any task could read it.
_BEFORE = (1 << 31) - 1
_GO_ON = (
    "begin with a new checkpoint; of a stream or topic, failOnDataLoss set to false goes on with "
    "what is there now"
)


def _read_id() -> str:
    return SystemClock().entropy(8).hex()


def _tell_lost(
    bulk: Bulk, options: ReadOptions, read: str, low: int, lost: int, batch: int = 0
) -> None:
    warn_lost(options, low, lost)
    if lost:
        with suppress(PenstockError):
            source = str(options.source)
            bulk.report(progress.Part(read, source, _BEFORE, 0, 0, 0, 0, lost, batch=batch))


class BatchReader(DataSourceReader):
    """Without filters: Spark keeps the partitions of the last pushdown with the frame, and would
    give them to the next query on it, whatever that one asks for."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._chosen = Chosen()

    def __reduce__(self) -> Any:
        return shipped(self)

    def partitions(self) -> list[InputPartition]:
        options, chosen, read = self._options, self._chosen, _read_id()
        check_there(options)
        bulk = database(options.location).bulk
        source = options.source
        if source.kind == "queue":
            return list(self._plan_queue(bulk, read))
        size = bulk.log_size(source.log)
        starting = "earliest" if options.starting is None else options.starting
        low = resolve(starting, bulk, source, size)
        high = min(resolve(options.ending, bulk, source, size), size.next, chosen.high)
        low = max(low, chosen.low)
        if chosen.time_low_ms is not None:
            low = max(low, bulk.seek_time(source.log, chosen.time_low_ms))
        if chosen.time_high_ms is not None:
            high = min(high, bulk.seek_time(source.log, chosen.time_high_ms))
        # What a filter or the word "earliest" leaves open is not lost.
        named = isinstance(starting, int) and low == starting
        lost = check_lost(options, low, min(size.first, high)) if named else 0
        _tell_lost(bulk, options, read, low, lost)
        return list(plan_log(options, bulk, read, size, max(low, size.first), high))

    def _plan_queue(self, bulk: Bulk, read: str) -> Iterator[Part]:
        options = self._options
        source = options.source
        checkpoint = bulk.checkpoint(CHECKPOINT_MS, queue_name(source.name))
        try:
            ranges = ask_at(
                checkpoint.location,
                checkpoint.id,
                lambda store: queue_ranges(
                    store, source.name, options.states, range_rows=options.rows_per_partition
                ),
            )
        except (NotFoundError, UnavailableError, InvalidError) as error:
            raise NotFoundError(
                f"{source} cannot be read here: {error}",
                hint="the state of a queue is read from the store itself: its broker's folder or "
                "bucket must be there for the driver and for every node",
            ) from error
        now_ms = SystemClock().wall_ms()
        for i, pages in enumerate(ranges):
            yield Part(read, i, checkpoint=checkpoint, pages=pages, now_ms=now_ms)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark hands in an empty one where there are none.
        if isinstance(partition, Part):
            yield from read_part(self._options, self._chosen, partition)


class FilteringReader(BatchReader):
    """For a frame that is used with one set of filters (the option pushFilters)."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        for each in filters:
            self._chosen.add(self._options.source, each)
        return self._chosen.left


class RefusedReader(DataSourceStreamReader):
    """A streaming read that is refused: says why at the first question. Where making a reader
    raises, Spark's runner fails once more, at what it wants to do with the reader, and tells that.
    """

    def __init__(self, error: PenstockError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        raise self._error

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        raise self._error

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        raise self._error

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise self._error


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._read = _read_id()
        self._until: LogSize | None = None  # with Trigger.AvailableNow
        #: Of batches that are not committed yet: where they end, and their checkpoint.
        self._checkpoints: dict[int, str] = {}
        self._batches = 0
        self._told: progress.Position | None = None

    def __reduce__(self) -> Any:
        return shipped(self)

    @property
    def _bulk(self) -> Bulk:
        return database(self._options.location).bulk

    def _size(self) -> LogSize:
        # Each time: in an empty one, made where a folder is not mounted, the query would go on at
        # offset 0, and read everything again when the folder is back.
        check_there(self._options)
        return self._bulk.log_size(self._options.source.log)

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        options, size = self._options, self._size()
        starting = "latest" if options.starting is None else options.starting
        return _offset(size, resolve(starting, self._bulk, options.source, size))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        limit = self._options.max_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._until = self._size()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        size = self._size()
        end = size.next
        if self._until is not None and self._until.log_id in (0, size.log_id):
            end = min(end, self._until.next)
        begin, again = self._begin(start, size)
        self._tell_position(begin, size)
        if end <= begin and not again:
            return start
        match limit:
            case ReadMaxRows(max_rows=rows):
                end = min(end, max(begin, size.first) + rows)
            case ReadMaxBytes(max_bytes=most):
                rows = max(1, int(most / max(size.mean_bytes, 1)))
                end = min(end, max(begin, size.first) + rows)
            case ReadMinRows(min_rows=rows):
                if end - begin < rows and self._until is None:
                    return start
        return _offset(size, end)

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802
        size = self._size()
        return _offset(size, size.next)

    def _begin(self, start: dict[str, int], size: LogSize) -> tuple[int, bool]:
        """Where a batch begins; and whether that is somewhere else than where the last one ended:
        in another log, or in one that was put back."""
        begin = start["offset"]
        if start["log"] == 0 or _is_of(start, size):
            # One that the options name may be to come.
            if begin <= size.next or begin == self._options.starting:
                return begin, False
            self._check_end(begin, size)
            return size.next, True
        if self._options.fail_on_data_loss:
            raise InvalidError(
                f"{self._options.source} was deleted since offset {begin} was read",
                hint=_GO_ON,
            )
        return 0, True

    def _check_end(self, read: int, size: LogSize) -> None:
        """Offsets never fall, so a log that ends below what was read is an older copy of itself."""
        if read > size.next and self._options.fail_on_data_loss:
            raise InvalidError(
                f"{self._options.source} ends at offset {size.next}, and was read up to {read}: "
                "its location is older than the query's checkpoint",
                hint=_GO_ON,
            )

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        options, bulk, size = self._options, self._bulk, self._size()
        if not _is_of(end, size):
            # Planned before the stream was deleted: what it held is gone.
            lost = check_lost(options, start["offset"], end["offset"])
            self._tell_lost(start["offset"], lost)
            return []
        low = self._begin(start, size)[0]
        if end["offset"] <= low:
            return []
        self._check_end(end["offset"], size)
        high = min(end["offset"], size.next)
        lost = check_lost(options, low, min(size.first, high)) + end["offset"] - high
        self._tell_lost(low, lost)
        parts = plan_log(options, bulk, self._read, size, max(low, min(size.first, high)), high)
        if parts and parts[0].checkpoint is not None:
            self._checkpoints[high] = parts[0].checkpoint.id
        return list(parts)

    def _tell_lost(self, low: int, lost: int) -> None:
        self._batches += 1
        _tell_lost(self._bulk, self._options, self._read, low, lost, self._batches)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, Part):
            yield from read_part(self._options, Chosen(), partition)

    def _tell_position(self, offset: int, size: LogSize) -> None:
        """Before each batch and while there is none: Spark commits a batch only when it plans the
        next one, so that a query at its end would seem to be behind."""
        position = progress.Position(self._read, str(self._options.source), offset, size.next)
        if position != self._told:
            with suppress(PenstockError):
                self._bulk.report(position)
                self._told = position

    def commit(self, end: dict[str, int]) -> None:
        self._drop(end["offset"])

    def stop(self) -> None:
        self._drop(None)

    def _drop(self, up_to: int | None) -> None:
        """Checkpoints of batches that are done; those that cannot be dropped lapse."""
        for end in [end for end in self._checkpoints if up_to is None or end <= up_to]:
            with suppress(PenstockError):
                self._bulk.drop_checkpoint(self._checkpoints.pop(end))


def _offset(size: LogSize, offset: int) -> dict[str, int]:
    return {"log": size.log_id, "made": size.made_ms, "offset": offset}


def _is_of(offset: dict[str, int], size: LogSize) -> bool:
    """Whether it is one of this log, and not of one with its name or its id."""
    return offset["log"] == size.log_id and offset.get("made", size.made_ms) == size.made_ms
