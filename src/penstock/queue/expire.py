"""What leaves a queue by time: leases that end, messages past their retention, old done entries.

Contract     `clear_step` does a part of all three, and replies whether there is more. Requests do
             the same for what they meet; this is for queues that nobody asks.
"""

from __future__ import annotations

from penstock.codec.keys import attempts_key
from penstock.codec.queueoperation import PageKind
from penstock.codec.queuestate import HISTORY
from penstock.log.catalogue import LogName
from penstock.log.decision import Step
from penstock.queue.draft import Draft, draft_step
from penstock.queue.lease import drop, end_leases
from penstock.queue.page import PAGE_ENTRIES
from penstock.queue.state import Change
from penstock.queue.timers import queue_timers

#: Pages that one step looks at.
CLEAR_PAGES = 16


def clear_step(name: LogName) -> Step:
    """-> whether there is more to do now"""

    async def body(draft: Draft) -> bool:
        change = await draft.queue(name)
        more = await clear(draft, change)
        # Also where nothing was to be done: what this was about may have been settled since, and
        # later ones were told to a timer that is used up now.
        draft.timers += queue_timers(change.before, change.lines)
        return more

    return draft_step(body)


async def clear(draft: Draft, change: Change) -> bool:
    """A part of what time took away. -> whether there is more"""
    more = await end_leases(draft, change)
    more = await _expire_available(draft, change) or more
    return await _forget_done(draft, change) or more


async def _expire_available(draft: Draft, change: Change) -> bool:
    due = await change.lines_below(
        PageKind.AVAILABLE, "retention_ms", draft.now_ms, CLEAR_PAGES + 1
    )
    for line in due[:CLEAR_PAGES]:
        number, priority = int(line["page"]), int(line["priority"])
        page = await change.page(PageKind.AVAILABLE, number, priority)
        expired = page.entries[page.entries["retention_deadline_ms"] < draft.now_ms]
        change.do(PageKind.AVAILABLE, number, removed=expired["message_id"])
        await drop(draft, change, expired)
    # Only now: the page behind a sparse one may have become sparse too.
    for line in due[:CLEAR_PAGES]:
        await _merge(change, int(line["page"]), int(line["priority"]))
    return len(due) > CLEAR_PAGES


async def _merge(change: Change, number: int, priority: int) -> None:
    """A page that became sparse joins the one behind it."""
    page = await change.page(PageKind.AVAILABLE, number, priority)
    behind = change.lines[PageKind.AVAILABLE].behind(page)
    if (
        behind is None
        or behind["priority"] != priority
        or len(page.entries) + int(behind["count"]) > PAGE_ENTRIES // 2
    ):
        return
    await change.page(PageKind.AVAILABLE, int(behind["page"]), priority)
    change.do(PageKind.AVAILABLE, number, removed=page.keys)
    change.do(PageKind.AVAILABLE, int(behind["page"]), put=page.entries)


async def _forget_done(draft: Draft, change: Change) -> bool:
    """Done entries whose own retention is over, with what is remembered of their attempts."""
    keep_ms = 1000 * change.settings.done_retention_s
    if not keep_ms:
        return False
    edge_ms = draft.now_ms - keep_ms
    lines = await change.lines_below(PageKind.DONE, "first_ms", edge_ms, CLEAR_PAGES + 1)
    due = lines["page"].tolist()
    for number in due[:CLEAR_PAGES]:
        page = await change.page(PageKind.DONE, number)
        old = page.entries[page.entries["done_at_ms"] < edge_ms]
        change.do(PageKind.DONE, number, removed=old["message_id"])
        for message_id in old["message_id"][old["flags"] & HISTORY != 0].tolist():
            draft.rows[attempts_key(change.before.queue_id, message_id)] = None
    return len(due) > CLEAR_PAGES
