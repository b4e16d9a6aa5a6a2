"""A topic in memory, and how it comes from rows.

Contract     `TopicState` is the topic's head and the index of its references, by space; pages are
             states of their own, so that a long backlog need not be in memory. Both are derivable:
             the rows of head and pages, then the operations that are newer (log/pages.py). A topic
             whose log was made by a link of staged messages has no head row yet: it is new.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from penstock.codec.catalogue import CatalogueRow, check_name
from penstock.codec.keys import (
    KeyType,
    Kind,
    open_key,
    prefix_end,
    topic_key,
    topic_page_key,
    topic_prefix,
)
from penstock.codec.operations import Operation, Owner, PagedView
from penstock.codec.topic import (
    OPEN_END,
    SLOTS_MAX,
    Consumer,
    Space,
    TopicHead,
    decode_topic,
    decode_topic_page,
)
from penstock.codec.topicoperation import SpacePart, TopicOperation, decode_topic_operation
from penstock.errors import CorruptError, InvalidError, NotFoundError
from penstock.log.catalogue import LogName, load_name
from penstock.log.decision import StateKey, View
from penstock.topic.page import NO_PAGES, Index, Page, apply, empty_page, page_of, touched
from penstock.topic.shards import new_shards, slot_count

#: FDQ has one shard per consumer; this many consumers can share a topic.
SLOTS = 32
#: The space of live messages; others are replays.
LIVE = 0
_SLOTS_OPTION = "slots"

#: (space, page)
PagePlace = tuple[int, int]


class TopicState(msgspec.Struct, frozen=True):
    id: int  # of its log too
    head: TopicHead  # as it is now, not as it is stored
    index: Mapping[int, Index]  # by space; one that is not there has no references

    @property
    def name(self) -> str:
        return self.head.name

    @property
    def slots(self) -> int:
        return slot_count(self.head.shards)

    @property
    def live(self) -> Space:
        return self.head.spaces[0]

    @property
    def replays(self) -> tuple[Space, ...]:
        return self.head.spaces[1:]

    @property
    def memory_bytes(self) -> int:
        lines = sum(each.lines.nbytes + 200 for each in self.index.values())
        return self.head.shards.nbytes + lines + 1000

    def references(self, space: int) -> Index:
        return self.index.get(space, NO_PAGES)

    def consumer(self, name: str) -> Consumer | None:
        """The live one of this name."""
        return next((each for each in self.consumers if each.name == name), None)

    @property
    def consumers(self) -> list[Consumer]:
        """The live ones."""
        return [each for each in self.head.consumers if not each.zombie]

    @property
    def needed(self) -> int:
        """The lowest offset of the all-log that is still needed."""
        lowest = self.references(LIVE).first()
        needed = self.live.fed if lowest is None else min(lowest, self.live.fed)
        for space in self.replays:
            lowest = self.references(space.id).first()
            needed = min(needed, space.fed if lowest is None else max(lowest, space.first))
        return needed


def topic_name(name: str) -> LogName:
    return LogName(Kind.TOPIC, check_name("topic", name))


def owner_of(topic_id: int) -> Owner:
    return Owner(PagedView.TOPIC, topic_id)


def topic_state_key(topic_id: int) -> StateKey:
    return ("topic", topic_id)


def page_state_key(topic_id: int, place: PagePlace) -> StateKey:
    return ("topic page", (topic_id, *place))


def check_slots(slots: int | None) -> None:
    if slots is not None and not 1 <= slots <= SLOTS_MAX:
        raise InvalidError(f"a topic has 1 to {SLOTS_MAX} slots, not {slots}")


def slot_options(slots: int) -> tuple[tuple[str, str], ...]:
    return ((_SLOTS_OPTION, str(slots)),)


def slots_of_row(row: CatalogueRow) -> int:
    """How many slots a topic has: told by its name, so that it never changes."""
    text = dict(row.options).get(_SLOTS_OPTION, str(SLOTS))
    if not text.isdecimal() or not 1 <= int(text) <= SLOTS_MAX:
        raise CorruptError(f"topic {row.id}: it has {text!r} slots")
    return int(text)


async def load_topic(view: View, name: LogName) -> TopicState:
    """For `load` and reads: the topic, which must exist."""
    state = await find_topic(view, name)
    if state is None:
        raise missing(name)
    return state


def missing(name: LogName) -> NotFoundError:
    return NotFoundError(
        f"topic {name.name.decode()!r} does not exist", hint="a push or a tail makes it"
    )


async def find_topic(view: View, name: LogName) -> TopicState | None:
    row = (await load_name(view, name)).row
    if row is None:
        return None
    state: TopicState | None = view.state(topic_state_key(row.id))
    if state is None:
        state = await _read_topic(view, row, name.name.decode())
        view.keep(topic_state_key(row.id), state)
    return state


def new_topic(topic_id: int, name: str, slots: int) -> TopicState:
    return TopicState(topic_id, TopicHead(0, name, new_shards(slots)), {})


async def find_by_id(view: View, topic_id: int) -> LogName | None:
    """The name of the topic with this id; None: there is none any more."""
    operations = view.operations(owner_of(topic_id))  # before the row, as in `_read_topic`
    state: TopicState | None = view.state(topic_state_key(topic_id))
    head = None if state is None else state.head
    if head is None and (value := await view.store.get(topic_key(topic_id))) is not None:
        head = decode_topic(value, f"head of topic {topic_id}")
    for operation in operations:
        # The first operation of a topic has its whole head.
        head = head or decode_topic_operation(operation.body).head
    if head is None:
        return None
    name = LogName(Kind.TOPIC, head.name.encode())
    found = await find_topic(view, name)
    return name if found is not None and found.id == topic_id else None


async def _read_topic(view: View, row: CatalogueRow, name: str) -> TopicState:
    """The state from rows and operations."""
    slots = slots_of_row(row)
    # Before the rows: those that are written meanwhile contain what leaves the tail by that.
    operations = view.operations(owner_of(row.id))
    value = await view.store.get(topic_key(row.id))
    state = new_topic(row.id, name, slots)
    if value is not None:
        head = decode_topic(value, f"head of topic {row.id}")
        if (head.name, slot_count(head.shards)) != (name, slots):
            raise CorruptError(
                f"topic {row.id}: its head is one of {head.name!r} with"
                f" {slot_count(head.shards)} slots, not of {name!r} with {slots}"
            )
        state = msgspec.structs.replace(state, head=head)
    index: dict[int, Index] = {}
    low = topic_prefix(KeyType.TOPIC_PAGE, row.id)
    async for rows in view.store.scan(low, prefix_end(low)):
        part: dict[int, dict[int, Page]] = {}
        for key, stored in rows:
            _, space, number = decode_page_key(key)
            part.setdefault(space, {})[number] = _decode_page(row.id, (space, number), stored)
        for space, pages in part.items():
            index[space] = index.get(space, NO_PAGES).replaced(pages)
    state = msgspec.structs.replace(state, index=index)
    pages_now: dict[PagePlace, Page] = {}
    for operation in operations:
        body = decode_topic_operation(operation.body)
        newer: dict[PagePlace, Page] = {}
        for part_done in body.parts:
            for number in touched(part_done):
                place = part_done.space, number
                page = pages_now.get(place)
                if page is None:
                    # Its row may have been written since the scan: the index has to know it, too.
                    page = newer[place] = await _stored_page(view, row.id, place)
                # A page may have been written after the operation: then it contains it.
                if operation.sequence > page.sequence:
                    page = page.edit()
                    apply(page, part_done)
                    page = newer[place] = page.sealed(operation.sequence)
                pages_now[place] = page
        state = after(state, body, operation.sequence, newer)
    return without_ended(state)


def decode_page_key(key: bytes) -> tuple[int, int, int]:
    """-> (topic id, space, page)"""
    reader = open_key(key, KeyType.TOPIC_PAGE)
    found = reader.u64_key("topic id"), reader.u64_key("space"), reader.u64_key("page")
    reader.end()
    return found


async def load_page(view: View, topic_id: int, place: PagePlace) -> Page:
    """For `load`: a page with everything that was committed."""
    page: Page | None = view.state(page_state_key(topic_id, place))
    if page is None:
        operations = view.operations(owner_of(topic_id))  # before the row, as in `_read_topic`
        page = await _stored_page(view, topic_id, place)
        for operation in operations:
            if operation.sequence > page.sequence and place in places_of(operation):
                edited = page.edit()
                for part in decode_topic_operation(operation.body).parts:
                    if part.space == place[0]:
                        apply(edited, part)
                page = edited.sealed(operation.sequence)
        view.keep(page_state_key(topic_id, place), page)
    return page


async def _stored_page(view: View, topic_id: int, place: PagePlace) -> Page:
    value = await view.store.get(topic_page_key(topic_id, *place))
    return empty_page(place[1]) if value is None else _decode_page(topic_id, place, value)


def _decode_page(topic_id: int, place: PagePlace, value: bytes) -> Page:
    what = f"page {place[1]} of space {place[0]} of topic {topic_id}"
    return page_of(place[1], decode_topic_page(value, what))


def places_of(operation: Operation) -> frozenset[PagePlace]:
    """The pages that an operation changes."""
    if operation.cuts is None:
        # It came from a row: decoded once, not for every page that is loaded.
        places = places_in(decode_topic_operation(operation.body).parts)
        msgspec.structs.force_setattr(operation, "cuts", places)
    found: frozenset[PagePlace] = operation.cuts
    return found


def places_in(parts: tuple[SpacePart, ...]) -> frozenset[PagePlace]:
    return frozenset((part.space, number) for part in parts for number in touched(part))


def after(
    state: TopicState, body: TopicOperation, sequence: int, pages: Mapping[PagePlace, Page]
) -> TopicState:
    """The state after this operation, whose pages are given as they are then."""
    head = state.head
    if sequence > head.sequence:
        head = _head_after(state, body, sequence)
    index = dict(state.index)
    for space in {space for space, _ in pages}:
        mine = {number: page for (each, number), page in pages.items() if each == space}
        index[space] = index.get(space, NO_PAGES).replaced(mine)
    return msgspec.structs.replace(state, head=head, index=index)


def without_ended(state: TopicState) -> TopicState:
    """Without the index of replays that are over: they leave no references behind. Only at the end:
    pages may have been written of a replay that the head's row does not know yet."""
    known = {space.id for space in state.head.spaces}
    if known >= state.index.keys():
        return state
    index = {space: lines for space, lines in state.index.items() if space in known}
    return msgspec.structs.replace(state, index=index)


def _head_after(state: TopicState, body: TopicOperation, sequence: int) -> TopicHead:
    if body.head is not None:
        return msgspec.structs.replace(body.head, sequence=sequence)
    shards = state.head.shards.copy()
    if len(body.rows):
        if int(body.rows.max()) >= len(shards):
            raise CorruptError(f"topic {state.id}: an operation changes a shard that is not there")
        shards[body.rows] = body.shards
    fed = {part.space: part.fed for part in body.parts}
    spaces = tuple(
        msgspec.structs.replace(space, fed=min(fed[space.id], OPEN_END))
        if space.id in fed
        else space
        for space in state.head.spaces
    )
    return msgspec.structs.replace(
        state.head, sequence=sequence, shards=shards, routed=body.routed, spaces=spaces
    )
