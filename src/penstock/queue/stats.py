"""What a queue holds, counted.

Contract     `stats_step` counts as of now: a message is available if it could be claimed, delayed
             if it is not visible yet. What time took away since is cleared first; where that is
             more than one request clears, `more` says so, and asking again goes on.
"""

from __future__ import annotations

import msgspec
import numpy as np

from penstock.codec.queueoperation import LINES, PageKind, join
from penstock.codec.queuestate import Entries
from penstock.log.catalogue import LogName
from penstock.log.decision import Step
from penstock.queue.draft import Draft, draft_step
from penstock.queue.expire import clear
from penstock.queue.lines import Lines
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
        return Stats(
            available=visible,
            delayed=lines[PageKind.AVAILABLE].count - visible,
            in_flight=lines[PageKind.IN_FLIGHT].count,
            done=lines[PageKind.DONE].count,
            failed=lines[PageKind.FAILED].count,
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
    whole, partly = _begun(change.lines[PageKind.AVAILABLE], draft.now_ms)
    for line in partly:
        page = await change.page(PageKind.AVAILABLE, int(line["page"]), int(line["priority"]))
        whole += int(np.searchsorted(page.entries["visible_at_ms"], draft.now_ms, "right"))
    return whole


def _begun(lines: Lines, now_ms: int) -> tuple[int, Entries]:
    """How many stand on pages that are visible as a whole, and the lines of pages that are in
    part."""
    sheets = lines.sheets
    whole = sheets["last_visible_ms"] <= now_ms
    count = int(sheets["count"][whole].sum())
    partly: list[Entries] = []
    for i in np.flatnonzero(~whole & (sheets["first_visible_ms"] <= now_ms)).tolist():
        part = lines.part(i)
        part = part[part["first_visible_ms"] <= now_ms]
        whole = part["last_visible_ms"] <= now_ms
        count += int(part["count"][whole].sum())
        partly.append(part[~whole])
    return count, join(LINES[PageKind.AVAILABLE], partly)


def claimable(lines: Lines, now_ms: int) -> int:
    """About how many could be claimed, from lines alone: at least one where there is one."""
    count, partly = _begun(lines, now_ms)
    return count + int(partly["count"].sum())
