"""Writing a group's pages: what operations did since the last time enters the rows (log/pages.py).

Contract     `plan_flush` names the pages that the tail's operations touch and the sequence up to
             which they will be complete. Submit `pages_step` for all of them, a part at a time,
             then `head_step`; then the operations up to that sequence are in the rows.
Safety       Operations that are committed meanwhile stay in the tail: rows that contain some of
             them already say so with their own sequence.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.codec.group import decode_head, encode_head, encode_page
from penstock.codec.keys import head_key, page_key
from penstock.codec.operations import Operation
from penstock.log.decision import Decision, Now, Step, View
from penstock.log.place import Rows
from penstock.stream.group import GroupState, group_state_key, load_group, load_page, pages_of
from penstock.stream.pending import row_of

#: Pages of one commit: about a megabyte when all slots are in use.
FLUSH_PAGES = 48


class Flush(msgspec.Struct, frozen=True):
    sequence: int
    pages: tuple[int, ...]

    def parts(self) -> Sequence[tuple[int, ...]]:
        return [self.pages[i : i + FLUSH_PAGES] for i in range(0, len(self.pages), FLUSH_PAGES)]


def plan_flush(operations: Sequence[Operation]) -> Flush:
    numbers: set[int] = set()
    for operation in operations:
        numbers.update(pages_of(operation))
    return Flush(operations[-1].sequence, tuple(sorted(numbers)))


async def _load_by_id(view: View, group_id: int) -> GroupState | None:
    """The group with this id, if it still exists."""
    state: GroupState | None = view.state(group_state_key(group_id))
    if state is not None:
        return state
    value = await view.store.get(head_key(group_id))
    if value is None:
        return None
    head = decode_head(value, f"head of group {group_id}")
    state = await load_group(view, head.log_id, head.name.encode())
    return state if state is not None and state.id == group_id else None


def pages_step(group_id: int, numbers: Sequence[int]) -> Step:
    """Write these pages as they are. An empty one has no row."""

    async def load(view: View) -> None:
        if await _load_by_id(view, group_id) is not None:
            for number in numbers:
                await load_page(view, group_id, number)
                await view.fetch(page_key(group_id, number))

    def decide(view: View, now: Now) -> Decision:
        if view.state(group_state_key(group_id)) is None:
            return Decision()
        rows: Rows = {}
        for number in numbers:
            page = view.state(("page", (group_id, number)))
            assert page is not None, "load_page keeps it"
            key = page_key(group_id, number)
            row = row_of(page)
            if len(row.slots):
                rows[key] = encode_page(row)
            elif view.row(key) is not None:
                rows[key] = None
        return Decision(writes=rows)

    return Step(decide, load)


def head_step(group_id: int) -> Step:
    """-> whether the group still exists"""

    async def load(view: View) -> None:
        await _load_by_id(view, group_id)

    def decide(view: View, now: Now) -> Decision:
        state: GroupState | None = view.state(group_state_key(group_id))
        if state is None:
            return Decision(reply=False)
        return Decision(reply=True, writes={head_key(group_id): encode_head(state.head)})

    return Step(decide, load)
