"""The inputs of a processor: whether they are those that are stored, and whether they are there.

Contract     `adopt` makes the stored processor the declared one where that is no guess: another
             kind or other inputs are a ConflictError unless the processor was reset, and then each
             input begins where the reset says. Outputs, error stream and semantics may change.
             `require_…` raise where a stream was deleted, or entries were evicted unread.
New          A processor that never ran begins at the first entry of each input. Streams that were
             never written are made: they have to have an id, and to be held.
"""

from __future__ import annotations

import shlex

from penstock.codec.processor import (
    OnEvicted,
    ProcessorKind,
    ProcessorRow,
    Reset,
    Semantics,
    TailerRow,
)
from penstock.errors import ConflictError, NotFoundError
from penstock.graph.change import Change
from penstock.graph.requests import Range, Topology
from penstock.graph.state import show_tailers
from penstock.log.catalogue import Shows, find_target, make_target, stream_name
from penstock.log.state import state_key
from penstock.words import one_of_kind

KINDS = {kind.name.lower(): kind for kind in ProcessorKind}
SEMANTICS = {each.name.lower(): each for each in Semantics}
ON_EVICTED = {each.name.lower(): each for each in OnEvicted}


def adopt(change: Change, topology: Topology) -> None:
    """Make the stored processor the declared one, where that is no guess."""
    row = change.of
    if row.reset is Reset.NO:
        compare(row, topology)
        _same_streams(change)
    else:
        _set_inputs(change, topology)
    change.set(
        kind=KINDS[topology.kind],
        semantics=SEMANTICS[topology.semantics],
        on_evicted=ON_EVICTED[topology.on_evicted],
        outputs=tuple(topology.outputs),
        errors=topology.errors,
        reset=Reset.NO,
    )


def compare(row: ProcessorRow, topology: Topology) -> None:
    """ConflictError where what is stored is of another kind, or reads something else."""
    if row.reset is not Reset.NO:
        return
    stored = {each.alias: each.stream for each in row.inputs}
    declared = {each.alias: each.stream for each in topology.inputs}
    if row.kind is not KINDS[topology.kind]:
        was, now = one_of_kind(row.kind.name.lower()), one_of_kind(topology.kind)
        what = f"was {was} and is {now} now"
    elif stored != declared:
        what = f"read {_words(stored)} and reads {_words(declared)} now"
    else:
        return
    raise ConflictError(f"processor {row.name} {what}; if that is meant: {command('reset', row)}")


def _words(inputs: dict[str, str]) -> str:
    parts = (stream if alias == stream else f"{alias}={stream}" for alias, stream in inputs.items())
    return ", ".join(sorted(parts)) or "nothing"


def command(verb: str, row: ProcessorRow) -> str:
    """What to type; in the text of an error, which goes over the wire without its hint."""
    return shlex.join(("penstock", "graph", verb, *row.name.split("/")))


def _same_streams(change: Change) -> None:
    for each in change.of.inputs:
        log = find_target(change, stream_name(each.stream))
        if log is None or log.log_id != each.stream_id:
            raise _deleted(change.of, each)


def _set_inputs(change: Change, topology: Topology) -> None:
    """Where each input begins: as the reset says."""
    row = change.of
    before = {each.stream_id: each.position for each in row.inputs}
    inputs: list[TailerRow] = []
    for each in topology.inputs:
        name = stream_name(each.stream)
        log = find_target(change, name)
        if log is None:
            log, rows, states = make_target(change, name, change.now)
            change.writes |= rows
            change.states |= states
        if row.reset is Reset.NEW:
            position = log.next
        elif row.reset is Reset.KEEP and log.log_id in before:
            position = before[log.log_id]
        else:
            position = log.first
        inputs.append(TailerRow(each.alias, each.stream, log.log_id, position))
    for stream_id in before.keys() - {each.stream_id for each in inputs}:
        change.hold(stream_id, None)
    change.set(inputs=tuple(inputs), last_chosen=None)


def require_streams(view: Shows, row: ProcessorRow) -> None:
    """ConflictError where an input was deleted, also if there is another one of its name."""
    for each in row.inputs:
        if view.state(state_key(each.stream_id)) is None:
            raise _deleted(row, each)


def _deleted(row: ProcessorRow, tailer: TailerRow) -> ConflictError:
    return ConflictError(
        f"processor {row.name} read a stream {tailer.stream!r} that was deleted; to begin anew: "
        f"{command('reset', row)}"
    )


def require_entries(change: Change, ranges: list[Range]) -> None:
    """Where evicted entries are not to be skipped: NotFoundError if one of these is gone."""
    row = change.of
    firsts = {each.alias: each.first for each in show_tailers(change, row)}
    for each in ranges if row.on_evicted is OnEvicted.STOP else ():
        if each.start < firsts[each.alias] and each.start < each.end:
            raise evicted(row, each.alias, each.start, firsts[each.alias])


def evicted(row: ProcessorRow, alias: str, start: int, first: int) -> NotFoundError:
    stream = next(each.stream for each in row.inputs if each.alias == alias)
    ways = "on_evicted='skip' goes on without them"
    if len(row.inputs) == 1:
        # Else it would bring the other inputs again, and of a join put others side by side.
        ways += f", and so does {command('reset', row)} --start first"
    return NotFoundError(
        f"processor {row.name}: entries {start} to {first - 1} of stream {stream!r} were evicted "
        f"before it read them; {ways}"
    )
