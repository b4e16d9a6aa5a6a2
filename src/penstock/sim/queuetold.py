"""What callers of queues were told, compared with what some commit during their call did.

Contract     Each function is given the newest commit `n` that the broker showed when the call
             began, and the answer. It returns None, or what is wrong with it.
Invariants   A1  claimed messages are those of one commit, each told once, whole and in order
             A2  True is told for a lease that lived, once, by who did what it says; False is told
                 for none that lives
             A3  nothing is told to be there for a claim only if nothing was, all the time
             A4  an id is told for what was published, or for the first with the same dedup id
             A5  a list shows what was there all the time, and nothing that never was
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Sequence

import msgspec

from penstock.broker.queueanswers import QueueMessage
from penstock.codec.queueoperation import PageKind
from penstock.codec.scalars import NEVER_MS
from penstock.queue.item import Item
from penstock.sim.queuelog import Effect, QueueLog
from penstock.sim.queuemessages import Message
from penstock.sim.queuemoves import Move, Where


class Claim(msgspec.Struct, frozen=True):
    """What a receipt says, to who may not look into it."""

    queue: int
    message: int
    lease: int


def read_receipt(receipt: str) -> Claim:
    return Claim(*struct.unpack_from("<QQQ", bytes.fromhex(receipt)))


def _since(log: QueueLog, n: int) -> list[Effect]:
    return log.effects[bisect_right(log.effects, n, key=lambda effect: effect.n) :]


# -- A1


def claimed(log: QueueLog, name: str, n: int, messages: Sequence[QueueMessage]) -> str | None:
    told = {each.lease: m for m in messages for each in [read_receipt(m.receipt)]}
    if len(told) != len(messages):
        return f"a lease is told twice: {messages}"
    queue = log.queues[read_receipt(messages[0].receipt).queue]
    if queue.name != name:
        return f"{messages} are of {queue.name}"
    for effect in _since(log, n):
        leases = {where.lease for _, where in effect.claimed}
        if effect.queue != queue.id or not told.keys() <= leases:
            continue
        if effect.told & told.keys():
            return f"leases {effect.told & told.keys()} are told to two"
        effect.told |= told.keys()
        return _same(log, effect, messages, told)
    return f"leases {list(told)} are no commit's since {n}"


def _same(
    log: QueueLog, effect: Effect, messages: Sequence[QueueMessage], told: dict[int, QueueMessage]
) -> str | None:
    order = [where.lease for _, where in effect.claimed if where.lease in told]
    if order != [read_receipt(message.receipt).lease for message in messages]:
        return f"told in another order than {order}: {messages}"
    for number, where in effect.claimed:
        message = told.get(where.lease)
        if message is not None:
            wrong = looks(log.messages.by_id[number], where, message)
            if wrong is not None:
                return wrong
            times = (message.claimed_at_ms, message.lease_deadline_ms)
            if times != (where.claimed_ms, where.lease_ms):
                return f"{message} is told, truly {where}"
        elif where.deadline_ms == NEVER_MS:
            return f"message {number} was claimed, and its holder was not told"
    return None


def looks(truth: Message, where: Where, told: QueueMessage) -> str | None:
    about = truth.about
    wanted = QueueMessage(
        id=truth.id,
        payload=truth.payload,
        uri=None,
        headers=dict(about.headers),
        priority=where.priority,
        attempts=where.attempts,
        created_at_ms=about.created_at_ms,
        received_at_ms=about.received_at_ms,
        visible_at_ms=where.visible_ms,
        claimed_at_ms=told.claimed_at_ms,
        lease_deadline_ms=told.lease_deadline_ms,
        receipt=told.receipt,
        dedup_id=about.dedup_id,
    )
    same = msgspec.structs.replace(told, headers=dict(told.headers)) == wanted
    return None if same else f"{told} is told, truly {wanted}"


# -- A2

ACKED = (Move.DONE,)
FAILED = (Move.RETURNED, Move.FAILED, Move.LEFT)
RELEASED = (Move.RELEASED, Move.LEFT)
EXTENDED = (Move.EXTENDED, Move.SAME)


def settled(
    log: QueueLog,
    name: str,
    n: int,
    now_ms: int,
    moves: Sequence[Move],
    receipts: Sequence[str],
    truths: Sequence[bool],
) -> str | None:
    if len(truths) != len(receipts):
        return f"{len(truths)} answers to {len(receipts)} receipts"
    seen: set[str] = set()
    for receipt, true in zip(receipts, truths, strict=True):
        claim, again = read_receipt(receipt), receipt in seen
        seen.add(receipt)
        if true and again:
            return f"{claim} is settled twice in one call"
        wrong = _did(log, name, n, moves, claim) if true else None
        if not true and not again:
            wrong = _stale(log, name, now_ms, claim)
        if wrong is not None:
            return wrong
    return None


def _did(log: QueueLog, name: str, n: int, moves: Sequence[Move], claim: Claim) -> str | None:
    for effect in _since(log, n):
        if effect.queue != claim.queue or log.queues[effect.queue].name != name:
            continue
        if claim.lease not in effect.alive or claim.lease in effect.told:
            continue
        if any(effect.moves.get(move, {}).get(claim.message) == claim.lease for move in moves):
            effect.told.add(claim.lease)
            return None
    return f"{claim} was told to be settled, and no commit since {n} did it: {moves}"


def _stale(log: QueueLog, name: str, now_ms: int, claim: Claim) -> str | None:
    if log.names.get(name) != claim.queue:
        return None
    held = log.queues[claim.queue].messages.get(claim.message)
    where = None if held is None else held.where
    if where is None or where.kind is not PageKind.IN_FLIGHT or where.lease != claim.lease:
        return None
    return f"{claim} is told to be stale, and lives: {where}" if where.lease_ms > now_ms else None


# -- A3


def nothing(log: QueueLog, name: str, n: int, now_ms: int) -> str | None:
    """A claim that does not wait was answered with nothing. Its tick may have begun before it did,
    but not before the commit that was shown."""
    queue = log.queue(name)
    if queue is None or queue.altered_n > n or queue.settings.paused:
        return None
    there = [
        number
        for number in queue.available(log.times[n])
        if queue.messages[number].n <= n and log.messages.by_id[number].deadline_ms >= now_ms
    ]
    return f"{name} has {there} all the time, and gave nothing" if there else None


# -- A4


def published(log: QueueLog, items: Sequence[Item], ids: Sequence[int]) -> str | None:
    if len(ids) != len(items):
        return f"{len(ids)} ids for {len(items)} messages"
    for item, number in zip(items, ids, strict=True):
        message = log.messages.by_id.get(number)
        if message is None:
            return f"{item} was told to be {number}, which is not there"
        about = message.about
        first = item.dedup_id is not None and (about.dedup_id, about.to) == (item.dedup_id, item.to)
        if message.payload != item.payload and not first:
            return f"{item} was told to be {message}"
    return None


# -- A5


def listed(
    log: QueueLog, name: str, n: int, now_ms: int, kind: PageKind, ids: Sequence[int]
) -> str | None:
    """All of a list. It is read page by page, so what went from page to page meanwhile may be seen
    twice, or not at all."""
    queue = log.queue(name)
    if queue is None or queue.made_n > n:
        return None
    paged = {number for number, held in queue.messages.items() if held.paged_n > n}
    twice = {i for i in ids if ids.count(i) > 1} - paged
    still = {
        number: held.where
        for number, held in queue.messages.items()
        if held.n <= n and held.where is not None
    }
    # What moved since may have been seen before or after.
    moved = {number for number, held in queue.messages.items() if held.n > n}
    strange = [i for i in ids if i not in moved and (i not in still or still[i].kind is not kind)]
    must = {number for number, where in still.items() if where.kind is kind}
    if kind is PageKind.AVAILABLE:
        early, late = queue.available(log.times[n]), queue.available(now_ms)
        must &= set(early) & set(late)
    missing = must - paged - set(ids)
    if strange or missing or twice - moved:
        text = f"{strange} never were, {missing} are missing, {twice - moved} come twice"
        return f"{name}: {ids} are told as {kind!r}; {text}"
    return None
