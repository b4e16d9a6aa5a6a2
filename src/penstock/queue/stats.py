"""What a queue holds, counted.

Contract     `stats_step` counts as of now: a message is available if it could be claimed, delayed
             if it is not visible yet. What time took away since is cleared first; where that is
             more than one request clears, `more` says so, and asking again goes on.
"""

from __future__ import annotations

import msgspec
import numpy as np

from penstock.codec.queueoperation import PageKind
from penstock.log.catalogue import LogName
from penstock.log.decision import Step
from penstock.queue.draft import Draft, draft_step
from penstock.queue.expire import clear
from penstock.queue.state import Change


class Stats(msgspec.Struct, frozen=True):
    available: int  # can be claimed now
    delayed: int  # not visible yet: published so, or backing off
    in_flight: int
    done: int  # in the list of done ones
    failed: int  # in the list of failed ones
    routed: int  # ever
    acked: int  # ever
    expired: int  # ever: left by their retention
    purged: int  # ever
    paused: bool
    backfilling: bool
    more: bool = False


def stats_step(name: LogName) -> Step:
    """-> Stats"""

    async def body(draft: Draft) -> Stats:
        change = await draft.queue(name)
        more = await clear(draft, change)
        visible = await _visible(draft, change)
        lines, head = change.lines, change.head

        def count(kind: PageKind) -> int:
            return int(lines[kind]["count"].sum())

        return Stats(
            available=visible,
            delayed=count(PageKind.AVAILABLE) - visible,
            in_flight=count(PageKind.IN_FLIGHT),
            done=count(PageKind.DONE),
            failed=count(PageKind.FAILED),
            routed=head.routed,
            acked=head.done,
            expired=head.expired,
            purged=head.purged,
            paused=change.settings.paused,
            backfilling=head.backfill < head.backfill_end,
            more=more,
        )

    return draft_step(body)


async def _visible(draft: Draft, change: Change) -> int:
    """How many are visible now. Only pages that hold both kinds are read."""
    lines = change.lines[PageKind.AVAILABLE]
    wholly = lines["last_visible_ms"] <= draft.now_ms
    count = int(lines["count"][wholly].sum())
    partly = lines[~wholly & (lines["first_visible_ms"] <= draft.now_ms)]
    for line in partly:
        page = await change.page(PageKind.AVAILABLE, int(line["page"]), int(line["priority"]))
        count += int(np.searchsorted(page.entries["visible_at_ms"], draft.now_ms, "right"))
    return count


def claimable(change_lines: np.ndarray, now_ms: int) -> int:
    """About how many could be claimed, from lines alone: at least one where there is one."""
    ready = change_lines[change_lines["first_visible_ms"] <= now_ms]
    return int(ready["count"].sum())
