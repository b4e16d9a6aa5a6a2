"""What people do to stored processors: look, drop, rename, reset.

Contract     Each raises the epoch, or takes the processor away, so that a runner that is at it is
             fenced. Resets in a row raise it once: since the first there is nobody to fence, and a
             second one would look like another runner's start. Nothing is guessed: who changes a
             graph says what becomes of what is stored.
Reset        The step under way is given up and its messages are read again, with the same hashes;
             the next start may bring another kind and other inputs (start.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.codec.backing import AttemptRow
from penstock.codec.catalogue import CatalogueRow, encode_catalogue_row
from penstock.codec.keys import Kind, backing_key, name_key, processor_key
from penstock.codec.processor import Reset
from penstock.errors import ConflictError, InvalidError, NotFoundError
from penstock.graph.change import Change
from penstock.graph.inputs import command, compare
from penstock.graph.requests import Changed, Opened, ProcessorStatus, Topology
from penstock.graph.rules import check_topology, checked_name
from penstock.graph.state import (
    ProcessorState,
    holder,
    load_processor,
    processor_name,
    processor_state_key,
    show_tailers,
)
from penstock.log.catalogue import LogName, NameState, load_name, name_state_key
from penstock.log.decision import Decision, Now, Step, View
from penstock.log.hold import hold_step
from penstock.log.state import state_key

RESETS = {"keep": Reset.KEEP, "first": Reset.FIRST, "new": Reset.NEW}


async def _load(view: View, name: LogName) -> None:
    found = (await load_name(view, name)).row
    if found is not None:
        await load_processor(view, found.id)


def _found(view: View, name: LogName) -> tuple[CatalogueRow, ProcessorState]:
    known: NameState | None = view.state(name_state_key(name))
    assert known is not None, "load keeps the name"
    if known.row is None:
        raise NotFoundError(
            f"there is no processor {name.name.decode()}", hint="penstock graph status shows them"
        )
    state: ProcessorState | None = view.state(processor_state_key(known.row.id))
    assert state is not None, "a name and its processor are made and dropped together"
    return known.row, state


def drop_step(graph: str, processor: str) -> Step:
    """-> Changed"""
    name = processor_name(graph, processor)

    async def load(view: View) -> None:
        await _load(view, name)

    def decide(view: View, now: Now) -> Decision:
        _, state = _found(view, name)
        change = Change(view, now, state)
        for each in state.row.inputs:
            if change.state(state_key(each.stream_id)) is not None:
                change.decide(hold_step(each.stream_id, holder(state.id), None))
        change.writes[name_key(Kind.GRAPH, name.name)] = None
        change.writes[processor_key(state.id)] = None
        for n, _ in state.records:
            change.writes[backing_key(state.id, n)] = None
        change.states[name_state_key(name)] = NameState(None)
        change.states[processor_state_key(state.id)] = None
        return Decision(Changed(), change.writes, change.states)

    return Step(decide, load)


def rename_step(graph: str, processor: str, to: str) -> Step:
    """-> Changed. A step under way keeps the name that its messages are hashed with."""
    name, renamed = processor_name(graph, processor), processor_name(graph, to)

    async def load(view: View) -> None:
        await _load(view, name)
        await load_name(view, renamed)

    def decide(view: View, now: Now) -> Decision:
        row, state = _found(view, name)
        taken: NameState | None = view.state(name_state_key(renamed))
        if taken is not None and taken.row is not None:
            raise ConflictError(
                f"there is a processor {renamed.name.decode()} already",
                hint="drop it first, if it is not needed",
            )
        change = Change(view, now, state)
        change.set(name=renamed.name.decode(), epoch=state.row.epoch + 1)
        change.writes[name_key(Kind.GRAPH, name.name)] = None
        change.writes[name_key(Kind.GRAPH, renamed.name)] = encode_catalogue_row(row)
        change.states[name_state_key(name)] = NameState(None)
        change.states[name_state_key(renamed)] = NameState(row)
        return change.finish(Changed())

    return Step(decide, load)


def reset_step(graph: str, processor: str, start: str) -> Step:
    """-> Changed"""
    if start not in RESETS:
        raise InvalidError(f"start is one of {', '.join(RESETS)}, not {start!r}")
    name = processor_name(graph, processor)

    async def load(view: View) -> None:
        await _load(view, name)

    def decide(view: View, now: Now) -> Decision:
        _, state = _found(view, name)
        change = Change(view, now, state)
        row = state.row
        change.forget_before(row.tail)
        change.set(
            epoch=row.epoch + (row.reset is Reset.NO),
            reset=RESETS[start],
            # A step that was begun has its number for good: who keeps numbers outside may have it.
            step=row.step + state.under_way,
            tries=0,
            position=row.position if start == "keep" else None,
            failure="",
            failed_ms=0,
            retry_ms=0,
        )
        return change.finish(Changed())

    return Step(decide, load)


# ---- looking -----------------------------------------------------------------------------------


def check_graph(
    graph: str, stored: Sequence[ProcessorState], topologies: Sequence[Topology]
) -> Opened:
    """Whether what is stored of a graph fits what it is now."""
    checked_name("graph", graph)
    declared = {each.id: each for each in topologies}
    for topology in topologies:
        if topology.graph != graph:
            raise InvalidError(f"processor {topology.id!r} is none of graph {graph!r}")
        check_topology(topology)
    for state in stored:
        name = state.row.name
        if name not in declared:
            raise ConflictError(
                f"processor {name} ran before, and the graph has it no more; if that is meant: "
                f"{command('drop', state.row)}, or {command('rename', state.row)} NEW"
            )
        compare(state.row, declared[name])
    known = {state.row.name for state in stored}
    return Opened([each.processor for each in topologies if each.id not in known])


def show_processor(view: View, state: ProcessorState, seen_ms: int | None) -> ProcessorStatus:
    row, counts = state.row, state.row.counts
    graph, processor = row.name.split("/", 1)
    return ProcessorStatus(
        graph=graph,
        processor=processor,
        kind=row.kind.name.lower(),  # type: ignore[arg-type]
        semantics=row.semantics.name.lower(),  # type: ignore[arg-type]
        tailers=show_tailers(view, row),
        outputs=list(row.outputs),
        errors=row.errors,
        epoch=row.epoch,
        step=row.step,
        pending=state.last is not None and not isinstance(state.last, AttemptRow),
        tries=row.tries,
        delivered=counts.delivered,
        written=counts.written,
        failed=counts.failed,
        nil=counts.nil,
        skipped=counts.skipped,
        lost=counts.lost,
        failure=row.failure or None,
        failed_ms=row.failed_ms or None,
        retry_ms=row.retry_ms or None,
        started_ms=row.started_ms,
        committed_ms=row.committed_ms or None,
        seen_ms=seen_ms,
        reset=row.reset is not Reset.NO,
        position=row.position,
        on_evicted=row.on_evicted.name.lower(),  # type: ignore[arg-type]
    )
