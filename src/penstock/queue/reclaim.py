"""Removing messages that nobody needs: payloads, metadata, and what counts them.

Contract     `plan_reclaim` finds what the given offsets of the metadata log hold; its step removes
             the payloads and marks the offsets as gone, in one commit. Blocks that are mostly dead
             are written anew, wholly dead ones deleted. The caller punches the metadata in the same
             submit (log/holes.py) and deletes the objects behind it. `living_edge` tells from where
             on the log still holds something, for eviction.
Safety       What is planned here is dead for good: no decision makes a dead message alive, and only
             one reclaim runs at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from penstock.codec.keys import KeyType, open_key, page_key, payload_key, prefix, prefix_end
from penstock.codec.payload import (
    PayloadBlock,
    UriPayload,
    decode_payload,
    encode_payload,
    payload_at,
    payload_of,
)
from penstock.codec.queueoperation import Keys
from penstock.codec.scalars import U64_MAX
from penstock.codec.taken import DEAD, GONE, PAGE_SLOTS
from penstock.log.cache import NodeCache
from penstock.log.decision import Step, View
from penstock.log.place import Rows
from penstock.log.state import LogState, load_log
from penstock.queue.draft import Draft, draft_step
from penstock.queue.message import read_metadata
from penstock.queue.publish import spilled_id
from penstock.queue.taken import load_taken_page, page_state_key

#: Offsets of one step.
RECLAIM_COUNT = 4096
#: Pages that one look for the edge goes through.
EDGE_PAGES = 64


class Plan(msgspec.Struct, frozen=True, eq=False):
    offsets: Keys
    rows: Rows  # of payloads
    objects: list[int]  # to delete when the step is durable


async def plan_reclaim(
    view: View, log_id: int, offsets: Keys, cache: NodeCache | None = None
) -> Plan:
    offsets = offsets[:RECLAIM_COUNT]
    metadata = await read_metadata(view, offsets.tolist(), cache)
    log = await load_log(view, log_id)
    edge = 0 if log is None else log.first
    ids = {about.message_id: offset for offset, about in metadata.items()}
    rows: Rows = {}
    objects: list[int] = []
    end = 0
    for number in sorted(ids):
        if number < end:
            continue  # in the block that was just looked at, or gone with an earlier one
        row = await view.store.floor(payload_key(number), low=prefix(KeyType.PAYLOAD))
        first, payload = (0, None) if row is None else (_id_of(row[0]), decode_payload(row[1]))
        count = payload.count if isinstance(payload, PayloadBlock) else 1
        if row is None or payload is None or first + count <= number:
            end = await _next_id(view, number)
            continue
        end = first + count
        if isinstance(payload, PayloadBlock):
            rows |= await _without_dead(view, log_id, edge, first, payload, ids, number)
            continue
        rows[row[0]] = None
        if isinstance(payload, UriPayload) and (spilled := spilled_id(payload.uri)):
            objects.append(spilled)
    return Plan(offsets, rows, objects)


def _id_of(key: bytes) -> int:
    return open_key(key, KeyType.PAYLOAD).u64_key("message id")


async def _next_id(view: View, number: int) -> int:
    """The first id above this that has a record of its own."""
    end = prefix_end(prefix(KeyType.PAYLOAD))
    async for rows in view.store.scan(payload_key(number), end, batch_rows=1):
        return _id_of(rows[0][0])
    return U64_MAX


async def _without_dead(
    view: View,
    log_id: int,
    edge: int,
    first: int,
    block: PayloadBlock,
    ids: dict[int, int],
    known: int,
) -> Rows:
    """The rows of a block once these ids are dead. Ids and offsets of a block are neighbours, so
    one of them tells where the others are."""
    offset = ids[known] - (known - first)
    alive: list[int] = []
    for i in range(block.count):
        # Below the edge there are no pages of takers any more: everything there is gone.
        gone = offset + i < edge or first + i in ids
        if not gone and not await _is_dead(view, log_id, offset + i):
            alive.append(i)
    if len(alive) > block.count // 2:
        return {}  # later, with the others
    rows: Rows = {payload_key(first): None}
    run: list[int] = []
    for i in [*alive, block.count + 1]:
        if run and i != run[-1] + 1:
            parts = [payload_at(block, at) or b"" for at in run]
            rows[payload_key(first + run[0])] = encode_payload(payload_of(parts))
            run = []
        run.append(i)
    return rows


async def _is_dead(view: View, log_id: int, offset: int) -> bool:
    page = await load_taken_page(view, log_id, offset // PAGE_SLOTS)
    return bool(page.slots[offset % PAGE_SLOTS] >= DEAD)


def reclaim_step(log_id: int, plan: Plan, done: Sequence[bytes] = ()) -> Step:
    """`done`: rows that asked for this, and go with it."""

    async def body(draft: Draft) -> None:
        draft.rows |= plan.rows
        draft.rows |= dict.fromkeys(done)
        await draft.taken.remove(log_id, plan.offsets)

    return draft_step(body)


async def living_edge(view: View, log: LogState) -> int:
    """The first offset that is not gone; not further than one look goes."""
    edge = log.first
    for number in range(edge // PAGE_SLOTS, edge // PAGE_SLOTS + EDGE_PAGES):
        page = await load_taken_page(view, log.log_id, number)
        there = np.flatnonzero(page.slots[max(edge - page.first, 0) :] != GONE)
        if len(there):
            return min(max(edge, page.first) + int(there[0]), log.next)
        edge = page.first + PAGE_SLOTS
    return min(edge, log.next)


def forget_pages_step(log_id: int, low: int, high: int) -> Step:
    """Pages low <= number < high lie below the log's first offset: nobody asks for them."""

    async def body(draft: Draft) -> None:
        for number in range(low, high):
            draft.rows[page_key(log_id, number)] = None
            draft.states[page_state_key(log_id, number)] = None

    return draft_step(body)
