"""A queue in memory, how it comes from rows, and how operations change it.

Contract     `QueueState` is the queue's numbers and one line per page (lines.py); pages are states
             of their own, so that a long queue need not be in memory. All of it is derivable: the
             head row, the rows of sheets, the page rows, then the operations that are newer
             (log/pages.py). `load_queue`, `load_page` and `load_sheet` in `load`; a draft
             (draft.py) collects its deltas in a `Change`.
Invariants   Q3  a line says what its page holds                                       (check.py)
             Q4  lines of available pages stand in the order in which they are claimed (check.py)
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial

import msgspec
import numpy as np

from penstock.clock import give_way
from penstock.codec.catalogue import check_name
from penstock.codec.keys import (
    Kind,
    active_key,
    config_key,
    done_key,
    failed_key,
    head_key,
    page_key,
)
from penstock.codec.operations import Operation, Owner, PagedView
from penstock.codec.queueconfig import decode_queue_config
from penstock.codec.queueoperation import (
    LINES,
    NO_KEYS,
    SHEET_MAX,
    Cuts,
    Delta,
    HeadRow,
    Keys,
    PageKind,
    QueueHead,
    QueueOperation,
    cut_queue_operation,
    decode_head_row,
    decode_queue_operation,
    decode_sheet,
    encode_queue_operation,
    join,
    read_deltas,
    sheet_number,
)
from penstock.codec.queuestate import Entries
from penstock.codec.scalars import NEVER_MS, encode_u64_key
from penstock.errors import CorruptError, NotFoundError
from penstock.log.catalogue import (
    LogName,
    States,
    load_name,
    lookup,
)
from penstock.log.decision import StateKey, View
from penstock.queue.config import Settings, settings_of
from penstock.queue.lines import LISTS, AllLines, Lines, cut_into_sheets
from penstock.queue.page import Page, applied, decode_page, in_claim_order, new_page

#: Pages of leases carry this in their bucket number, and no priority.
_FLIGHT_BUCKETS = 1 << 63


class QueueState(msgspec.Struct, frozen=True, eq=False):
    id: int
    name: str
    settings: Settings
    sequence: int  # of the last operation
    head: QueueHead
    lines: AllLines

    @property
    def queue_id(self) -> bytes:
        return queue_id(self.name, self.id)

    @property
    def memory_bytes(self) -> int:
        held = (each.nbytes + each.sheets.nbytes for each in self.lines.values())
        return sum(held) + 2000

    def count(self, kind: PageKind) -> int:
        return self.lines[kind].count


def queue_name(name: str) -> LogName:
    return LogName(Kind.QUEUE, check_name("queue", name))


def queue_id(name: str, incarnation: int) -> bytes:
    """The RFC's free identifier: a queue that is deleted and made again is another one."""
    return name.encode() + encode_u64_key(incarnation, "queue")


def owner_of(incarnation: int) -> Owner:
    return Owner(PagedView.QUEUE, incarnation)


def queue_state_key(incarnation: int) -> StateKey:
    return ("queue", incarnation)


def page_state_key(incarnation: int, kind: PageKind, number: int) -> StateKey:
    return ("queue page", (incarnation, kind, number))


def page_row_key(identifier: bytes, kind: PageKind, number: int, priority: int) -> bytes:
    match kind:
        case PageKind.AVAILABLE:
            return active_key(identifier, priority, number)
        case PageKind.IN_FLIGHT:
            return active_key(identifier, 0, _FLIGHT_BUCKETS | number)
        case PageKind.DONE:
            return done_key(identifier, number)
        case PageKind.FAILED:
            return failed_key(identifier, number)


def sheet_key(incarnation: int, kind: PageKind, number: int) -> bytes:
    return page_key(incarnation, sheet_number(kind, number))


def page_code(kind: PageKind, number: int, priority: int) -> int:
    """A page in `Operation.pages`, which holds plain numbers."""
    return number << 10 | priority << 2 | kind


def page_place(code: int) -> tuple[PageKind, int, int]:
    """-> kind, number, priority"""
    return PageKind(code & 3), code >> 10, code >> 2 & 0xFF


# ---- loading ----------------------------------------------------------------------------------


async def load_queue(view: View, name: LogName) -> QueueState:
    """For `load`: the queue with this name, in memory. NotFoundError where there is none."""
    known = await load_name(view, name)
    if known.row is None:
        raise missing(name)
    return await load_queue_by_id(view, known.row.id, name.name.decode())


def missing(name: LogName) -> NotFoundError:
    return NotFoundError(
        f"there is no queue {name.name.decode()!r}", hint="create it, or check the name"
    )


async def load_queue_by_id(view: View, incarnation: int, name: str) -> QueueState:
    state: QueueState | None = view.state(queue_state_key(incarnation))
    if state is None:
        state = await _read_queue(view, incarnation, name)
        view.keep(queue_state_key(incarnation), state)
    return state


async def _read_queue(view: View, incarnation: int, name: str) -> QueueState:
    while True:
        # Before the rows: those that are written meanwhile contain what leaves the tail by that.
        operations = view.operations(owner_of(incarnation))
        value = await view.store.get(head_key(incarnation))
        try:
            return await _rebuilt(view, incarnation, name, value, operations)
        except CorruptError:
            if await view.store.get(head_key(incarnation)) == value:
                raise  # else this is a read, and rows were written meanwhile


async def _rebuilt(
    view: View,
    incarnation: int,
    name: str,
    value: bytes | None,
    operations: Sequence[Operation],
) -> QueueState:
    identifier = queue_id(name, incarnation)
    config = await view.store.get(config_key(identifier))
    if value is None or config is None:
        row = await lookup(view.store, queue_name(name))
        if row is None or row.id != incarnation:
            raise missing(queue_name(name))  # a read, and it was deleted meanwhile
        raise CorruptError(f"queue {name!r}: its {'head' if value is None else 'config'} is gone")
    stored = decode_head_row(value, f"head of queue {name!r}")
    lines = await _stored_lines(view, incarnation, stored)
    settings = settings_of(decode_queue_config(config))
    state = QueueState(incarnation, name, settings, stored.sequence, stored.head, lines)
    bodies = [
        (operation.sequence, decode_queue_operation(operation.body)) for operation in operations
    ]
    pages: dict[tuple[PageKind, int], Page] = {}
    for sequence, body in bodies:
        if sequence <= stored.sequence:
            continue
        state = msgspec.structs.replace(state, sequence=sequence, head=body.head)
        for delta in body.deltas:
            if (delta.kind, delta.page) not in pages:
                pages[delta.kind, delta.page] = await _stored_page(view, identifier, delta)
    # What the head contains already is not behind us: a page may be older than the head, where
    # something happened to it while the others were written.
    for sequence, body in bodies:
        _apply(pages, sequence, body)
    by_kind: dict[PageKind, list[Page]] = {}
    for page in map(in_claim_order, pages.values()):
        # Who wants the queue wants some of them next, and the tail is long.
        view.keep(page_state_key(incarnation, page.kind, page.number), page)
        by_kind.setdefault(page.kind, []).append(page)
    for kind, changed in by_kind.items():
        if kind in LISTS:
            for page in changed:
                lines[kind] = await _with_sheet(view, state, lines[kind], page.number)
        lines[kind] = lines[kind].found_anew(changed, state.sequence)
    return msgspec.structs.replace(state, lines=lines)


async def _stored_lines(view: View, incarnation: int, row: HeadRow) -> AllLines:
    """As the store has them."""
    if row.lines is not None:
        return {kind: cut_into_sheets(kind, row.lines[kind], row.sequence) for kind in PageKind}
    found: AllLines = {}
    for kind in PageKind:
        sheets = row.sheets[kind]
        if kind in LISTS:
            found[kind] = Lines(kind, sheets, (None,) * len(sheets), 0)
            continue
        rows: dict[bytes, bytes] = {}
        low, high = (sheet_key(incarnation, kind, i) for i in (0, SHEET_MAX))
        async for some in view.store.scan(low, high, batch_rows=16):
            rows.update(some)
        keys = (sheet_key(incarnation, kind, number) for number in sheets["sheet"].tolist())
        parts = tuple(
            _sheet(row.name, kind, sheet, rows.get(key))
            for sheet, key in zip(sheets, keys, strict=True)
        )
        found[kind] = Lines(kind, sheets, parts, sum(part.nbytes for part in parts))
    return found


def _sheet(name: str, kind: PageKind, sheet: np.void, value: bytes | None) -> Entries:
    """The lines of this sheet, from its row."""
    stored = None if value is None else decode_sheet(value, f"a sheet of queue {name!r}")
    if (
        stored is None
        or stored.kind is not kind
        or stored.sequence != sheet["sequence"]
        or len(stored.lines) != sheet["lines"]
    ):
        raise CorruptError(
            f"queue {name!r}: sheet {sheet['sheet']} of {kind.name.lower()} pages is"
            f" {'gone' if stored is None else 'not the one that its head tells of'}"
        )
    return stored.lines


async def load_sheet(view: View, state: QueueState, lines: Lines, i: int) -> Entries:
    """For `load`: the lines of one sheet. CorruptError where the store has another one, which a
    read meets also where it was written meanwhile (`newer`)."""
    part = lines.parts[i]
    if part is None:
        sheet = lines.sheets[i]
        value = await view.store.get(sheet_key(state.id, lines.kind, int(sheet["sheet"])))
        part = _sheet(state.name, lines.kind, sheet, value)
    return part


async def newer(view: View, state: QueueState, kind: PageKind) -> QueueState | None:
    """What a read goes on with that began with this state and misses one of its sheets; None: the
    head row tells of it still."""
    value = await view.store.get(head_key(state.id))
    if value is not None:
        lines = state.lines[kind]
        differ, _ = lines.unwritten(decode_head_row(value, f"head of {state.name!r}").sheets[kind])
        if all(lines.parts[i] is not None for i in differ):
            return None
    found: QueueState | None = view.committed(queue_state_key(state.id))
    if found is None or found is state:
        # Memory let go of it, or has not heard yet of the commit whose rows are there.
        return await _read_queue(view, state.id, state.name)
    return found


async def _with_sheet(view: View, state: QueueState, lines: Lines, page: int) -> Lines:
    """With the sheet in memory where the line of this page stands, or would."""
    i = lines.at((page,))
    if not lines.parts or lines.parts[i] is not None:
        return lines
    return lines.having(i, await load_sheet(view, state, lines, i))


async def load_listed(view: View, state: QueueState, kind: PageKind, number: int) -> Page:
    """For a read: a page of a list that has a line in this state. CorruptError where it is not as
    its line says, and not because commits went on beside this."""
    lines = await _with_sheet(view, state, state.lines[kind], number)
    try:
        return await load_page(
            view, state, kind, number, check=partial(check_page, state.name, lines)
        )
    except CorruptError:
        await give_way()  # memory may not have heard yet of the commit whose rows are there
        now: QueueState | None = view.committed(queue_state_key(state.id))
        if now is None or now is state:
            now = await _read_queue(view, state.id, state.name)
        lines = await _with_sheet(view, now, now.lines[kind], number)
        page = await load_page(view, now, kind, number)
        if page.sequence <= now.sequence:
            check_page(now.name, lines, page)
        return page


async def read_lines(view: View, state: QueueState, kind: PageKind) -> AsyncIterator[Entries]:
    """For reads: all lines, sheet by sheet."""
    lines = state.lines[kind]
    for i in range(len(lines.parts)):
        yield await load_sheet(view, state, lines, i)


def _apply(pages: dict[tuple[PageKind, int], Page], sequence: int, body: QueueOperation) -> None:
    """What an operation did to those of these pages that do not contain it; not in order."""
    older = {place for place, page in pages.items() if page.sequence < sequence}
    changed: set[tuple[PageKind, int]] = set()
    for delta in body.deltas:
        place = (delta.kind, delta.page)
        if place in older:
            page = pages[place]
            pages[place] = applied(page, delta, body.consumers, page.sequence, ordered=False)
            changed.add(place)
    # Only now: several deltas of one operation may be about one page.
    for place in changed:
        pages[place] = msgspec.structs.replace(pages[place], sequence=sequence)


async def _stored_page(view: View, identifier: bytes, delta: Delta) -> Page:
    key = page_row_key(identifier, delta.kind, delta.page, delta.priority)
    value = await view.store.get(key)
    if value is None:
        return new_page(delta.kind, delta.page, delta.priority)
    return decode_page(delta.kind, delta.page, delta.priority, value)


async def load_page(
    view: View,
    state: QueueState,
    kind: PageKind,
    number: int,
    priority: int = 0,
    check: Callable[[Page], None] | None = None,
) -> Page:
    """For `load`: a page with everything that was committed, and what this tick did. `check` raises
    for one from the store that is not as its line says; memory keeps none that was not looked at
    so: who finds a page there takes it as it is."""
    key = page_state_key(state.id, kind, number)
    page: Page | None = view.state(key)
    if page is not None:
        return page
    operations = view.operations(owner_of(state.id))  # before the row, as in `_read_queue`
    page = stored = await _stored_page(view, state.queue_id, Delta(kind, number, priority))
    code = page_code(kind, number, page.priority)
    place = (kind, number, page.priority)
    for operation in operations:
        if operation.sequence > page.sequence and code in pages_of(operation):
            cuts = _cuts_of(operation)
            for delta in read_deltas(operation.body, cuts, place):
                page = applied(page, delta, cuts.consumers, page.sequence, ordered=False)
            page = msgspec.structs.replace(page, sequence=operation.sequence)
    if page is not stored:
        page = in_claim_order(page)
    if check is not None:
        check(page)
        view.keep(key, page)
    return page


def check_page(name: str, lines: Lines, page: Page) -> None:
    """CorruptError where its line says something else: its row may be lost, or an older one."""
    if not lines.tells_of(page):
        raise CorruptError(
            f"queue {name!r}: page {page.number} of {page.kind.name.lower()}"
            f" messages has {len(page.entries)} of them, and not as many as were there"
        )


def pages_of(operation: Operation) -> frozenset[int]:
    """Codes of the pages that an operation changes."""
    if operation.pages is None:
        # It came from a row.
        pages = frozenset(page_code(*place) for place in _cuts_of(operation).places)
        msgspec.structs.force_setattr(operation, "pages", pages)
        return pages
    return operation.pages


def _cuts_of(operation: Operation) -> Cuts:
    """Looked for once, not for every page that is loaded: an operation may be about hundreds."""
    if operation.cuts is None:
        cuts = cut_queue_operation(operation.body)
        msgspec.structs.force_setattr(operation, "cuts", cuts)
        return cuts
    assert isinstance(operation.cuts, Cuts)
    return operation.cuts


def next_ms(lines: AllLines) -> int:
    """When a message becomes visible or a lease ends, at the earliest."""
    visible = lines[PageKind.AVAILABLE].least("first_visible_ms", NEVER_MS)
    return min(visible, lines[PageKind.IN_FLIGHT].least("deadline_ms", NEVER_MS))


# ---- changing ---------------------------------------------------------------------------------


class Change:
    """What one decision does to one queue. Pages are loaded as they are needed; nothing is changed
    but this, until `finish` hands it over."""

    def __init__(self, view: View, state: QueueState) -> None:
        self.before = state
        self.head = state.head
        self._view = view
        self._lines = dict(state.lines)
        self._pages: dict[tuple[PageKind, int], Page] = {}
        self._lined: dict[tuple[PageKind, int], Page] = {}  # as their lines have them
        self._changed: set[tuple[PageKind, int]] = set()
        self._stale: set[tuple[PageKind, int]] = set()  # their lines are
        self._deltas: list[Delta] = []
        self._consumers: dict[str, int] = {}

    @property
    def settings(self) -> Settings:
        return self.before.settings

    async def page(self, kind: PageKind, number: int, priority: int = 0) -> Page:
        place = (kind, number)
        if place not in self._pages:
            if kind in LISTS:
                self._lines[kind] = await _with_sheet(
                    self._view, self.before, self._lines[kind], number
                )
            page = await load_page(self._view, self.before, kind, number, priority, self._check)
            self._pages[place] = self._lined[place] = page
        return self._pages[place]

    def _check(self, page: Page) -> None:
        """Of a page that this has not changed."""
        check_page(self.before.name, self._lines[page.kind], page)

    async def sheet(self, kind: PageKind, i: int) -> Entries:
        """The lines of one sheet."""
        return await load_sheet(self._view, self.before, self.lines[kind], i)

    async def lines_below(self, kind: PageKind, field: str, limit: int, count: int) -> Entries:
        """The first lines, in their order, that say less than this."""
        found: list[Entries] = []
        for i in (self.lines[kind].sheets[field] < limit).nonzero()[0].tolist():
            lines = await self.sheet(kind, i)
            found.append(lines[(lines[field] < limit).nonzero()[0][:count]])
            count -= len(found[-1])
            if not count:
                break
        return join(LINES[kind], found)

    async def page_numbers(self, kind: PageKind, first: int, count: int) -> list[int]:
        """Of the pages of a list from this number on."""
        found: list[int] = []
        lines = self.lines[kind]
        for i in range(lines.at((first,)), len(lines.parts)):
            numbers = (await self.sheet(kind, i))["page"]
            found += numbers[numbers >= first].tolist()
            if len(found) >= count:
                break
        return found[:count]

    def make_page(self, kind: PageKind, number: int, priority: int = 0) -> None:
        self._pages[kind, number] = new_page(kind, number, priority)

    def consumer(self, name: str) -> int:
        """The number that stands for this consumer in entries of this change."""
        return self._consumers.setdefault(name, len(self._consumers))

    @property
    def consumers(self) -> tuple[str, ...]:
        return tuple(self._consumers)

    def do(
        self,
        kind: PageKind,
        number: int,
        *,
        removed: Keys | None = None,
        put: Entries | None = None,
    ) -> None:
        """Change a page that is loaded or made."""
        page = self._pages[kind, number]
        put = None if put is None or not len(put) else put
        removed = NO_KEYS if removed is None else np.sort(removed).astype(np.uint64)
        if put is None and not len(removed):
            return
        delta = Delta(kind, number, page.priority, removed, put)
        # The sequence stays: several deltas of one operation may be about one page.
        self._pages[kind, number] = applied(page, delta, self.consumers, page.sequence)
        self._deltas.append(delta)
        self._changed.add((kind, number))
        self._stale.add((kind, number))

    def set(self, **numbers: int) -> None:
        self.head = msgspec.structs.replace(self.head, **numbers)

    @property
    def lines(self) -> AllLines:
        if self._stale:
            by_kind: dict[PageKind, list[tuple[Page | None, Page]]] = {}
            for place in self._stale:
                page = self._pages[place]
                by_kind.setdefault(place[0], []).append((self._lined.get(place), page))
                self._lined[place] = page
            for kind, pages in by_kind.items():
                self._lines[kind] = self._lines[kind].replaced(pages, self.before.sequence + 1)
            self._stale.clear()
        return self._lines

    def finish(self) -> tuple[tuple[Operation, ...], States]:
        """The operation and the states. Nothing changed: nothing."""
        state = self.before
        if not self._deltas and self.head == state.head:
            return (), {}
        sequence = state.sequence + 1
        body = QueueOperation(self.head, self.consumers, tuple(self._deltas))
        codes = frozenset(
            page_code(kind, number, self._pages[kind, number].priority)
            for kind, number in self._changed
        )
        operation = Operation(owner_of(state.id), sequence, encode_queue_operation(body), codes)
        after = msgspec.structs.replace(state, sequence=sequence, head=self.head, lines=self.lines)
        states: States = {queue_state_key(state.id): after}
        for kind, number in self._changed:
            page = msgspec.structs.replace(self._pages[kind, number], sequence=sequence)
            states[page_state_key(state.id, kind, number)] = page
        return (operation,), states


def head_row(state: QueueState) -> HeadRow:
    sheets = {kind: lines.sheets for kind, lines in state.lines.items()}
    return HeadRow(state.sequence, state.name, state.head, sheets)
