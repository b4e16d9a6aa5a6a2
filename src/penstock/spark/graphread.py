"""The messages of a range, for a function: read through the broker, as Arrow, piece by piece.

Contract     `read_single` gives lists of messages of one input, in order. `read_joined` gives lists
             of tuples, one message per input: those at the same place in their ranges.
Gone         What is compacted away is no message, and is counted. What was evicted is an error,
             unless the processor skips it; then it is counted too. Of a join, a place where one
             input has nothing is skipped for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat

import pyarrow as pa
import pyarrow.compute as pc

from penstock.broker.bulk import FoundRows, Wanted
from penstock.client.bulk import Bulk
from penstock.errors import InvalidError
from penstock.graph.message import Message
from penstock.log.catalogue import stream_name

#: Places of a join that are in memory at once.
JOINED_ROWS = 10_000


@dataclass(frozen=True)
class InputRange:
    """Of one input: start <= offset < end."""

    alias: str
    stream: str
    stream_id: int
    start: int
    end: int

    def part(self, low: int, high: int) -> InputRange:
        """Counted from its start."""
        at = self.start
        return InputRange(self.alias, self.stream, self.stream_id, at + low, at + high)


class Reading:
    """Reads of one task."""

    def __init__(self, bulk: Bulk, *, skips: bool) -> None:
        self._bulk = bulk
        self._skips = skips  # what is evicted
        self.skipped = 0  # messages that are gone

    def read_single(self, wanted: InputRange) -> Iterator[list[Message]]:
        given = 0
        for table in self._tables(wanted):
            found = messages_of(wanted.stream, table)
            given += len(found)
            yield found
        self.skipped += wanted.end - wanted.start - given

    def read_joined(self, wanted: Sequence[InputRange]) -> Iterator[list[tuple[Message, ...]]]:
        count = wanted[0].end - wanted[0].start
        for low in range(0, count, JOINED_ROWS):
            high = min(count, low + JOINED_ROWS)
            columns = [self._places(each.part(low, high)) for each in wanted]
            rows = zip(*columns, strict=True)
            # A tuple with a hole in it is no message for a function that wants all of them.
            whole = [row for row in rows if None not in row]
            self.skipped += high - low - len(whole)
            yield whole

    def _places(self, wanted: InputRange) -> list[Message | None]:
        """One per offset."""
        places: list[Message | None] = [None] * (wanted.end - wanted.start)
        for table in self._tables(wanted):
            for message in messages_of(wanted.stream, table):
                places[message.offset - wanted.start] = message
        return places

    def _tables(self, wanted: InputRange) -> Iterator[pa.RecordBatch]:
        at = wanted.start
        name = stream_name(wanted.stream)
        columns = Wanted(log_id=wanted.stream_id, headers=True, text=False)
        while at < wanted.end:
            found = self._bulk.read(name, at, wanted.end, columns)
            self._check(wanted, found)
            at = found.count.end
            with pa.ipc.open_stream(found.batches) as stream:
                yield from stream

    def _check(self, wanted: InputRange, found: FoundRows) -> None:
        if not found.count.evicted or self._skips:
            return
        first = check_same(self._bulk, wanted)
        if first > wanted.start:
            raise evicted(wanted.stream, wanted.start, first)


def check_same(bulk: Bulk, wanted: InputRange) -> int:
    """InvalidError where the stream is another one by now; ids are never used again, so until now
    it was this one. -> its first offset"""
    size = bulk.log_size(stream_name(wanted.stream))
    if size.log_id != wanted.stream_id:
        raise InvalidError(
            f"stream {wanted.stream} was deleted while the graph read it",
            hint="penstock graph reset: the processor begins with the stream of that name",
        )
    return size.first


def evicted(stream: str, position: int, first: int) -> InvalidError:
    return InvalidError(
        f"offsets {position} to {first - 1} of stream {stream} were evicted before they were "
        f"delivered; it begins at {first}",
        hint='on_evicted="skip" goes on behind them and counts them',
    )


def messages_of(stream: str, batch: pa.RecordBatch) -> list[Message]:
    offset, time, tag, data, meta = batch.columns
    return list(
        map(
            Message,
            data.to_pylist(),
            _texts(tag),
            repeat(stream),
            offset.to_numpy().tolist(),
            (time.view(pa.int64()).to_numpy() // 1000).tolist(),
            repeat(None) if meta.null_count == len(meta) else meta.to_pylist(),
        )
    )


def _texts(tags: pa.Array) -> Iterable[str]:
    """Bytes that are not UTF-8 become surrogates, as everywhere: they can be written back."""
    if not pc.any(pc.greater(pc.binary_length(tags), 0)).as_py():
        return repeat("")
    try:
        return tags.cast(pa.string()).to_pylist()  # type: ignore[no-any-return]
    except pa.ArrowInvalid:
        return [tag.decode("utf-8", "surrogateescape") for tag in tags.to_pylist()]
