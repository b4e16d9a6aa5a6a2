"""A consumer group in memory, and how it comes from rows.

Contract     `GroupState` is the group's numbers and the index of its pending list; pages are states
             of their own, so that a long list need not be in memory. Both are derivable: the rows
             of group, head and pages, then the operations that are newer (log/pages.py). Load in
             `load`, decide on what is shown, then `changed` gives what operations make of it.
Invariants   G1  the index counts the slots in use                                     (check.py)
             G2  pending offsets lie below `next`                                      (check.py)
             G3  everything below `ack_offset` is acknowledged, expired or skipped
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from penstock.codec.catalogue import check_name
from penstock.codec.group import (
    OPERATION_OFFSETS,
    GroupOperation,
    GroupRow,
    HeadRow,
    decode_group,
    decode_group_operation,
    decode_head,
    decode_page,
    encode_group_operation,
)
from penstock.codec.keys import (
    KeyType,
    group_key,
    groups_prefix,
    head_key,
    open_key,
    page_key,
    pages_prefix,
    prefix_end,
)
from penstock.codec.operations import Operation, Owner, PagedView
from penstock.errors import CorruptError
from penstock.log.catalogue import Shows, States
from penstock.log.decision import StateKey, View
from penstock.store.port import Reader
from penstock.stream.pending import NO_PAGES, Index, Page, applied, empty_page, page_of, touched


class GroupState(msgspec.Struct, frozen=True):
    row: GroupRow
    head: HeadRow  # as it is now, not as it is stored
    index: Index = NO_PAGES

    @property
    def id(self) -> int:
        return self.row.id

    @property
    def pending(self) -> int:
        return self.index.pending

    @property
    def ack_offset(self) -> int:
        lowest = self.index.first_pending()
        return self.head.next if lowest is None else min(lowest, self.head.next)

    @property
    def memory_bytes(self) -> int:
        return self.index.memory_bytes


class GroupNameState(msgspec.Struct, frozen=True):
    """Which group has this name; also known when there is none."""

    row: GroupRow | None


def group_name(name: str) -> bytes:
    return check_name("group", name)


def owner_of(group_id: int) -> Owner:
    return Owner(PagedView.GROUP, group_id)


def group_state_key(group_id: int) -> StateKey:
    return ("group", group_id)


def group_name_key(log_id: int, name: bytes) -> StateKey:
    return ("group name", (log_id, name))


def page_state_key(group_id: int, number: int) -> StateKey:
    return ("page", (group_id, number))


async def load_group(view: View, log_id: int, name: bytes) -> GroupState | None:
    """For `load`: have the group's numbers and index in memory, if there is such a group."""
    known: GroupNameState | None = view.state(group_name_key(log_id, name))
    if known is None:
        value = await view.store.get(group_key(log_id, name))
        what = f"group {name!r} of log {log_id}"
        known = GroupNameState(None if value is None else decode_group(value, what))
        view.keep(group_name_key(log_id, name), known)
    if known.row is None:
        return None
    state: GroupState | None = view.state(group_state_key(known.row.id))
    if state is None:
        state = await _read_group(view, known.row)
        view.keep(group_state_key(known.row.id), state)
    return state


class GroupsState(msgspec.Struct, frozen=True):
    """All groups of a log, in any order: what deleting it must find, those of the same tick
    included."""

    rows: dict[bytes, GroupRow]


def groups_state_key(log_id: int) -> StateKey:
    return ("groups", log_id)


async def load_groups(view: View, log_id: int) -> GroupsState:
    """For `load`: have the list of the log's groups in memory."""
    known: GroupsState | None = view.state(groups_state_key(log_id))
    if known is None:
        known = GroupsState(await list_groups(view.store, log_id))
        view.keep(groups_state_key(log_id), known)
    return known


async def list_groups(store: Reader, log_id: int) -> dict[bytes, GroupRow]:
    """The groups of a log in the rows, in the order of their names."""
    low = groups_prefix(log_id)
    found: dict[bytes, GroupRow] = {}
    async for rows in store.scan(low, prefix_end(low)):
        for key, value in rows:
            reader = open_key(key, KeyType.GROUP)
            reader.u64_key("log id")
            name = reader.terminated("name")
            reader.end()
            found[name] = decode_group(value, f"group {name!r} of log {log_id}")
    return found


def find_groups(view: Shows, log_id: int) -> dict[bytes, GroupRow]:
    """For `decide`: the log's groups as this tick sees them."""
    known: GroupsState | None = view.state(groups_state_key(log_id))
    # A log that this tick made has no list yet.
    return {} if known is None else known.rows


def with_group(view: Shows, log_id: int, name: bytes, row: GroupRow | None) -> States:
    """The list of the log's groups with this one added, or taken away."""
    rows = dict(find_groups(view, log_id))
    rows.pop(name, None)
    if row is not None:
        rows[name] = row
    return {groups_state_key(log_id): GroupsState(rows)}


def find_group(view: View, log_id: int, name: bytes) -> GroupState | None:
    """For `decide`: the group as this tick sees it."""
    known: GroupNameState | None = view.state(group_name_key(log_id, name))
    assert known is not None, "load_group keeps the name"
    if known.row is None:
        return None
    state: GroupState | None = view.state(group_state_key(known.row.id))
    assert state is not None, "a group and its name are kept together"
    return state


async def _read_group(view: View, row: GroupRow) -> GroupState:
    """The state from rows and operations."""
    # Before the rows: those that are written meanwhile contain what leaves the tail by that.
    operations = view.operations(owner_of(row.id))
    head: HeadRow | None = None
    pages: dict[int, Page] = {}
    index = NO_PAGES
    low = pages_prefix(row.id)
    async for rows in view.store.scan(low, prefix_end(low)):
        part: dict[int, Page] = {}
        for key, value in rows:
            if key == head_key(row.id):
                head = decode_head(value, f"head of group {row.id}")
                continue
            number = page_number(key)
            part[number] = page_of(number, decode_page(value, f"page {number} of group {row.id}"))
        index = index.replaced(part)
        # A long list must not be in memory as a whole, not even here.
        pages = part if len(pages) > 256 else pages | part
    if head is None:
        raise CorruptError(f"group {row.id}: its head is missing")
    state = GroupState(row, head, index)
    for operation in operations:
        body = decode_group_operation(operation.body)
        newer: dict[int, Page] = {}
        for number in touched(body):
            page = pages.get(number)
            if page is None:
                # Its row may have been written since the scan: the index has to know it, too.
                page = newer[number] = await _stored_page(view, row.id, number)
            # A page may have been written after the operation: then it contains it.
            if operation.sequence > page.sequence:
                page = newer[number] = applied(page, body, operation.sequence)
            pages[number] = page
        state = _after(state, body, operation.sequence, newer)
    return state


async def load_page(view: View, group_id: int, number: int) -> Page:
    """For `load`: a page with everything that was committed."""
    page: Page | None = view.state(page_state_key(group_id, number))
    if page is None:
        operations = view.operations(owner_of(group_id))  # before the row, as in `_read_group`
        page = await _stored_page(view, group_id, number)
        for operation in operations:
            if operation.sequence > page.sequence and number in pages_of(operation):
                body = decode_group_operation(operation.body)
                page = applied(page, body, operation.sequence)
        view.keep(page_state_key(group_id, number), page)
    return page


async def _stored_page(view: View, group_id: int, number: int) -> Page:
    value = await view.store.get(page_key(group_id, number))
    if value is None:
        return empty_page(number, 0)
    return page_of(number, decode_page(value, f"page {number} of group {group_id}"))


def pages_of(operation: Operation) -> frozenset[int]:
    """Numbers of the pages that an operation changes."""
    if operation.pages is None:
        # It came from a row: decoded once, not for every page that is loaded.
        pages = frozenset(touched(decode_group_operation(operation.body)))
        msgspec.structs.force_setattr(operation, "pages", pages)
        return pages
    return operation.pages


def page_number(key: bytes) -> int:
    reader = open_key(key, KeyType.PAGE)
    reader.u64_key("owner id")
    number = reader.u64_key("page")
    reader.end()
    return number


def _after(
    state: GroupState, body: GroupOperation, sequence: int, pages: Mapping[int, Page]
) -> GroupState:
    head = state.head
    if sequence > head.sequence:
        head = msgspec.structs.replace(
            head, sequence=sequence, next=body.next, expired=body.expired, skipped=body.skipped
        )
    index = state.index.replaced(pages) if pages else state.index
    return msgspec.structs.replace(state, head=head, index=index)


class Change:
    """Operations on one group within a decision, and what comes of them."""

    def __init__(self, state: GroupState, pages: Mapping[int, Page]) -> None:
        self.state = state
        self.operations: tuple[Operation, ...] = ()
        self.states: States = {}
        self._pages = dict(pages)

    def do(self, body: GroupOperation) -> None:
        """Add an operation. Lists that are too long for one become several."""
        while len(body.removed) > OPERATION_OFFSETS:
            self._do(
                msgspec.structs.replace(
                    body,
                    removed=body.removed[:OPERATION_OFFSETS],
                    again=body.again[:0],
                    fresh=body.fresh[:0],
                )
            )
            body = msgspec.structs.replace(body, removed=body.removed[OPERATION_OFFSETS:])
        self._do(body)

    def _do(self, body: GroupOperation) -> None:
        sequence = self.state.head.sequence + 1
        pages = {number: applied(self._pages[number], body, sequence) for number in touched(body)}
        encoded = encode_group_operation(body)
        self._pages |= pages
        self.state = _after(self.state, body, sequence, pages)
        self.operations += (
            Operation(owner_of(self.state.id), sequence, encoded, frozenset(pages)),
        )
        self.states[group_state_key(self.state.id)] = self.state
        for number, page in pages.items():
            self.states[page_state_key(self.state.id, number)] = page
