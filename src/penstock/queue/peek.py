"""Looking at the messages that would be claimed next.

Contract     `peek_step` shows them, in the order of claims, as they stand at one moment. A read
             beside commits would not: a page that is cut or joined meanwhile takes messages to
             where it does not look, or shows them twice. Nothing is changed, so nothing is written.
"""

from __future__ import annotations

import msgspec

from penstock.codec.queueoperation import PageKind, join
from penstock.codec.queuestate import AVAILABLE, Entries
from penstock.log.catalogue import LogName
from penstock.log.decision import Step
from penstock.queue.draft import Draft, draft_step

#: How many messages one look shows at most, and how many pages it reads: everybody waits for it.
PEEK_MAX = 10_000
PEEK_PAGES = 512


class Peeked(msgspec.Struct, frozen=True, eq=False):
    entries: Entries  # of AVAILABLE
    more: bool  # nothing was found, but not everything was looked at: clear, and ask again


def peek_step(name: LogName, count: int) -> Step:
    """-> Peeked"""

    async def body(draft: Draft) -> Peeked:
        change = await draft.queue(name)
        wanted, now_ms = min(count, PEEK_MAX), draft.now_ms
        lines = await change.lines_below(
            PageKind.AVAILABLE, "first_visible_ms", now_ms + 1, PEEK_PAGES + 1
        )
        parts: list[Entries] = []
        for line in lines[:PEEK_PAGES]:
            if not wanted:
                break
            page = await change.page(PageKind.AVAILABLE, int(line["page"]), int(line["priority"]))
            seen = page.entries[: page.entries["visible_at_ms"].searchsorted(now_ms, "right")]
            living = seen[seen["retention_deadline_ms"] >= now_ms][:wanted]
            parts.append(living)
            wanted -= len(living)
        entries = join(AVAILABLE, parts)
        more = wanted > 0 and not len(entries) and len(lines) > PEEK_PAGES
        return Peeked(entries, more)

    return draft_step(body)
