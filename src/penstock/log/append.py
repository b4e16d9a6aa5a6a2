"""Append: bodies get the next offsets and the commit's time; the log is made by its first write.

Contract     `append_step(target, bodies)` replies with the range of offsets. All bodies enter in
             one commit. With `producer` and `sequence` a repetition replies with the first answer
             and writes nothing; with `backlog` older entries go, so that at least that many
             remain.
Invariants   Offsets are dense, and no offset is ever given twice: the next one is the end of the
             last node, or the edge where all nodes are gone.
Not here     making bodies (batch.py), where they go (place.py), merging (merge.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.codec.keys import log_key
from penstock.codec.node import Body
from penstock.errors import InvalidError, NotFoundError
from penstock.log.batch import NODE_ENTRIES
from penstock.log.catalogue import LogName, States, Target, find_target, load_target, make_target
from penstock.log.decision import Decision, Now, Step, Timer, View
from penstock.log.evict import evict_to
from penstock.log.hold import trimmed_first
from penstock.log.once import ONCE_MS
from penstock.log.place import Rows, place
from penstock.log.producer import check_produced, produced_rows, repeated
from penstock.log.state import LogState, log_row, settle, state_key
from penstock.log.timers import garbage_due, merge_due


def append_step(
    target: Target,
    bodies: Sequence[Body],
    *,
    producer: bytes | None = None,
    sequence: int | None = None,
    backlog: int | None = None,
    once_ms: int = ONCE_MS,
) -> Step:
    """-> range of offsets. A `LogName` that does not exist is made; an id must exist."""
    produced = check_produced(producer, sequence, once_ms)
    if backlog is not None and backlog < 0:
        raise InvalidError(f"backlog {backlog} is negative")

    async def load(view: View) -> None:
        log_id = await load_target(view, target, make=True)
        if produced is not None and log_id is not None:
            await view.fetch(produced.key(log_id))

    def decide(view: View, now: Now) -> Decision:
        state = find_target(view, target)
        rows: Rows = {}
        states: States = {}
        fresh = state is None
        if state is None and not isinstance(target, LogName):
            raise NotFoundError(f"log {target} does not exist")
        if not bodies:
            # Nothing is made and nothing is remembered, a producer's sequence neither.
            at = 0 if state is None else state.next
            return Decision(reply=range(at, at))
        if state is None:
            assert isinstance(target, LogName)
            state, rows, states = make_target(view, target, now)
        if produced is not None:
            if not fresh and (known := repeated(view, state.log_id, produced, now.ms)) is not None:
                return Decision(reply=known)
            offsets = range(state.next, state.next + sum(body.count for body in bodies))
            rows |= produced_rows(state.log_id, produced, offsets, now.ms)
        grown, nodes = place(state, bodies, now.ms)
        rows |= nodes
        reply = range(state.next, grown.next)
        timers: tuple[Timer, ...] = (
            (merge_due(state.log_id, now.ms),) if len(grown.closed) > len(state.closed) else ()
        )
        settled = settle(grown)
        if settled is not grown:
            rows[log_key(state.log_id)] = log_row(settled)
        if backlog is not None and (first := _backlog_first(settled, backlog)) > settled.first:
            settled, evicted = evict_to(settled, first)
            rows |= evicted
            timers += (garbage_due(now.ms),)
        states[state_key(state.log_id)] = settled
        return Decision(reply=reply, writes=rows, states=states, timers=timers)

    return Step(decide, load, size=sum(len(body.stored) for body in bodies))


def _backlog_first(state: LogState, backlog: int) -> int:
    """BACKLOG keeps *at least* so many: the edge moves by a node's worth, not at every write."""
    first = trimmed_first(state, state.next - backlog)
    return first if first - state.first >= NODE_ENTRIES else state.first
