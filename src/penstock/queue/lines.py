"""Lines of a queue: one for each page, on sheets, so that a change copies one sheet. Pure.

Contract     A queue of millions has thousands of pages, and a list of done messages many more.
             Every commit makes new lines beside the ones that readers hold, so they stand on
             sheets of SHEET_LINES or so: `replaced` copies the sheets that it changes and one row
             for each sheet, whatever the queue holds. What is asked of all lines (the earliest
             deadline, how many messages) is asked of those rows. Lines of available pages stand in
             the order of claims, the others in that of their pages.
Sheets       A sheet has a row in the store (codec/queueoperation.py), written with the head row
             where its sequence is not the one that the head row had for it (`unwritten`). Sheets of
             done and failed pages are in memory only from their change until they are stored
             (`let_go`), or while they are needed (`having`): None stands for one that is as its row
             says.
Invariants   Q10  the row of a sheet says what its lines come to                       (check.py)
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import msgspec
import numpy as np

from penstock.codec.queueoperation import LINES, SHEETS, PageKind, copy_of, join
from penstock.codec.queuestate import Entries
from penstock.codec.scalars import I64_MAX, U64_MAX
from penstock.queue.page import Page, line_fields

#: Lines of a full sheet; one that grows beyond twice that is cut.
SHEET_LINES = 512

#: Lists that only their ends are needed of: their sheets stay in the store.
LISTS = (PageKind.DONE, PageKind.FAILED)

#: Where a line stands among the others.
Key = tuple[int, ...]

#: For each kind the fields of a sheet's row behind its key, and what they are of its lines'.
_SUMS: dict[PageKind, tuple[tuple[str, bool], ...]] = {
    PageKind.AVAILABLE: (
        ("first_visible_ms", False),
        ("last_visible_ms", True),
        ("retention_ms", False),
    ),
    PageKind.IN_FLIGHT: (("deadline_ms", False),),
    PageKind.DONE: (("first_ms", False), ("last_ms", True)),
    PageKind.FAILED: (),
}
#: The same, with the place of the field in a line.
_SUMS_AT = {
    kind: tuple((field, (LINES[kind].names or ()).index(field), late) for field, late in sums)
    for kind, sums in _SUMS.items()
}
_KEY_AT = 4  # fields of a sheet's row before its key


def key_of(page: Page) -> Key:
    """Where the line of this page stands, which is not empty."""
    if page.kind is not PageKind.AVAILABLE:
        return (page.number,)
    first = page.entries[0]
    return page.priority, int(first["visible_at_ms"]), int(first["message_id"])


def key_of_line(kind: PageKind, line: tuple[int, ...]) -> Key:
    return line[2:5] if kind is PageKind.AVAILABLE else line[:1]


def sheet_of(kind: PageKind, number: int, sequence: int, lines: Entries) -> Entries:
    """The row of a sheet with these lines."""
    least = (int((lines[f].max if late else lines[f].min)()) for f, late in _SUMS[kind])
    key = key_of_line(kind, lines[0].item())
    row = (number, sequence, len(lines), int(lines["count"].sum(dtype=np.int64)), *key, *least)
    return np.array([row], SHEETS[kind])


class Lines(msgspec.Struct, frozen=True, eq=False):
    """Of the pages of one kind."""

    kind: PageKind
    sheets: Entries  # one row for each, in order
    parts: tuple[Entries | None, ...]  # the lines of each; None: they are as its row says
    nbytes: int  # of the parts that are here

    @property
    def count(self) -> int:
        """How many entries all pages have."""
        return int(self.sheets["count"].sum())

    def part(self, i: int) -> Entries:
        lines = self.parts[i]
        assert lines is not None, "a sheet that nobody loaded"
        return lines

    def here(self) -> Entries:
        """All lines, where all sheets are here."""
        return join(LINES[self.kind], [self.part(i) for i in range(len(self.parts))])

    def least(self, field: str, none: int) -> int:
        """The earliest of all lines, or `none` where there is no line."""
        return int(self.sheets[field].min()) if len(self.sheets) else none

    def at(self, key: Key) -> int:
        """The sheet where a line with this key stands, or would."""
        if len(self.parts) < 2:
            return 0
        end = _KEY_AT + len(key)
        found = bisect_right(
            range(len(self.parts)), key, key=lambda i: self.sheets[i].item()[_KEY_AT:end]
        )
        return max(found - 1, 0)

    def has(self, page: int) -> bool:
        """Whether this page has a line; not for available ones."""
        i = self.at((page,))
        return bool(self.parts) and bool((self.part(i)["page"] == np.uint64(page)).any())

    def tells_of(self, page: Page) -> bool:
        """Whether the line of this page says how many entries it has: none, where it has no line.
        Who looks for an available page has its line."""
        if page.kind is PageKind.AVAILABLE and not len(page.entries):
            return False
        told: Entries = np.zeros(0, np.uint32)
        if self.parts:
            lines = self.part(self.at(key_of(page)))
            told = lines["count"][lines["page"] == np.uint64(page.number)]
        return int(told.sum()) == len(page.entries)

    def last_of(self, priority: int) -> np.void | None:
        """The last line of this priority, if there is one; of available pages."""
        if not self.parts:
            return None
        lines = self.part(self.at((priority, I64_MAX, U64_MAX)))
        at = int(lines["priority"].searchsorted(np.uint8(priority), "right")) - 1
        line: np.void | None = lines[at] if at >= 0 and lines[at]["priority"] == priority else None
        return line

    def of_priority(self, priority: int) -> Entries:
        """All lines of this priority, in order; of available pages."""
        first = self.at((priority, -I64_MAX, 0))
        last = self.at((priority, I64_MAX, U64_MAX))
        parts = [self.part(i) for i in range(first, last + 1)]
        return join(LINES[self.kind], [part[part["priority"] == priority] for part in parts])

    def behind(self, page: Page) -> np.void | None:
        """The line that follows the one of this page, if it has one; of available ones."""
        if not len(page.entries):
            return None
        i = self.at(key_of(page))
        at = int(np.flatnonzero(self.part(i)["page"] == np.uint64(page.number))[0]) + 1
        if at == len(self.part(i)):
            i, at = i + 1, 0
        line: np.void | None = self.part(i)[at] if i < len(self.parts) else None
        return line

    def having(self, i: int, lines: Entries) -> Lines:
        """With this sheet in memory."""
        parts = (*self.parts[:i], lines, *self.parts[i + 1 :])
        return Lines(self.kind, self.sheets, parts, self.nbytes + lines.nbytes)

    def let_go(self, stored: Entries) -> Lines:
        """Without those sheets of lists in memory that are as the store has them."""
        if self.kind not in LISTS:
            return self
        kept = set(self.unwritten(stored)[0])
        parts = tuple(part if i in kept else None for i, part in enumerate(self.parts))
        nbytes = sum(part.nbytes for part in parts if part is not None)
        return Lines(self.kind, self.sheets, parts, nbytes)

    def unwritten(self, stored: Entries) -> tuple[list[int], list[int]]:
        """Against the rows of sheets as the store has them: the places of those that differ, and
        the numbers of those that are no more."""
        known = dict(zip(stored["sheet"].tolist(), stored["sequence"].tolist(), strict=True))
        differ = [
            i
            for i, (number, sequence) in enumerate(
                zip(self.sheets["sheet"].tolist(), self.sheets["sequence"].tolist(), strict=True)
            )
            if known.pop(number, None) != sequence
        ]
        return differ, list(known)

    # -- changing

    def replaced(self, pages: Sequence[tuple[Page | None, Page]], sequence: int) -> Lines:
        """With the lines of these pages: as they were when their line was made (None: they have
        none), and as they are now."""
        gone: dict[int, list[int]] = {}
        new: list[tuple[int, ...]] = []
        for before, page in pages:
            if before is not None and len(before.entries):
                gone.setdefault(self.at(key_of(before)), []).append(page.number)
            if len(page.entries):
                new.append(line_fields(page))
        if len(pages) == len(gone) == len(new) == 1:  # nearly always
            same = self._in_place(next(iter(gone)), new[0], sequence)
            if same is not None:
                return same
        return self._edited(gone, new, sequence)

    def found_anew(self, pages: Sequence[Page], sequence: int) -> Lines:
        """The same, where nobody knows which lines they have."""
        gone: dict[int, list[int]] = {}
        if self.kind is PageKind.AVAILABLE:
            numbers = np.array([page.number for page in pages], np.uint64)
            for i in range(len(self.parts)):
                lines = self.part(i)["page"]
                if here := lines[np.isin(lines, numbers)].tolist():
                    gone[i] = here
        elif self.parts:
            for page in pages:
                gone.setdefault(self.at((page.number,)), []).append(page.number)
        new = [line_fields(page) for page in pages if len(page.entries)]
        return self._edited(gone, new, sequence)

    def _in_place(self, i: int, new: tuple[int, ...], sequence: int) -> Lines | None:
        """A page's new line in the place of its old one on this sheet, where it may stand there:
        what nearly every change of a page is."""
        kind, lines = self.kind, self.part(i)
        p = int((lines["page"] == np.uint64(new[0])).nonzero()[0][0])
        old, row, key = lines[p].item(), self.sheets[i].item(), key_of_line(kind, new)
        if key != key_of_line(kind, old):
            if p and key_of_line(kind, lines[p - 1].item()) >= key:
                return None
            if p + 1 < len(lines) and key >= key_of_line(kind, lines[p + 1].item()):
                return None
            if self.at(key) != i:
                return None  # it belongs to another sheet
        lines = copy_of(lines)
        lines[p] = new
        end = _KEY_AT + len(key)
        first = row[_KEY_AT:end] if p else key
        sums = list(row[end:])
        for at, (field, column, late) in enumerate(_SUMS_AT[kind]):
            was, now, known = old[column], new[column], sums[at]
            if late:
                sums[at] = max(known, now) if was < known or now >= known else lines[field].max()
            else:
                sums[at] = min(known, now) if was > known or now <= known else lines[field].min()
        sheets = copy_of(self.sheets)
        sheets[i] = (row[0], sequence, row[2], row[3] - old[1] + new[1], *first, *sums)
        parts = (*self.parts[:i], lines, *self.parts[i + 1 :])
        return Lines(kind, sheets, parts, self.nbytes)

    def _edited(
        self, gone: dict[int, list[int]], new: list[tuple[int, ...]], sequence: int
    ) -> Lines:
        """Without the lines of these pages on these sheets, and with new ones."""
        added: dict[int, list[tuple[int, ...]]] = {}
        for line in new:
            added.setdefault(self.at(key_of_line(self.kind, line)), []).append(line)
        found = self
        for i in sorted(gone.keys() | added.keys(), reverse=True):
            found = found._rewritten(i, gone.get(i, []), added.get(i, []), sequence)
        return found

    def _rewritten(
        self, i: int, gone: list[int], added: list[tuple[int, ...]], sequence: int
    ) -> Lines:
        """One sheet; cut where it became long, with the one behind it where it became short."""
        kind = self.kind
        old = self.part(i) if self.parts else np.zeros(0, LINES[kind])
        lines = _without(old, gone)
        if added:
            lines = _in_order(kind, join(LINES[kind], [lines, np.array(added, LINES[kind])]))
        end = i + 1
        if 0 < len(lines) < SHEET_LINES // 4 and end < len(self.parts):
            behind = self.parts[end]
            if behind is not None and len(lines) + len(behind) <= SHEET_LINES // 2:
                lines = join(LINES[kind], [lines, behind])
                end += 1
        parts = _cut(lines, last=end >= len(self.parts))
        numbers = self._numbers(i, len(parts))
        rows = [
            sheet_of(kind, number, sequence, part)
            for number, part in zip(numbers, parts, strict=True)
        ]
        replaced = self.parts[i:end]
        grown = sum(part.nbytes for part in parts) - sum(
            part.nbytes for part in replaced if part is not None
        )
        sheets = join(SHEETS[kind], [self.sheets[:i], *rows, self.sheets[end:]])
        whole = (*self.parts[:i], *parts, *self.parts[end:])
        return Lines(kind, sheets, whole, self.nbytes + grown)

    def _numbers(self, i: int, count: int) -> list[int]:
        """Of a sheet that becomes so many: its own, and then such as no sheet has."""
        if not count:
            return []
        if not len(self.sheets):
            return list(range(count))
        following = int(self.sheets["sheet"].max()) + 1
        return [int(self.sheets[i]["sheet"]), *range(following, following + count - 1)]


def _cut(lines: Entries, *, last: bool) -> list[Entries]:
    """The last sheet is filled before another begins, as lists grow there; others have room."""
    each = SHEET_LINES
    if not last and len(lines) > 2 * SHEET_LINES:
        each = -(-len(lines) // -(-len(lines) // SHEET_LINES))
    elif not last:
        each = 2 * SHEET_LINES
    return [lines[at : at + each] for at in range(0, len(lines), each)]


def _without(lines: Entries, pages: list[int]) -> Entries:
    if not pages:
        return lines
    numbers = lines["page"]
    kept = numbers != np.uint64(pages[0])
    for page in pages[1:]:  # a few; numpy's isin takes ten times as long for those
        kept &= numbers != np.uint64(page)
    left: Entries = lines[kept]
    return left


def _in_order(kind: PageKind, lines: Entries) -> Entries:
    if len(lines) < 2:
        return lines
    if kind is PageKind.AVAILABLE:
        order = np.lexsort((lines["first_id"], lines["first_visible_ms"], lines["priority"]))
    else:
        order = np.argsort(lines["page"], kind="stable")
    return lines[order]


def no_lines(kind: PageKind) -> Lines:
    return Lines(kind, np.zeros(0, SHEETS[kind]), (), 0)


def cut_into_sheets(kind: PageKind, lines: Entries, sequence: int) -> Lines:
    """All lines of a kind at once, in their order: of a head row that had no sheets."""
    parts = tuple(lines[i : i + SHEET_LINES] for i in range(0, len(lines), SHEET_LINES))
    rows = [sheet_of(kind, number, sequence, part) for number, part in enumerate(parts)]
    return Lines(kind, join(SHEETS[kind], rows), parts, lines.nbytes)


AllLines = dict[PageKind, Lines]
NO_LINES: AllLines = {kind: no_lines(kind) for kind in PageKind}
