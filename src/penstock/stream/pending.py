"""The pending list of a group: pages of slots, and a small index over them. Pure.

Contract     A `Page` holds the times of up to PAGE_SLOTS neighbouring offsets; a retry time of 0
             means that the offset is not pending. `Index` has one line per page that has pending
             entries: how many, the lowest, the earliest retry and expiry. Both are replaced, never
             changed: `applied` gives the page after an operation. No request looks at more than the
             index and the few pages it is about, however long the list is.
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


class Page(msgspec.Struct, frozen=True):
    number: int
    sequence: int  # of the last operation it contains
    retry: Ints  # per slot; 0 = not pending
    expire: Ints
    deliveries: npt.NDArray[np.uint16]

    @property
    def memory_bytes(self) -> int:
        return 18 * PAGE_SLOTS + 500

    @property
    def first(self) -> int:
        return self.number * PAGE_SLOTS

    def slots(self) -> Ints:
        """Those that are pending."""
        return np.flatnonzero(self.retry)

    def due(self, now_ms: int) -> Offsets:
        return np.flatnonzero((self.retry != 0) & (self.retry <= now_ms)) + self.first

    def expired(self, now_ms: int) -> Offsets:
        return np.flatnonzero((self.retry != 0) & (self.expire <= now_ms)) + self.first

    def between(self, low: int, high: int) -> Offsets:
        """Pending offsets low <= offset < high."""
        start, stop = max(low - self.first, 0), max(high - self.first, 0)
        return np.flatnonzero(self.retry[start:stop]) + self.first + start


def empty_page(number: int, sequence: int) -> Page:
    return Page(
        number,
        sequence,
        np.zeros(PAGE_SLOTS, np.int64),
        np.zeros(PAGE_SLOTS, np.int64),
        np.zeros(PAGE_SLOTS, np.uint16),
    )


def page_of(number: int, row: PageRow) -> Page:
    page = empty_page(number, row.sequence)
    page.retry[row.slots] = row.retry
    page.expire[row.slots] = row.expire
    page.deliveries[row.slots] = row.deliveries
    return page


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
            found.update((low, high) if high - low < 2 else np.unique(offsets // PAGE_SLOTS))
    return sorted(map(int, found))


def applied(page: Page, operation: GroupOperation, sequence: int) -> Page:
    """The page after this operation."""
    retry, expire = page.retry.copy(), page.expire.copy()
    deliveries = page.deliveries.copy()
    if len(operation.removed):
        retry[_slots(page, operation.removed)] = 0
    if len(operation.again):
        again = _slots(page, operation.again)
        retry[again] = operation.retry_ms
        deliveries[again] = np.minimum(deliveries[again].astype(np.int64) + 1, DELIVERIES_MAX)
    if len(operation.fresh):
        fresh = _slots(page, operation.fresh)
        retry[fresh] = operation.retry_ms
        expire[fresh] = operation.expire_ms
        deliveries[fresh] = 1
    return Page(page.number, sequence, retry, expire, deliveries)


def _slots(page: Page, offsets: Offsets) -> Ints:
    if page.first <= offsets[0] and offsets[-1] < page.first + PAGE_SLOTS:
        return offsets - page.first
    low, high = np.searchsorted(offsets, (page.first, page.first + PAGE_SLOTS))
    return offsets[low:high] - page.first


class Index(msgspec.Struct, frozen=True):
    """One line per page with pending entries, in the order of the pages: its number, how many,
    the lowest offset, the earliest retry, the earliest expiry."""

    lines: Ints

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
    def pending(self) -> int:
        return int(self.counts.sum())

    @property
    def memory_bytes(self) -> int:
        return self.lines.nbytes + 500

    def first_pending(self) -> int | None:
        return int(self.lowest[0]) if len(self.lines) else None

    def next_retry_ms(self) -> int:
        return int(self.retry.min()) if len(self.lines) else NEVER_MS

    def next_expire_ms(self) -> int:
        return int(self.expire.min()) if len(self.lines) else NEVER_MS

    def due(self, now_ms: int) -> list[int]:
        found: list[int] = self.numbers[self.retry <= now_ms].tolist()
        return found

    def expired(self, now_ms: int) -> list[int]:
        found: list[int] = self.numbers[self.expire <= now_ms].tolist()
        return found

    def between(self, low: int, high: int) -> list[int]:
        """Pages with an offset low <= offset < high."""
        start, stop = np.searchsorted(
            self.numbers, (low // PAGE_SLOTS, -(-high // PAGE_SLOTS)), side="left"
        )
        found: list[int] = self.numbers[start:stop].tolist()
        return found

    def holds(self, number: int) -> bool:
        at = self.numbers.searchsorted(number)
        return bool(at < len(self.lines) and self.lines[at, 0] == number)

    def replaced(self, pages: Mapping[int, Page]) -> Index:
        """The index with the lines of these pages as they are now."""
        if len(pages) > 16:
            return self._replaced_many(pages)
        lines = self.lines
        for number, page in pages.items():
            line = _line(page)
            at = int(lines[:, 0].searchsorted(number))
            after = at + (at < len(lines) and lines[at, 0] == number)
            between = np.array([line], np.int64) if line[1] else NO_LINES
            lines = np.concatenate((lines[:at], between, lines[after:]))
        return Index(lines)

    def _replaced_many(self, pages: Mapping[int, Page]) -> Index:
        """The same in one go: one by one would be quadratic."""
        kept = self.lines[~np.isin(self.numbers, list(pages))]
        new = [line for page in pages.values() if (line := _line(page))[1]]
        lines = np.concatenate((kept, np.array(new, np.int64).reshape(-1, 5)))
        return Index(lines[np.argsort(lines[:, 0], kind="stable")])


NO_LINES: Ints = np.zeros((0, 5), np.int64)
NO_PAGES = Index(NO_LINES)


def _line(page: Page) -> tuple[int, int, int, int, int]:
    slots = page.slots()
    if not len(slots):
        return page.number, 0, 0, 0, 0
    return (
        page.number,
        len(slots),
        page.first + int(slots[0]),
        int(page.retry[slots].min()),
        int(page.expire[slots].min()),
    )
