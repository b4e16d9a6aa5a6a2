"""Reading in a group: what is due again, then what is new (RCP 11, GROUP and RETRY).

Contract     `deliver_step` replies with the entries that the reader gets: pending ones whose retry
             time has come, in the order of their offsets, then entries that are new to the group.
             With `retry_ms` they are pending from now on; without it nobody has to acknowledge
             them. A group that does not exist is made, at `start`; with `makes_stream` its stream
             too, where the group is to start at "new": what comes first is new to it.
Rules        D1  what is due comes wherever it stands in the list: one entry that is not due holds
                 nothing up (the RCP's scan would)
             D2  a full list (max pending) stops new entries, not those that are due
             D3  entries that expired leave the list: counted, and moved to the dead stream if the
                 group has one, in the same commit
             D4  evicted and compacted entries are skipped, and counted
             D5  nothing is delivered that is not durable: not even what this tick writes
Not here     who waits, and whose turn it is (broker/turns.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from penstock.clock import give_way
from penstock.codec.group import (
    NO_OFFSETS,
    PAGE_SLOTS,
    GroupOperation,
    GroupRow,
    HeadRow,
    Offsets,
    encode_group,
    encode_head,
)
from penstock.codec.keys import group_key, head_key
from penstock.codec.scalars import NEVER_MS
from penstock.errors import InvalidError
from penstock.log.append import append_step
from penstock.log.batch import build_bodies
from penstock.log.cache import NodeCache
from penstock.log.catalogue import (
    Ids,
    LogName,
    Shows,
    States,
    Target,
    find_target,
    load_ids,
    load_target,
    make_target,
    stream_name,
    take_id,
)
from penstock.log.decision import Decision, Now, Step, Timer, View
from penstock.log.overlay import Overlay
from penstock.log.place import Rows
from penstock.log.read import Message, Piece, messages, read_nodes
from penstock.log.state import LogState, read_log, state_key
from penstock.stream.group import (
    Change,
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
from penstock.stream.pending import Page, empty_page
from penstock.stream.timers import group_due

Start = int | Literal["first", "new"]

MAX_PENDING = 1000
#: Bounds of one request: how many entries and bytes it may deliver, how many pages with expired or
#: evicted entries it clears on the way, how many nodes it looks at for a living entry.
COUNT_MAX = 100_000
BYTES_MAX = 64 << 20
BURY_BYTES = 4 << 20
CLEARED_PAGES = 16
LOOKED_NODES = 256


class Delivered(msgspec.Struct, frozen=True):
    #: All of them living: those that were delivered before, then those that are new.
    due: Sequence[Piece] = ()
    new: Sequence[Piece] = ()
    #: The group moved without finding anything to deliver: ask again.
    moved: bool = False
    log: LogState | None = None  # as it was then
    #: When something of the group is due again, and when something of it expires.
    retry_ms: int = NEVER_MS
    expire_ms: int = NEVER_MS

    @property
    def count(self) -> int:
        return _count(self.due) + _count(self.new)

    @property
    def messages(self) -> list[Message]:
        """All of them at once; a loop that others share takes `living_in_steps`."""
        found = [message for piece in (*self.due, *self.new) for message in messages(*piece)]
        return [message for message in found if message is not None]


class _Seen:
    """What `load` found for `decide`; both run back to back within the tick."""

    def __init__(self) -> None:
        self.pages: dict[int, Page] = {}
        self.expired: Offsets = NO_OFFSETS
        self.evicted: Offsets = NO_OFFSETS
        self.due: list[Piece] = []
        self.compacted: Offsets = NO_OFFSETS  # of those that were due
        self.new: list[Piece] = []
        self.next = 0
        self.skipped = 0
        self.dead: list[Piece] = []
        self.more_due = False  # pages with due entries were left for the next request


def check_start(start: object) -> Start:
    if start in ("first", "new"):
        return start
    if isinstance(start, int) and not isinstance(start, bool) and start >= 0:
        return start
    raise InvalidError(f"a group starts at 'first', 'new' or an offset, not at {start!r}")


def deliver_step(
    target: Target,
    group: bytes,
    count: int,
    *,
    retry_ms: int | None = None,
    expire_ms: int | None = None,
    start: Start = "first",
    cache: NodeCache | None = None,
    make: bool = True,
    makes_stream: bool = False,
) -> Step:
    """-> Delivered"""
    if count < 0:
        raise InvalidError(f"count {count} is negative")
    if retry_ms is not None and retry_ms < 1:
        raise InvalidError(f"a retry time of {retry_ms} ms; at least 1 is needed")
    if expire_ms is not None and (expire_ms < 1 or retry_ms is None):
        raise InvalidError("expire goes with retry, and is at least 1 ms")
    check_start(start)
    count = min(count, COUNT_MAX)
    makes_stream = makes_stream and start == "new" and isinstance(target, LogName)
    seen = _Seen()

    async def load(view: View) -> None:
        log_id = await load_target(view, target, make=makes_stream)
        log = find_target(view, target)
        if log is None:
            return
        assert log_id is not None
        state = await load_group(view, log_id, group)
        if state is None and not make:
            return
        if state is None:
            await load_ids(view, Ids.NAMED)
            await load_groups(view, log_id)
            room = _room(count, retry_ms, pending=0, max_pending=MAX_PENDING)
            await _see_new(view, seen, log, start_offset(log, start), room, cache)
            return
        await _see_pending(view, seen, state, log, count, cache)
        pending = state.pending - len(seen.expired) - len(seen.evicted) - len(seen.compacted)
        due = _count(seen.due)
        if retry_ms is None:
            pending -= due
        room = _room(count - due, retry_ms, pending=pending, max_pending=state.row.max_pending)
        if seen.more_due:
            room = 0  # what is due comes first
        await _see_new(view, seen, log, state.head.next, room, cache)
        if state.row.dead and len(seen.expired):
            await load_target(view, stream_name(state.row.dead), make=True)
        for number in _pages(seen.new) if retry_ms is not None else ():
            # Without a line in the index nothing on it is pending, whatever its row still says.
            seen.pages[number] = (
                await load_page(view, state.id, number)
                if state.index.holds(number)
                else empty_page(number, state.head.sequence)
            )

    def decide(view: View, now: Now) -> Decision:
        log = find_target(view, target)
        if log is None:
            return (
                _founded(view, target, group, now) if makes_stream else Decision(reply=Delivered())
            )
        state = find_group(view, log.log_id, group)
        rows: Rows = {}
        states: States = {}
        if state is None and not make:
            return Decision(reply=Delivered())
        if state is None:
            made = GroupRow(0, MAX_PENDING, "")
            state, rows, states = make_group(view, log, group, made, start)
            seen.pages = {number: empty_page(number, 0) for number in _pages(seen.new)}
            if state.head.next == seen.next:
                return Decision(reply=Delivered(log=log), writes=rows, states=states)
        decision = _deliver(log, state, seen, now, retry_ms, expire_ms)
        rows |= decision.writes
        states |= decision.states
        timers = decision.timers
        if seen.dead:
            moved = _bury(view, state, seen.dead, now)
            rows |= moved.writes
            states |= moved.states
            timers += moved.timers
        return Decision(decision.reply, rows, states, timers, decision.operations)

    return Step(decide, load)


def _room(count: int, retry_ms: int | None, *, pending: int, max_pending: int) -> int:
    """How many new entries may be delivered. Without a retry time none of them will be pending."""
    if pending >= max_pending:
        return 0
    return count if retry_ms is None else min(count, max_pending - pending)


def start_offset(log: LogState, start: Start) -> int:
    match start:
        case "first":
            return log.first
        case "new":
            return log.next
    if start > log.next:
        raise InvalidError(f"offset {start} lies behind the end of the stream, {log.next}")
    return start


def make_group(
    view: Shows, log: LogState, name: bytes, row: GroupRow, start: Start
) -> tuple[GroupState, Rows, States]:
    """For `decide`: a new group. The row's id is given here."""
    group_id, rows, states = take_id(view, Ids.NAMED)
    row = msgspec.structs.replace(row, id=group_id)
    head = HeadRow(log.log_id, name.decode(), 0, start_offset(log, start))
    state = GroupState(row, head)
    rows[group_key(log.log_id, name)] = encode_group(row)
    rows[head_key(group_id)] = encode_head(head)
    states[group_name_key(log.log_id, name)] = GroupNameState(row)
    states[group_state_key(group_id)] = state
    states |= with_group(view, log.log_id, name, row)
    return state, rows, states


def _founded(view: View, target: Target, group: bytes, now: Now) -> Decision:
    """A stream for a group that starts at its end: without it the group could not be remembered,
    and what is written until the next look would lie before its start."""
    assert isinstance(target, LogName)
    shown = Overlay(view)
    log, shown.rows, shown.states = make_target(shown, target, now)
    _, rows, states = make_group(shown, log, group, GroupRow(0, MAX_PENDING, ""), "new")
    return Decision(
        reply=Delivered(log=log), writes=shown.rows | rows, states={**shown.states, **states}
    )


def _deliver(
    log: LogState,
    state: GroupState,
    seen: _Seen,
    now: Now,
    retry_ms: int | None,
    expire_ms: int | None,
) -> Decision:
    head = state.head
    due = _offsets(seen.due)
    lists = [each for each in (seen.expired, seen.evicted, seen.compacted) if len(each)]
    if retry_ms is None and len(due):
        lists.append(due)
    removed = np.unique(np.concatenate(lists)) if lists else NO_OFFSETS
    moved = seen.next != head.next or bool(len(removed))
    if not moved and not len(due):
        return Decision(reply=_delivered(seen, log, state))
    change = Change(state, seen.pages)
    change.do(
        GroupOperation(
            next=seen.next,
            expired=head.expired + len(seen.expired),
            skipped=head.skipped + seen.skipped + len(seen.evicted) + len(seen.compacted),
            # Never 0, which is "not pending", and never so late that it cannot be stored.
            retry_ms=0 if retry_ms is None else min(now.ms + retry_ms, NEVER_MS - 1),
            expire_ms=NEVER_MS if expire_ms is None else min(now.ms + expire_ms, NEVER_MS),
            removed=removed,
            again=NO_OFFSETS if retry_ms is None else due,
            fresh=NO_OFFSETS if retry_ms is None else _offsets(seen.new),
        )
    )
    return Decision(
        reply=_delivered(seen, log, change.state, moved=moved),
        states=change.states,
        operations=change.operations,
        timers=expiry_timers(change.state),
    )


def _delivered(seen: _Seen, log: LogState, state: GroupState, *, moved: bool = False) -> Delivered:
    index = state.index
    moved = moved and not seen.due and not seen.new
    return Delivered(seen.due, seen.new, moved, log, index.next_retry_ms, index.next_expire_ms)


def expiry_timers(state: GroupState) -> tuple[Timer, ...]:
    at_ms = state.index.next_expire_ms
    return () if at_ms == NEVER_MS else (group_due(state.head.log_id, state.head.name, at_ms),)


def _bury(view: View, state: GroupState, dead: list[Piece], now: Now) -> Decision:
    """Expired entries go to the end of the dead stream, in this commit."""
    entries = [
        (tag, data, meta)
        for node, start, stop in dead
        for tag, data, meta in zip(
            node.tag_list(start, stop),
            node.data_list(start, stop),
            node.meta_list(start, stop),
            strict=True,
        )
    ]
    return append_step(stream_name(state.row.dead), build_bodies(entries)).decide(view, now)


async def _see_pending(
    view: View,
    seen: _Seen,
    state: GroupState,
    log: LogState,
    count: int,
    cache: NodeCache | None,
) -> None:
    now_ms = view.now_ms

    async def page(number: int) -> Page:
        if number not in seen.pages:
            seen.pages[number] = await load_page(view, state.id, number)
        return seen.pages[number]

    for number in state.index.expired(now_ms)[:CLEARED_PAGES]:
        seen.expired = np.concatenate((seen.expired, (await page(number)).expired(now_ms)))
    if state.row.dead and len(seen.expired):
        # As many as one commit may bury; the others expire with the next request.
        seen.dead, seen.expired = await _read_offsets(view, log, seen.expired, cache, BURY_BYTES)
    for number in state.index.between(0, log.first)[:CLEARED_PAGES]:
        evicted = (await page(number)).between(0, log.first)
        seen.evicted = np.concatenate((seen.evicted, np.setdiff1d(evicted, seen.expired)))
    wanted, misses = count, 0
    due = NO_OFFSETS
    for number in state.index.due(now_ms):
        # A page that is due only with what expired or was evicted is cleared in its turn; so many
        # of them may be there that not all can be looked at.
        if wanted <= 0 or misses:
            seen.more_due = True
            break
        known = number in seen.pages
        found = (await page(number)).due(now_ms)
        found = found[found >= log.first]
        found = np.setdiff1d(found, (await page(number)).expired(now_ms))[:wanted]
        due = np.concatenate((due, found))
        wanted -= len(found)
        misses += not known and not len(found)
    if len(due):
        seen.due, looked = await _read_offsets(view, log, due, cache, BYTES_MAX)
        if _count(seen.due) < len(looked):
            seen.compacted = np.setdiff1d(looked, _offsets(seen.due))
        seen.more_due = seen.more_due or len(looked) < len(due)


async def _see_new(
    view: View,
    seen: _Seen,
    log: LogState,
    at: int,
    room: int,
    cache: NodeCache | None,
) -> None:
    """Living entries from `at` on, at most `room`; D5: none that this tick wrote."""
    seen.next = at
    if room <= 0:
        return
    before: LogState | None = view.committed(state_key(log.log_id))
    if before is None:
        before = await read_log(view.store, log.log_id)
    end = log.first if before is None else min(before.next, log.next)
    begin = max(at, log.first)
    if begin > at:
        seen.skipped += begin - at
        seen.next = begin
    size = nodes = found = 0
    shown = msgspec.structs.replace(log, next=max(end, log.first))
    async for node, low, high in read_nodes(view.store, shown, begin, end, cache=cache):
        for start, stop, living in node.runs(low, high):
            if living:
                stop = min(stop, start + room - found)
                taken = node.fitting(start, stop, BYTES_MAX - size)
                if taken > start:
                    seen.new.append((node, start, taken))
                found += taken - start
                size += node.entry_bytes(start, taken)
                seen.next = node.first + taken
                if taken < stop or found >= room or size >= BYTES_MAX:
                    return
            else:
                seen.skipped += stop - start
                seen.next = node.first + stop
        nodes += 1
        if nodes >= LOOKED_NODES:
            return


async def _read_offsets(
    view: View, log: LogState, offsets: Offsets, cache: NodeCache | None, bytes_max: int
) -> tuple[list[Piece], Offsets]:
    """The living ones of these entries, and which of them were looked at: all, or as many as
    `bytes_max` allows, the one that reaches it included."""
    found: list[Piece] = []
    size, at = 0, int(offsets.searchsorted(log.first))
    while at < len(offsets):
        first = int(offsets[at])
        # Node by node, however many of its entries are meant: there may be one run for each.
        end = first + 1
        async for node, _, _ in read_nodes(view.store, log, first, first + 1, cache=cache):
            end = node.end
            stop = at + int(offsets[at:].searchsorted(end))
            for low, high in _runs(offsets[at:stop] - node.first):
                for start, last, living in node.runs(low, high):
                    taken = node.fitting(start, last, bytes_max - size) if living else last
                    if living:
                        found.append((node, start, taken))
                        size += node.entry_bytes(start, taken)
                    if size >= bytes_max:
                        return found, offsets[offsets < node.first + taken]
        at += int(offsets[at:].searchsorted(end))
        if at < len(offsets):
            await give_way()
    return found, offsets


def _runs(offsets: Offsets) -> Sequence[tuple[int, int]]:
    """Neighbours among rising offsets: (first, last + 1)."""
    if int(offsets[-1]) - int(offsets[0]) == len(offsets) - 1:
        return [(int(offsets[0]), int(offsets[-1]) + 1)]
    breaks = np.flatnonzero(np.diff(offsets) != 1)
    starts = np.concatenate((offsets[:1], offsets[breaks + 1])).tolist()
    stops = np.concatenate((offsets[breaks], offsets[-1:])).tolist()
    return [(start, stop + 1) for start, stop in zip(starts, stops, strict=True)]


def _count(pieces: Sequence[Piece]) -> int:
    return sum(stop - start for _, start, stop in pieces)


def _offsets(pieces: Sequence[Piece]) -> Offsets:
    if not pieces:
        return NO_OFFSETS
    ranges = [np.arange(node.first + start, node.first + stop) for node, start, stop in pieces]
    return ranges[0] if len(ranges) == 1 else np.concatenate(ranges)


def _pages(pieces: Sequence[Piece]) -> set[int]:
    """Numbers of the pages that these entries stand on when they are pending."""
    return {
        number
        for node, start, stop in pieces
        for number in range(
            (node.first + start) // PAGE_SLOTS, (node.first + stop - 1) // PAGE_SLOTS + 1
        )
    }
