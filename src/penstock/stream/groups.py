"""Setting groups up, moving them, looking at them (TGROUP).

Contract     `create_step` makes a group, and the stream where there is none; again with the same
             settings it changes nothing, with others it is a ConflictError. `set_step` moves a
             group: pending entries at or after the new offset leave the list, because they come
             again as new; earlier ones stay. `destroy_step` forgets it. A look is a step too: it
             sees operations whose pages are not written yet.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from penstock.codec.garbage import encode_garbage
from penstock.codec.group import NO_OFFSETS, OFFSET_MAX, GroupRow
from penstock.codec.keys import garbage_key, group_key, pages_prefix, prefix_end
from penstock.codec.scalars import I64_MAX, NEVER_MS
from penstock.errors import ConflictError, InvalidError, NotFoundError
from penstock.log.catalogue import (
    LogName,
    States,
    find_target,
    load_target,
    make_target,
)
from penstock.log.decision import Decision, Now, Step, View
from penstock.log.overlay import Overlay
from penstock.log.place import Rows
from penstock.log.timers import garbage_due
from penstock.stream.ack import remove
from penstock.stream.deliver import (
    COUNT_MAX,
    MAX_PENDING,
    Start,
    check_start,
    make_group,
    start_offset,
)
from penstock.stream.group import (
    GroupNameState,
    GroupState,
    find_group,
    group_name_key,
    group_state_key,
    load_group,
    load_groups,
    load_page,
    with_group,
)
from penstock.stream.pending import Page


class GroupInfo(msgspec.Struct, frozen=True):
    name: str
    last_offset: int  # the last one delivered; -1 before the first
    ack_offset: int  # everything below is acknowledged, expired or skipped
    pending: int  # delivered and not acknowledged yet
    expired: int  # given up because nobody acknowledged them in time
    skipped: int  # evicted or compacted before they were acknowledged
    max_pending: int
    dead: str | None  # the stream that expired entries are moved to


class Pending(msgspec.Struct, frozen=True):
    offset: int
    retry_ms: int  # when it is delivered again (epoch)
    expire_ms: int | None  # when it is given up; None: never
    deliveries: int


def create_step(
    target: LogName,
    group: bytes,
    *,
    start: Start = "first",
    max_pending: int = MAX_PENDING,
    dead: LogName | None = None,
) -> Step:
    check_start(start)
    if not 1 <= max_pending <= I64_MAX:
        raise InvalidError(f"max_pending is at least 1, not {max_pending}")
    if dead == target:
        raise InvalidError("expired entries cannot go to the stream that they come from")
    row = GroupRow(0, max_pending, "" if dead is None else dead.name.decode())

    async def load(view: View) -> None:
        log_id = await load_target(view, target, make=True)
        if log_id is not None:
            await load_group(view, log_id, group)
            await load_groups(view, log_id)

    def decide(view: View, now: Now) -> Decision:
        shown = Overlay(view)
        log = find_target(shown, target)
        if log is None:
            log, rows, states = make_target(shown, target, now)
            shown.rows |= rows
            shown.states |= states
            known = None
        else:
            known = find_group(view, log.log_id, group)
        if known is not None:
            if msgspec.structs.replace(known.row, id=0) == row:
                return Decision()
            raise ConflictError(
                f"group {group.decode()!r} exists with other settings", hint="destroy it first"
            )
        _, rows, states = make_group(shown, log, group, row, start)
        return Decision(writes=shown.rows | rows, states={**shown.states, **states})

    return Step(decide, load)


def set_step(target: LogName, group: bytes, offset: Start) -> Step:
    check_start(offset)
    pages: dict[int, Page] = {}

    async def load(view: View) -> None:
        log_id = await load_target(view, target)
        log = find_target(view, target)
        state = None if log_id is None else await load_group(view, log_id, group)
        if state is not None and log is not None:
            for number in state.index.between(start_offset(log, offset), OFFSET_MAX):
                pages[number] = await load_page(view, state.id, number)

    def decide(view: View, now: Now) -> Decision:
        log = find_target(view, target)
        state = None if log is None else find_group(view, log.log_id, group)
        if log is None or state is None:
            raise NotFoundError(f"there is no group {group.decode()!r} on this stream")
        to = start_offset(log, offset)
        removed = np.concatenate(
            [NO_OFFSETS, *(page.between(to, OFFSET_MAX) for page in pages.values())]
        )
        return remove(state, pages, removed, reply=None, next_offset=to)

    return Step(decide, load)


def destroy_step(target: LogName, group: bytes) -> Step:
    """-> whether there was such a group"""

    async def load(view: View) -> None:
        log_id = await load_target(view, target)
        if log_id is not None:
            await load_group(view, log_id, group)
            await load_groups(view, log_id)

    def decide(view: View, now: Now) -> Decision:
        log = find_target(view, target)
        state = None if log is None else find_group(view, log.log_id, group)
        if log is None or state is None:
            return Decision(reply=False)
        rows, states = forget_group(log.log_id, group, state.row)
        states |= with_group(view, log.log_id, group, None)
        return Decision(reply=True, writes=rows, states=states, timers=(garbage_due(now.ms),))

    return Step(decide, load)


def forget_group(log_id: int, group: bytes, row: GroupRow) -> tuple[Rows, States]:
    """Its rows are garbage from now on; pages in memory are never found again."""
    low = pages_prefix(row.id)
    rows: Rows = {
        group_key(log_id, group): None,
        garbage_key(low): encode_garbage(prefix_end(low)),
    }
    return rows, {
        group_name_key(log_id, group): GroupNameState(None),
        group_state_key(row.id): None,
    }


def info_step(target: LogName, group: bytes) -> Step:
    """-> GroupInfo"""

    async def load(view: View) -> None:
        log_id = await load_target(view, target)
        if log_id is not None:
            await load_group(view, log_id, group)

    def decide(view: View, now: Now) -> Decision:
        log = find_target(view, target)
        state = None if log is None else find_group(view, log.log_id, group)
        if state is None:
            raise NotFoundError(f"there is no group {group.decode()!r} on this stream")
        return Decision(reply=info_of(state))

    return Step(decide, load)


def infos_step(target: LogName, groups: Sequence[bytes]) -> Step:
    """-> list of GroupInfo, without those that are gone"""

    async def load(view: View) -> None:
        log_id = await load_target(view, target)
        if log_id is not None:
            for group in groups:
                await load_group(view, log_id, group)

    def decide(view: View, now: Now) -> Decision:
        log = find_target(view, target)
        if log is None:
            return Decision(reply=[])
        states = [find_group(view, log.log_id, group) for group in groups]
        return Decision(reply=[info_of(state) for state in states if state is not None])

    return Step(decide, load)


def info_of(state: GroupState) -> GroupInfo:
    return GroupInfo(
        name=state.head.name,
        last_offset=state.head.next - 1,
        ack_offset=state.ack_offset,
        pending=state.pending,
        expired=state.head.expired,
        skipped=state.head.skipped,
        max_pending=state.row.max_pending,
        dead=state.row.dead or None,
    )


def pending_step(target: LogName, group: bytes, start: int, count: int) -> Step:
    """-> list of Pending, from an offset on; as many as a read may deliver, at most"""
    if start < 0 or count < 0:
        raise InvalidError("start and count are not negative")
    count = min(count, COUNT_MAX)
    pages: list[Page] = []

    async def load(view: View) -> None:
        log_id = await load_target(view, target)
        state = None if log_id is None else await load_group(view, log_id, group)
        found = 0
        for number in [] if state is None else state.index.between(start, OFFSET_MAX):
            assert state is not None
            pages.append(await load_page(view, state.id, number))
            found += len(pages[-1].between(start, OFFSET_MAX))
            if found >= count:
                break

    def decide(view: View, now: Now) -> Decision:
        log = find_target(view, target)
        if log is None or find_group(view, log.log_id, group) is None:
            raise NotFoundError(f"there is no group {group.decode()!r} on this stream")
        found: list[Pending] = []
        for page in pages:
            for offset in page.between(start, OFFSET_MAX)[: count - len(found)].tolist():
                slot = offset - page.first
                expire_ms = int(page.expire[slot])
                found.append(
                    Pending(
                        offset,
                        int(page.retry[slot]),
                        None if expire_ms == NEVER_MS else expire_ms,
                        int(page.deliveries[slot]),
                    )
                )
        return Decision(reply=found)

    return Step(decide, load)
