"""Acknowledging: messages are done, or their handler failed.

Contract     `ack_step` replies with what was taken. Only whoever was handed a message may settle
             it, and only while its slot has not moved on (given.py). With `strict` a message that
             is stale refuses the step, and so everything that is committed with it: that is how a
             handler's effects happen exactly once.
Failures     The error is recorded with its message. It is tried again until it failed
             `max_attempts` times, meanwhile it stays with its consumer; then it is errored, and its
             key goes on.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from penstock.codec.keys import error_key
from penstock.codec.scalars import U16_MAX
from penstock.codec.topic import Attempt
from penstock.codec.topicerror import ErrorRow, encode_error
from penstock.errors import InvalidError
from penstock.log.catalogue import LogName
from penstock.log.decision import Step
from penstock.topic.draft import Draft, topic_step
from penstock.topic.given import Given, StaleError, given, held
from penstock.topic.members import hand_over
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
    failed_ones = [given([each.offset], [each.epoch], each.space) for each in failures]

    async def body(draft: Draft) -> Settled:
        known = draft.state.consumer(consumer)
        number = token if known is not None and known.number == token else -1
        taken: list[bool] = []
        for named in done:
            mine = await _settle(draft, named, number, "acked")
            if strict and not mine.all():
                raise StaleError("a message has moved on; nothing was done")
            taken += mine.tolist()
        outcomes: list[str] = []
        for failure, named in zip(failures, failed_ones, strict=True):
            outcomes.append(await _fail(draft, consumer, number, failure, named, max_attempts))
            if strict and outcomes[-1] == "stale":
                raise StaleError("a message has moved on; nothing was done")
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


async def _fail(
    draft: Draft, consumer: str, number: int, failure: Failed, named: Given, max_attempts: int
) -> str:
    mine, _ = await held(draft, named, number)
    if not mine.all():
        return "stale"
    others = tuple(
        each
        for each in draft.head.attempts
        if (each.space, each.offset) != (failure.space, failure.offset)
    )
    before = next((each.count for each in draft.head.attempts if each not in others), 0)
    attempts = before + 1
    final = attempts >= max_attempts
    row = ErrorRow(draft.now_ms, attempts, final, consumer, failure.error[:ERROR_CHARS_MAX])
    key = error_key(draft.state.id, failure.offset, failure.space)
    draft.rows[key] = encode_error(row)
    if final:
        await _settle(draft, named, number, "errored")
        return "errored"
    draft.set_head(attempts=(*others, Attempt(failure.space, failure.offset, attempts)))
    return "again"
