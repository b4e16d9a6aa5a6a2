"""Making, altering and deleting queues; pause, play and purge.

Contract     A queue begins with empty records of active, done and failed messages (RFC, workflow
             1.2). Purging takes away what is available and in flight, a part at a time; deleting
             does the same with failed ones too, then commits a mark, and rows go in the background.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import numpy as np

from penstock.codec.catalogue import CatalogueRow, encode_catalogue_row
from penstock.codec.garbage import encode_garbage
from penstock.codec.keys import (
    KeyType,
    config_key,
    garbage_key,
    head_key,
    name_key,
    prefix_end,
    queue_prefix,
    secret_key,
)
from penstock.codec.queueconfig import encode_queue_config
from penstock.codec.queueoperation import (
    LINES,
    Keys,
    PageKind,
    QueueHead,
    encode_head_row,
    join,
)
from penstock.codec.queuestate import Entries
from penstock.errors import ConflictError, InvalidError
from penstock.log.catalogue import (
    Ids,
    LogName,
    NameState,
    load_ids,
    load_name,
    load_target,
    make_target,
    name_state_key,
    open_target,
    take_id,
)
from penstock.log.decision import Now, Step, Timer
from penstock.log.timers import garbage_due
from penstock.queue.allqueues import ALL_QUEUES, load_all_queues
from penstock.queue.config import Settings, changed, config_of
from penstock.queue.draft import Draft, draft_step
from penstock.queue.lease import forget_history
from penstock.queue.lines import NO_LINES
from penstock.queue.page import encode_page, first_leases, new_page
from penstock.queue.receipt import KEY_BYTES, SECRET
from penstock.queue.state import (
    Change,
    QueueState,
    head_row,
    load_queue,
    page_row_key,
    queue_id,
    queue_state_key,
)
from penstock.queue.taken import METADATA, Reclaim
from penstock.queue.timers import backfill_due, queue_timers

Start = Literal["first", "new"]
#: Pages that one step of a purge or of a deletion takes away.
PURGE_PAGES = 64


def create_step(
    name: LogName, options: dict[str, Any], *, start: Start = "new", secret: bytes
) -> Step:
    """-> the queue's number. One that exists with the very same settings is left as it is; with
    others it is a ConflictError. `secret` becomes the key of receipts, if there is none yet."""
    settings = changed(Settings(), options)
    if start not in ("first", "new"):
        raise InvalidError(f"a queue starts at 'first' or 'new', not at {start!r}")
    assert len(secret) == KEY_BYTES, "a key of receipts"

    async def body(draft: Draft) -> int:
        known = await load_name(draft.view, name)
        if known.row is not None:
            state = await load_queue(draft.view, name)
            wanted = msgspec.structs.replace(settings, paused=state.settings.paused)
            if config_of(wanted) != config_of(state.settings):
                raise ConflictError(
                    f"queue {state.name!r} exists with other settings", hint="alter it"
                )
            return state.id
        return await _create(draft, name, settings, start, secret)

    return draft_step(body)


async def _create(
    draft: Draft, name: LogName, settings: Settings, start: Start, secret: bytes
) -> int:
    await load_ids(draft.view, Ids.NAMED)
    incarnation, rows, states = take_id(draft.view, Ids.NAMED)
    draft.rows |= rows
    draft.states |= states
    text = name.name.decode()
    identifier = queue_id(text, incarnation)
    log = await open_target(draft.view, METADATA)
    end = 0 if log is None else log.next
    head = QueueHead(
        start=end,
        backfill=0 if log is None else log.first,
        backfill_end=end if start == "first" else 0,
    )
    state = QueueState(incarnation, text, settings, 0, head, NO_LINES)
    row = CatalogueRow(incarnation, draft.now_ms)
    draft.rows[name_key(name.kind, name.name)] = encode_catalogue_row(row)
    draft.rows[config_key(identifier)] = encode_queue_config(config_of(settings))
    draft.rows[head_key(incarnation)] = encode_head_row(head_row(state))
    for kind in (PageKind.AVAILABLE, PageKind.DONE, PageKind.FAILED):
        draft.rows[page_row_key(identifier, kind, 0, 0)] = encode_page(new_page(kind, 0))
    if await draft.row(secret_key(SECRET)) is None:
        draft.rows[secret_key(SECRET)] = secret
    draft.states[name_state_key(name)] = NameState(row)
    draft.states[queue_state_key(incarnation)] = state
    queues = await load_all_queues(draft.view)
    draft.states[ALL_QUEUES] = queues.added(incarnation, text, settings)
    if head.backfill < head.backfill_end:
        draft.timers.append(backfill_due(text))
    return incarnation


def alter_step(name: LogName, options: dict[str, Any]) -> Step:
    """Only what is given changes. Messages that are in the queue stay as they are."""
    changed(Settings(), {key: value for key, value in options.items() if "lease" not in key})

    async def body(draft: Draft) -> None:
        state = await load_queue(draft.view, name)
        settings = changed(state.settings, options)
        draft.rows[config_key(state.queue_id)] = encode_queue_config(config_of(settings))
        after = msgspec.structs.replace(state, settings=settings)
        draft.states[queue_state_key(state.id)] = after
        draft.timers += queue_timers(after)  # done entries may be forgotten earlier now
        queues = await load_all_queues(draft.view)
        draft.states[ALL_QUEUES] = queues.added(state.id, state.name, settings)

    return draft_step(body)


_HELD = (PageKind.AVAILABLE, PageKind.IN_FLIGHT)


class Bounds(msgspec.Struct, frozen=True):
    """What a purge takes away: pages and leases below these numbers."""

    page: int
    lease: int
    failed: int  # a page, too


class Purged(msgspec.Struct, frozen=True):
    count: int
    bounds: Bounds
    more: bool


def purge_step(name: LogName, bounds: Bounds | None = None, *, failed: bool = False) -> Step:
    """Take away what is available and in flight, or what has failed, a part. What comes while it
    runs may go too. -> Purged"""
    kinds = (PageKind.FAILED,) if failed else _HELD

    async def body(draft: Draft) -> Purged:
        change = await draft.queue(name)
        limits = bounds or _bounds(change)
        count = await _take_away(draft, change, kinds, limits)
        change.set(purged=change.head.purged + count)
        more = False
        for kind in kinds:
            more = more or len(await _lines(change, kind, limits, 1)) > 0
        return Purged(count, limits, more)

    return draft_step(body)


def _bounds(change: Change) -> Bounds:
    head = change.head
    return Bounds(head.next_available, head.next_lease, head.next_failed)


async def _lines(change: Change, kind: PageKind, bounds: Bounds | None, count: int) -> Entries:
    """The first ones within the bounds."""
    found: list[Entries] = []
    for i in range(len(change.lines[kind].parts)):
        lines = await change.sheet(kind, i)
        found.append(lines[_within(kind, lines["page"], bounds)][:count])
        count -= len(found[-1])
        if not count:
            break
    return join(LINES[kind], found)


def _within(kind: PageKind, pages: Keys, bounds: Bounds | None) -> Any:
    if bounds is None:
        return slice(None)
    if kind is PageKind.AVAILABLE:
        return pages < bounds.page
    if kind is PageKind.FAILED:
        return pages < bounds.failed
    # Leases of both sides may share the last page: those that began a moment ago go with it.
    return first_leases(pages) < bounds.lease


async def _take_away(
    draft: Draft, change: Change, kinds: Sequence[PageKind], bounds: Bounds | None = None
) -> int:
    """Some pages, with everything on them; the messages are not needed here any more."""
    offsets: list[Keys] = []
    left = PURGE_PAGES
    for kind in kinds:
        for line in await _lines(change, kind, bounds, left):
            priority = int(line["priority"]) if kind is PageKind.AVAILABLE else 0
            page = await change.page(kind, int(line["page"]), priority)
            offsets.append(page.entries["offset"].astype(np.uint64))
            forget_history(draft, change, page.entries)
            change.do(kind, page.number, removed=page.keys)
            left -= 1
    if offsets:
        await draft.taken.release(np.concatenate(offsets))
    return sum(map(len, offsets))


def delete_step(name: LogName) -> Step:
    """A part of it. -> True: it is gone; False: there was none; None: go on"""
    held = (*_HELD, PageKind.FAILED)

    async def body(draft: Draft) -> bool | None:
        known = await load_name(draft.view, name)
        if known.row is None:
            return False
        change = await draft.queue(name)
        count = await _take_away(draft, change, held)
        if any(change.lines[kind].parts for kind in held):
            change.set(purged=change.head.purged + count)
            return None
        draft.discard(change)
        state = change.before
        draft.rows[name_key(name.kind, name.name)] = None
        draft.rows[config_key(state.queue_id)] = None
        draft.rows[head_key(state.id)] = None
        for kind in (KeyType.ACTIVE, KeyType.DONE, KeyType.FAILED, KeyType.ATTEMPTS):
            first = queue_prefix(kind, state.queue_id)
            draft.rows[garbage_key(first)] = encode_garbage(prefix_end(first))
        sheets = head_key(state.id)  # theirs begin with it
        draft.rows[garbage_key(sheets)] = encode_garbage(prefix_end(sheets))
        draft.timers.append(garbage_due(draft.now_ms))
        draft.states[name_state_key(name)] = NameState(None)
        draft.states[queue_state_key(state.id)] = None
        draft.states[ALL_QUEUES] = (await load_all_queues(draft.view)).removed(state.id)
        return True

    return draft_step(body)


def configure_step(reclaim: Reclaim) -> Step:
    """When payload and metadata of messages go, for the whole location."""
    if reclaim not in ("done", "retention"):
        raise InvalidError(f"reclaim is 'done' or 'retention', not {reclaim!r}")

    async def body(draft: Draft) -> None:
        await load_target(draft.view, METADATA, make=True)
        known = await load_name(draft.view, METADATA)
        row = known.row
        if row is None:
            _, rows, states = make_target(draft.view, METADATA, Now(draft.now_ms, b""))
            draft.rows |= rows
            draft.states |= states
            made: NameState = draft.states[name_state_key(METADATA)]  # type: ignore[assignment]
            assert made.row is not None
            row = made.row
        other = tuple(pair for pair in row.options if pair[0] != "reclaim")
        row = msgspec.structs.replace(row, options=(*other, ("reclaim", reclaim)))
        draft.rows[name_key(METADATA.kind, METADATA.name)] = encode_catalogue_row(row)
        draft.states[name_state_key(METADATA)] = NameState(row)
        draft.timers.append(Timer(0, ("reclaim", None)))  # what was done with before may go now

    return draft_step(body)
