"""The pending list of a group: pages of slots, and a small index over them. Pure.

Contract     A `Page` holds the times of up to PAGE_SLOTS neighbouring offsets; a retry time of 0
             means that the offset is not pending. `Index` has one line per page that has pending
             entries: how many, the lowest, the earliest retry and expiry. Both are replaced, never
             changed: `applied` gives the page after an operation. No request looks at more than the
             index and the few pages it is about, however long the list is.
Speed        Nearly every request delivers or acknowledges neighbours on one page, alone there. Then
             its line is told from the line before; numpy costs a microsecond a call, and to look
             through all slots took four of them.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.codec.group import PAGE_SLOTS, GroupOperation, Offsets, PageRow
from penstock.codec.scalars import NEVER_MS

Ints = npt.NDArray[np.int64]
DELIVERIES_MAX = 0xFFFF

#: A page's line in the index: its number, how many are pending, the lowest offset, the earliest
#: retry, the earliest expiry.
Line = tuple[int, int, int, int, int]


class Page(msgspec.Struct, frozen=True):
    number: int
    sequence: int  # of the last operation it contains
    retry: Ints  # per slot; 0 = not pending
    expire: Ints
    deliveries: npt.NDArray[np.uint16]
    #: As far as it is known: see `line_of`.
    line: Line | None = None

    @property
    def memory_bytes(self) -> int:
        return 18 * PAGE_SLOTS + 500

    @property
    def first(self) -> int:
        return self.number * PAGE_SLOTS

    def slots(self) -> Ints:
        """Those that are pending."""
        found: Ints = self.retry.nonzero()[0]
        return found

    def due(self, now_ms: int) -> Offsets:
        return np.flatnonzero((self.retry != 0) & (self.retry <= now_ms)) + self.first

    def expired(self, now_ms: int) -> Offsets:
        return np.flatnonzero((self.retry != 0) & (self.expire <= now_ms)) + self.first

    def between(self, low: int, high: int) -> Offsets:
        """Pending offsets low <= offset < high."""
        start, stop = max(low - self.first, 0), max(high - self.first, 0)
        found: Offsets = self.retry[start:stop].nonzero()[0] + (self.first + start)
        return found


def empty_page(number: int, sequence: int) -> Page:
    return Page(
        number,
        sequence,
        np.zeros(PAGE_SLOTS, np.int64),
        np.zeros(PAGE_SLOTS, np.int64),
        np.zeros(PAGE_SLOTS, np.uint16),
        _empty_line(number),
    )


def page_of(number: int, row: PageRow) -> Page:
    page = empty_page(number, row.sequence)
    page.retry[row.slots] = row.retry
    page.expire[row.slots] = row.expire
    page.deliveries[row.slots] = row.deliveries
    return msgspec.structs.replace(page, line=None)


def row_of(page: Page) -> PageRow:
    slots = page.slots()
    return PageRow(
        page.sequence,
        slots.astype(np.uint16),
        page.deliveries[slots],
        page.retry[slots],
        page.expire[slots],
    )


def touched(operation: GroupOperation) -> list[int]:
    """Numbers of the pages that an operation changes."""
    found: set[int] = set()
    for offsets in (operation.removed, operation.again, operation.fresh):
        if len(offsets):
            low, high = int(offsets[0]) // PAGE_SLOTS, int(offsets[-1]) // PAGE_SLOTS
            # Nearly always they lie on one page or two.
            if high - low < 2:
                found.add(low)
                found.add(high)
            else:
                found.update(np.unique(offsets // PAGE_SLOTS).tolist())
    return sorted(found)


def applied(page: Page, operation: GroupOperation, sequence: int) -> Page:
    """The page after this operation. What it does not change is shared with the page before."""
    retry, expire, deliveries = page.retry.copy(), page.expire, page.deliveries
    line = page.line
    if len(operation.again) or len(operation.fresh):
        deliveries = deliveries.copy()
    if len(operation.removed):
        removed = _slots(page, operation.removed)
        line = _line_without(line, int(np.count_nonzero(retry[removed])))
        retry[removed] = 0
    if len(operation.again):
        again = _slots(page, operation.again)
        retry[again] = operation.retry_ms
        deliveries[again] = np.minimum(deliveries[again].astype(np.int64) + 1, DELIVERIES_MAX)
        line = None
    if len(operation.fresh):
        fresh = _slots(page, operation.fresh)
        if line is not None and line[1] and np.count_nonzero(retry[fresh]):
            line = None  # some of them were pending
        line = _line_with(line, page.first, fresh, operation)
        retry[fresh] = operation.retry_ms
        expire = expire.copy()
        expire[fresh] = operation.expire_ms
        deliveries[fresh] = 1
    return Page(page.number, sequence, retry, expire, deliveries, line)


def _line_without(line: Line | None, count: int) -> Line | None:
    """The line after so many left: who was the earliest of those that stay is to be looked up."""
    if line is None or not count:
        return line
    return _empty_line(line[0]) if line[1] == count else None


def _line_with(
    line: Line | None, first: int, slots: Ints | slice, operation: GroupOperation
) -> Line | None:
    """The line with these slots, which were free."""
    if line is None or not isinstance(slots, slice):
        return None
    number, count, lowest, retry_ms, expire_ms = line
    low = first + slots.start
    return (
        number,
        count + slots.stop - slots.start,
        min(lowest, low) if count else low,
        min(retry_ms, operation.retry_ms),
        min(expire_ms, operation.expire_ms),
    )


def _slots(page: Page, offsets: Offsets) -> Ints | slice:
    first, last = int(offsets[0]) - page.first, int(offsets[-1]) - page.first
    if first >= 0 and last < PAGE_SLOTS:
        if last - first == len(offsets) - 1:  # neighbours, as nearly always: no list of them
            return slice(first, last + 1)
        return offsets - page.first
    low, high = np.searchsorted(offsets, (page.first, page.first + PAGE_SLOTS))
    return offsets[low:high] - page.first


class Index(msgspec.Struct, frozen=True):
    """One line per page with pending entries, in the order of the pages: its number, how many,
    the lowest offset, the earliest retry, the earliest expiry. And what every request asks for, so
    that none looks through all lines: it is kept up with each change."""

    lines: Ints
    pending: int = 0
    next_retry_ms: int = NEVER_MS
    next_expire_ms: int = NEVER_MS

    @property
    def numbers(self) -> Ints:
        return self.lines[:, 0]

    @property
    def counts(self) -> Ints:
        return self.lines[:, 1]

    @property
    def lowest(self) -> Ints:
        return self.lines[:, 2]

    @property
    def retry(self) -> Ints:
        return self.lines[:, 3]

    @property
    def expire(self) -> Ints:
        return self.lines[:, 4]

    @property
    def memory_bytes(self) -> int:
        return self.lines.nbytes + 500

    def first_pending(self) -> int | None:
        return int(self.lines[0, 2]) if self.pending else None

    def due(self, now_ms: int) -> list[int]:
        if self.next_retry_ms > now_ms:
            return []
        found: list[int] = self.numbers[self.retry <= now_ms].tolist()
        return found

    def expired(self, now_ms: int) -> list[int]:
        if self.next_expire_ms > now_ms:
            return []
        found: list[int] = self.numbers[self.expire <= now_ms].tolist()
        return found

    def between(self, low: int, high: int) -> list[int]:
        """Pages with an offset low <= offset < high."""
        if not self.pending or high <= self.lines[0, 2]:
            return []
        if len(self.lines) == 1:
            number = int(self.lines[0, 0])
            return (
                [number] if low < (number + 1) * PAGE_SLOTS and number * PAGE_SLOTS < high else []
            )
        start = self.numbers.searchsorted(low // PAGE_SLOTS)
        stop = self.numbers.searchsorted(-(-high // PAGE_SLOTS))
        found: list[int] = self.numbers[start:stop].tolist()
        return found

    def holds(self, number: int) -> bool:
        at = self.numbers.searchsorted(number)
        return bool(at < len(self.lines) and self.lines[at, 0] == number)

    def replaced(self, pages: Mapping[int, Page]) -> Index:
        """The index with the lines of these pages as they are now."""
        if len(pages) > 16:
            return self._replaced_many(pages)
        index = self
        for page in pages.values():
            index = index._replaced_one(page)
        return index

    def _replaced_one(self, page: Page) -> Index:
        line, lines = line_of(page), self.lines
        _, count, _, retry_ms, expire_ms = line
        if not len(lines) or (len(lines) == 1 and lines[0, 0] == page.number):
            return (
                Index(np.array([line], np.int64), count, retry_ms, expire_ms) if count else NO_PAGES
            )
        at = int(lines[:, 0].searchsorted(page.number))
        old = lines[at].tolist() if at < len(lines) else None
        if old is not None and old[0] == page.number:
            pending, there = self.pending - old[1], True
        else:
            pending, there, old = self.pending, False, None
        if there and count:
            lines = lines.copy()
            lines[at] = line
        elif there or count:
            new = np.array([line], np.int64) if count else NO_LINES
            lines = np.concatenate((lines[:at], new, lines[at + there :]))
        if old is None or (old[3] > self.next_retry_ms and old[4] > self.next_expire_ms):
            # What went was not the earliest of anything.
            retry_ms = min(retry_ms, self.next_retry_ms)
            expire_ms = min(expire_ms, self.next_expire_ms)
        elif len(lines) > 1:
            retry_ms = int(np.minimum.reduce(lines[:, 3]))
            expire_ms = int(np.minimum.reduce(lines[:, 4]))
        elif len(lines) == 1:
            _, _, _, retry_ms, expire_ms = lines[0].tolist()
        return Index(lines, pending + count, retry_ms, expire_ms)

    def _replaced_many(self, pages: Mapping[int, Page]) -> Index:
        """The same in one go: one by one would be quadratic."""
        kept = self.lines[~np.isin(self.numbers, list(pages))]
        new = [line for page in pages.values() if (line := line_of(page))[1]]
        lines = np.concatenate((kept, np.array(new, np.int64).reshape(-1, 5)))
        if not len(lines):
            return NO_PAGES
        return Index(
            lines[np.argsort(lines[:, 0], kind="stable")],
            int(lines[:, 1].sum()),
            int(lines[:, 3].min()),
            int(lines[:, 4].min()),
        )


NO_LINES: Ints = np.zeros((0, 5), np.int64)
NO_PAGES = Index(NO_LINES)


def line_of(page: Page) -> Line:
    if page.line is None:
        msgspec.structs.force_setattr(page, "line", _look_up(page))
        assert page.line is not None
    return page.line


def _look_up(page: Page) -> Line:
    slots = page.slots()
    count = len(slots)
    if not count:
        return _empty_line(page.number)
    first, last = int(slots[0]), int(slots[-1])
    used = slice(first, last + 1) if last - first == count - 1 else slots
    return (
        page.number,
        count,
        page.first + first,
        int(np.minimum.reduce(page.retry[used])),
        int(np.minimum.reduce(page.expire[used])),
    )


def _empty_line(number: int) -> Line:
    return number, 0, 0, NEVER_MS, NEVER_MS
