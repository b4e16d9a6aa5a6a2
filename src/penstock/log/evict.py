"""Eviction: the edge of a log moves, exactly, and what lies below it is left to be collected.

Contract     `evict_step` ignores holds, `trim_step` stops at the lowest one. Both reply with the
             number of offsets that went. The commit is small whatever it evicts: the log row with
             the new edge and one garbage row. `delete_step` takes the name and the log row away;
             what remains under the log's id is garbage, and the id is never used again.
Not here     removing rows (collect.py).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from penstock.codec.garbage import encode_garbage
from penstock.codec.keys import (
    Scope,
    garbage_key,
    holds_prefix,
    log_key,
    name_key,
    node_key,
    nodes_prefix,
    once_key,
    prefix_end,
)
from penstock.codec.node import decode_header
from penstock.codec.scalars import encode_terminated
from penstock.errors import InvalidError
from penstock.log.catalogue import (
    LogName,
    NameState,
    Target,
    find_target,
    load_target,
    name_state_key,
)
from penstock.log.decision import Decision, Now, Step, View
from penstock.log.hold import trimmed_first
from penstock.log.place import Rows
from penstock.log.state import LogState, Run, log_row, make_run, state_key
from penstock.log.timers import garbage_due
from penstock.store.port import Store

#: How much of a log one look reads to find where it should begin: it must end within a deadline.
LOOK_BYTES = 256 << 20


def evict_to(state: LogState, first: int) -> tuple[LogState, Rows]:
    """The log without what lies below `first`, and the rows that say so. Pure."""
    assert state.first < first <= state.next
    closed = tuple(run for run in (_above(run, first) for run in state.closed) if run.fragments)
    moved = msgspec.structs.replace(state, first=first, run=_above(state.run, first), closed=closed)
    lowest_key = node_key(state.log_id, state.lowest)
    return moved, {
        log_key(state.log_id): log_row(moved),
        # Evicting again before anything is collected writes the same row, with a later end.
        garbage_key(lowest_key): encode_garbage(node_key(state.log_id, first)),
    }


def _above(run: Run, first: int) -> Run:
    """Fragments below the edge must not be merged: they may be collected at any time."""
    if not run.fragments or run.first >= first:
        return run
    return make_run(fragment for fragment in run.fragments if fragment.end > first)


def evict_step(target: Target, *, up_to: int | None = None, keep: int | None = None) -> Step:
    """Evict everything up to an offset, inclusive, or all but the newest `keep`."""
    if (up_to is None) == (keep is None):
        raise InvalidError("evict either up to an offset or keep a number of entries")
    if keep is not None and keep < 0:
        raise InvalidError(f"cannot keep {keep} entries")

    def first_of(state: LogState) -> int:
        first = up_to + 1 if up_to is not None else state.next - (keep or 0)
        return max(state.first, min(first, state.next))

    return _move_step(target, first_of)


def trim_step(target: Target, *, count: int | None = None, before: int | None = None) -> Step:
    """Retention: keep at least the newest `count`, or what lies at and after `before`."""
    if (count is None) == (before is None):
        raise InvalidError("trim either to a number of entries or before an offset")

    def first_of(state: LogState) -> int:
        first = before if before is not None else state.next - (count or 0)
        return trimmed_first(state, first)

    return _move_step(target, first_of)


def _move_step(target: Target, first_of: Callable[[LogState], int]) -> Step:
    async def load(view: View) -> None:
        await load_target(view, target)

    def decide(view: View, now: Now) -> Decision:
        state = find_target(view, target)
        if state is None or (first := first_of(state)) == state.first:
            return Decision(reply=0)
        moved, rows = evict_to(state, first)
        return Decision(
            reply=first - state.first,
            writes=rows,
            states={state_key(state.log_id): moved},
            timers=(garbage_due(now.ms),),
        )

    return Step(decide, load)


async def first_by_bytes(store: Store, state: LogState, bytes_max: int) -> int:
    """Where a log begins that takes at most so many stored bytes, in whole nodes; where that is
    far, a part of the way: who moves the edge there looks again."""
    excess = min(state.stored_bytes - bytes_max, LOOK_BYTES)
    if excess <= 0:
        return state.first
    low = node_key(state.log_id, state.lowest)
    async for rows in store.scan(low, prefix_end(nodes_prefix(state.log_id)), batch_rows=16):
        for key, value in rows:
            excess -= len(value)
            if excess <= 0:
                return decode_header(value, f"node {key.hex()}").end
    return state.next


def delete_step(name: LogName) -> Step:
    """-> whether there was such a log"""

    async def load(view: View) -> None:
        await load_target(view, name)

    def decide(view: View, now: Now) -> Decision:
        state = find_target(view, name)
        if state is None:
            return Decision(reply=False)
        log_id = state.log_id
        producers = once_key(Scope.PRODUCER, log_id, b"").removesuffix(encode_terminated(b""))
        rows: Rows = {name_key(name.kind, name.name): None, log_key(log_id): None}
        for low in (nodes_prefix(log_id), holds_prefix(log_id), producers):
            rows[garbage_key(low)] = encode_garbage(prefix_end(low))
        return Decision(
            reply=True,
            writes=rows,
            states={name_state_key(name): NameState(None), state_key(log_id): None},
            timers=(garbage_due(now.ms),),
        )

    return Step(decide, load)
