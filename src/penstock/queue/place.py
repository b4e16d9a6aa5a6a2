"""Which page an available message goes to.

Contract     `insert` puts entries where they belong by priority, visible at and id. Nearly always
             that is the end of the last page of their priority, and no other page is read. A page
             that grows too long is cut; the last one of a priority is filled before another begins.
             `append` adds to the end of the done or failed ones.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from penstock.codec.queueoperation import Delta, PageKind, pick
from penstock.codec.queuestate import Entries
from penstock.queue.lines import Lines
from penstock.queue.page import PAGE_ENTRIES, applied, in_order
from penstock.queue.state import Change


async def insert(change: Change, entries: Entries) -> None:
    if not len(entries):
        return
    priorities = entries["priority"]
    first = int(priorities[0])
    if (priorities == first).all():  # nearly always
        await _insert(change, first, in_order(entries))
        return
    for priority in np.unique(priorities).tolist():
        await _insert(change, priority, in_order(pick(entries, priorities == priority)))


async def _insert(change: Change, priority: int, entries: Entries) -> None:
    known = change.lines[PageKind.AVAILABLE]
    end = known.last_of(priority)
    if end is None:
        _make_pages(change, priority, entries)
        return
    for line, group in _groups(known, priority, end, entries):
        number = int(line["page"])
        page = await change.page(PageKind.AVAILABLE, number, priority)
        last = number == end["page"]
        limit = PAGE_ENTRIES if last else 2 * PAGE_ENTRIES
        if len(page.entries) + len(group) <= limit:
            change.do(PageKind.AVAILABLE, number, put=group)
            continue
        merged = applied(page, Delta(PageKind.AVAILABLE, number, priority, put=group), (), 0)
        cut = PAGE_ENTRIES if last else _share(len(merged.entries))
        kept, moved = merged.entries[:cut], merged.entries[cut:]
        here = np.isin(page.entries["message_id"], moved["message_id"])
        stays = np.isin(group["message_id"], kept["message_id"])
        change.do(
            PageKind.AVAILABLE,
            number,
            removed=page.entries["message_id"][here],
            put=group[stays],
        )
        _make_pages(change, priority, moved, PAGE_ENTRIES if last else cut)


def _groups(
    known: Lines, priority: int, end: np.void, entries: Entries
) -> Iterator[tuple[np.void, Entries]]:
    """Which lines of this priority the entries belong to; `end` is the last of them."""
    head = entries[0]
    if (head["visible_at_ms"], head["message_id"]) >= (end["first_visible_ms"], end["first_id"]):
        yield end, entries  # nearly always
        return
    lines = known.of_priority(priority)
    places = _places(lines, entries)
    for place in np.unique(places).tolist():
        yield lines[place], pick(entries, places == place)


def _share(count: int) -> int:
    """Of pages in the middle each gets as much as the others, and has room for more."""
    return -(-count // -(-count // PAGE_ENTRIES))


def _make_pages(change: Change, priority: int, entries: Entries, each: int | None = None) -> None:
    each = PAGE_ENTRIES if each is None else each
    for at in range(0, len(entries), each):
        number = change.head.next_available
        change.set(next_available=number + 1)
        change.make_page(PageKind.AVAILABLE, number, priority)
        change.do(PageKind.AVAILABLE, number, put=entries[at : at + each])


def _places(lines: Entries, entries: Entries) -> npt.NDArray[np.int64]:
    """Which of these lines each entry belongs to: the last one that does not begin behind it."""
    firsts, ids = lines["first_visible_ms"], lines["first_id"]
    visible = entries["visible_at_ms"]
    places: npt.NDArray[np.int64] = np.searchsorted(firsts, visible, side="right") - 1
    # Where pages begin at the very same time, the id decides.
    for value in np.unique(visible[firsts[np.maximum(places, 0)] == visible]).tolist():
        low, high = np.searchsorted(firsts, value), np.searchsorted(firsts, value, side="right")
        here = visible == value
        places[here] = low + np.searchsorted(ids[low:high], entries["message_id"][here], "right")
        places[here] -= 1
    return np.maximum(places, 0)


async def append(change: Change, kind: PageKind, entries: Entries) -> None:
    """To the end of the done or failed messages."""
    counter = "next_done" if kind is PageKind.DONE else "next_failed"
    while len(entries):
        following: int = getattr(change.head, counter)
        page = await change.page(kind, following - 1)
        room = PAGE_ENTRIES - len(page.entries)
        if room <= 0:
            change.make_page(kind, following)
            change.set(**{counter: following + 1})
            continue
        change.do(kind, following - 1, put=entries[:room])
        entries = entries[room:]
