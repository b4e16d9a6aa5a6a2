"""Steps 1 to 4a: the snapshot, the choice of an alts, and the narrowing of what keeps failing.

Contract     Each is a request with epoch and tail (guard.py) -> Taken. What does not fit is an
             InvalidError, what was evicted a NotFoundError; neither writes anything.
Invariants   S1  a snapshot begins at the positions, and only where nothing is under way
             S2  a choice follows the snapshot of an alts
             S3  narrowing keeps starts, step number and hash of every message
Not here     the commit (commit.py), starting and recovering (start.py).
"""

from __future__ import annotations

from penstock.codec.backing import ChoiceRow, RangeRow, SnapshotRow
from penstock.codec.processor import ProcessorKind, Semantics
from penstock.errors import InvalidError
from penstock.graph.change import Change
from penstock.graph.guard import guard, processor_step
from penstock.graph.inputs import require_entries, require_streams
from penstock.graph.requests import (
    AT_MOST_ONCE_MAX,
    ChooseInput,
    NarrowStep,
    Pending,
    Range,
    Taken,
    TakeSnapshot,
)
from penstock.graph.state import (
    ProcessorState,
    last_pending,
    last_snapshot,
    message_count,
    pending_of,
    show_tailers,
    stored_ranges,
)
from penstock.log.decision import Decision, Now, Step, View

#: After a range was halved the next failure halves it again.
NARROWED_TRIES = 2


def snapshot_step(request: TakeSnapshot) -> Step:
    def body(view: View, now: Now, state: ProcessorState) -> Decision:
        if (fenced := guard(state, request, SnapshotRow)) is not None:
            return Decision(reply=fenced)
        if request.tail != state.row.tail:
            return Decision(reply=_taken(state))
        if state.under_way:
            raise InvalidError(f"{state.row.name}: step {state.row.step} is under way already")
        change = Change(view, now, state)
        ranges = check_ranges(change, request.ranges)
        if state.row.semantics is Semantics.AT_LEAST_ONCE:
            return Decision(reply=_planned(state, ranges))
        change.append(SnapshotRow(request.epoch, state.row.name, state.row.step, tuple(ranges)))
        _begin(change, request.ranges)
        change.set(tries=1)
        return change.finish(_taken(change.processor))

    return processor_step(request.processor, body)


def choose_step(request: ChooseInput) -> Step:
    def body(view: View, now: Now, state: ProcessorState) -> Decision:
        if (fenced := guard(state, request, ChoiceRow)) is not None:
            return Decision(reply=fenced)
        if state.row.kind is not ProcessorKind.ALTS:
            raise InvalidError(f"{state.row.name} is no alts: there is nothing to choose")
        if request.tail != state.row.tail:
            return Decision(reply=_taken(state))
        at_least_once = state.row.semantics is Semantics.AT_LEAST_ONCE
        if not isinstance(state.last, SnapshotRow) and not at_least_once:
            raise InvalidError(f"{state.row.name}: the choice follows a snapshot")
        aliases = [each.alias for each in state.row.inputs]
        if request.chosen not in aliases:
            raise InvalidError(f"{state.row.name} has no input {request.chosen!r}")
        ranges = [
            Range(each.alias, each.position, request.end if each.alias == request.chosen else
                  each.position)
            for each in state.row.inputs
        ]  # fmt: skip
        change = Change(view, now, state)
        stored = check_ranges(change, ranges, chosen=request.chosen)
        if at_least_once and not state.under_way:
            return Decision(reply=_planned(state, stored, aliases.index(request.chosen)))
        change.append(ChoiceRow(request.epoch, _place(state, request.chosen), request.end))
        _begin(change, ranges)
        return change.finish(_taken(change.processor))

    return processor_step(request.processor, body)


def narrow_step(request: NarrowStep) -> Step:
    if request.count < 1:
        raise InvalidError(f"a step of {request.count} messages")

    def body(view: View, now: Now, state: ProcessorState) -> Decision:
        alts = state.row.kind is ProcessorKind.ALTS
        if (fenced := guard(state, request, ChoiceRow if alts else SnapshotRow)) is not None:
            return Decision(reply=fenced)
        if request.tail != state.row.tail:
            return Decision(reply=_taken(state))
        pending = under_way(state)
        ranges = [
            Range(each.alias, each.start, min(each.end, each.start + request.count))
            for each in pending.ranges
        ]
        if ranges == pending.ranges:
            raise InvalidError(f"{state.row.name}: {request.count} messages do not narrow its step")
        change = Change(view, now, state)
        if alts:
            assert pending.chosen is not None, "an empty range cannot be narrowed"
            place = _place(state, pending.chosen)
            change.append(ChoiceRow(request.epoch, place, ranges[place].end))
        else:
            rows = tuple(stored_ranges(state, ranges))
            change.append(SnapshotRow(request.epoch, pending.processor_id, state.row.step, rows))
            change.trim()
        change.set(tries=NARROWED_TRIES)
        return change.finish(_taken(change.processor))

    return processor_step(request.processor, body)


def _place(state: ProcessorState, alias: str) -> int:
    """Of an input among the ranges of the last snapshot."""
    found = last_snapshot(state)
    assert found is not None, "a step is under way"
    return next(i for i, each in enumerate(found[1].ranges) if each.alias == alias)


def _begin(change: Change, ranges: list[Range]) -> None:
    """at_most_once: what is begun is not read again."""
    row = change.of
    if row.semantics is not Semantics.AT_MOST_ONCE:
        return
    if message_count(row.kind, ranges) > AT_MOST_ONCE_MAX:
        raise InvalidError(
            f"{row.name}: a step of at_most_once has at most {AT_MOST_ONCE_MAX:,} messages"
        )
    change.move({each.alias: each.end for each in ranges})


def check_ranges(
    change: Change, ranges: list[Range], *, chosen: str | None = None
) -> list[RangeRow]:
    """S1, and that the entries are there. -> as they are kept"""
    row = change.of
    if row.kind is ProcessorKind.SOURCE:
        raise InvalidError(f"{row.name} is a source: it reads nothing")
    require_streams(change, row)
    tailers = show_tailers(change, row)
    if [each.alias for each in ranges] != [each.alias for each in tailers]:
        raise InvalidError(f"{row.name}: a step names all inputs, in their order")
    for each, tailer in zip(ranges, tailers, strict=True):
        if each.start != tailer.position or not each.start <= each.end <= max(
            tailer.next, each.start
        ):
            raise InvalidError(
                f"{row.name}: {each.start} to {each.end} of {tailer.stream!r}, which it reads from "
                f"{tailer.position} and which ends at {tailer.next}"
            )
    lengths = {each.end - each.start for each in ranges}
    if row.kind is ProcessorKind.ALTS and chosen is None:
        if lengths != {0}:
            raise InvalidError(f"{row.name}: the snapshot of an alts has starts only")
    elif lengths == {0}:
        raise InvalidError(f"{row.name}: a step of no messages")
    if row.kind is ProcessorKind.JOIN and len(lengths) != 1:
        raise InvalidError(f"{row.name}: a join reads as many of each input")
    require_entries(change, ranges)
    return stored_ranges(change.processor, ranges)


def under_way(state: ProcessorState) -> Pending:
    pending = last_pending(state) if state.under_way else None
    if pending is None:
        raise InvalidError(f"{state.row.name}: no step is under way")
    return pending


def _taken(state: ProcessorState) -> Taken:
    pending = under_way(state)
    return Taken(state.row.tail, state.row.step, pending.step_hash, pending.ranges)


def _planned(state: ProcessorState, ranges: list[RangeRow], chosen: int | None = None) -> Taken:
    """at_least_once: the same, and nothing is written."""
    row = state.row
    snapshot = SnapshotRow(row.epoch, row.name, row.step, tuple(ranges))
    choice = None if chosen is None else ChoiceRow(row.epoch, chosen, ranges[chosen].end)
    pending = pending_of(snapshot, choice)
    return Taken(row.tail, row.step, pending.step_hash, pending.ranges)
