"""References of a topic's messages: pages of neighbouring offsets, and a small index. Pure.

Contract     A `Page` holds slot and epoch of up to PAGE_OFFSETS offsets that are not done. `Index`
             has one line per page that has any: its number and how many. Both are replaced, never
             changed, once they are states; `Edit` is a page that a draft may change.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.codec.topic import FRESH, PAGE_OFFSETS, Epochs, Offsets, Slots, TopicPageRow
from penstock.codec.topicoperation import SpacePart

Lines = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class Page(msgspec.Struct, frozen=True):
    number: int
    sequence: int  # of the last operation it contains
    alive: Mask  # per place; False: done, or not there yet
    slots: Slots
    epochs: Epochs

    @property
    def memory_bytes(self) -> int:
        return 7 * PAGE_OFFSETS + 500

    @property
    def first(self) -> int:
        return self.number * PAGE_OFFSETS

    @property
    def count(self) -> int:
        return int(np.count_nonzero(self.alive))

    def waiting(self, wanted: Mask, epochs: Epochs) -> Offsets:
        """Offsets of wanted slots that are not running; `epochs` are those of the slots now."""
        slots = self.slots
        found = self.alive & wanted[slots] & (self.epochs != epochs[slots])
        return np.flatnonzero(found) + self.first

    def offsets(self) -> Offsets:
        return np.flatnonzero(self.alive) + self.first

    def edit(self) -> Page:
        """A copy that its maker may change."""
        return Page(
            self.number, self.sequence, self.alive.copy(), self.slots.copy(), self.epochs.copy()
        )

    def sealed(self, sequence: int) -> Page:
        """A changed copy, as it is after this operation."""
        return Page(self.number, sequence, self.alive, self.slots, self.epochs)


def empty_page(number: int, sequence: int = 0) -> Page:
    return Page(
        number,
        sequence,
        np.zeros(PAGE_OFFSETS, np.bool_),
        np.zeros(PAGE_OFFSETS, np.uint16),
        np.zeros(PAGE_OFFSETS, np.uint32),
    )


def page_of(number: int, row: TopicPageRow) -> Page:
    page = empty_page(number, row.sequence)
    page.alive[row.places] = True
    page.slots[row.places] = row.slots
    page.epochs[row.places] = row.epochs
    return page


def row_of(page: Page) -> TopicPageRow:
    places = np.flatnonzero(page.alive)
    return TopicPageRow(
        page.sequence, places.astype(np.uint16), page.slots[places], page.epochs[places]
    )


def touched(part: SpacePart) -> set[int]:
    """Numbers of the pages that an operation changes."""
    found: set[int] = set()
    if len(part.added):
        last = part.added_first + len(part.added) - 1
        found.update(range(part.added_first // PAGE_OFFSETS, last // PAGE_OFFSETS + 1))
    for offsets in (part.marked, part.done):
        found |= pages_of(offsets)
    return found


def pages_of(offsets: Offsets) -> set[int]:
    """Numbers of the pages that hold these, which rise."""
    if not len(offsets):
        return set()
    low, high = int(offsets[0]) // PAGE_OFFSETS, int(offsets[-1]) // PAGE_OFFSETS
    if high - low < 2:  # nearly always
        return {low, high}
    return set(np.unique(offsets // PAGE_OFFSETS).tolist())


def apply(page: Page, part: SpacePart) -> None:
    """Change a page that is being edited as this part says."""
    first, end = page.first, page.first + PAGE_OFFSETS
    if len(part.added):
        low, high = max(first, part.added_first), min(end, part.added_first + len(part.added))
        if low < high:
            add(page, low, part.added[low - part.added_first : high - part.added_first])
    if len(part.marked):
        low, high = np.searchsorted(part.marked, (first, end))
        page.epochs[part.marked[low:high] - first] = part.epochs[low:high]
    if len(part.done):
        low, high = np.searchsorted(part.done, (first, end))
        page.alive[part.done[low:high] - first] = False


def add(page: Page, low: int, slots: Slots) -> None:
    at = low - page.first
    page.alive[at : at + len(slots)] = True
    page.slots[at : at + len(slots)] = slots
    page.epochs[at : at + len(slots)] = FRESH


class Index(msgspec.Struct, frozen=True):
    """One line per page with references, in the order of the pages: its number, how many."""

    lines: Lines

    @property
    def count(self) -> int:
        return int(self.lines[:, 1].sum())

    def numbers(self, offset: int = 0) -> list[int]:
        """Of the pages that have an offset from this one on."""
        numbers = self.lines[:, 0]
        if offset:
            numbers = numbers[numbers.searchsorted(offset // PAGE_OFFSETS) :]
        found: list[int] = numbers.tolist()
        return found

    def holds(self, number: int) -> bool:
        numbers = self.lines[:, 0]
        at = numbers.searchsorted(number)
        return bool(at < len(numbers) and numbers[at] == number)

    def first(self) -> int | None:
        """Nothing below this offset has a reference."""
        return int(self.lines[0, 0]) * PAGE_OFFSETS if len(self.lines) else None

    def replaced(self, pages: Mapping[int, Page]) -> Index:
        """With the lines of these pages as they are now."""
        numbers = self.lines[:, 0]
        counts = {number: page.count for number, page in pages.items()}
        if all(counts.values()) and all(map(self.holds, counts)):
            lines = self.lines.copy()  # as nearly always: no line comes or goes
            for number, count in counts.items():
                lines[numbers.searchsorted(number), 1] = count
            return Index(lines)
        kept = self.lines[~np.isin(numbers, list(counts))]
        new = [(number, count) for number, count in counts.items() if count]
        lines = np.concatenate((kept, np.array(new, np.int64).reshape(-1, 2)))
        return Index(lines[np.argsort(lines[:, 0], kind="stable")])


NO_PAGES = Index(np.zeros((0, 2), np.int64))
