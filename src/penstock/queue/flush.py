"""Writing pages of queues and takers: what operations did since the last time enters the rows.

Contract     As stream/flush.py: `plan_flush` names the pages that the tail's operations touch;
             submit `pages_step` for all of them, a part at a time, then `head_step`; then the
             operations up to that sequence are in the rows. A page without entries has no row. The
             head row goes with those sheets of lines that are not as it said before, in one commit.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from penstock.codec.keys import head_key, page_key
from penstock.codec.operations import Operation
from penstock.codec.queueoperation import (
    SHEETS,
    PageKind,
    SheetRow,
    decode_head_row,
    encode_head_row,
    encode_sheet,
)
from penstock.codec.queuestate import Entries
from penstock.codec.taken import PAGE_SLOTS, encode_taken_head, encode_taken_page
from penstock.log.decision import Step
from penstock.log.state import load_log
from penstock.queue.draft import Draft, draft_step
from penstock.queue.page import encode_page
from penstock.queue.state import (
    QueueState,
    head_row,
    load_page,
    load_queue_by_id,
    page_place,
    page_row_key,
    pages_of,
    queue_state_key,
    sheet_key,
)
from penstock.queue.taken import load_head, load_taken_page
from penstock.queue.taken import pages_of as taken_pages_of

#: Pages of one commit: about a megabyte.
FLUSH_PAGES = 32
TAKEN_PAGES = 256


NO_SHEETS = {kind: np.zeros(0, form) for kind, form in SHEETS.items()}

#: Kind, number and priority of a page.
Place = tuple[PageKind, int, int]


class Flush(msgspec.Struct, frozen=True):
    sequence: int
    places: tuple[Place, ...]

    def parts(self) -> Sequence[tuple[Place, ...]]:
        return [self.places[i : i + FLUSH_PAGES] for i in range(0, len(self.places), FLUSH_PAGES)]


def plan_flush(operations: Sequence[Operation]) -> Flush:
    codes: set[int] = set()
    for operation in operations:
        codes |= pages_of(operation)
    return Flush(operations[-1].sequence, tuple(map(page_place, sorted(codes))))


async def _load(draft: Draft, incarnation: int) -> QueueState | None:
    """The queue with this number, if it still exists: this tick may have deleted it."""
    state: QueueState | None = draft.view.state(queue_state_key(incarnation))
    if state is not None:
        return state
    value = await draft.row(head_key(incarnation))
    if value is None:
        return None
    name = decode_head_row(value, f"head of queue {incarnation}").name
    return await load_queue_by_id(draft.view, incarnation, name)


def pages_step(incarnation: int, places: Sequence[Place]) -> Step:
    async def body(draft: Draft) -> None:
        state = await _load(draft, incarnation)
        if state is None:
            return
        for kind, number, priority in places:
            page = await load_page(draft.view, state, kind, number, priority)
            key = page_row_key(state.queue_id, kind, number, priority)
            # The RFC's first record of each kind is there from the beginning.
            kept = len(page.entries) or not number
            draft.rows[key] = encode_page(page) if kept else None

    return draft_step(body)


def head_step(incarnation: int) -> Step:
    """-> whether the queue still exists"""

    async def body(draft: Draft) -> bool:
        state = await _load(draft, incarnation)
        if state is None:
            return False
        key = head_key(incarnation)
        _write_sheets(draft, state, await draft.row(key))
        draft.rows[key] = encode_head_row(head_row(state))
        # What this commit writes stays in memory until the next one: a request that comes behind
        # this step in its tick could not read it.
        stored = _sheets(state, await draft.view.store.get(key))
        lines = {kind: each.let_go(stored[kind]) for kind, each in state.lines.items()}
        draft.states[queue_state_key(incarnation)] = msgspec.structs.replace(state, lines=lines)
        return True

    return draft_step(body)


def _sheets(state: QueueState, head: bytes | None) -> dict[PageKind, Entries]:
    """Those that a head row tells of; one of version 1 tells of none."""
    return NO_SHEETS if head is None else decode_head_row(head, f"head of {state.name!r}").sheets


def _write_sheets(draft: Draft, state: QueueState, head: bytes | None) -> None:
    """Those that are not as this head row tells of them."""
    stored = _sheets(state, head)
    for kind, lines in state.lines.items():
        differ, gone = lines.unwritten(stored[kind])
        for i in differ:
            number, sequence = (int(lines.sheets[field][i]) for field in ("sheet", "sequence"))
            row = SheetRow(kind, sequence, lines.part(i))
            draft.rows[sheet_key(state.id, kind, number)] = encode_sheet(row)
        for number in gone:
            draft.rows[sheet_key(state.id, kind, number)] = None


# ---- takers -----------------------------------------------------------------------------------


def plan_taken_flush(operations: Sequence[Operation]) -> tuple[int, list[list[int]]]:
    numbers: set[int] = set()
    for operation in operations:
        numbers.update(taken_pages_of(operation))
    ordered = sorted(numbers)
    parts = [ordered[i : i + TAKEN_PAGES] for i in range(0, len(ordered), TAKEN_PAGES)]
    return operations[-1].sequence, parts


def taken_pages_step(log_id: int, numbers: Sequence[int]) -> Step:
    async def body(draft: Draft) -> None:
        log = await load_log(draft.view, log_id)
        edge = 0 if log is None else log.first // PAGE_SLOTS
        for number in numbers:
            # Forgotten since (reclaim.py): its row would stay for ever.
            value = None
            if number >= edge:
                value = encode_taken_page(await load_taken_page(draft.view, log_id, number))
            draft.rows[page_key(log_id, number)] = value

    return draft_step(body)


def taken_head_step(log_id: int) -> Step:
    async def body(draft: Draft) -> None:
        head = await load_head(draft.view, log_id)
        draft.rows[head_key(log_id)] = encode_taken_head(head.sequence)

    return draft_step(body)
