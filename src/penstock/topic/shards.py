"""The shards of a topic as one table: which one a message is in, and what a change of owner does.
Pure.

Contract     Rows are by slot and generation; the last one of each slot is open. Functions that
             change rows change the table they are given, which is a draft's own, or return
             another one.
Words        A slot *moves*: its open shard is closed, which takes no new messages and keeps what it
             has, and the next generation is opened for the new owner, who has the messages of all
             shards of the slot. A closed shard whose messages are all done is dropped, and its
             counters are folded into the topic's.
Invariants   inserted >= routed >= emitted >= acked + errored, and running <= emitted, per shard
             every shard but the open one of a slot has messages that are not done
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from penstock.codec.topic import COUNTERS, OPEN_END, SHARD, Epochs, Offsets, Shards, Slots
from penstock.topic.page import Mask

_Rows = npt.NDArray[np.int64]

#: Closed shards that one slot keeps apart.
CLOSED_MAX = 16


def new_shards(slots: int) -> Shards:
    shards = np.zeros(slots, SHARD)
    shards["slot"] = np.arange(slots)
    shards["generation"] = 1
    shards["end"] = OPEN_END
    return shards


def slot_count(shards: Shards) -> int:
    return int(shards["slot"][-1]) + 1


def open_rows(shards: Shards) -> _Rows:
    """Row numbers of the open shards, by slot."""
    if len(shards) == slot_count(shards):
        return np.arange(len(shards))
    return np.flatnonzero(shards["end"] == OPEN_END)


def rows_of(shards: Shards, slots: Slots, offsets: Offsets) -> _Rows:
    """In which shard each of these messages is."""
    if len(shards) == slot_count(shards):
        return slots.astype(np.int64)
    keys = _place(shards["slot"], shards["first"])
    return keys.searchsorted(_place(slots, offsets), side="right") - 1


def _place(slots: Slots, offsets: Offsets) -> _Rows:
    # Generations of a slot rise with their first offsets. 2**53 messages are enough.
    return (slots.astype(np.int64) << 53) | np.minimum(offsets, (1 << 53) - 1)


def count(shards: Shards, field: str, rows: _Rows, sign: int = 1) -> None:
    """One more, or less, for each of these."""
    counts = np.bincount(rows, minlength=len(shards))
    shards[field] += sign * counts


def epochs_of(shards: Shards) -> Epochs:
    """By slot: under which ownership its messages are handed out now."""
    return shards["generation"][open_rows(shards)]


def served(shards: Shards, consumer: int) -> Mask:
    """By slot: whether this consumer gets messages of it now."""
    rows = open_rows(shards)
    found: Mask = (shards["owner"][rows] == consumer) & (shards["heir"][rows] == 0)
    return found


def waiting(shards: Shards) -> _Rows:
    """By slot: messages that could be handed out."""
    left = shards["routed"] - shards["acked"] - shards["errored"] - shards["running"]
    return np.bincount(shards["slot"], left).astype(np.int64)


def backlog(shards: Shards) -> _Rows:
    """By slot: messages that are not done."""
    left = shards["inserted"] - shards["acked"] - shards["errored"]
    return np.bincount(shards["slot"], left).astype(np.int64)


def busy(shards: Shards) -> Mask:
    """By slot: whether something of it is running, replays included."""
    return np.bincount(shards["slot"], shards["running"] + shards["replaying"]) > 0


def route(shards: Shards) -> None:
    """Everything that was inserted enters the shards."""
    rows = open_rows(shards)
    shards["routed"][rows] = shards["inserted"][rows]


def move(shards: Shards, slots: Collection[int], owners: Sequence[int], routed: int) -> Shards:
    """These slots get other owners (0: none). `routed`: where new shards begin."""
    rows = open_rows(shards)
    added = np.zeros(len(slots), SHARD)
    for new, slot, owner in zip(added, slots, owners, strict=True):
        row = shards[rows[slot]]
        new["slot"], new["generation"] = slot, row["generation"] + 1
        new["owner"], new["first"], new["end"] = owner, routed, OPEN_END
        # What was not routed goes to the new shard.
        new["inserted"] = row["inserted"] - row["routed"]
        row["inserted"] = row["routed"]
        row["end"], row["heir"], row["replaying"] = routed, 0, 0
    moved = np.isin(shards["slot"], list(slots))
    shards["running"][moved] = 0
    both = np.concatenate((shards, added))
    return _joined(both[np.lexsort((both["generation"], both["slot"]))])


def _joined(shards: Shards) -> Shards:
    """Where consumers come and go faster than their messages are done, the oldest closed shards of
    a slot become one: what they hold stays in order, and the table stays small."""
    closed = np.bincount(shards["slot"][shards["end"] != OPEN_END], minlength=1)
    full = np.flatnonzero(closed > CLOSED_MAX)
    if not len(full):
        return shards
    first = shards["slot"].searchsorted(full)
    shards["first"][first + 1] = shards["first"][first]
    for field in COUNTERS:
        shards[field][first + 1] += shards[field][first]
    return np.delete(shards, first)


def drop_drained(shards: Shards, folded: tuple[int, ...]) -> tuple[Shards, tuple[int, ...]]:
    """Without closed shards that have nothing left; their counters are in the sums."""
    if len(shards) == slot_count(shards):
        return shards, folded
    left = shards["routed"] - shards["acked"] - shards["errored"]
    drained = (shards["end"] != OPEN_END) & (left == 0)
    if not drained.any():
        return shards, folded
    gone = shards[drained]
    sums = tuple(
        have + int(gone[field].sum()) for have, field in zip(folded, COUNTERS, strict=True)
    )
    return shards[~drained], sums
