"""Feeding: messages of the all-log get references, some thousands at a time, in order.

Contract     `feed_step` goes on with a space: with the live one where messages came without their
             references (push.py), with a replay that is not fed to its end. It replies whether
             there is more to do now. A replay is fed while it has less than FEED_LOW references,
             so that a long one takes no more room than a short one.
Slots        come from the shard keys in the log, by the same hash as a push takes (item.py).
"""

from __future__ import annotations

import msgspec
import numpy as np

from penstock.codec.topic import Space
from penstock.log.catalogue import LogName
from penstock.log.decision import Step, View
from penstock.log.read import read_nodes
from penstock.log.state import LogState, load_log, state_key
from penstock.topic.draft import HOLDER, Draft, topic_step
from penstock.topic.item import Slots, hash_keys, slots_of
from penstock.topic.push import insert
from penstock.topic.state import LIVE, TopicState

#: How many messages one step feeds.
FEED_COUNT = 8192
FEED_LOW = 8192


def is_hungry(state: TopicState, log_next: int) -> bool:
    """Whether there is something to feed now."""
    return state.live.fed < log_next or any(_wants(state, space) for space in state.replays)


def _wants(state: TopicState, space: Space) -> bool:
    return space.fed < space.end and state.references(space.id).count < FEED_LOW


def feed_step(name: LogName) -> Step:
    """-> whether there is more to do now"""

    async def body(draft: Draft) -> bool:
        log = await _stored_log(draft)
        if HOLDER not in dict(draft.log.holds):
            draft.hold(draft.state.needed)  # a link made the topic
        fed = draft.live.fed
        if fed < log.next:
            await _feed_live(draft, log, fed)
        more = False
        for space in draft.state.replays:
            if _wants(draft.state, space):
                more |= await _feed_replay(draft, log, space)
        return more or draft.live.fed < log.next

    return topic_step(name, body)


async def _stored_log(draft: Draft) -> LogState:
    """The log without what this very tick appends, whose rows no store has yet."""
    committed: LogState | None = draft.view.committed(state_key(draft.state.id))
    if committed is None:
        # Not in memory, so nothing of this tick has changed it.
        committed = await load_log(draft.view, draft.state.id)
    assert committed is not None, "a draft has a log"
    return committed


async def _feed_live(draft: Draft, log: LogState, fed: int) -> None:
    low = max(fed, log.first)
    high = min(low + FEED_COUNT, log.next)
    if low > fed:
        # Nothing is held that never had a reference: it was evicted before anybody could know.
        draft.spaces[LIVE] = msgspec.structs.replace(draft.live, fed=low)
    if low < high:
        await insert(draft, low, await read_slots(draft.view, log, low, high, draft.state.slots))


async def _feed_replay(draft: Draft, log: LogState, space: Space) -> bool:
    low = max(space.fed, log.first)
    high = min(low + FEED_COUNT, space.end, log.next)
    if low >= space.end:
        draft.spaces[space.id] = msgspec.structs.replace(space, fed=space.end)
        return False
    if low >= high:
        return True  # the rest is pushed in this very tick
    await draft.add(space.id, low, await read_slots(draft.view, log, low, high, draft.state.slots))
    return high < space.end and draft.state.references(space.id).count + high - low < FEED_LOW


async def read_slots(view: View, log: LogState, low: int, high: int, slots: int) -> Slots:
    """The slots of the messages low <= offset < high, from their keys in the log."""
    found: list[Slots] = []
    async for node, start, stop in read_nodes(view.store, log, low, high):
        hashes, keyed = hash_keys(node.tag_list(start, stop))
        found.append(slots_of(hashes, keyed, node.first + start, slots))
    return np.concatenate(found)
