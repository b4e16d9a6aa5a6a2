"""What the Python API of topics gives back: durations in seconds, times as aware datetimes."""

from __future__ import annotations

from datetime import datetime
from typing import Self

import msgspec

from penstock.broker import topicanswers
from penstock.broker.topicanswers import LIVE
from penstock.client.publish import time_of


def key_text(key: bytes) -> str | None:
    """Shard keys are text; surrogates stand for bytes that are not UTF-8, as in tags."""
    return key.decode("utf-8", "surrogateescape") if key else None


class TopicMessage:
    """A message of a topic, as it is handed to a consumer."""

    __slots__ = (
        "_epoch",
        "_job",
        "_key",
        "_slot",
        "_time_ms",
        "_topic",
        "attempt",
        "data",
        "offset",
    )

    def __init__(
        self,
        topic: str,
        job: int,
        offset: int,
        epoch: int,
        slot: int,
        key: bytes,
        data: bytes,
        time_ms: int,
        attempt: int = 1,
    ) -> None:
        self._topic = topic
        self._job = job
        self._epoch = epoch
        self._slot = slot
        self._key = key
        self._time_ms = time_ms
        self.offset = offset
        self.data = data
        self.attempt = attempt  # 1, and one more for each time that its handler failed

    @property
    def shard_key(self) -> str | None:
        return key_text(self._key)

    @property
    def time(self) -> datetime:
        """When it was pushed."""
        return time_of(self._time_ms)

    @property
    def replay(self) -> bool:
        """Whether it comes again because of `Topic.replay`."""
        return self._job != LIVE

    @property
    def slot(self) -> int:
        return self._slot

    @property
    def delivery_id(self) -> tuple[str, int]:
        """(topic, offset): the same for every delivery, so that effects elsewhere can be told
        apart from those that were there before."""
        return self._topic, self.offset

    def __repr__(self) -> str:
        again = ", replay" if self.replay else ""
        return (
            f"<penstock.TopicMessage {self.offset} of {self._topic!r}, key {self.shard_key!r}, "
            f"{len(self.data)} bytes{again}>"
        )


class ConsumerInfo(msgspec.Struct, frozen=True):
    id: str
    slots: list[int]
    last_seen: datetime
    zombie: bool  # others drain what it left
    heartbeat: float

    @classmethod
    def of(cls, found: topicanswers.ConsumerInfo) -> Self:
        return cls(
            found.id,
            found.slots,
            time_of(found.last_seen_ms),
            found.zombie,
            found.heartbeat_ms / 1000,
        )


class TopicError(msgspec.Struct, frozen=True):
    """A message whose handler failed."""

    offset: int
    shard_key: str | None
    data: bytes | None  # None: the topic does not keep it any more
    time: datetime  # of the last failure
    consumer: str
    error: str
    attempts: int
    final: bool  # it counts as errored; else it was or is tried again
    replay: bool

    @classmethod
    def of(cls, found: topicanswers.TopicError) -> Self:
        return cls(
            found.offset,
            key_text(found.shard_key),
            found.data,
            time_of(found.time_ms),
            found.consumer,
            found.error,
            found.attempts,
            found.final,
            found.job != LIVE,
        )


class TopicInfo(msgspec.Struct, frozen=True):
    """The settings of a topic."""

    name: str
    slots: int
    created_at: datetime
    max_count: int | None
    max_bytes: int | None
    max_age: float | None

    @classmethod
    def of(cls, found: topicanswers.TopicInfo) -> Self:
        return cls(
            found.name,
            found.slots,
            time_of(found.created_ms),
            found.max_count,
            found.max_bytes,
            None if found.max_age_ms is None else found.max_age_ms / 1000,
        )
