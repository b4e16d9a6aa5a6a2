"""A processor in memory: its row and the few records of its backing queue.

Contract     `load_processor` in `load` has it in memory, with its inputs. What is done to one is
             gathered in a `Change` (change.py).
Backing      Records are numbered; head <= n < tail are there. The last one is a snapshot or a
             choice while a step is under way, or was when its runner ended; else an attempt.
"""

from __future__ import annotations

import msgspec

from penstock.codec.backing import (
    BackingRow,
    ChoiceRow,
    RangeRow,
    SnapshotRow,
    decode_backing,
)
from penstock.codec.keys import (
    KeyType,
    Kind,
    backing_prefix,
    open_key,
    prefix_end,
    processor_key,
)
from penstock.codec.processor import ProcessorKind, ProcessorRow, decode_processor
from penstock.errors import CorruptError
from penstock.graph.hashes import step_hash
from penstock.graph.requests import Pending, Range, Tailer
from penstock.graph.rules import check_processor_name
from penstock.log.catalogue import LogName, Shows
from penstock.log.decision import StateKey, View
from penstock.log.state import LogState, load_log, state_key
from penstock.store.port import Reader


class ProcessorState(msgspec.Struct, frozen=True):
    id: int
    row: ProcessorRow
    records: tuple[tuple[int, BackingRow], ...] = ()  # number and record, oldest first

    @property
    def last(self) -> BackingRow | None:
        return self.records[-1][1] if self.records else None

    @property
    def under_way(self) -> bool:
        return isinstance(self.last, SnapshotRow | ChoiceRow)

    def record(self, n: int) -> BackingRow | None:
        return next((record for at, record in self.records if at == n), None)


def processor_name(graph: str, processor: str) -> LogName:
    check_processor_name(graph, processor)
    return LogName(Kind.GRAPH, f"{graph}/{processor}".encode())


def processor_state_key(processor_id: int) -> StateKey:
    return ("processor", processor_id)


def holder(processor_id: int) -> bytes:
    """Not its name: that may change."""
    return b"graph:%d" % processor_id


async def load_processor(view: View, processor_id: int) -> ProcessorState | None:
    """For `load`: have the processor and its inputs in memory, if it exists."""
    state: ProcessorState | None = view.state(processor_state_key(processor_id))
    if state is None:
        state = await read_processor(view.store, processor_id)
        if state is None:
            return None
        view.keep(processor_state_key(processor_id), state)
    for each in state.row.inputs:
        await load_log(view, each.stream_id)
    return state


async def read_processor(store: Reader, processor_id: int) -> ProcessorState | None:
    """The state from rows alone."""
    value = await store.get(processor_key(processor_id))
    if value is None:
        return None
    row = decode_processor(value, processor_id)
    records: list[tuple[int, BackingRow]] = []
    low = backing_prefix(processor_id)
    async for rows in store.scan(low, prefix_end(low)):
        for key, data in rows:
            reader = open_key(key, KeyType.BACKING)
            reader.u64_key("processor id")
            n = reader.u64_key("number of a record")
            reader.end()
            records.append((n, decode_backing(data, f"backing queue {processor_id} record {n}")))
    if [n for n, _ in records] != list(range(row.head, row.tail)):
        raise CorruptError(
            f"backing queue {processor_id}: has records {[n for n, _ in records]}; its row says "
            f"{row.head} to {row.tail}"
        )
    aliases = [each.alias for each in row.inputs]
    for n, record in records:
        if isinstance(record, SnapshotRow) and [r.alias for r in record.ranges] != aliases:
            raise CorruptError(f"backing queue {processor_id}: record {n} is of other inputs")
        if isinstance(record, ChoiceRow) and record.input >= len(aliases):
            raise CorruptError(f"backing queue {processor_id}: record {n} chose no input")
    return ProcessorState(processor_id, row, tuple(records))


def last_snapshot(state: ProcessorState) -> tuple[int, SnapshotRow] | None:
    """Read backwards to the first snapshot (recovery, 2). -> its number, and itself"""
    for n, record in reversed(state.records):
        if isinstance(record, SnapshotRow):
            return n, record
    return None


def last_pending(state: ProcessorState) -> Pending | None:
    """The range of the last snapshot, with the choice that followed it."""
    found = last_snapshot(state)
    if found is None:
        return None
    at, snapshot = found
    choices = [row for n, row in state.records if n > at and isinstance(row, ChoiceRow)]
    return pending_of(snapshot, choices[-1] if choices else None)


def pending_of(snapshot: SnapshotRow, choice: ChoiceRow | None) -> Pending:
    ranges = list(snapshot.ranges)
    if choice is not None:
        ranges[choice.input] = msgspec.structs.replace(ranges[choice.input], end=choice.end)
    chosen = None if choice is None else choice.input
    return Pending(
        snapshot.processor_id,
        [Range(each.alias, each.start, each.end) for each in ranges],
        hash_ranges(snapshot.processor_id, snapshot.step, ranges, chosen),
        None if chosen is None else ranges[chosen].alias,
    )


def hash_ranges(
    processor_id: str, step: int, ranges: list[RangeRow], chosen: int | None = None
) -> bytes:
    parts = sorted(range(len(ranges)), key=lambda i: ranges[i].alias.encode())
    return step_hash(
        processor_id,
        step,
        [(ranges[i].stream_id, ranges[i].start, ranges[i].end) for i in parts],
        None if chosen is None else parts.index(chosen),
    )


def stored_ranges(state: ProcessorState, ranges: list[Range]) -> list[RangeRow]:
    """As they are kept: with the ids of their streams."""
    ids = {each.alias: each.stream_id for each in state.row.inputs}
    return [RangeRow(each.alias, ids[each.alias], each.start, each.end) for each in ranges]


def message_count(kind: ProcessorKind, ranges: list[Range]) -> int:
    """How many messages a step delivers: a join reads one of each input."""
    lengths = [each.end - each.start for each in ranges]
    return max(lengths, default=0) if kind is ProcessorKind.JOIN else sum(lengths)


def show_tailers(view: Shows, row: ProcessorRow) -> list[Tailer]:
    """Where its inputs are, and how far they reach."""
    found: list[Tailer] = []
    for each in row.inputs:
        log: LogState | None = view.state(state_key(each.stream_id))
        reach = (0, 0, 0) if log is None else (log.first, log.next, log.stored_bytes)
        found.append(Tailer(each.alias, each.stream, each.stream_id, each.position, *reach))
    return found
