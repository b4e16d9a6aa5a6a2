"""Attempts records: who tried a message in one queue and how each attempt ended. Pure.

    Attempts Value:   consumers (Array<ConsumerID>), ConsumerID = Utf8                  RFC 0001
    our columns:      ended at (i64) x count | how it ended (u8) x count
                      | reason (Utf8) x count

Contract     Oldest first, which is the order of the claims too: a message has one lease at a
             time. Written when an attempt fails, so a release (which counts no attempt) and an
             ack (after which nobody asks) leave nothing here.
Invariants   At most 65,535 attempts. Each value has one encoding.
Not here     How many attempts a queue allows, and which ones to keep beyond the limit (queue).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import msgspec

from penstock.codec.scalars import Reader, encode_array, encode_i64, encode_utf8


class Ending(IntEnum):
    FAILED = 1  # the consumer said so
    EXPIRED = 2  # its lease ended first


class Attempt(msgspec.Struct, frozen=True):
    consumer: str  # who had claimed the message
    ended_at_ms: int  # when the attempt failed
    ending: Ending
    reason: str = ""  # the consumer's own words; empty if it gave none


def encode_attempts(attempts: Sequence[Attempt]) -> bytes:
    return b"".join(
        (
            encode_array([encode_utf8(a.consumer, "consumer") for a in attempts], "attempts"),
            *(encode_i64(a.ended_at_ms, "ended at") for a in attempts),
            bytes(a.ending for a in attempts),
            *(encode_utf8(a.reason, "reason") for a in attempts),
        )
    )


def decode_attempts(data: bytes) -> tuple[Attempt, ...]:
    reader = Reader(data, "attempts record")
    consumers = reader.array(lambda r: r.utf8("consumer"), "attempts")
    ended_at_ms = [reader.i64("ended at") for _ in consumers]
    endings = [_read_ending(reader) for _ in consumers]
    reasons = [reader.utf8("reason") for _ in consumers]
    reader.end()
    return tuple(map(Attempt, consumers, ended_at_ms, endings, reasons))


def _read_ending(reader: Reader) -> Ending:
    ending = reader.u8("how it ended")
    try:
        return Ending(ending)
    except ValueError:
        reader.at -= 1
        raise reader.fail("how it ended", f"is unknown: {ending:#04x}") from None
