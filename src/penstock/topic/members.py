"""Consumers come and go, and slots move: join, leave, expire, rebalance, pause, play.

Contract     A registration has a token, which is never given twice, whatever becomes of its topic.
             `join` takes the place of a live consumer of the same name. Whoever leaves or expires
             is a zombie: what it had moves on at once, and it can acknowledge nothing any more; it
             is listed until the shards that were opened for it are drained.
Moves        Joining and leaving spread the slots evenly (assign.py). A slot of a live consumer that
             has messages running is *promised* first: it gets no more, and moves to its heir once
             nothing of it runs. So no message is handed out twice because somebody joined.
             `rebalance` does not wait for that: running messages of slots that move are fenced. It
             evens out the backlog, too.
"""

from __future__ import annotations

import msgspec

from penstock.codec.catalogue import check_name
from penstock.codec.topic import OPEN_END, Consumer
from penstock.errors import ConflictError, InvalidError, NotFoundError
from penstock.log.catalogue import LogName
from penstock.log.decision import Step, View
from penstock.topic.assign import assign, even_out
from penstock.topic.draft import Draft, draft_step, topic_step
from penstock.topic.push import make_draft, route_all
from penstock.topic.shards import backlog, busy, move, open_rows
from penstock.topic.state import TopicState, check_slots
from penstock.topic.timers import beat_due

HEARTBEAT_MS = 10_000
HEARTBEAT_MS_MIN = 10
HEARTBEAT_MS_MAX = 24 * 3600 * 1000
CONSUMERS_MAX = 1000


class Membership(msgspec.Struct, frozen=True):
    """What a consumer is told of its registration."""

    token: int
    slots: list[int]
    paused: bool


def join_step(
    name: LogName, consumer: str, *, heartbeat_ms: int = HEARTBEAT_MS, slots: int | None = None
) -> Step:
    """-> Membership"""
    check_name("consumer", consumer)
    check_slots(slots)
    if not HEARTBEAT_MS_MIN <= heartbeat_ms <= HEARTBEAT_MS_MAX:
        raise InvalidError(
            f"a heartbeat is {HEARTBEAT_MS_MIN} to {HEARTBEAT_MS_MAX:,} ms, not {heartbeat_ms:,}"
        )

    async def make(view: View) -> Draft:
        return await make_draft(view, name, create=True, slots=slots)

    async def body(draft: Draft) -> Membership:
        known = _live(draft, consumer)
        if known is not None:
            _bury(draft, known)
        elif sum(not each.zombie for each in draft.head.consumers) >= CONSUMERS_MAX:
            raise InvalidError(f"a topic has at most {CONSUMERS_MAX:,} consumers")
        number = draft.head.number + 1
        joined = Consumer(number, consumer, heartbeat_ms, draft.now_ms)
        draft.set_head(number=number, consumers=(*draft.head.consumers, joined))
        spread(draft)
        draft.timers.append(beat_due(draft.state.name, draft.now_ms + heartbeat_ms))
        return membership(draft, number)

    return draft_step(make, body)


def leave_step(name: LogName, consumer: str, token: int) -> Step:
    """-> whether it was registered: to leave, or because it was silent for too long"""

    async def body(draft: Draft) -> bool:
        known = registered(draft.state, consumer, token)
        if known is None:
            return False
        _bury(draft, known)
        spread(draft)
        return True

    return topic_step(name, body)


def rebalance_step(name: LogName) -> Step:
    """-> how many slots moved"""

    async def body(draft: Draft) -> int:
        return spread(draft, fence=True)

    return topic_step(name, body)


def pause_step(name: LogName, *, paused: bool) -> Step:
    """-> how many messages are running, replays included"""

    async def body(draft: Draft) -> int:
        draft.set_head(paused=paused)
        route_all(draft)
        return running(draft.state)

    return topic_step(name, body)


def running(state: TopicState) -> int:
    shards = state.head.shards
    return int(shards["running"].sum() + shards["replaying"].sum())


def holds(state: TopicState, number: int) -> bool:
    """Whether something that this consumer was handed runs."""
    shards = state.head.shards
    return bool((busy(shards) & (shards["owner"][open_rows(shards)] == number)).any())


def token_of(topic_id: int, number: int) -> int:
    """Names a registration. Numbers begin anew with every topic, and a name may be given to another
    one: whoever was registered with the former must not pass for a consumer of this one."""
    return topic_id << 32 | number


def registered(state: TopicState, consumer: str, token: int) -> Consumer | None:
    """The live one that this token names."""
    known = state.consumer(consumer)
    return known if known is not None and token_of(state.id, known.number) == token else None


def require(state: TopicState, consumer: str, token: int) -> Consumer:
    """The registration, which must be there."""
    known = state.consumer(consumer)
    found = registered(state, consumer, token)
    if found is not None:
        return found
    if known is not None and token_of(state.id, known.number) > token:
        raise ConflictError(
            f"consumer {consumer!r} was registered by another process since",
            hint="give every consumer a name of its own",
        )
    raise NotFoundError(
        f"consumer {consumer!r} is not registered", hint="it left or was silent: join again"
    )


def membership(draft: Draft, number: int) -> Membership:
    rows = open_rows(draft.shards)
    owners, heirs = draft.shards["owner"][rows], draft.shards["heir"][rows]
    mine = (heirs == number) | ((owners == number) & (heirs == 0))
    token = token_of(draft.state.id, number)
    return Membership(token, mine.nonzero()[0].tolist(), draft.head.paused)


def _live(draft: Draft, name: str) -> Consumer | None:
    return next((c for c in draft.head.consumers if c.name == name and not c.zombie), None)


def _bury(draft: Draft, consumer: Consumer) -> None:
    """It is a zombie from now on; its slots are given away by whoever calls `spread` next."""
    zombie = msgspec.structs.replace(consumer, zombie=True)
    draft.set_head(
        consumers=tuple(zombie if each is consumer else each for each in draft.head.consumers)
    )


def spread(draft: Draft, *, fence: bool = False) -> int:
    """Give every live consumer its share. -> how many slots moved"""
    live = [consumer.number for consumer in draft.head.consumers if not consumer.zombie]
    shards = draft.shards
    rows = open_rows(shards)
    owners: list[int] = shards["owner"][rows].tolist()
    heirs: list[int] = shards["heir"][rows].tolist()
    # An heir counts as the owner; one that is gone does not.
    promised = [heir if heir in live else owner for owner, heir in zip(owners, heirs, strict=True)]
    left = backlog(shards).tolist()
    plan = assign(promised, live, left)
    if fence and live:
        plan = even_out(plan, live, left)
    is_busy = busy(shards)
    slots: list[int] = []
    for slot, (owner, taker) in enumerate(zip(owners, plan, strict=True)):
        keeps = owner == taker
        waits = not keeps and owner in live and bool(is_busy[slot]) and not fence
        shards["heir"][rows[slot]] = taker if waits else 0
        if not keeps and not waits:
            slots.append(slot)
    if slots:
        draft.shards = move(shards, slots, [plan[slot] for slot in slots], draft.head.routed)
    route_all(draft)
    return len(slots)


def hand_over(draft: Draft) -> None:
    """Promised slots of which nothing runs any more move to their heirs."""
    shards = draft.shards
    promised = shards[(shards["end"] == OPEN_END) & (shards["heir"] != 0)]
    if not len(promised):
        return
    idle = promised[~busy(shards)[promised["slot"]]]
    if len(idle):
        slots, heirs = idle["slot"].tolist(), idle["heir"].tolist()
        draft.shards = move(shards, slots, heirs, draft.head.routed)
        route_all(draft)
