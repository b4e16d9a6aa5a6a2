"""The row of a source's staging: splits may be lying there that nobody has published. Pure.

    value       version (u8 = 1) | phase (u8) | token (16 bytes) | stale (u64, ms)
                | began (i64, ms) | updated (i64, ms) | key (Utf8)
    phase       1 live, 2 revoked

A publish removes the row: from then on the splits belong to the table.

Not here     the splits (published.py), stagings of the log (staging.py).
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

from penstock.codec.keys import KeyType, open_key
from penstock.codec.scalars import encode_i64, encode_u64, encode_utf8
from penstock.codec.shard import TOKEN_BYTES
from penstock.codec.source import open_row
from penstock.errors import InvalidError

_VERSION = b"\x01"


class SplitsPhase(IntEnum):
    LIVE = 1
    REVOKED = 2  # no publish can use it; its files may be deleted


class SplitsRow(msgspec.Struct, frozen=True):
    phase: SplitsPhase
    token: bytes  # of who began it
    stale_ms: int  # so long may it be silent
    began_ms: int
    updated_ms: int
    key: str  # what makes a repeated beginning the same


def encode_splits(row: SplitsRow) -> bytes:
    if len(row.token) != TOKEN_BYTES:
        raise InvalidError(f"a token has {TOKEN_BYTES} bytes, not {len(row.token)}")
    return b"".join(
        (
            _VERSION,
            bytes((row.phase,)),
            row.token,
            encode_u64(row.stale_ms, "stale"),
            encode_i64(row.began_ms, "began"),
            encode_i64(row.updated_ms, "updated"),
            encode_utf8(row.key, "key of a staging"),
        )
    )


def decode_splits(data: bytes) -> SplitsRow:
    reader = open_row(data, "row of a source's staging")
    number = reader.u8("phase")
    try:
        phase = SplitsPhase(number)
    except ValueError:
        raise reader.fail("phase", f"is {number}, which is unknown") from None
    row = SplitsRow(
        phase=phase,
        token=reader.take(TOKEN_BYTES, "token"),
        stale_ms=reader.u64("stale"),
        began_ms=reader.i64("began"),
        updated_ms=reader.i64("updated"),
        key=reader.utf8("key"),
    )
    reader.end()
    return row


def decode_splits_key(key: bytes) -> tuple[int, int]:
    """-> (source id, staging id)"""
    reader = open_key(key, KeyType.SPLITS)
    found = reader.u64_key("source id"), reader.u64_key("staging id")
    reader.end()
    return found
