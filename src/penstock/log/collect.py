"""Collecting garbage: rows below an edge, of a deleted log, of a revoked staging; a few at a time.

Contract     `plan_collect` looks at one garbage row and returns a step that removes at most
             COLLECT_ROWS rows and moves the garbage row behind them, or removes it when nothing is
             left. The step always replies True: look for the next garbage row, until there is none.
Safety       What the plan saw was dead already, and no decision writes a dead row: evicted
             fragments are in no run, folds and punches leave evicted nodes alone, ids are never
             used again. A node that reaches over the edge stays.
"""

from __future__ import annotations

import msgspec

from penstock.codec.garbage import decode_garbage, encode_garbage
from penstock.codec.keys import (
    KeyType,
    garbage_key,
    key_type,
    log_key,
    node_key,
    open_key,
    prefix,
    prefix_end,
    staging_key,
)
from penstock.codec.logrow import decode_log
from penstock.codec.node import decode_header
from penstock.log.decision import Decision, Now, Step, View
from penstock.log.place import Rows
from penstock.log.state import LogState, load_log, log_row, state_key
from penstock.store.port import Row, Store

COLLECT_ROWS = 1000


async def next_garbage(store: Store, after: bytes = b"") -> Row | None:
    """The first garbage row above this key."""
    low = after + b"\x00" if after else prefix(KeyType.GARBAGE)
    async for rows in store.scan(low, prefix_end(prefix(KeyType.GARBAGE)), batch_rows=1):
        return rows[0]
    return None


async def plan_collect(store: Store, key: bytes, value: bytes) -> Step:
    first_key, end_key = decode_garbage(key, value)
    if key_type(first_key) is KeyType.NODE:
        log_id = open_key(first_key, KeyType.NODE).u64_key("log id")
        found = await store.get(log_key(log_id))
        if found is not None:
            edge = decode_log(found, log_id).first
            return await _plan_log(store, key, log_id, first_key, edge)
    staging_id = None
    if key_type(first_key) is KeyType.STAGED:
        staging_id = open_key(first_key, KeyType.STAGED).u64_key("staging id")
    keys: list[bytes] = []
    async for rows in store.scan(first_key, end_key, batch_rows=100):
        keys += [found_key for found_key, _ in rows]
        if len(keys) >= COLLECT_ROWS:
            break
    more = len(keys) >= COLLECT_ROWS
    return _range_step(key, keys[:COLLECT_ROWS], end_key, staging_id, more=more)


def _range_step(
    key: bytes, keys: list[bytes], end_key: bytes, staging_id: int | None, *, more: bool
) -> Step:
    """Everything in the range is dead. A staging is forgotten with the last of its nodes."""

    async def load(view: View) -> None:
        await view.fetch(key)

    def decide(view: View, now: Now) -> Decision:
        if view.row(key) is None:
            return Decision(reply=True)
        rows: Rows = dict.fromkeys([key, *keys])
        if more:
            rows[garbage_key(keys[-1] + b"\x00")] = encode_garbage(end_key)
            return Decision(reply=True, writes=rows)
        if staging_id is None:
            return Decision(reply=True, writes=rows)
        rows[staging_key(staging_id)] = None
        return Decision(reply=True, writes=rows, states={("staging", staging_id): None})

    return Step(decide, load)


async def _plan_log(store: Store, key: bytes, log_id: int, first_key: bytes, edge: int) -> Step:
    dead: list[tuple[int, int, int]] = []  # first, end, size
    more = False
    # To the edge, not to the end that the garbage row names: the edge was read later, and the step
    # takes everything below it for looked at.
    async for rows in store.scan(first_key, node_key(log_id, edge), batch_rows=32):
        for found_key, value in rows:
            header = decode_header(value, f"log {log_id} node {found_key[-8:].hex()}")
            if header.end <= edge:
                dead.append((header.first, header.end, len(value)))
        if len(dead) >= COLLECT_ROWS:
            more = True
            break
    return _log_step(key, log_id, dead[:COLLECT_ROWS], edge, more=more)


def _log_step(
    key: bytes, log_id: int, dead: list[tuple[int, int, int]], edge: int, *, more: bool
) -> Step:
    async def load(view: View) -> None:
        await view.fetch(key)
        await load_log(view, log_id)

    def decide(view: View, now: Now) -> Decision:
        value = view.row(key)
        state: LogState | None = view.state(state_key(log_id))
        if value is None or state is None:
            # Collected already; or deleted meanwhile, and then its whole range is garbage.
            return Decision(reply=True)
        assert key == garbage_key(node_key(log_id, state.lowest)), "both move in one commit"
        rows: Rows = {key: None}
        lowest = dead[-1][1] if dead else state.lowest
        size = unsettled = unsettled_rows = 0
        for first, _, stored in dead:
            rows[node_key(log_id, first)] = None
            size += stored
            if first >= state.settled:
                unsettled += stored
                unsettled_rows += 1
        moved = msgspec.structs.replace(
            state,
            lowest=lowest,
            settled=max(state.settled, lowest),
            stored_bytes=state.stored_bytes - size,
            unsettled_bytes=state.unsettled_bytes - unsettled,
            unsettled_rows=state.unsettled_rows - unsettled_rows,
        )
        # The edge may have moved since the plan was made: then the rest of it is not looked at yet.
        again = more or state.first != edge
        if again:
            rows[garbage_key(node_key(log_id, lowest))] = encode_garbage(
                node_key(log_id, state.first)
            )
        rows[log_key(log_id)] = log_row(moved)
        return Decision(reply=True, writes=rows, states={state_key(log_id): moved})

    return Step(decide, load)
