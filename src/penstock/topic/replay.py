"""Replays: messages of the all-log are delivered once more, in order, to whoever has their slots.

Contract     `replay_step` begins one: a space of references of its own (codec/topic.py), which is
             fed from the all-log in the background (feed.py) and polled beside the live messages.
             It survives restarts, and its messages are acknowledged, handed on and fenced as live
             ones are. When the last one is done it is gone. The all-log is held meanwhile.
"""

from __future__ import annotations

import msgspec

from penstock.codec.topic import Space
from penstock.errors import InvalidError
from penstock.log.catalogue import LogName
from penstock.log.decision import Step
from penstock.topic.draft import HOLDER, Draft, topic_step
from penstock.topic.timers import feed_due

REPLAYS_MAX = 100


class Begun(msgspec.Struct, frozen=True):
    id: int  # 0: there is nothing to replay
    first: int
    end: int


def replay_step(name: LogName, start: int, end: int | None) -> Step:
    """start <= offset < end; without an end up to now. -> Begun"""
    if start < 0 or (end is not None and end < 0):
        raise InvalidError(f"offset {start if start < 0 else end} is negative")
    if end is not None and end < start:
        raise InvalidError(f"a replay from {start} ends before it begins, at {end}")

    async def body(draft: Draft) -> Begun:
        log = draft.log
        high = log.next if end is None else min(end, log.next)
        low = min(max(start, log.first), high)
        if low == high:
            return Begun(0, low, high)
        if len(draft.spaces) > REPLAYS_MAX:
            raise InvalidError(
                f"{REPLAYS_MAX} replays are under way", hint="wait until one of them is done"
            )
        number = draft.head.number + 1
        draft.set_head(number=number)
        draft.spaces[number] = Space(number, low, high, low)
        held = dict(log.holds).get(HOLDER)
        draft.hold(low if held is None else min(held, low))
        draft.timers.append(feed_due(draft.state.name, draft.now_ms))
        return Begun(number, low, high)

    return topic_step(name, body)
