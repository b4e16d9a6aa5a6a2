"""Removing messages that nobody needs: payloads, metadata, and what counts them.

Contract     `plan_reclaim` finds what the given offsets of the metadata log hold; its step removes
             the payloads, punches the metadata where something older lives (log/holes.py), and
             marks the offsets as gone, in one commit. Blocks that are mostly dead are written
             anew, wholly dead ones deleted. What lies at the log's beginning the caller evicts in
             the same submit; it deletes the objects behind it. `living_edge` tells from where on
             the log still holds something.
Safety       What is planned here is dead for good: only a backfill or the router makes a dead
             message alive, and they are chores like this, of which one runs at a time. An offset
             is gone in the commit in which its metadata goes, and rows that asked for it go with
             the last one: whoever dies in between leaves a message that is dead or due, and is
             found again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import msgspec
import numpy as np

from penstock.codec.keys import KeyType, open_key, page_key, payload_key, payloads_from
from penstock.codec.payload import (
    Payload,
    PayloadBlock,
    UriPayload,
    decode_payload,
    encode_payload,
    payload_of,
    payloads_between,
)
from penstock.codec.queueoperation import NO_KEYS, Keys
from penstock.codec.scalars import I64_MAX
from penstock.codec.taken import DEAD, GONE, PAGE_SLOTS
from penstock.errors import ConflictError
from penstock.log.cache import NodeCache
from penstock.log.catalogue import load_name
from penstock.log.decision import Now, Step, View
from penstock.log.place import Rows
from penstock.log.state import LogState, load_log
from penstock.queue.draft import Draft, draft_step
from penstock.queue.message import Fresh, read_ids, runs_of
from penstock.queue.page import Truths, is_in
from penstock.queue.publish import spilled_id
from penstock.queue.route import load_router
from penstock.queue.taken import METADATA, load_taken_page, page_state_key, reclaim_of

#: Offsets of one step.
RECLAIM_COUNT = 4096
#: Ids that are nearer to each other are looked for in one go, a few records at a time.
NEAR_IDS = 1000
SCAN_ROWS = 16
#: Pages that one look for the edge goes through.
EDGE_PAGES = 64


class Plan(msgspec.Struct, frozen=True, eq=False):
    offsets: Keys
    rows: Rows  # of payloads
    objects: list[int]  # to delete when the step is durable


async def plan_reclaim(
    view: View,
    log_id: int,
    offsets: Keys,
    cache: NodeCache | None = None,
    fresh: Fresh | None = None,
) -> Plan:
    """`fresh` knows of messages of the last seconds, as most that die are, what else is read."""
    offsets = offsets[:RECLAIM_COUNT]
    firsts, others = ([], offsets) if fresh is None else fresh.whole_records(offsets)
    rows: Rows = dict.fromkeys(map(payload_key, firsts))
    by_id = await read_ids(view, others.tolist(), cache)
    log = await load_log(view, log_id)
    edge = 0 if log is None else log.first
    ids = np.array(sorted(by_id), np.int64)
    objects: list[int] = []
    for low, high in runs_of(ids, NEAR_IDS) if len(ids) else ():
        async for first, record in _records(view, low, high):
            count = record.count if isinstance(record, PayloadBlock) else 1
            dead = ids[slice(*np.searchsorted(ids, (first, first + count)).tolist())]
            if not len(dead):
                continue
            if isinstance(record, PayloadBlock) and len(dead) < count:
                # Ids and offsets of a block are neighbours: one tells where the others are.
                offset = by_id[int(dead[0])] - (int(dead[0]) - first)
                gone = await _gone(view, log_id, edge, offset, count)
                gone[dead - first] = True
                rows |= _without(first, record, gone)
                continue
            rows[payload_key(first)] = None
            if isinstance(record, UriPayload) and (spilled := spilled_id(record.uri)):
                objects.append(spilled)
    return Plan(offsets, rows, objects)


async def _records(view: View, low: int, high: int) -> AsyncIterator[tuple[int, Payload]]:
    """The records that hold the payloads low <= id < high, each with its first id."""
    row = await view.store.floor(payload_key(low), low=payloads_from(low))
    if row is not None:
        yield _id_of(row[0]), decode_payload(row[1])
    scan = view.store.scan(payload_key(low + 1), payload_key(high), batch_rows=SCAN_ROWS)
    async for rows in scan:
        for key, value in rows:
            yield _id_of(key), decode_payload(value)


def _id_of(key: bytes) -> int:
    return open_key(key, KeyType.PAYLOAD).u64_key("message id")


async def dead_end(view: View) -> int:
    """Dead messages below this offset may go. Under "retention" none may, and what the router has
    not seen may still be taken."""
    if reclaim_of(await load_name(view, METADATA)) == "retention":
        return 0
    cursor = (await load_router(view)).cursor
    return I64_MAX if cursor is None else cursor


async def _gone(view: View, log_id: int, edge: int, offset: int, count: int) -> Truths:
    """Which of these neighbours nobody needs."""
    gone = np.ones(count, np.bool_)
    end = await dead_end(view)
    # Below the edge there are no pages of takers any more: everything there is gone.
    at = max(offset, edge)
    while at < offset + count:
        page = await load_taken_page(view, log_id, at // PAGE_SLOTS)
        slots = page.slots[at - page.first : offset + count - page.first]
        going = np.arange(at, at + len(slots)) < end
        gone[at - offset : at - offset + len(slots)] = (slots == GONE) | (slots == DEAD) & going
        at += len(slots)
    return gone


def _without(first: int, block: PayloadBlock, gone: Truths) -> Rows:
    """The rows of a block without those that are gone; none as long as most are there."""
    alive = np.flatnonzero(~gone)
    if len(alive) > block.count // 2:
        return {}  # later, with the others
    rows: Rows = {payload_key(first): None}
    for low, high in runs_of(alive) if len(alive) else ():
        parts = payloads_between(block, low, high)
        rows[payload_key(first + low)] = encode_payload(payload_of(parts))
    return rows


def reclaim_step(
    log_id: int,
    offsets: Keys,
    punch: Step | None,
    *,
    payloads: Rows | None = None,
    done: Sequence[bytes] = (),
    after_ms: int = -1,
) -> Step:
    """These are gone, but for those that `punch` must plan again. `done`: rows that asked for this,
    and go with it if nothing is left. `after_ms` is when their retention ends: ConflictError where
    the tick began before, as its commit would lack what by its own time is still there. -> what is
    left"""

    async def body(draft: Draft) -> list[int]:
        if draft.now_ms <= after_ms:
            raise ConflictError("their retention is not over by the time of this tick")
        left: list[int] = []
        if punch is not None:
            if punch.load is not None:
                await punch.load(draft.view)
            decision = punch.decide(draft.view, Now(draft.now_ms, b""))
            draft.rows |= decision.writes
            draft.states |= decision.states
            left = list(decision.reply)
        draft.rows |= payloads or {}
        if not left:
            draft.rows |= dict.fromkeys(done)
        await draft.taken.remove(log_id, without(offsets, left))
        return left

    return draft_step(body)


def without(offsets: Keys, left: Sequence[int]) -> Keys:
    return offsets[~is_in(offsets, np.sort(np.array(left, np.uint64)))] if len(left) else offsets


async def living_edge(view: View, log: LogState, gone: Keys = NO_KEYS) -> int:
    """The first offset that is not gone, nor among these; not further than one look goes."""
    edge = log.first
    for number in range(edge // PAGE_SLOTS, edge // PAGE_SLOTS + EDGE_PAGES):
        page = await load_taken_page(view, log.log_id, number)
        needed = page.slots != GONE
        low, high = np.searchsorted(gone, (page.first, page.first + PAGE_SLOTS)).tolist()
        needed[(gone[low:high] - np.uint64(page.first)).astype(np.int64)] = False
        there = np.flatnonzero(needed[max(edge - page.first, 0) :])
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
