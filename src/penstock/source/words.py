"""Words of requests as rows keep them: tokens, positions, texts of bounded length. Pure.

Contract     What cannot be kept is an InvalidError that names it; what is only shown to people is
             cut instead. The other way round nothing can fail.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from penstock.codec.scalars import U64_MAX
from penstock.codec.shard import RELEASED, Place, ShardRow
from penstock.errors import InvalidError
from penstock.source.requests import BOF, EOF, position_text

#: An S3 key has at most 1,024 bytes.
ID_BYTES_MAX = 4096
#: Errors and announcements are cut here: somebody reads them, nothing else does.
SHOWN_CHARACTERS = 4000
#: One request names at most so many shards: it is one commit.
SHARDS_MAX = 10_000
KEY_BYTES_MAX = 255
#: Longer than this nobody is silent: a year.
STALE_MS_MAX = 366 * 24 * 3600 * 1000

_TOKEN = re.compile(r"[0-9a-f]{32}")
_OFFSET = re.compile(r"[0-9]{20}")


def check_token(text: str) -> bytes:
    if _TOKEN.fullmatch(text) is None or (token := bytes.fromhex(text)) == RELEASED:
        raise InvalidError(f"a token is 32 hex digits that are not all 0, not {text[:64]!r}")
    return token


def shown_token(token: bytes) -> str:
    return "" if token == RELEASED else token.hex()


def check_stale(stale_ms: int) -> None:
    if not 0 < stale_ms <= STALE_MS_MAX:
        raise InvalidError(f"stale_ms is 1 to {STALE_MS_MAX:,}, not {stale_ms:,}")


def check_text(text: str, what: str, bytes_max: int = ID_BYTES_MAX) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidError(f"{what} is not valid text: {error.reason}") from None
    if not 1 <= size <= bytes_max:
        raise InvalidError(f"{what} of {size:,} bytes; 1 to {bytes_max:,} are allowed (as UTF-8)")


def check_count(items: Sequence[object], what: str) -> None:
    if len(items) > SHARDS_MAX:
        raise InvalidError(f"{len(items):,} {what} at once; at most {SHARDS_MAX:,} are allowed")


def check_ids(ids: Sequence[str]) -> None:
    check_count(ids, "shards")
    for each in ids:
        check_text(each, "a shard's id")


def cut(text: str) -> str:
    """As much of it as is kept; what is no text in UTF-8 is shown as what it is."""
    clean = text.encode("utf-8", "backslashreplace").decode()
    return clean if len(clean) <= SHOWN_CHARACTERS else clean[: SHOWN_CHARACTERS - 1] + "…"


def check_position(text: str) -> tuple[Place, int]:
    if text == BOF:
        return Place.BOF, 0
    if text == EOF:
        return Place.EOF, 0
    if _OFFSET.fullmatch(text) is None or (offset := int(text)) > U64_MAX:
        raise InvalidError(f"a position is BOF, EOF or 20 digits, not {text[:64]!r}")
    return Place.OFFSET, offset


def shown_position(row: ShardRow) -> str:
    match row.place:
        case Place.BOF:
            return BOF
        case Place.EOF:
            return EOF
        case Place.OFFSET:
            return position_text(row.offset)
