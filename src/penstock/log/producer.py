"""Idempotent producers: (log, producer) -> the latest sequence and the offsets it was told.

Contract     `Produced` names one batch. An append asks `repeated` first and adds `produced_rows` to
             its commit; so does a link (link.py). A repetition is answered with the offsets of the
             first time; a sequence below the latest one is an InvalidError (once.py).
"""

from __future__ import annotations

import struct

import msgspec

from penstock.codec.keys import Scope, once_key
from penstock.codec.scalars import U64_MAX
from penstock.errors import ConflictError, CorruptError, InvalidError
from penstock.log.catalogue import Target, find_target, load_target
from penstock.log.decision import Decision, Now, Step, View
from penstock.log.once import ONCE_MS, check, once_value
from penstock.log.place import Rows

PRODUCER_BYTES_MAX = 255
_ANSWER = struct.Struct("<QQ")


class Produced(msgspec.Struct, frozen=True):
    producer: bytes
    sequence: int
    keep_ms: int = ONCE_MS  # how long it is remembered after its latest batch

    def key(self, log_id: int) -> bytes:
        return once_key(Scope.PRODUCER, log_id, self.producer)


def check_produced(
    producer: bytes | None, sequence: int | None, keep_ms: int = ONCE_MS
) -> Produced | None:
    if producer is None and sequence is None:
        return None
    if producer is None or sequence is None:
        raise InvalidError("producer and sequence go together")
    if not 0 <= sequence <= U64_MAX:
        raise InvalidError(f"sequence {sequence} is not a u64")
    if not 0 < len(producer) <= PRODUCER_BYTES_MAX:
        raise InvalidError(
            f"producer of {len(producer)} bytes; 1 to {PRODUCER_BYTES_MAX} are allowed"
        )
    return Produced(producer, sequence, keep_ms)


def repeated(view: View, log_id: int, produced: Produced, now_ms: int) -> range | None:
    """For `decide`: what this batch was told the first time; None when it is new."""
    try:
        value = view.row(produced.key(log_id))
    except KeyError:
        # The log was made after this step was loaded, so its id was not known then.
        raise ConflictError("the stream was made a moment ago by another request") from None
    return _answer(value, produced, now_ms)


def produced_rows(log_id: int, produced: Produced, offsets: range, now_ms: int) -> Rows:
    answer = _ANSWER.pack(offsets.start, offsets.stop)
    value = once_value(produced.sequence, answer, now_ms, produced.keep_ms)
    return {produced.key(log_id): value}


def answer_step(target: Target, produced: Produced) -> Step:
    """-> what this batch was told; None when it is new. A step, not a read: where a repetition
    stands in the same tick, its answer must wait for the commit."""

    async def load(view: View) -> None:
        log_id = await load_target(view, target)
        if log_id is not None:
            await view.fetch(produced.key(log_id))

    def decide(view: View, now: Now) -> Decision:
        state = find_target(view, target)
        if state is None:
            return Decision()
        return Decision(reply=repeated(view, state.log_id, produced, now.ms))

    return Step(decide, load)


def _answer(value: bytes | None, produced: Produced, now_ms: int) -> range | None:
    known = check(value, produced.sequence, now_ms)
    if known is None:
        return None
    if len(known.answer) != _ANSWER.size:
        raise CorruptError(f"once row of a producer: answer is {len(known.answer)} bytes")
    return range(*_ANSWER.unpack(known.answer))
