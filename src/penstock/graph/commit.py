"""Steps 7 and 8: the commit of an attempt.

Contract     `commit_step(request)` -> Committed. Outputs and errors (appended, or linked where they
             were staged), the attempt, the positions and their holds are one decision.
Invariants   K1  a commit names the range and the hash of what is under way; at_least_once, where
                 nothing is written before, a range that begins at the positions
             K2  every entry carries a hash as meta (of staged ones the first is looked at)
             K3  the backing queue begins at the snapshot of the last attempt afterwards, or at the
                 attempt where there was none
Not here     where entries go (deliver.py).
"""

from __future__ import annotations

import msgspec

from penstock.codec.backing import AttemptRow
from penstock.codec.processor import ProcessorKind, Semantics
from penstock.errors import InvalidError
from penstock.graph.change import Change
from penstock.graph.deliver import deliver, delivery_of
from penstock.graph.guard import guard, processor_step
from penstock.graph.outputs import POSITION_BYTES_MAX
from penstock.graph.requests import CommitStep, Committed, Written
from penstock.graph.snapshot import check_ranges, under_way
from penstock.graph.state import (
    ProcessorState,
    hash_ranges,
    load_processor,
    message_count,
    show_tailers,
)
from penstock.log.catalogue import Shows
from penstock.log.decision import Decision, Now, Step, View


def commit_step(request: CommitStep) -> Step:
    delivery = delivery_of(request)
    if request.nil < 0 or request.skipped < 0:
        raise InvalidError("counts are not negative")
    if request.position is not None and len(request.position) > POSITION_BYTES_MAX:
        raise InvalidError(f"a position of {len(request.position):,} bytes")

    async def load(view: View) -> None:
        await load_processor(view, request.processor)
        await delivery.load(view)

    def body(view: View, now: Now, state: ProcessorState) -> Decision:
        if (fenced := guard(state, request, AttemptRow)) is not None:
            return Decision(reply=fenced)
        if request.tail != state.row.tail:
            return Decision(reply=_committed(view, state))
        _check_commit(view, now, state, request)
        change = Change(view, now, state)
        outputs, errors = deliver(change, delivery)
        change.append(
            AttemptRow(
                request.epoch, state.row.step, request.step_hash, outputs, errors, request.nil
            )
        )
        if state.under_way:
            change.trim()
        else:
            change.forget_before(change.of.tail - 1)
        change.move({each.alias: each.end for each in request.ranges})
        _count(change, request)
        return change.finish(_committed(change, change.processor))

    return Step(processor_step(request.processor, body).decide, load, delivery.size)


def _check_commit(view: View, now: Now, state: ProcessorState, request: CommitStep) -> None:
    """K1."""
    row = state.row
    if row.kind is ProcessorKind.SOURCE:
        if request.ranges or request.step_hash:
            raise InvalidError(f"{row.name} is a source: it reads nothing")
        return
    if request.position is not None:
        raise InvalidError(f"{row.name} is no source: it has no position of its own")
    if state.under_way:
        pending = under_way(state)
        if request.ranges != pending.ranges or request.step_hash != pending.step_hash:
            raise InvalidError(f"{row.name}: what is committed is not what is under way")
        return
    if row.semantics is not Semantics.AT_LEAST_ONCE:
        raise InvalidError(f"{row.name}: no step is under way")
    longest = max(request.ranges, key=lambda each: each.end - each.start, default=None)
    chosen = longest.alias if longest is not None and row.kind is ProcessorKind.ALTS else None
    stored = check_ranges(Change(view, now, state), request.ranges, chosen=chosen)
    place = next((i for i, each in enumerate(stored) if each.alias == chosen), None)
    if request.step_hash != hash_ranges(row.name, row.step, stored, place):
        raise InvalidError(f"{row.name}: the hash is not that of the range")


def _count(change: Change, request: CommitStep) -> None:
    row, now = change.of, change.now
    attempt = change.processor.last
    assert isinstance(attempt, AttemptRow)
    written = sum(each.end - each.first for each in attempt.outputs)
    failed = 0 if attempt.errors is None else attempt.errors.end - attempt.errors.first
    delivered = message_count(row.kind, request.ranges)
    counts = row.counts
    last_chosen = row.last_chosen
    if row.kind is ProcessorKind.ALTS:
        last_chosen = next(
            i for i, each in enumerate(row.inputs)
            if any(each.alias == r.alias and r.end > r.start for r in request.ranges)
        )  # fmt: skip
    change.set(
        step=row.step + 1,
        tries=0,
        last_chosen=last_chosen,
        committed_ms=now.ms,
        failure="",
        failed_ms=0,
        retry_ms=0,
        position=row.position if request.position is None else request.position,
        counts=msgspec.structs.replace(
            counts,
            delivered=counts.delivered + delivered - min(request.skipped, delivered),
            written=counts.written + written,
            failed=counts.failed + failed,
            nil=counts.nil + request.nil,
            skipped=counts.skipped + request.skipped,
        ),
    )


def _committed(view: Shows, state: ProcessorState) -> Committed:
    attempt = state.last
    assert isinstance(attempt, AttemptRow), "it was just committed"
    errors = attempt.errors
    return Committed(
        state.row.tail,
        state.row.step,
        [Written(each.stream, each.first, each.end) for each in attempt.outputs],
        None if errors is None else Written(errors.stream, errors.first, errors.end),
        show_tailers(view, state.row),
    )
