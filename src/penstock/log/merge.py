"""The merge: a closed run of fragments becomes one sealed node, and no reader notices.

Contract     `plan_merge` reads and builds, outside the one writer; the step then only looks
             whether the run is still what was merged and swaps the rows: the node under the first
             fragment's key, the others deleted. If anything changed (evicted, punched, merged) it
             does nothing and replies False, with a timer where runs still wait.
Not here     when a run is closed (place.py), link rows (fold.py).
"""

from __future__ import annotations

import msgspec

from penstock.codec.keys import log_key, node_key
from penstock.codec.node import Body, decode_header, decode_node, hole_value, node_value
from penstock.log.decision import Decision, Now, Step, View
from penstock.log.gather import Gathered
from penstock.log.state import (
    NO_RUN,
    LogState,
    Run,
    fragment_of,
    load_log,
    log_row,
    settle,
    state_key,
)
from penstock.log.timers import merge_due
from penstock.store.port import Store


async def plan_merge(store: Store, state: LogState, *, active: bool = False) -> Step | None:
    """The merge of the oldest closed run; with `active` also of the one that still grows."""
    run = state.closed[0] if state.closed else state.run if active else NO_RUN
    if not run.fragments:
        return None
    entries = await read_run(store, state.log_id, run)
    if entries is None:
        return None
    return merge_step(state.log_id, run, entries.body(compress=True), entries.last_ms)


async def read_run(store: Store, log_id: int, run: Run) -> Gathered | None:
    """The run's entries, from memory where they still are. None: the rows are others by now."""
    entries = Gathered()
    bodies = [fragment.body for fragment in run.fragments]
    if None not in bodies:
        for body, fragment in zip(bodies, run.fragments, strict=True):
            assert body is not None
            entries.add_body(body, fragment.time_ms)
        return entries
    expected = iter(run.fragments)
    low, high = node_key(log_id, run.first), node_key(log_id, run.fragments[-1].end)
    async for rows in store.scan(low, high):
        for _, value in rows:
            what = f"log {log_id}, fragment after {run.first}"
            wanted = next(expected, None)
            found = fragment_of(decode_header(value, what))
            if wanted is None or not found.same(wanted):
                return None
            entries.add_node(decode_node(value, what))
    return entries if next(expected, None) is None else None


def merge_step(log_id: int, run: Run, body: Body | None, last_ms: int) -> Step:
    """-> whether the run was merged"""

    async def load(view: View) -> None:
        await load_log(view, log_id)

    def decide(view: View, now: Now) -> Decision:
        state: LogState | None = view.state(state_key(log_id))
        if state is None:
            return Decision(reply=False)
        closed = tuple(other for other in state.closed if not other.same(run))
        active = state.run
        if len(closed) == len(state.closed):
            if not active.same(run):
                timers = (merge_due(log_id, now.ms),) if closed else ()
                return Decision(reply=False, timers=timers)
            active = NO_RUN
        if body is None:
            value = hole_value(first=run.first, count=run.entries, time_ms=last_ms)
        else:
            value = node_value(body, run.first, last_ms)
        delta = len(value) - run.stored_bytes
        merged = msgspec.structs.replace(
            state,
            stored_bytes=state.stored_bytes + delta,
            unsettled_bytes=state.unsettled_bytes + delta,
            unsettled_rows=state.unsettled_rows - len(run.fragments) + 1,
            run=active,
            closed=closed,
        )
        rows = dict.fromkeys(node_key(log_id, fragment.first) for fragment in run.fragments[1:])
        writes: dict[bytes, bytes | None] = {node_key(log_id, run.first): value, **rows}
        settled = settle(merged)
        if settled is not merged:
            writes[log_key(log_id)] = log_row(settled)
        return Decision(reply=True, writes=writes, states={state_key(log_id): settled})

    return Step(decide, load)
