"""Starting a processor: the topology is compared, the epoch raised, the last step judged.

Contract     `start_step(topology)` -> Started. One commit: whoever ran the processor before is
             fenced by it, inputs are held, and a step that was not delivered is under way again,
             to be finished with the semantics it was begun with.
Not here     which topologies fit what is stored (inputs.py), what the records mean (recovery.py).
"""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from penstock.codec.backing import ChoiceRow, RangeRow, SnapshotRow, WrittenRow
from penstock.codec.catalogue import CatalogueRow, encode_catalogue_row
from penstock.codec.keys import Kind, backing_key, name_key
from penstock.codec.processor import (
    UID_BYTES,
    OnEvicted,
    ProcessorRow,
    Reset,
    Semantics,
)
from penstock.errors import ConflictError
from penstock.graph.change import Change
from penstock.graph.inputs import KINDS, adopt, require_entries
from penstock.graph.recovery import Seen, judge, to_read_back
from penstock.graph.requests import Pending, Started, Topology
from penstock.graph.rules import check_topology
from penstock.graph.state import (
    ProcessorState,
    last_snapshot,
    load_processor,
    message_count,
    processor_name,
    processor_state_key,
    show_tailers,
    stored_ranges,
)
from penstock.log.catalogue import (
    Ids,
    NameState,
    load_ids,
    load_name,
    load_target,
    name_state_key,
    stream_name,
    take_id,
)
from penstock.log.decision import Decision, Now, Step, View
from penstock.log.read import read
from penstock.log.state import load_log


def start_step(topology: Topology, known_id: int | None = None) -> Step:
    """`known_id`: the processor that this runner had before."""
    check_topology(topology)
    name = processor_name(topology.graph, topology.processor)
    seen: dict[WrittenRow, Seen] = {}

    async def load(view: View) -> None:
        await load_ids(view, Ids.NAMED)
        for each in topology.inputs:
            await load_target(view, stream_name(each.stream), make=True)
        found = (await load_name(view, name)).row
        state = None if found is None else await load_processor(view, found.id)
        seen.clear()
        if state is not None:
            seen.update(await read_back(view, state))

    def decide(view: View, now: Now) -> Decision:
        known: NameState | None = view.state(name_state_key(name))
        assert known is not None, "load keeps the name"
        if known_id not in (None, None if known.row is None else known.row.id):
            raise ConflictError(
                f"processor {topology.id} was dropped or renamed while it ran; whoever runs the "
                "graph next begins with what is stored then"
            )
        if known.row is None:
            change = _make(view, now, topology)
        else:
            state: ProcessorState | None = view.state(processor_state_key(known.row.id))
            assert state is not None, "a name and its processor are made and dropped together"
            change = Change(view, now, state)
        adopt(change, topology)
        pending = _recover(change, seen)
        row = change.of
        change.set(epoch=row.epoch + 1, started_ms=now.ms)
        for each in row.inputs:
            change.hold(each.stream_id, each.position)
        return change.finish(started(change, pending))

    return Step(decide, load)


def started(change: Change, pending: Pending | None) -> Started:
    row = change.of
    return Started(
        processor=change.processor.id,
        uid=row.uid.hex(),
        epoch=row.epoch,
        tail=row.tail,
        step=row.step,
        tailers=show_tailers(change, row),
        pending=pending,
        tries=row.tries,
        last_chosen=None if row.last_chosen is None else row.inputs[row.last_chosen].alias,
        position=row.position,
    )


def _make(view: View, now: Now, topology: Topology) -> Change:
    processor_id, rows, states = take_id(view, Ids.NAMED)
    uid = blake2b(
        now.seed + processor_id.to_bytes(8, "little"), digest_size=UID_BYTES, person=b"processor"
    ).digest()
    row = ProcessorRow(
        topology.id, KINDS[topology.kind], Semantics.EXACTLY_ONCE, OnEvicted.STOP, uid, (), (),
        reset=Reset.FIRST,
    )  # fmt: skip
    change = Change(view, now, ProcessorState(processor_id, row))
    name = processor_name(topology.graph, topology.processor)
    named = CatalogueRow(processor_id, now.ms)
    change.writes |= rows
    change.writes[name_key(Kind.GRAPH, name.name)] = encode_catalogue_row(named)
    change.states |= states
    change.states[name_state_key(name)] = NameState(named)
    return change


def _recover(change: Change, seen: dict[WrittenRow, Seen]) -> Pending | None:
    row = change.of
    verdict = judge(change.processor, seen)
    pending = verdict.pending
    if pending is None:
        change.set(tries=0)
        return None
    if _moved(row, pending) and (not verdict.denied or row.semantics is Semantics.AT_MOST_ONCE):
        # at_most_once, begun and not finished: it is not done again, whatever became of it.
        lost = message_count(row.kind, pending.ranges)
        counts = msgspec.structs.replace(row.counts, lost=row.counts.lost + lost)
        change.forget_before(row.tail)
        change.set(step=row.step + 1, tries=0, counts=counts)
        return None
    require_entries(change, pending.ranges)
    if verdict.denied:
        _snapshot_again(change, pending)
    # 1b, 3b: the tailers go back to where the step began.
    change.move({each.alias: each.start for each in pending.ranges})
    change.set(tries=row.tries + 1)
    return pending


def _moved(row: ProcessorRow, pending: Pending) -> bool:
    """Whether the positions went on: without an attempt, only at_most_once does that."""
    positions = {each.alias: each.position for each in row.inputs}
    return any(positions[each.alias] >= each.end > each.start for each in pending.ranges)


def _snapshot_again(change: Change, pending: Pending) -> None:
    """Behind an attempt that did not come through, so that the step is under way again."""
    found = last_snapshot(change.processor)
    assert found is not None, "it was denied"
    step = found[1].step
    ranges: list[RangeRow] = stored_ranges(change.processor, pending.ranges)
    chosen = next((i for i, each in enumerate(ranges) if each.alias == pending.chosen), None)
    if chosen is not None:
        starts = [msgspec.structs.replace(each, end=each.start) for each in ranges]
        change.append(SnapshotRow(change.of.epoch + 1, pending.processor_id, step, tuple(starts)))
        change.append(ChoiceRow(change.of.epoch + 1, chosen, ranges[chosen].end))
    else:
        change.append(SnapshotRow(change.of.epoch + 1, pending.processor_id, step, tuple(ranges)))
    change.trim()
    change.set(step=step)


async def read_back(view: View, state: ProcessorState) -> dict[WrittenRow, Seen]:
    """1d, 1e. What this very tick wrote is not in the store yet, but its attempt neither."""
    rows = to_read_back(state)
    n = state.row.tail - 1
    if rows and await view.store.get(backing_key(state.id, n)) is None:
        return dict.fromkeys(rows, Seen.SAME)
    return {row: await _look(view, row) for row in rows}


async def _look(view: View, row: WrittenRow) -> Seen:
    log = await load_log(view, row.log_id)
    if log is None or row.first < log.first:
        return Seen.GONE
    if row.end > log.next:
        return Seen.OTHER
    (entry,) = await read(view.store, log, row.first, 1)
    if entry is None:
        return Seen.GONE
    return Seen.SAME if (entry.meta or b"") == row.meta else Seen.OTHER
