"""Fencing: whose request it is, and whether it was done before.

Contract     `processor_step` shows a decision the processor it is about. `guard` answers `Fenced`
             for another epoch, or for another tail of the backing queue than the runner knows: its
             request writes nothing. A request that was committed, and whose answer was lost, is no
             such case: its record stands at the tail that it names, with its epoch.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.codec.backing import AttemptRow, ChoiceRow, SnapshotRow
from penstock.codec.processor import Reset
from penstock.graph.requests import ChooseInput, CommitStep, Fenced, NarrowStep, TakeSnapshot
from penstock.graph.state import ProcessorState, load_processor, processor_state_key
from penstock.log.decision import Decision, Now, Step, View

Guarded = TakeSnapshot | ChooseInput | NarrowStep | CommitStep
Recorded = type[SnapshotRow] | type[ChoiceRow] | type[AttemptRow]
Body = Callable[[View, Now, ProcessorState], Decision]


def processor_step(processor_id: int, body: Body) -> Step:
    async def load(view: View) -> None:
        await load_processor(view, processor_id)

    def decide(view: View, now: Now) -> Decision:
        state: ProcessorState | None = view.state(processor_state_key(processor_id))
        if state is None:
            return Decision(reply=Fenced(f"processor {processor_id} was dropped"))
        return body(view, now, state)

    return Step(decide, load)


def overtaken(state: ProcessorState, epoch: int) -> Fenced | None:
    if epoch == state.row.epoch:
        return None
    what = "started again" if state.row.reset is Reset.NO else "reset"
    return Fenced(
        f"processor {state.row.name} was {what}: this runner's epoch is {epoch}, "
        f"the latest one {state.row.epoch}"
    )


def guard(state: ProcessorState, request: Guarded, kind: Recorded) -> Fenced | None:
    fenced = overtaken(state, request.epoch)
    if fenced is None and request.tail != state.row.tail and not _repeats(state, request, kind):
        fenced = Fenced(
            f"processor {state.row.name} stands at record {state.row.tail}, not {request.tail}: "
            "another runner went on with it"
        )
    return fenced


def _repeats(state: ProcessorState, request: Guarded, kind: Recorded) -> bool:
    """It was committed before: a runner sends one request for each tail."""
    record = state.record(request.tail)
    return (
        request.tail == state.row.tail - 1
        and isinstance(record, kind)
        and record.epoch == request.epoch
    )
