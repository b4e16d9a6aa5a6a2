"""The recovery component: what the last record of a backing queue says about the last step. Pure.

Contract     `judge(state, seen)` follows the specification's 1 to 3 and changes nothing, so that
             it may be asked any number of times. `seen` is what was read back of the entries that
             the last attempt names (`to_read_back`).
Cases        1a no record                              -> nothing to do
             1b snapshot, 1c choice of an alts         -> failed: done again, the same range
             1d output, 1e error: the entry is there and carries the hash of the attempt; 1f nil
                2, 3 the attempt's hash is that of the snapshot before it
                                                       -> delivered, else failed
             An attempt without a snapshot, of a source or at_least_once, stands for itself: its
             positions were written with it.
One commit   writes outputs, attempt and positions, so that an attempt without its output is never
             found. It is looked for all the same: a store may be put together by other hands.
Evicted      An entry below the first one of its stream, or of a stream that was deleted, was
             written: offsets are never used again. So was one that was compacted away.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import msgspec

from penstock.codec.backing import AttemptRow, ChoiceRow, SnapshotRow, WrittenRow
from penstock.errors import CorruptError
from penstock.graph.requests import Pending
from penstock.graph.state import ProcessorState, last_pending, last_snapshot


class Seen(Enum):
    """What an entry that was read back is."""

    SAME = "it carries the hash"
    GONE = "it was there, and was evicted since"
    OTHER = "it was never written, or is another one"


class Verdict(msgspec.Struct, frozen=True):
    #: The step to do again, as it was; None: the last one was delivered, or there was none.
    pending: Pending | None = None
    #: An attempt that claims to have delivered it: its snapshot is written again behind it.
    denied: bool = False


def to_read_back(state: ProcessorState) -> list[WrittenRow]:
    """1d, 1e: the entries that tell whether the last attempt came through."""
    last = state.last
    if not isinstance(last, AttemptRow):
        return []
    return [*last.outputs, *(() if last.errors is None else (last.errors,))]


def judge(state: ProcessorState, seen: Mapping[WrittenRow, Seen]) -> Verdict:
    last = state.last
    match last:
        case None:
            return Verdict()
        case SnapshotRow() | ChoiceRow():
            pending = last_pending(state)
            if pending is None:
                raise CorruptError(f"backing queue {state.id}: a choice without its snapshot")
            return Verdict(pending)
        case AttemptRow():
            snapshot = last_snapshot(state)
            if snapshot is None:
                return Verdict()
            pending = last_pending(state)
            assert pending is not None, "there is a snapshot"
            written = all(
                seen.get(row, Seen.OTHER) is not Seen.OTHER for row in to_read_back(state)
            )
            if written and last.step_hash == pending.step_hash:
                return Verdict()
            return Verdict(pending, denied=True)
