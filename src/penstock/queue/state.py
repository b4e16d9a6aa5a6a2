"""A queue in memory, how it comes from rows, and how operations change it.

Contract     `QueueState` is the queue's numbers and one line per page; pages are states of their
             own, so that a long queue need not be in memory. All of it is derivable: the head row
             with its lines, the page rows, then the operations that are newer (log/pages.py).
             `load_queue` and `load_page` in `load`; a draft (draft.py) collects its deltas in a
             `Change`.
Invariants   Q3  a line says what its page holds                                       (check.py)
             Q4  lines of available pages stand in the order in which they are claimed (check.py)
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

from penstock.codec.catalogue import check_name
from penstock.codec.keys import (
    Kind,
    active_key,
    config_key,
    done_key,
    failed_key,
    head_key,
)
from penstock.codec.operations import Operation, Owner, PagedView
from penstock.codec.queueconfig import decode_queue_config
from penstock.codec.queueoperation import (
    LINES,
    NO_KEYS,
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
    encode_queue_operation,
    join,
    read_deltas,
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
from penstock.queue.page import Page, applied, decode_page, in_claim_order, line_of, new_page

#: Pages of leases carry this in their bucket number, and no priority.
_FLIGHT_BUCKETS = 1 << 63

Lines = dict[PageKind, Entries]


class QueueState(msgspec.Struct, frozen=True, eq=False):
    id: int
    name: str
    settings: Settings
    sequence: int  # of the last operation
    head: QueueHead
    lines: Lines

    @property
    def queue_id(self) -> bytes:
        return queue_id(self.name, self.id)

    @property
    def memory_bytes(self) -> int:
        return sum(lines.nbytes for lines in self.lines.values()) + 2000

    def count(self, kind: PageKind) -> int:
        return int(self.lines[kind]["count"].sum())

    def next_deadline_ms(self) -> int | None:
        """When the first lease ends."""
        deadlines = self.lines[PageKind.IN_FLIGHT]["deadline_ms"]
        return int(deadlines.min()) if len(deadlines) else None


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
    identifier = queue_id(name, incarnation)
    value = await view.store.get(head_key(incarnation))
    config = await view.store.get(config_key(identifier))
    if value is None or config is None:
        row = await lookup(view.store, queue_name(name))
        if row is None or row.id != incarnation:
            raise missing(queue_name(name))  # a read, and it was deleted meanwhile
        raise CorruptError(f"queue {name!r}: its {'head' if value is None else 'config'} is gone")
    head = decode_head_row(value, f"head of queue {name!r}")
    settings = settings_of(decode_queue_config(config))
    state = QueueState(incarnation, name, settings, head.sequence, head.head, head.lines)
    bodies = [
        (operation.sequence, decode_queue_operation(operation.body))
        for operation in view.operations(owner_of(incarnation))
    ]
    pages: dict[tuple[PageKind, int], Page] = {}
    for sequence, body in bodies:
        if sequence <= head.sequence:
            continue
        state = msgspec.structs.replace(state, sequence=sequence, head=body.head)
        for delta in body.deltas:
            if (delta.kind, delta.page) not in pages:
                pages[delta.kind, delta.page] = await _stored_page(view, identifier, delta)
    # What the head contains already is not behind us: a page may be older than the head, where
    # something happened to it while the others were written.
    for sequence, body in bodies:
        _apply(pages, sequence, body)
    found = [in_claim_order(page) for page in pages.values()]
    for page in found:
        # Who wants the queue wants some of them next, and the tail is long.
        view.keep(page_state_key(incarnation, page.kind, page.number), page)
    return msgspec.structs.replace(state, lines=_with_lines(state.lines, found))


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
    view: View, state: QueueState, kind: PageKind, number: int, priority: int = 0
) -> Page:
    """For `load`: a page with everything that was committed, and what this tick did."""
    key = page_state_key(state.id, kind, number)
    page: Page | None = view.state(key)
    if page is not None:
        return page
    page = stored = await _stored_page(view, state.queue_id, Delta(kind, number, priority))
    code = page_code(kind, number, page.priority)
    place = (kind, number, page.priority)
    for operation in view.operations(owner_of(state.id)):
        if operation.sequence > page.sequence and code in pages_of(operation):
            cuts = _cuts_of(operation)
            for delta in read_deltas(operation.body, cuts, place):
                page = applied(page, delta, cuts.consumers, page.sequence, ordered=False)
            page = msgspec.structs.replace(page, sequence=operation.sequence)
    if page is not stored:
        page = in_claim_order(page)
    view.keep(key, page)
    return page


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


# ---- lines ------------------------------------------------------------------------------------


def _with_lines(lines: Lines, pages: Iterable[Page]) -> Lines:
    """The lines after these pages changed."""
    by_kind: dict[PageKind, list[Page]] = {}
    for page in pages:
        by_kind.setdefault(page.kind, []).append(page)
    if not by_kind:
        return lines
    return lines | {kind: _replaced(kind, lines[kind], found) for kind, found in by_kind.items()}


def _replaced(kind: PageKind, lines: Entries, pages: list[Page]) -> Entries:
    if len(pages) == 1:
        at = np.flatnonzero(lines["page"] == np.uint64(pages[0].number))
        line = line_of(pages[0])
        if len(at) and len(line) and _stays(kind, lines, int(at[0]), line):
            lines = lines.copy()
            lines[at[0]] = line[0]
            return lines
    kept = np.ones(len(lines), np.bool_)
    for page in pages:  # a few; numpy's isin takes ten times as long for those
        kept &= lines["page"] != np.uint64(page.number)
    return _sorted(kind, join(LINES[kind], [lines[kept], *map(line_of, pages)]))


def _stays(kind: PageKind, lines: Entries, at: int, line: Entries) -> bool:
    """Whether this line may stand in this place."""
    if kind is not PageKind.AVAILABLE:
        return True
    key = _order(line[0])
    return (at == 0 or _order(lines[at - 1]) <= key) and (
        at + 1 == len(lines) or key <= _order(lines[at + 1])
    )


def _order(line: np.void) -> tuple[int, int, int]:
    return int(line["priority"]), int(line["first_visible_ms"]), int(line["first_id"])


def _sorted(kind: PageKind, lines: Entries) -> Entries:
    if kind is PageKind.AVAILABLE:
        order = np.lexsort((lines["first_id"], lines["first_visible_ms"], lines["priority"]))
    else:
        order = np.argsort(lines["page"], kind="stable")
    return lines[order]


def next_ms(lines: Lines) -> int:
    """When a message becomes visible or a lease ends, at the earliest."""
    visible = lines[PageKind.AVAILABLE]["first_visible_ms"]
    deadlines = lines[PageKind.IN_FLIGHT]["deadline_ms"]
    return min((int(times.min()) for times in (visible, deadlines) if len(times)), default=NEVER_MS)


NO_LINES: Lines = {kind: np.zeros(0, form) for kind, form in LINES.items()}


# ---- changing ---------------------------------------------------------------------------------


class Change:
    """What one decision does to one queue. Pages are loaded as they are needed; nothing is changed
    but this, until `finish` hands it over."""

    def __init__(self, view: View, state: QueueState) -> None:
        self.before = state
        self.head = state.head
        self._view = view
        self._lines = state.lines
        self._pages: dict[tuple[PageKind, int], Page] = {}
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
            self._pages[place] = await load_page(self._view, self.before, kind, number, priority)
        return self._pages[place]

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
    def lines(self) -> Lines:
        if self._stale:
            self._lines = _with_lines(self._lines, [self._pages[place] for place in self._stale])
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
    return HeadRow(state.sequence, state.name, state.head, state.lines)
