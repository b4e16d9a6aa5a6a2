"""What a runner does with an announced shard, by what opening it told. Pure.

terminal (EOF, or failed for good)   acknowledge, read nothing
owned by this process                read, from its position on
another's, stale                     acquire; if that is won, read
another's, fresh                     drop without acknowledging: it comes again
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from penstock.source.requests import Shard, Takeover


class Course(Enum):
    DONE = "done"
    READ = "read"
    ACQUIRE = "acquire"
    DROP = "drop"


def course_of(shard: Shard) -> Course:
    # Terminal first: who owned a shard when it ended does not matter any more.
    if shard.phase != "open":
        return Course.DONE
    if shard.mine:
        return Course.READ
    return Course.ACQUIRE if shard.stale else Course.DROP


def takeovers(shards: Iterable[Shard]) -> list[Takeover]:
    """What to acquire of these, each from the owner it was seen with."""
    return [
        Takeover(shard.id, shard.token) for shard in shards if course_of(shard) is Course.ACQUIRE
    ]
