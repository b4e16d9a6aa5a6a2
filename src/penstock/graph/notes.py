"""Beside the steps: why an attempt failed, and what is skipped because it is gone."""

from __future__ import annotations

import msgspec

from penstock.codec.processor import OnEvicted, ProcessorKind
from penstock.codec.scalars import encode_utf8
from penstock.graph.change import Change
from penstock.graph.guard import overtaken, processor_step
from penstock.graph.requests import Looked, Noted, NoteFailure
from penstock.graph.state import ProcessorState, show_tailers
from penstock.log.decision import Decision, Now, Step, View

#: Of a failure's text, as it is kept.
FAILURE_CHARS_MAX = 4000


def failure_step(request: NoteFailure) -> Step:
    def body(view: View, now: Now, state: ProcessorState) -> Decision:
        if (fenced := overtaken(state, request.epoch)) is not None:
            return Decision(reply=fenced)
        change = Change(view, now, state)
        text = request.text[:FAILURE_CHARS_MAX]
        encode_utf8(text, "the text of a failure")  # or InvalidError, as over the wire
        retry_ms = 0 if request.retry_ms is None else now.ms + max(request.retry_ms, 0)
        change.set(failure=text or "unknown", failed_ms=now.ms, retry_ms=retry_ms)
        return change.finish(Noted())

    return processor_step(request.processor, body)


def skip_step(processor_id: int, epoch: int) -> Step:
    """on_evicted="skip": move the positions over what is gone. -> Looked

    The inputs of a join stay side by side: what is gone of one is left out of all.
    """

    def body(view: View, now: Now, state: ProcessorState) -> Decision:
        if (fenced := overtaken(state, epoch)) is not None:
            return Decision(reply=fenced)
        row = state.row
        tailers = show_tailers(view, row)
        gone = {each.alias: max(0, each.first - each.position) for each in tailers}
        count = sum(gone.values())
        if row.kind is ProcessorKind.JOIN:
            count = max(gone.values())
            gone = dict.fromkeys(gone, count)
        if not count or state.under_way or row.on_evicted is not OnEvicted.SKIP:
            return Decision(reply=Looked(tailers))
        change = Change(view, now, state)
        change.move({each.alias: each.position + gone[each.alias] for each in tailers})
        change.set(counts=msgspec.structs.replace(row.counts, skipped=row.counts.skipped + count))
        return change.finish(Looked(show_tailers(change, change.of), count))

    return processor_step(processor_id, body)
