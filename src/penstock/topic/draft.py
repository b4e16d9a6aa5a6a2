"""A draft: what one request does to a topic, put together before it is decided.

Contract     `topic_step(name, body)` makes a step of a coroutine, as queue/draft.py does: the body
             runs in `load`, may read pages as it needs them, and changes nothing but the draft;
             `decide` hands the draft over. All it does to the topic becomes one operation.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import numpy as np

from penstock.codec.keys import hold_key
from penstock.codec.once import encode_hold
from penstock.codec.operations import Operation
from penstock.codec.topic import PAGE_OFFSETS, Epochs, Offsets, Shards, Slots, Space, TopicHead
from penstock.codec.topicoperation import (
    NO_EPOCHS,
    NO_OFFSETS,
    NO_SLOTS,
    SpacePart,
    TopicOperation,
    encode_topic_operation,
)
from penstock.errors import CorruptError, NotFoundError
from penstock.log.catalogue import LogName, States
from penstock.log.decision import Decision, Now, Step, Timer, View
from penstock.log.place import Rows
from penstock.log.state import LogState, load_log, state_key
from penstock.topic.page import Mask, Page, add, pages_of
from penstock.topic.shards import drop_drained
from penstock.topic.state import (
    LIVE,
    PagePlace,
    TopicState,
    after,
    find_by_id,
    load_page,
    load_topic,
    owner_of,
    page_state_key,
    places_in,
    topic_state_key,
    without_ended,
)

HOLDER = b"topic"


class _Changes:
    """What was done to the references of one space."""

    def __init__(self) -> None:
        self.added_first = 0
        self.added: Slots = NO_SLOTS
        self.marked: list[tuple[Offsets, Epochs]] = []
        self.done: list[Offsets] = []

    def part(self, space: int, fed: int) -> SpacePart:
        marked, epochs, done = NO_OFFSETS, NO_EPOCHS, NO_OFFSETS
        if self.marked:
            marked = np.concatenate([offsets for offsets, _ in self.marked])
            order = np.argsort(marked, kind="stable")
            marked = marked[order]
            epochs = np.concatenate([each for _, each in self.marked])[order]
        if self.done:
            done = np.sort(np.concatenate(self.done))
        return SpacePart(space, fed, self.added_first, self.added, marked, epochs, done)


class Draft:
    """`head` may be replaced, all but its shards and spaces; `shards` and `spaces` are this draft's
    own."""

    def __init__(self, view: View, state: TopicState, log: LogState) -> None:
        self.view = view
        self.now_ms = view.now_ms
        self.state = state
        self.log = log  # as this draft made it
        self.head = state.head
        self.shards: Shards = state.head.shards.copy()
        self.spaces: dict[int, Space] = {space.id: space for space in state.head.spaces}
        self.rows: Rows = {}
        self.states: States = {}
        self.timers: list[Timer] = []
        self._pages: dict[PagePlace, Page] = {}
        self._edited: set[PagePlace] = set()
        self._changes: dict[int, _Changes] = {}

    @property
    def live(self) -> Space:
        return self.spaces[LIVE]

    # -- references

    async def page(self, space: int, number: int) -> Page:
        """As this draft made it."""
        place = space, number
        page = self._pages.get(place)
        if page is None:
            page = await load_page(self.view, self.state.id, place)
            if int(page.slots.max()) >= self.state.slots:
                raise CorruptError(f"page {number} of topic {self.state.id}: a slot is too high")
            self._pages[place] = page
        return page

    async def _edit(self, space: int, number: int) -> Page:
        page = await self.page(space, number)
        if (space, number) not in self._edited:
            self._edited.add((space, number))
            page = self._pages[space, number] = page.edit()
        return page

    async def look(self, space: int, offsets: Offsets) -> tuple[Mask, Slots, Epochs]:
        """Of these, in any order: which have a reference, and what it says."""
        alive = np.zeros(len(offsets), np.bool_)
        slots, epochs = np.zeros(len(offsets), np.uint16), np.zeros(len(offsets), np.uint32)
        numbers = offsets // PAGE_OFFSETS
        index = self.state.references(space)
        for number in np.unique(numbers).tolist():
            if not index.holds(number) and (space, number) not in self._edited:
                continue
            page = await self.page(space, number)
            here = numbers == number
            at = offsets[here] - page.first
            alive[here], slots[here], epochs[here] = page.alive[at], page.slots[at], page.epochs[at]
        return alive, slots, epochs

    def _change(self, space: int) -> _Changes:
        return self._changes.setdefault(space, _Changes())

    async def add(self, space: int, first: int, slots: Slots) -> None:
        """References for neighbouring offsets, once per draft and space."""
        change = self._change(space)
        assert not len(change.added), "one run of references"
        change.added_first, change.added = first, slots
        end = first + len(slots)
        for number in range(first // PAGE_OFFSETS, (end - 1) // PAGE_OFFSETS + 1):
            page = await self._edit(space, number)
            low, high = max(first, page.first), min(end, page.first + PAGE_OFFSETS)
            add(page, low, slots[low - first : high - first])
        self.spaces[space] = msgspec.structs.replace(self.spaces[space], fed=end)

    async def mark(self, space: int, offsets: Offsets, epochs: Epochs) -> None:
        """These, which rise, get an epoch."""
        for number, low, high in _by_page(offsets):
            page = await self._edit(space, number)
            page.epochs[offsets[low:high] - page.first] = epochs[low:high]
        self._change(space).marked.append((offsets, epochs))

    async def finish(self, space: int, offsets: Offsets) -> None:
        """These, which rise, are done."""
        for number, low, high in _by_page(offsets):
            page = await self._edit(space, number)
            page.alive[offsets[low:high] - page.first] = False
        self._change(space).done.append(offsets)

    # -- the end

    def hold(self, offset: int) -> None:
        """Keep the all-log from this offset on."""
        holds = dict(self.log.holds)
        if holds.get(HOLDER) == offset:
            return
        holds[HOLDER] = offset
        self.rows[hold_key(self.log.log_id, HOLDER)] = encode_hold(offset)
        self.set_log(msgspec.structs.replace(self.log, holds=tuple(sorted(holds.items()))))

    def set_log(self, log: LogState) -> None:
        self.log = log
        self.states[state_key(log.log_id)] = log

    def set_head(self, **changes: Any) -> None:
        self.head = msgspec.structs.replace(self.head, **changes)

    def decision(self, reply: Any) -> Decision:
        before = self.state.head
        shards, folded = drop_drained(self.shards, self.head.folded)
        self.shards = shards
        self.set_head(folded=folded, consumers=_still_there(self.head, shards))
        sequence = before.sequence + 1
        pages = {place: self._pages[place].sealed(sequence) for place in self._edited}
        self._end_replays(pages)
        body = self._operation(sequence)
        if body is None:
            return Decision(reply, self.rows, self.states, tuple(self.timers))
        state = without_ended(after(self.state, body, sequence, pages))
        # Others that look at this tick get the same arrays: from here on they are not changed.
        self.states[topic_state_key(state.id)] = state
        for place, page in pages.items():
            self.states[page_state_key(state.id, place)] = page
        operation = Operation(
            owner_of(state.id), sequence, encode_topic_operation(body), cuts=places_in(body.parts)
        )
        return Decision(reply, self.rows, self.states, tuple(self.timers), (operation,))

    def _end_replays(self, pages: dict[PagePlace, Page]) -> None:
        for space in list(self.spaces.values()):
            if space.id == LIVE or space.fed < space.end:
                continue
            mine = {number: page for (each, number), page in pages.items() if each == space.id}
            if not self.state.references(space.id).replaced(mine).count:
                del self.spaces[space.id]

    def _operation(self, sequence: int) -> TopicOperation | None:
        """What was done, as small as it can be told; None: nothing."""
        before = self.state.head
        parts = tuple(
            change.part(space, self.spaces[space].fed if space in self.spaces else 0)
            for space, change in self._changes.items()
        )
        spaces = tuple(self.spaces.values())
        told = {part.space: part.fed for part in parts}
        patched = len(self.shards) == len(before.shards) and all(
            space == old or (space.id == old.id and told.get(space.id) == space.fed)
            for space, old in zip(spaces, before.spaces, strict=False)
        )
        plain = msgspec.structs.replace(
            self.head, shards=before.shards, routed=before.routed, spaces=before.spaces
        )
        begun = before.sequence > 0  # the first operation tells everything, the name too
        if begun and patched and len(spaces) == len(before.spaces) and _same(plain, before):
            rows = _changed(before.shards, self.shards)
            if not parts and not len(rows) and self.head.routed == before.routed:
                return None
            return TopicOperation(self.head.routed, rows, self.shards[rows], parts=parts)
        if not begun and not parts and spaces == before.spaces and _same(plain, before):
            return None  # nothing was ever done: shards that nobody owns do not change either
        head = msgspec.structs.replace(
            self.head, sequence=sequence, shards=self.shards, spaces=spaces
        )
        return TopicOperation(self.head.routed, head=head, parts=parts)


def _same(one: TopicHead, other: TopicHead) -> bool:
    """But for arrays, which are the same object here."""
    return all(
        getattr(one, field) == getattr(other, field)
        for field in ("number", "paused", "consumers", "folded", "attempts")
    )


def _changed(before: Shards, now: Shards) -> Any:
    size = before.dtype.itemsize
    differs = before.view(np.uint8).reshape(-1, size) != now.view(np.uint8).reshape(-1, size)
    return np.flatnonzero(differs.any(axis=1)).astype(np.uint32)


def _still_there(head: TopicHead, shards: Shards) -> Any:
    """Consumers without zombies whose shards are all gone."""
    if not any(consumer.zombie for consumer in head.consumers):
        return head.consumers
    owners = set(shards["owner"].tolist())
    return tuple(each for each in head.consumers if not each.zombie or each.number in owners)


def _by_page(offsets: Offsets) -> list[tuple[int, int, int]]:
    """(page, low, high): which of these, that rise, lie on which page."""
    found = []
    for number in sorted(pages_of(offsets)):
        low, high = np.searchsorted(
            offsets, (number * PAGE_OFFSETS, (number + 1) * PAGE_OFFSETS)
        ).tolist()
        found.append((number, low, high))
    return found


Body = Callable[[Draft], Awaitable[Any]]


async def load_draft(view: View, name: LogName) -> Draft:
    state = await load_topic(view, name)
    log = await load_log(view, state.id)
    if log is None:
        raise NotFoundError(f"topic {state.name!r} was deleted")
    return Draft(view, state, log)


def topic_step(name: LogName, body: Body, size: int = 0) -> Step:
    """A step of a topic that must exist."""

    async def make(view: View) -> Draft:
        return await load_draft(view, name)

    return draft_step(make, body, size)


def step_if_there(topic_id: int, body: Body) -> Step:
    """A step of the topic with this id; where there is none any more it replies False."""

    async def make(view: View) -> Draft | None:
        name = await find_by_id(view, topic_id)
        return None if name is None else await load_draft(view, name)

    return draft_step(make, body)


def draft_step(make: Callable[[View], Awaitable[Draft | None]], body: Body, size: int = 0) -> Step:
    drafts: list[tuple[Draft | None, Any]] = []

    async def load(view: View) -> None:
        draft = await make(view)
        drafts[:] = [(draft, False if draft is None else await body(draft))]

    def decide(view: View, now: Now) -> Decision:
        draft, reply = drafts[0]
        if draft is None:
            return Decision(reply)
        assert draft.now_ms == now.ms, "decided in the tick that loaded it"
        return draft.decision(reply)

    return Step(decide, load, size)
