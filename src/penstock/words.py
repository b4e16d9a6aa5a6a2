"""Words about numbers and things, for messages of every layer."""

from __future__ import annotations


def counted(count: int, one: str, many: str | None = None) -> str:
    """`1 file`, `2 files`; `many` where it is not `one` with an s: `2 entries are gone`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def one_of_kind(kind: str) -> str:
    """`a pipe`, `an alts`; by the letter, which is enough for the names of our own things."""
    return f"{'an' if kind[:1] in 'aeio' else 'a'} {kind}"
