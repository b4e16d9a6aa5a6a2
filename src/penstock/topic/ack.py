"""Acknowledging: messages are done, or their handler failed.

Contract     `ack_step` replies with what was taken. Only whoever was handed a message may settle
             it, and only while its slot has not moved on (given.py). With `strict` a message that
             is stale refuses the step, and so everything that is committed with it: that is how a
             handler's effects happen exactly once. Where it names no message, its consumer must be
             registered.
Failures     The error is recorded with its message. It is tried again until it failed
             `max_attempts` times, meanwhile it stays with its consumer; then it is errored, and its
             key goes on. A failure that says which attempt it was counts once, however often it is
             told: whoever lost the answer gets the same one.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from penstock.codec.keys import error_key
from penstock.codec.scalars import U16_MAX
from penstock.codec.topic import Attempt
from penstock.codec.topicerror import ErrorRow, decode_error, encode_error
from penstock.errors import InvalidError
from penstock.log.catalogue import LogName
from penstock.log.decision import Step
from penstock.topic.draft import Draft, topic_step
from penstock.topic.given import Given, StaleError, given, held
from penstock.topic.members import hand_over, registered, require
from penstock.topic.page import Mask
from penstock.topic.shards import count, open_rows, rows_of
from penstock.topic.state import LIVE

#: What is kept of an error's text.
ERROR_CHARS_MAX = 16_384


class Failed(msgspec.Struct, frozen=True):
    offset: int
    epoch: int
    error: str
    space: int = LIVE
    attempt: int = 0  # from 1 on; 0: one more than before


class Settled(msgspec.Struct, frozen=True):
    taken: list[bool]  # for each message that is done, in order
    failed: list[str]  # for each failure: again, errored or stale
    paused: bool


def ack_step(
    name: LogName,
    consumer: str,
    token: int,
    done: Sequence[Given] = (),
    *,
    failures: Sequence[Failed] = (),
    max_attempts: int = 1,
    strict: bool = False,
) -> Step:
    """-> Settled"""
    if not 1 <= max_attempts <= U16_MAX:
        raise InvalidError(f"max_attempts is 1 to {U16_MAX:,}, not {max_attempts:,}")
    failed_ones = _by_space(failures)
    is_bare = not failures and not any(len(named.offsets) for named in done)

    async def body(draft: Draft) -> Settled:
        if strict and is_bare:
            require(draft.state, consumer, token)
        known = registered(draft.state, consumer, token)
        number = -1 if known is None else known.number
        taken: list[bool] = []
        for named in done:
            mine = await _settle(draft, named, number, "acked")
            if strict and not mine.all():
                raise StaleError("a message has moved on; nothing was done")
            taken += mine.tolist()
        outcomes = [""] * len(failures)
        for places, named in failed_ones:
            mine, _ = await held(draft, named, number)
            if strict and not mine.all():
                raise StaleError("a message has moved on; nothing was done")
            told = [failures[i] for i in places]
            found = await _fail(draft, consumer, told, mine.tolist(), max_attempts)
            final = np.array([each == "errored" for each in found], np.bool_) & mine
            errored = Given(named.space, named.offsets[final], named.epochs[final])
            await _settle(draft, errored, number, "errored")
            for i, outcome in zip(places, found, strict=True):
                outcomes[i] = outcome
        hand_over(draft)
        return Settled(taken, outcomes, draft.head.paused)

    return topic_step(name, body)


async def _settle(draft: Draft, named: Given, number: int, counter: str) -> Mask:
    """-> which of these are done now"""
    mine, slots = await held(draft, named, number)
    offsets, slots = named.offsets[mine], slots[mine]
    if not len(offsets):
        return mine
    shards = draft.shards
    if named.space == LIVE:
        rows = rows_of(shards, slots, offsets)
        count(shards, counter, rows)
        count(shards, "running", rows, -1)
    else:
        count(shards, "replaying", open_rows(shards)[slots], -1)
    await draft.finish(named.space, np.sort(offsets))
    if draft.head.attempts:
        gone = set(offsets.tolist())
        draft.set_head(
            attempts=tuple(
                each
                for each in draft.head.attempts
                if each.space != named.space or each.offset not in gone
            )
        )
    return mine


def _by_space(failures: Sequence[Failed]) -> list[tuple[list[int], Given]]:
    """-> for each space which of them, and their messages"""
    places: dict[int, list[int]] = {}
    for i, each in enumerate(failures):
        places.setdefault(each.space, []).append(i)
    return [
        (mine, given([failures[i].offset for i in mine], [failures[i].epoch for i in mine], space))
        for space, mine in places.items()
    ]


async def _fail(
    draft: Draft, consumer: str, failures: Sequence[Failed], mine: Sequence[bool], max_attempts: int
) -> list[str]:
    """These of one space: count the attempts, record the errors. -> again, errored or stale"""
    counts = {(each.space, each.offset): each.count for each in draft.head.attempts}
    outcomes: dict[tuple[int, int], str] = {}
    found: list[str] = []
    for failure, is_held in zip(failures, mine, strict=True):
        named = failure.offset, failure.epoch
        if not is_held:
            # Twice in one request, or told before.
            found.append(outcomes.get(named) or await _before(draft, consumer, failure))
            continue
        place = failure.space, failure.offset
        before = counts.get(place, 0)
        counted = 0 < failure.attempt <= before
        if not counted:
            before = counts[place] = before + 1
        final = before >= max_attempts
        if final or not counted:
            row = ErrorRow(draft.now_ms, before, final, consumer, failure.error[:ERROR_CHARS_MAX])
            draft.rows[error_key(draft.state.id, failure.offset, failure.space)] = encode_error(row)
        outcomes[named] = "errored" if final else "again"
        found.append(outcomes[named])
    if len(counts) != len(draft.head.attempts) or "again" in found:
        draft.set_head(attempts=tuple(Attempt(*place, n) for place, n in counts.items()))
    return found


async def _before(draft: Draft, consumer: str, failure: Failed) -> str:
    """What is said about a message that is not this consumer's now."""
    if failure.attempt:
        value = await draft.view.store.get(error_key(draft.state.id, failure.offset, failure.space))
        row = None if value is None else decode_error(value)
        if row is not None and row.final and row.consumer == consumer:
            return "errored" if row.attempts == failure.attempt else "stale"
    return "stale"
