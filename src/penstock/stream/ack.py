"""Acknowledging entries of a group (RCP 11, TACK).

Contract     `ack_step` takes single offsets and ranges, mixed, in any order, the ends inclusive; it
             replies how many of them were pending. Others are neither an error nor counted.
             The cost is that of the pages it names, not that of the list.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

import numpy as np

from penstock.codec.group import NO_OFFSETS, OFFSET_MAX, PAGE_SLOTS, GroupOperation, Offsets
from penstock.errors import InvalidError
from penstock.log.catalogue import LogName, find_target, load_target
from penstock.log.decision import Decision, Now, Step, View
from penstock.stream.deliver import expiry_timers
from penstock.stream.group import Change, GroupState, find_group, load_group, load_page
from penstock.stream.pending import Page

#: An offset, or the first and the last of a range.
Named = int | tuple[int, int]


class Acks:
    """Offsets to acknowledge: single ones, and ranges with the end exclusive."""

    def __init__(self, named: Sequence[Named]) -> None:
        self.singles: Offsets = NO_OFFSETS
        if (run := _one_run(named)) is not None:
            _check(*run)
            self.ranges = [(run[0], run[1] + 1)]
            return
        singles: list[int] = []
        ranges: list[tuple[int, int]] = []
        for each in named:
            if isinstance(each, int):
                singles.append(each)
                continue
            start, end = each
            _check(start, end)
            ranges.append((start, end + 1))
        singles = sorted(set(singles))
        for offset in (singles[0], singles[-1]) if singles else ():
            _check(offset, offset)
        if singles:
            self.singles = np.array(singles, np.int64)
        self.ranges = _merged(ranges)

    def pages(self, state: GroupState) -> list[int]:
        """Pages of the list that may hold some of them."""
        if len(self.ranges) == 1 and not len(self.singles):
            return state.index.between(*self.ranges[0])
        named = set((self.singles // PAGE_SLOTS).tolist()) if len(self.singles) else ()
        found = {number for number in named if state.index.holds(number)}
        for low, high in self.ranges:
            found.update(state.index.between(low, high))
        return sorted(found)

    def pending(self, page: Page) -> Offsets:
        """Those of them that are pending on this page."""
        if len(self.ranges) == 1 and not len(self.singles):
            return page.between(*self.ranges[0])
        found: list[Offsets] = []
        if len(self.singles):
            low, high = np.searchsorted(self.singles, (page.first, page.first + PAGE_SLOTS))
            slots = self.singles[low:high] - page.first
            found.append(slots[page.retry[slots] != 0] + page.first)
        if self.ranges:
            # Only the ranges that reach into this page: there may be very many.
            first = bisect_right(self.ranges, page.first, key=_end)
            last = bisect_left(self.ranges, page.first + PAGE_SLOTS, key=_start)
            found += [page.between(start, end) for start, end in self.ranges[first:last]]
        if len(found) < 2:
            return found[0] if found else NO_OFFSETS
        return np.unique(np.concatenate(found))


def _one_run(named: Sequence[Named]) -> tuple[int, int] | None:
    """Neighbours, one by one and in order, as whoever acknowledges what it read names them."""
    if len(named) < 2 or isinstance(first := named[0], tuple):
        return None
    return (first, first + len(named) - 1) if named == [*range(first, first + len(named))] else None


def _start(run: tuple[int, int]) -> int:
    return run[0]


def _end(run: tuple[int, int]) -> int:
    return run[1]


def _check(start: int, end: int) -> None:
    if start < 0 or end > OFFSET_MAX:
        raise InvalidError(f"offset {start if start < 0 else end} cannot be acknowledged")
    if end < start:
        raise InvalidError(f"range {start}-{end} ends before it starts")


def _merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """In order, and without overlap."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def ack_step(target: LogName, group: bytes, named: Sequence[Named]) -> Step:
    """-> how many were pending, and are not any more"""
    acks = Acks(named)
    pages: dict[int, Page] = {}

    async def load(view: View) -> None:
        log_id = await load_target(view, target)
        state = None if log_id is None else await load_group(view, log_id, group)
        if state is not None:
            for number in acks.pages(state):
                pages[number] = await load_page(view, state.id, number)

    def decide(view: View, now: Now) -> Decision:
        log = find_target(view, target)
        state = None if log is None else find_group(view, log.log_id, group)
        if state is None:
            return Decision(reply=0)
        found = [acks.pending(page) for page in pages.values()]
        removed = found[0] if len(found) == 1 else np.concatenate([NO_OFFSETS, *found])
        if not len(removed):
            return Decision(reply=0)
        return remove(state, pages, removed, reply=len(removed))

    return Step(decide, load)


def remove(
    state: GroupState,
    pages: dict[int, Page],
    removed: Offsets,
    *,
    reply: object,
    next_offset: int | None = None,
) -> Decision:
    """These leave the pending list, without being counted as expired or skipped."""
    change = Change(state, pages)
    change.do(
        GroupOperation(
            next=state.head.next if next_offset is None else next_offset,
            expired=state.head.expired,
            skipped=state.head.skipped,
            removed=removed,
        )
    )
    return Decision(
        reply=reply,
        states=change.states,
        operations=change.operations,
        timers=expiry_timers(change.state),
    )
