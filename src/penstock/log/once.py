"""The one idempotency table: what was answered to (scope, owner, id), kept until it expires.

Contract     `check` is pure: None means fresh; a row means that this is a repetition, to be
             answered with `row.answer` and without another effect. A sequence below the latest one
             is an InvalidError: its answer is forgotten, so it can be neither repeated nor done.
Not here     which ids there are: producers (append.py), links (staging.py), and later views.
"""

from __future__ import annotations

from penstock.codec.keys import KeyType, prefix, prefix_end
from penstock.codec.once import OnceRow, decode_once, encode_once
from penstock.codec.scalars import I64_MAX
from penstock.errors import InvalidError
from penstock.log.decision import Decision, Now, Step, View
from penstock.store.port import Store

#: As long as Kafka keeps an idle transactional id.
ONCE_MS = 7 * 24 * 3600 * 1000
EXPIRE_ROWS = 1000


def check(value: bytes | None, sequence: int, now_ms: int) -> OnceRow | None:
    row = None if value is None else decode_once(value)
    if row is None or row.expires_ms <= now_ms or sequence > row.sequence:
        return None
    if sequence < row.sequence:
        raise InvalidError(f"sequence {sequence} is below {row.sequence}, which was the latest one")
    return row


def once_value(sequence: int, answer: bytes, now_ms: int, keep_ms: int = ONCE_MS) -> bytes:
    return encode_once(OnceRow(sequence, min(now_ms + keep_ms, I64_MAX), answer))


async def plan_expire(store: Store, after: bytes, now_ms: int) -> tuple[Step | None, bytes | None]:
    """A walk over the table in parts: a step that removes what expired, and where to go on."""
    start = after or prefix(KeyType.ONCE)
    expired: list[bytes] = []
    last = start
    scanned = 0
    async for rows in store.scan(start, prefix_end(prefix(KeyType.ONCE))):
        expired += [key for key, value in rows if decode_once(value).expires_ms <= now_ms]
        last, scanned = rows[-1][0] + b"\x00", scanned + len(rows)
        if len(expired) >= EXPIRE_ROWS or scanned >= 16 * EXPIRE_ROWS:
            break
    else:
        return (expire_step(expired) if expired else None), None
    return (expire_step(expired) if expired else None), last


def expire_step(keys: list[bytes]) -> Step:
    """-> how many were removed. A row that was renewed meanwhile stays."""

    async def load(view: View) -> None:
        await view.fetch(*keys)

    def decide(view: View, now: Now) -> Decision:
        rows = ((key, view.row(key)) for key in keys)
        gone = [
            key
            for key, value in rows
            if value is not None and decode_once(value).expires_ms <= now.ms
        ]
        return Decision(reply=len(gone), writes=dict.fromkeys(gone))

    return Step(decide, load)
