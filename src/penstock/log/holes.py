"""Holes: entries die in place. Their bytes go, their offsets stay and read as None.

Contract     `plan_holes` rebuilds the nodes that hold the given offsets, outside the one writer, a
             few megabytes at a time; the step swaps those rows that are still what was read. It
             replies with the offsets that must be planned again, because their node changed
             meanwhile. A node without a living entry becomes a hole row.
Cost         One lookup per node that is touched, and others have their turn between two of them;
             the list of offsets is walked once.
Not here     which entries die: compaction by tag, expiry (the views).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import msgspec
import numpy as np

from penstock.clock import give_way
from penstock.codec.keys import decode_node_key, log_key
from penstock.codec.node import (
    FRAGMENT,
    Node,
    build_body,
    decode_header,
    hole_value,
    node_value,
    tag_signature,
)
from penstock.log.batch import column, is_large
from penstock.log.decision import Decision, Now, Step, View
from penstock.log.place import Rows
from penstock.log.read import floor_node, open_node
from penstock.log.state import (
    LogState,
    Run,
    fragment_of,
    load_log,
    log_row,
    make_run,
    resized,
    state_key,
)
from penstock.store.port import Store

PUNCH_BYTES = 4 << 20


class Punch(msgspec.Struct, frozen=True):
    key: bytes
    old: bytes  # the row as it was read
    new: bytes
    offsets: tuple[int, ...]


async def plan_holes(
    store: Store, state: LogState, offsets: Sequence[int]
) -> tuple[Step | None, list[int]]:
    """-> a step, and the offsets that it leaves for the next plan."""
    left = sorted({offset for offset in offsets if state.first <= offset < state.next})
    punches: list[Punch] = []
    size = 0
    at = 0
    while at < len(left) and size < PUNCH_BYTES:
        await give_way()
        lowest = left[at]
        row = await floor_node(store, state.log_id, lowest)
        node = None if row is None else await open_node(store, state.log_id, *row)
        if row is None or node is None or node.end <= lowest:
            # Evicted since `state`: there is nothing to punch any more.
            at += 1
            continue
        end = bisect_left(left, node.end, at)
        here, at = left[at:end], end
        new = punched(node, here, fragment=bool(decode_header(row[1], "node").flags & FRAGMENT))
        if new is not None:
            punches.append(Punch(*row, new, tuple(here)))
            # What is held until the step is decided, not what it writes: a dead node is 48 bytes.
            size += max(len(row[1]), len(new))
    return (punch_step(state.log_id, punches) if punches else None), left[at:]


def punched(node: Node, offsets: Sequence[int], *, fragment: bool) -> bytes | None:
    """The node's value without these entries; None when all of them are dead already. Pure."""
    before = node.alive()
    alive = np.ones(node.count, np.bool_) if before is None else before.copy()
    dead = np.array(offsets, np.int64) - node.first
    if not alive[dead].any():
        return None
    alive[dead] = False
    if not alive.any():
        return hole_value(
            first=node.first, count=node.count, time_ms=node.last_ms(), fragment=fragment
        )
    lives = alive.tolist()

    def kept(items: Sequence[bytes | None]) -> list[bytes]:
        return [item or b"" if live else b"" for item, live in zip(items, lives, strict=True)]

    data = kept(node.data_list(0, node.count))
    tags = kept(node.tag_list(0, node.count))
    metas = kept(node.meta_list(0, node.count))
    tagged = any(tags)
    body = build_body(
        node.count,
        column(data, "data"),
        tags=column(tags, "tag") if tagged else None,
        meta=column(metas, "meta") if any(metas) else None,
        validity=np.packbits(alive, bitorder="little").tobytes(),
        times=None if node.times is None else node.times.tobytes(),
        compress=not fragment or is_large(node.count, len(node.raw)),
        signature=tag_signature(set(tags)) if tagged and not fragment else 0,
    )
    return node_value(body, node.first, node.time_ms, fragment=fragment)


def punch_step(log_id: int, punches: Sequence[Punch]) -> Step:
    """-> offsets whose node changed since the plan"""

    async def load(view: View) -> None:
        await load_log(view, log_id)
        await view.fetch(*(punch.key for punch in punches))

    def decide(view: View, now: Now) -> Decision:
        state: LogState | None = view.state(state_key(log_id))
        if state is None:
            return Decision(reply=())
        rows: Rows = {}
        again: list[int] = []
        for punch in punches:
            if punch.offsets[-1] < state.first:
                continue
            if view.row(punch.key) != punch.old:
                again += punch.offsets
                continue
            rows[punch.key] = punch.new
            state = _replaced(state, punch)
            if decode_node_key(punch.key)[1] < state.settled:
                rows[log_key(log_id)] = log_row(state)
        if not rows:
            return Decision(reply=tuple(again))
        return Decision(reply=tuple(again), writes=rows, states={state_key(log_id): state})

    return Step(decide, load)


def _replaced(state: LogState, punch: Punch) -> LogState:
    header = decode_header(punch.new, "punched node")
    state = resized(state, header.first, len(punch.new) - len(punch.old))
    if not header.flags & FRAGMENT:
        return state
    fragment = fragment_of(header)

    def within(run: Run) -> Run:
        if not run.fragments or not run.first <= fragment.first < run.fragments[-1].end:
            return run
        return make_run(fragment if f.first == fragment.first else f for f in run.fragments)

    return msgspec.structs.replace(
        state, run=within(state.run), closed=tuple(map(within, state.closed))
    )
