"""Lists of a queue: failed and done messages, attempts; and sending failed ones round again.

Contract     `list_page` gives one page after the other, oldest first. `redrive_step` makes failed
             messages available again, with no attempts on their account; their history stays. Those
             whose retention is over are skipped, and counted.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec
import numpy as np

from penstock.codec.attempts import Attempt, decode_attempts
from penstock.codec.keys import attempts_key
from penstock.codec.queueoperation import FORMS, PageKind
from penstock.codec.queuestate import AVAILABLE, HISTORY, Entries
from penstock.codec.scalars import U64_MAX
from penstock.log.catalogue import LogName
from penstock.log.decision import Step, View
from penstock.queue.draft import Draft, draft_step
from penstock.queue.place import insert
from penstock.queue.state import Change, load_page, load_queue

#: Pages of failed messages that one step of a redrive looks at.
REDRIVE_PAGES = 16


#: A cursor is a page's number and how many of its entries were seen.
_CURSOR_ENTRIES = 1 << 20


class Listed(msgspec.Struct, frozen=True, eq=False):
    entries: Entries
    begin: int  # the cursor of the first of them; that of the n-th is n more
    next: int | None  # the cursor behind them; None: that was the last one


async def list_page(view: View, name: LogName, kind: PageKind, after: int = 0) -> Listed:
    """For a read: done or failed messages of one page, from this cursor on."""
    state = await load_queue(view, name)
    wanted, seen = divmod(after, _CURSOR_ENTRIES)
    numbers = state.lines[kind]["page"]
    numbers = numbers[numbers >= wanted].tolist()
    if not numbers:
        return Listed(np.zeros(0, FORMS[kind]), after, None)
    page = await load_page(view, state, kind, numbers[0])
    begin = seen if numbers[0] == wanted else 0
    following = numbers[1] * _CURSOR_ENTRIES if len(numbers) > 1 else None
    return Listed(page.entries[begin:], numbers[0] * _CURSOR_ENTRIES + begin, following)


async def read_attempts(view: View, name: LogName, message_id: int) -> tuple[Attempt, ...]:
    """The attempts that failed, oldest first."""
    state = await load_queue(view, name)
    value = await view.store.get(attempts_key(state.queue_id, message_id))
    return () if value is None else decode_attempts(value)


class Redriven(msgspec.Struct, frozen=True):
    count: int
    expired: int  # their retention was over: they are gone
    next: int | None  # the page to go on with; None: that was all


def redrive_step(name: LogName, ids: Collection[int] | None, after: int = 0) -> Step:
    """Some pages of them. `ids` None: all. -> Redriven"""
    wanted = None
    if ids is not None:
        wanted = np.unique(np.array([i for i in ids if 0 <= i <= U64_MAX], np.uint64))

    async def body(draft: Draft) -> Redriven:
        change = await draft.queue(name)
        numbers = change.lines[PageKind.FAILED]["page"]
        numbers = numbers[numbers >= after].tolist()
        count = expired = 0
        for number in numbers[:REDRIVE_PAGES]:
            moved, old = await _redrive(draft, change, number, wanted)
            count += moved
            expired += old
        more = numbers[REDRIVE_PAGES] if len(numbers) > REDRIVE_PAGES else None
        return Redriven(count, expired, more)

    return draft_step(body)


async def _redrive(
    draft: Draft,
    change: Change,
    number: int,
    wanted: np.ndarray | None,
) -> tuple[int, int]:
    page = await change.page(PageKind.FAILED, number)
    chosen = page.entries if wanted is None else page.entries[page.holding(wanted)]
    old = chosen["retention_deadline_ms"] < draft.now_ms
    living = chosen[~old]
    if len(living):
        change.do(PageKind.FAILED, number, removed=living["message_id"])
        back = np.zeros(len(living), AVAILABLE)
        for field in ("message_id", "priority", "retention_deadline_ms", "offset"):
            back[field] = living[field]
        back["visible_at_ms"] = draft.now_ms
        back["flags"] = HISTORY
        await insert(change, back)
    return len(living), int(old.sum())
