"""Pushing: messages enter the all-log, and their references the shards, in one commit.

Contract     `push_step` replies with offsets, in the order of the batch. It makes a
             missing topic if it may. Order and identity come from the commit.
Behind       Where messages came into the log without references (a link of staged ones), a push
             adds to the log alone, and `feed.py` brings the references in order.
Routing      With a live consumer, and not paused, everything that was inserted is routed; else it
             waits in the all-log.
"""

from __future__ import annotations

from typing import cast

import msgspec

from penstock.errors import InvalidError
from penstock.log.append import append_step
from penstock.log.catalogue import Ids, LogName, load_ids, make_target
from penstock.log.decision import Now, Step, View
from penstock.log.overlay import Overlay
from penstock.log.state import LogState, state_key
from penstock.topic.draft import Draft, draft_step, load_draft
from penstock.topic.item import PreparedPush, Slots, slots_of
from penstock.topic.shards import count, open_rows, route
from penstock.topic.state import (
    LIVE,
    SLOTS,
    check_slots,
    find_topic,
    missing,
    new_topic,
    slot_options,
)
from penstock.topic.timers import feed_due


class Pushed(msgspec.Struct, frozen=True):
    topic: int
    offsets: range
    time_ms: int


def push_step(
    name: LogName, push: PreparedPush, *, create: bool = True, slots: int | None = None
) -> Step:
    """-> Pushed"""
    check_slots(slots)

    async def make(view: View) -> Draft:
        return await make_draft(view, name, create=create, slots=slots)

    async def body(draft: Draft) -> Pushed:
        at = draft.log.next
        if not push.count:
            draft.rows.clear()  # nothing is made by nothing
            draft.states.clear()
            return Pushed(draft.state.id, range(at, at), draft.now_ms)
        behind = draft.live.fed < at
        _append(draft, push)
        if behind:
            draft.timers.append(feed_due(draft.state.name, draft.now_ms))
        else:
            found = slots_of(push.hashes, push.keyed, at, draft.state.slots)
            await insert(draft, at, found)
        return Pushed(draft.state.id, range(at, draft.log.next), draft.now_ms)

    return draft_step(make, body, push.size)


def make_step(name: LogName, *, create: bool = True, slots: int | None = None) -> Step:
    """Make the topic, where it may be made and is not there. For who appends to its log himself."""
    check_slots(slots)

    async def make(view: View) -> Draft:
        return await make_draft(view, name, create=create, slots=slots)

    async def body(draft: Draft) -> None:
        """Nothing more."""

    return draft_step(make, body)


async def make_draft(view: View, name: LogName, *, create: bool, slots: int | None) -> Draft:
    """A draft of a topic that is made where there is none."""
    state = await find_topic(view, name)
    if state is not None:
        if slots is not None and slots != state.slots:
            raise InvalidError(
                f"topic {state.name!r} has {state.slots} slots, not {slots}",
                hint="the number of slots is fixed when a topic is made",
            )
        return await load_draft(view, name)
    if not create:
        raise missing(name)
    await load_ids(view, Ids.NAMED)
    count = SLOTS if slots is None else slots
    log, rows, states = make_target(view, name, Now(view.now_ms, b""), slot_options(count))
    draft = Draft(view, new_topic(log.log_id, name.name.decode(), count), log)
    draft.rows |= rows
    draft.states |= states
    draft.hold(0)
    return draft


def _append(draft: Draft, push: PreparedPush) -> None:
    overlay = Overlay(draft.view)
    overlay.states |= draft.states
    step = append_step(draft.log.log_id, push.bodies)
    # It looks at nothing but the state of the log, which the overlay shows.
    decision = step.decide(cast(View, overlay), Now(draft.now_ms, b""))
    draft.rows |= decision.writes
    draft.states |= decision.states
    draft.timers += decision.timers
    log = decision.states[state_key(draft.log.log_id)]
    assert isinstance(log, LogState)
    draft.log = log


async def insert(draft: Draft, first: int, slots: Slots) -> None:
    """References for neighbouring messages of the all-log, from `first` on."""
    await draft.add(LIVE, first, slots)
    count(draft.shards, "inserted", open_rows(draft.shards)[slots])
    route_all(draft)


def route_all(draft: Draft) -> None:
    """Where there is somebody to route to."""
    if draft.head.paused or all(consumer.zombie for consumer in draft.head.consumers):
        return
    if draft.head.routed != draft.live.fed:
        route(draft.shards)
        draft.set_head(routed=draft.live.fed)
