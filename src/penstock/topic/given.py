"""Messages as a consumer names them: by offset, and the epoch under which they were handed out.

Contract     `held` tells which of them are this consumer's now: they are not done, and their slot
             has not moved since. Everything else is stale.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from penstock.codec.scalars import I64_MAX, U32_MAX
from penstock.codec.topic import Epochs, Offsets, Slots
from penstock.errors import ConflictError, InvalidError
from penstock.topic.draft import Draft
from penstock.topic.page import Mask
from penstock.topic.shards import epochs_of, open_rows
from penstock.topic.state import LIVE


class Given(msgspec.Struct, frozen=True):
    space: int
    offsets: Offsets  # in any order
    epochs: Epochs  # one for each


class StaleError(ConflictError):
    """Refused as a whole, because a message has moved on."""


def given(offsets: Sequence[int], epochs: Sequence[int], space: int = LIVE) -> Given:
    if len(offsets) != len(epochs):
        raise InvalidError(f"{len(offsets)} messages have {len(epochs)} epochs")
    try:
        found = np.asarray(offsets, np.int64)
        found_epochs = np.asarray(epochs, np.int64)
    except (OverflowError, ValueError, TypeError) as error:
        raise InvalidError(f"offsets and epochs are whole numbers: {error}") from None
    if len(found) and (found.min() < 0 or found.max() == I64_MAX):
        raise InvalidError("an offset is not negative")
    if len(found) and (found_epochs.min() < 0 or found_epochs.max() > U32_MAX):
        raise InvalidError("an epoch is not negative, and below 2**32")
    return Given(space, found, found_epochs.astype(np.uint32))


async def held(draft: Draft, named: Given, number: int) -> tuple[Mask, Slots]:
    """Which of these the consumer has, each of them once; and their slots."""
    if named.space not in draft.spaces:
        return np.zeros(len(named.offsets), np.bool_), np.zeros(len(named.offsets), np.uint16)
    alive, slots, epochs = await draft.look(named.space, named.offsets)
    owners = draft.shards["owner"][open_rows(draft.shards)]
    mine = alive & (epochs == named.epochs) & (epochs_of(draft.shards)[slots] == named.epochs)
    mine &= owners[slots] == number
    places = np.flatnonzero(mine)
    _, first = np.unique(named.offsets[places], return_index=True)
    if len(first) < len(places):
        mine = np.zeros(len(named.offsets), np.bool_)
        mine[places[first]] = True
    return mine, slots
