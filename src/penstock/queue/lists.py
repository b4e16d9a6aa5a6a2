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
from penstock.errors import CorruptError
from penstock.log.catalogue import LogName
from penstock.log.decision import Step, View
from penstock.queue.draft import Draft, draft_step
from penstock.queue.place import insert
from penstock.queue.state import (
    Change,
    QueueState,
    load_listed,
    load_queue,
    load_sheet,
    newer,
)

#: Pages of failed messages that one step of a redrive looks at.
REDRIVE_PAGES = 16


#: A cursor is a page's number, how many of its entries are left to be seen, and how many had ever
#: entered the list by then. Counted from the end: those that were seen may go meanwhile (who lists
#: failed messages redrives them), and those that come are known by the second count. So nothing is
#: skipped; where others remove what was not seen, something may come twice.
_LEFT_BITS, _EVER_BITS = 12, 27
_ALL_LEFT = (1 << _LEFT_BITS) - 1
_EVER_MASK = (1 << _EVER_BITS) - 1


def _cursor(page: int, left: int = _ALL_LEFT, ever: int = 0) -> int:
    return (page << _LEFT_BITS | left) << _EVER_BITS | ever & _EVER_MASK


class Listed(msgspec.Struct, frozen=True, eq=False):
    entries: Entries
    page: int
    ever: int  # so many had entered the list
    next: int | None  # the cursor behind them; None: that was the last one

    def after(self, count: int) -> int:
        """The cursor behind the first of them."""
        return _cursor(self.page, len(self.entries) - count, self.ever)


async def list_page(view: View, name: LogName, kind: PageKind, after: int = 0) -> Listed:
    """For a read: done or failed messages of one page, from this cursor on; 0 is the beginning."""
    state = await load_queue(view, name)
    while True:
        try:
            return await _list_page(view, state, kind, after)
        except CorruptError:
            found = await newer(view, state, kind)
            if found is None:
                raise
            state = found  # its lines were written since


async def _list_page(view: View, state: QueueState, kind: PageKind, after: int) -> Listed:
    ever = state.head.failed if kind is PageKind.FAILED else state.head.done
    wanted, left = divmod(after >> _EVER_BITS, 1 << _LEFT_BITS)
    numbers: list[int] = []
    lines = state.lines[kind]
    for i in range(lines.at((wanted,)), len(lines.parts)):
        there = (await load_sheet(view, state, lines, i))["page"]
        numbers += there[there >= wanted][:2].tolist()
        if len(numbers) > 1:
            break
    if not numbers:
        return Listed(np.zeros(0, FORMS[kind]), wanted, ever, None)
    entries = (await load_listed(view, state, kind, numbers[0])).entries
    if after and numbers[0] == wanted and left != _ALL_LEFT:
        came = ever - after & _EVER_MASK
        entries = entries[max(len(entries) - left - came, 0) :]
    following = _cursor(numbers[1]) if len(numbers) > 1 else None
    return Listed(entries, numbers[0], ever, following)


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
        numbers = await change.page_numbers(PageKind.FAILED, after, REDRIVE_PAGES + 1)
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
