"""Polling: a consumer gets messages of its slots, in the order of the all-log; undoing that.

Contract     `poll_step` replies with references, which are marked with the epoch of their slot and
             count as running. `give_back_step` makes running messages wait again: some that were
             not begun, or (`undo`) some that were never answered with, which then were never
             emitted either.
Order        Within a slot the lowest offset first, so within a key. Where live messages and replays
             wait, both get their share.
Parts        A poll looks at LOOKED_PAGES pages of live messages at most. Where it found nothing by
             then it says so with `more`: ask again, it goes on from there. A replay has few pages.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from penstock.codec.topic import FRESH, RELEASED, Epochs, Offsets, Shards, Slots
from penstock.errors import InvalidError
from penstock.log.catalogue import LogName
from penstock.log.decision import Step
from penstock.topic.draft import Draft, topic_step
from penstock.topic.given import Given, held
from penstock.topic.members import hand_over, registered, require
from penstock.topic.page import Mask
from penstock.topic.shards import count as tally
from penstock.topic.shards import epochs_of, open_rows, rows_of, served, waiting
from penstock.topic.state import LIVE

#: How many messages one poll may ask for.
COUNT_MAX = 10_000
#: How many pages it looks at.
LOOKED_PAGES = 64


class Picked(msgspec.Struct, frozen=True):
    """References of one space, in order."""

    space: int
    offsets: Offsets
    slots: Slots
    epochs: Epochs
    fresh: Mask  # which were never handed out before
    #: Failed attempts so far: offset -> how many.
    attempts: dict[int, int] = {}


class Emitted(msgspec.Struct, frozen=True):
    topic: int
    parts: tuple[Picked, ...]
    paused: bool
    more: bool  # there may be some, further behind


def poll_step(name: LogName, consumer: str, token: int, count: int) -> Step:
    """-> Emitted"""
    if not 1 <= count <= COUNT_MAX:
        raise InvalidError(f"a poll asks for 1 to {COUNT_MAX:,} messages, not {count:,}")

    async def body(draft: Draft) -> Emitted:
        state = draft.state
        known = require(state, consumer, token)
        if draft.head.paused:
            return Emitted(state.id, (), paused=True, more=False)
        mine = served(draft.shards, known.number)
        live_waiting = int(waiting(draft.shards)[mine].sum())
        looked = _Looked(draft, mine)
        parts: list[Picked] = []
        left = count

        async def take(space: int, most: int) -> int:
            part = await looked.find(space, most)
            if part is not None:
                parts.append(part)
                await _emit(draft, part)
            return 0 if part is None else len(part.offsets)

        if state.replays:
            # Both get their half; the odd one in turn.
            odd = _handed_out(draft.shards, mine) % 2
            share = count if not live_waiting else (count + odd) // 2
            for space in state.replays:
                taken = await take(space.id, share)
                left -= taken
                share -= taken
        if live_waiting:
            await take(LIVE, left)
        return Emitted(state.id, tuple(parts), paused=False, more=looked.more and not parts)

    return topic_step(name, body)


def _handed_out(shards: Shards, mine: Mask) -> int:
    """How many messages of these slots ever were: live ones, replays, and again. Neither what
    others poll nor an acknowledgement changes that, so it is even and odd in turn."""
    handed = shards["emitted"] + shards["replayed"] + shards["redelivered"]
    return int(handed[mine[shards["slot"]]].sum())


class _Looked:
    """Looks for messages that wait, through the pages of a space."""

    def __init__(self, draft: Draft, mine: Mask) -> None:
        self._draft = draft
        self._mine = mine
        self._epochs = epochs_of(draft.shards)
        self.more = False

    async def find(self, space: int, count: int) -> Picked | None:
        """Up to so many; what was looked through is remembered for the next time."""
        draft = self._draft
        rows = open_rows(draft.shards)[self._mine]
        if not len(rows) or not count:
            return None
        start, end = 0, draft.spaces[space].end
        if space == LIVE:
            start, end = int(draft.shards["hint"][rows].min()), draft.head.routed
        found: list[tuple[Offsets, Slots, Mask]] = []
        seen = end
        for i, number in enumerate(draft.state.references(space).numbers(start)):
            page = await draft.page(space, number)
            if page.first >= end:
                break
            if space == LIVE and i >= LOOKED_PAGES:
                self.more = True
                seen = page.first
                break
            offsets = page.waiting(self._mine, self._epochs)
            low, high = offsets.searchsorted((start, end))
            offsets = offsets[low:high][:count]
            if len(offsets):
                at = offsets - page.first
                found.append((offsets, page.slots[at], page.epochs[at] == FRESH))
                count -= len(offsets)
            if not count:
                seen = int(offsets[-1]) + 1
                break
        if space == LIVE:
            # Everything of these slots below is done or running now.
            draft.shards["hint"][rows] = np.maximum(draft.shards["hint"][rows], seen)
        if not found:
            return None
        offsets, slots, fresh = (np.concatenate(column) for column in zip(*found, strict=True))
        attempts = _attempts(draft, space, offsets)
        return Picked(space, offsets, slots, self._epochs[slots], fresh, attempts)


def _attempts(draft: Draft, space: int, offsets: Offsets) -> dict[int, int]:
    known = [each for each in draft.head.attempts if each.space == space]
    if not known:
        return {}
    chosen = set(offsets.tolist())
    return {each.offset: each.count for each in known if each.offset in chosen}


async def _emit(draft: Draft, part: Picked) -> None:
    shards, fresh = draft.shards, part.fresh
    if part.space == LIVE:
        rows = rows_of(shards, part.slots, part.offsets)
        tally(shards, "emitted", rows[fresh])
        tally(shards, "redelivered", rows[~fresh])
        tally(shards, "running", rows)
    else:
        rows = open_rows(shards)[part.slots]
        tally(shards, "replayed", rows[fresh])
        tally(shards, "redelivered", rows[~fresh])
        tally(shards, "replaying", rows)
    await draft.mark(part.space, part.offsets, part.epochs)


def give_back_step(
    name: LogName,
    consumer: str,
    token: int,
    parts: Sequence[Given],
    undo: Sequence[Mask] | None = None,
) -> Step:
    """-> for each message whether it waits again. `undo`: which of them were never handed out
    before; as if they had not been now."""

    async def body(draft: Draft) -> list[bool]:
        known = registered(draft.state, consumer, token)
        number = -1 if known is None else known.number
        taken: list[bool] = []
        for i, part in enumerate(parts):
            mine, slots = await held(draft, part, number)
            taken += mine.tolist()
            if mine.any():
                order = np.argsort(part.offsets[mine])
                fresh = None if undo is None else undo[i][mine][order]
                await _take_back(
                    draft, part.space, part.offsets[mine][order], slots[mine][order], fresh
                )
        hand_over(draft)
        return taken

    return topic_step(name, body)


async def _take_back(
    draft: Draft, space: int, offsets: Offsets, slots: Slots, fresh: Mask | None
) -> None:
    shards = draft.shards
    mine = open_rows(shards)[slots]
    rows = rows_of(shards, slots, offsets) if space == LIVE else mine
    tally(shards, "running" if space == LIVE else "replaying", rows, -1)
    epochs = np.full(len(offsets), RELEASED, np.uint32)
    if fresh is not None:
        epochs[fresh] = FRESH
        tally(shards, "emitted" if space == LIVE else "replayed", rows[fresh], -1)
        tally(shards, "redelivered", rows[~fresh], -1)
    if space == LIVE:
        hints = shards["hint"].copy()
        np.minimum.at(hints, mine, offsets)
        shards["hint"] = hints
    await draft.mark(space, offsets, epochs)
