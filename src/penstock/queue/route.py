"""The router: which queues take a message.

Contract     `route` gives the messages of one batch to their queues, within the given draft.
             Publishing calls it for its own batch while the router is at the tail of the metadata
             log. Where it is behind (`leave_step`: messages are linked without routing) a cursor
             row says how far it is, publishing leaves everything to it, and `catch_up_step` goes on
             from there, a part at a time, each with its cursor in one commit: nothing is skipped
             and nothing comes twice, whenever it is killed. Who routes a message also says when it
             leaves the system. `backfill_step` does the same for one new queue and
             what was there before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.codec.keys import (
    KeyType,
    expiry_key,
    open_key,
    payload_key,
    payloads_from,
    router_key,
)
from penstock.codec.metadata import Metadata, decode_metadata
from penstock.codec.payload import PayloadBlock, decode_payload
from penstock.codec.queuestate import AVAILABLE, Entries
from penstock.codec.router import decode_cursor, encode_cursor, encode_expiry
from penstock.codec.scalars import NEVER_MS
from penstock.codec.taken import DEAD, PAGE_SLOTS
from penstock.log.cache import NodeCache
from penstock.log.catalogue import (
    LogName,
    NameState,
    find_target,
    load_name,
    load_target,
    name_state_key,
    open_target,
)
from penstock.log.decision import StateKey, Step, Timer, View
from penstock.log.read import read_nodes
from penstock.log.state import LogState, state_key
from penstock.queue.allqueues import AllQueues, load_all_queues
from penstock.queue.draft import Draft, draft_step
from penstock.queue.filter import DEFAULT_PRIORITY, PRIORITY_HEADER, Rows, header_priorities
from penstock.queue.item import NO_HEADERS, PreparedBatch
from penstock.queue.place import insert
from penstock.queue.state import Change, load_queue_by_id
from penstock.queue.taken import METADATA, load_taken_page, reclaim_of

#: How many messages one step of the router looks at.
ROUTE_COUNT = 2000
#: What one step reads to see whether payloads are there, each look counted as so much at least:
#: everybody's commits wait for it.
LOOK_BYTES, LOOK_BYTES_MIN = 16 << 20, 64 << 10

ROUTER: StateKey = ("router", None)
MESSAGES_DUE: StateKey = ("messages", None)


class RouterState(msgspec.Struct, frozen=True):
    cursor: int | None  # None: at the tail


async def load_router(view: View) -> RouterState:
    state: RouterState | None = view.state(ROUTER)
    if state is None:
        value = await view.store.get(router_key())
        state = RouterState(None if value is None else decode_cursor(value))
        view.keep(ROUTER, state)
    return state


class Batch:
    """Neighbouring messages of the metadata log, as the router sees them."""

    def __init__(
        self,
        rows: Rows,
        offsets: npt.NDArray[np.uint64],
        retention_ms: npt.NDArray[np.int64],
        to: Sequence[str | None] | None,
    ) -> None:
        self.rows = rows
        self.offsets = offsets
        self.retention_ms = retention_ms  # deadlines
        self.to = to  # None: no message is addressed
        self._default: npt.NDArray[np.uint8] | None = None

    @classmethod
    def of(cls, fixed: npt.NDArray[np.void], batch: PreparedBatch, offset: int) -> Batch:
        """Of messages that are being published at this offset."""
        return cls._make(
            fixed["message_id"].astype(np.int64),
            fixed["created_at_ms"].astype(np.int64),
            fixed["received_at_ms"].astype(np.int64),
            fixed["visible_at_ms"].astype(np.int64),
            fixed["retention_s"].astype(np.int64),
            [NO_HEADERS] * len(batch) if batch.headers is None else batch.headers,
            np.arange(offset, offset + len(batch), dtype=np.uint64),
            batch.to,
            default=batch.headers is None,
        )

    @classmethod
    def read(cls, found: Sequence[Metadata], offsets: Sequence[int]) -> Batch:
        def column(name: str) -> npt.NDArray[np.int64]:
            return np.array([getattr(each, name) for each in found], np.int64)

        return cls._make(
            column("message_id"),
            column("created_at_ms"),
            column("received_at_ms"),
            column("visible_at_ms"),
            column("retention_s"),
            [dict(each.headers) for each in found],
            np.array(offsets, np.uint64),
            [each.to for each in found] if any(each.to is not None for each in found) else None,
        )

    @classmethod
    def _make(
        cls,
        ids: npt.NDArray[np.int64],
        created: npt.NDArray[np.int64],
        received: npt.NDArray[np.int64],
        visible: npt.NDArray[np.int64],
        retention_s: npt.NDArray[np.int64],
        headers: Sequence[Mapping[str, str]],
        offsets: npt.NDArray[np.uint64],
        to: Sequence[str | None] | None,
        default: bool = False,
    ) -> Batch:
        rows = Rows(ids, created, received, visible, retention_s, headers)
        deadlines = np.where(retention_s == 0, NEVER_MS, received + 1000 * retention_s)
        batch = cls(rows, offsets, deadlines, to)
        if default:  # no message says a priority
            batch._default = np.full(len(rows), DEFAULT_PRIORITY, np.uint8)
        return batch

    def entries(self, change: Change, chosen: npt.NDArray[np.intp]) -> Entries:
        """The chosen ones as available messages of this queue."""
        entries = np.zeros(len(chosen), AVAILABLE)
        entries["message_id"] = self.rows.ids[chosen]
        entries["visible_at_ms"] = self.rows.visible_at_ms[chosen]
        entries["retention_deadline_ms"] = self.retention_ms[chosen]
        entries["offset"] = self.offsets[chosen]
        entries["priority"] = self._priorities(change)[chosen]
        return entries

    def _priorities(self, change: Change) -> npt.NDArray[np.uint8]:
        expression = change.settings.priority
        if expression is not None:
            return expression.column(self.rows)
        if self._default is None:
            some = any(PRIORITY_HEADER in headers for headers in self.rows.headers)
            self._default = (
                header_priorities(self.rows)
                if some
                else np.full(len(self.rows), DEFAULT_PRIORITY, np.uint8)
            )
        return self._default


async def route(draft: Draft, batch: Batch) -> None:
    """To every queue that takes some of them, unless the router is behind."""
    if (await load_router(draft.view)).cursor is not None:
        return
    await _give(draft, batch, await load_all_queues(draft.view))


async def _give(draft: Draft, batch: Batch, queues: AllQueues) -> None:
    _expire_later(draft, batch)
    chosen = _chosen(batch, queues)
    counts = np.zeros(len(batch.offsets), np.uint64)
    log_id = _log_id(draft)
    for incarnation, positions in chosen.items():
        change = draft.change(
            await load_queue_by_id(draft.view, incarnation, queues.names[incarnation])
        )
        # What was published before the queue was made is for its backfill, or not for it.
        positions = positions[batch.offsets[positions] >= change.before.head.start]
        if len(positions):
            await _enter(change, batch, positions)
            counts[positions] += np.uint64(1)
    await draft.taken.take(log_id, batch.offsets, counts)


def _expire_later(draft: Draft, batch: Batch) -> None:
    """Neighbours with one deadline share a row."""
    deadlines, offsets = batch.retention_ms, batch.offsets
    if (deadlines == NEVER_MS).all():
        return
    edges = np.flatnonzero(np.diff(deadlines) | (np.diff(offsets) != 1)) + 1
    for low, high in pairwise([0, *edges.tolist(), len(deadlines)]):
        deadline_ms = int(deadlines[low])
        if deadline_ms != NEVER_MS:
            draft.rows[expiry_key(deadline_ms, int(offsets[low]))] = encode_expiry(high - low)
            draft.timers.append(Timer(deadline_ms + 1, MESSAGES_DUE))


async def _enter(change: Change, batch: Batch, positions: npt.NDArray[np.intp]) -> None:
    await insert(change, batch.entries(change, positions))
    change.set(routed=change.head.routed + len(positions))


def _log_id(draft: Draft) -> int:
    name: NameState | None = draft.state(name_state_key(METADATA))
    assert name is not None, "there are messages in it"
    assert name.row is not None, "there are messages in it"
    return name.row.id


def _chosen(batch: Batch, queues: AllQueues) -> dict[int, npt.NDArray[np.intp]]:
    """Positions in the batch, by queue."""
    if batch.to is None:
        return queues.matcher.route(batch.rows)
    addressed = np.array([to is not None for to in batch.to])
    chosen = {
        number: left
        for number, found in queues.matcher.route(batch.rows).items()
        if len(left := found[~addressed[found]])
    }
    named: dict[str, list[int]] = {}
    for position, to in enumerate(batch.to):
        if to is not None:
            named.setdefault(to, []).append(position)
    for name, positions in named.items():
        number = queues.find(name)
        if number is not None:  # else it was deleted since
            here = np.array(positions, np.intp)
            chosen[number] = np.sort(np.concatenate((chosen.get(number, here[:0]), here)))
    return chosen


# ---- behind -----------------------------------------------------------------------------------


def leave_step() -> Step:
    """Before a step of the same submit that links messages: they are left to the router."""

    async def body(draft: Draft) -> None:
        if (await load_router(draft.view)).cursor is None:
            await load_target(draft.view, METADATA)
            log = find_target(draft.view, METADATA)
            tail = 0 if log is None else log.next
            draft.rows[router_key()] = encode_cursor(tail)
            draft.states[ROUTER] = RouterState(tail)
        draft.timers.append(Timer(draft.now_ms, ROUTER))

    return draft_step(body)


def catch_up_step(cache: NodeCache | None = None) -> Step:
    """Route the next messages. -> whether there are more"""

    async def body(draft: Draft) -> bool:
        router = await load_router(draft.view)
        log = await open_target(draft.view, METADATA)
        if router.cursor is None or log is None:
            return False
        batch, end = await _read(draft, log, router.cursor, log.next, cache)
        if batch is not None:
            await _give(draft, batch, await load_all_queues(draft.view))
        done = end >= log.next
        draft.rows[router_key()] = None if done else encode_cursor(end)
        draft.states[ROUTER] = RouterState(None if done else end)
        return not done

    return draft_step(body)


def backfill_step(name: LogName, cache: NodeCache | None = None) -> Step:
    """Give a new queue the next of the messages that were there before it. -> whether there are
    more"""

    async def body(draft: Draft) -> bool:
        change = await draft.queue(name)
        log = await open_target(draft.view, METADATA)
        head = change.head
        if head.backfill >= head.backfill_end or log is None:
            return False
        batch, end = await _read(draft, log, head.backfill, head.backfill_end, cache)
        if batch is not None:
            end = await _backfill(draft, change, batch, log, end)
        change.set(backfill=end)
        return end < head.backfill_end

    return draft_step(body)


async def _backfill(draft: Draft, change: Change, batch: Batch, log: LogState, end: int) -> int:
    """-> where it goes on: at `end`, or before"""
    settings = change.settings
    rows = batch.rows
    takes = (
        np.ones(len(rows), np.bool_) if settings.filter is None else settings.filter.select(rows)
    )
    if batch.to is not None:
        takes &= np.array([to is None for to in batch.to])
    takes &= batch.retention_ms >= draft.now_ms
    living = await _living(draft, log.log_id, batch)
    if len(living) < len(takes):
        end = int(batch.offsets[len(living)])
        takes[len(living) :] = False
    takes[: len(living)] &= living
    positions = np.flatnonzero(takes)
    if len(positions):
        await _enter(change, batch, positions)
        await draft.taken.take(log.log_id, batch.offsets, takes.astype(np.uint64))
    return end


async def _living(draft: Draft, log_id: int, batch: Batch) -> npt.NDArray[np.bool_]:
    """Not those that every queue was done with, unless they stay: their payload may be gone at any
    time. Some of it may be gone already, where `reclaim` was another. -> of the first ones, as far
    as one look goes"""
    slots = np.zeros(len(batch.offsets), np.uint16)
    pages = batch.offsets // np.uint64(PAGE_SLOTS)
    for number in np.unique(pages).tolist():
        page = await load_taken_page(draft.view, log_id, number)
        here = pages == number
        slots[here] = page.slots[(batch.offsets[here] - np.uint64(page.first)).astype(np.int64)]
    living = slots < DEAD
    if reclaim_of(await load_name(draft.view, METADATA)) == "retention":
        dead = np.flatnonzero(slots == DEAD)
        found = await _have_payloads(draft.view, batch.rows.ids[dead].tolist())
        living[dead[: len(found)]] = found
        if len(found) < len(dead):
            return living[: dead[len(found)]]
    return living


async def _have_payloads(view: View, ids: Sequence[int]) -> list[bool]:
    """Of the first ones, as far as one look goes."""
    found: list[bool] = []
    held, looked = range(0), 0
    for number in ids:
        if number not in held:  # neighbours share a block
            if looked >= LOOK_BYTES:
                break
            looked += LOOK_BYTES_MIN
            row = await view.store.floor(payload_key(number), low=payloads_from(number))
            if row is not None:
                looked += len(row[1])
                first = open_key(row[0], KeyType.PAYLOAD).u64_key("message id")
                record = decode_payload(row[1])
                count = record.count if isinstance(record, PayloadBlock) else 1
                held = range(first, first + count)
        found.append(number in held)
    return found


async def _read(
    draft: Draft, log: LogState, low: int, high: int, cache: NodeCache | None
) -> tuple[Batch | None, int]:
    """The living messages of a part of the metadata log, and where it ends."""
    # Nothing that this tick wrote: its rows are in no store yet.
    before: LogState | None = draft.view.committed(state_key(log.log_id))
    end = min(low + ROUTE_COUNT, high, log.next if before is None else before.next)
    found: list[Metadata] = []
    offsets: list[int] = []
    async for node, start, stop in read_nodes(draft.view.store, log, low, end, cache=cache):
        for first, last, living in node.runs(start, stop):
            if living:
                found += map(decode_metadata, node.data_list(first, last))
                offsets += range(node.first + first, node.first + last)
    return (Batch.read(found, offsets) if found else None), end
