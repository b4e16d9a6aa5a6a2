"""What the Python API of queues gives back: durations in seconds, times as aware datetimes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Literal, Self

import msgspec

from penstock.broker import queueanswers
from penstock.broker.queueanswers import QueueMessage
from penstock.client.publish import time_of
from penstock.codec import attempts
from penstock.queue import lists
from penstock.queue.backoff import Backoff


class QueuedMessage:
    """A message of a queue, as it was when it was looked at."""

    __slots__ = ("_found",)

    def __init__(self, found: QueueMessage) -> None:
        self._found = found

    @property
    def id(self) -> int:
        return self._found.id

    @property
    def payload(self) -> bytes | None:
        """None when the data lies at `uri`."""
        return self._found.payload

    @property
    def uri(self) -> str | None:
        return self._found.uri

    @property
    def headers(self) -> Mapping[str, str]:
        return self._found.headers

    @property
    def priority(self) -> int:
        """Lower numbers come first."""
        return self._found.priority

    @property
    def attempts(self) -> int:
        """How often it was claimed, this time included."""
        return self._found.attempts

    @property
    def created_at(self) -> datetime:
        """When its producer says that it was made."""
        return time_of(self._found.created_at_ms)

    @property
    def received_at(self) -> datetime:
        """When it was published."""
        return time_of(self._found.received_at_ms)

    @property
    def dedup_id(self) -> str | None:
        """What its producer published it under, if anything."""
        return self._found.dedup_id

    @property
    def visible_at(self) -> datetime:
        """It could be claimed from here on."""
        return time_of(self._found.visible_at_ms)

    def __repr__(self) -> str:
        what = f"uri={self.uri!r}" if self.payload is None else f"{len(self.payload)} bytes"
        return f"<penstock.{type(self).__name__} {self.id}, {what}, attempts={self.attempts}>"


class Attempt(msgspec.Struct, frozen=True):
    """One that failed."""

    consumer: str
    time: datetime  # when it ended
    reason: str  # the consumer's own words; empty if it gave none
    ending: Literal["failed", "expired"]  # by the consumer's word, or with its lease

    @classmethod
    def of(cls, found: attempts.Attempt) -> Self:
        ending: Literal["failed", "expired"] = (
            "failed" if found.ending is attempts.Ending.FAILED else "expired"
        )
        return cls(found.consumer, time_of(found.ended_at_ms), found.reason, ending)


class DoneMessage(msgspec.Struct, frozen=True):
    id: int
    done_at: datetime
    attempts: int

    @classmethod
    def of(cls, found: queueanswers.DoneMessage) -> Self:
        return cls(found.id, time_of(found.done_at_ms), found.attempts)


class FailedMessage(msgspec.Struct, frozen=True):
    id: int
    failed_at: datetime
    attempts: int
    priority: int
    payload: bytes | None  # None: at `uri`, or its retention is over
    uri: str | None
    headers: Mapping[str, str]
    history: tuple[Attempt, ...]  # oldest first

    @classmethod
    def of(cls, found: queueanswers.FailedMessage) -> Self:
        return cls(
            found.id,
            time_of(found.failed_at_ms),
            found.attempts,
            found.priority,
            found.payload,
            found.uri,
            found.headers,
            tuple(map(Attempt.of, found.history)),
        )


class QueueInfo(msgspec.Struct, frozen=True):
    """The settings of a queue."""

    name: str
    filter: str | None
    priority: str | None
    lease: float
    max_lease: float
    max_attempts: int  # 0: no limit
    backoff: Backoff
    done_retention: int  # 0: for ever
    paused: bool
    created_at: datetime

    @classmethod
    def of(cls, found: queueanswers.QueueInfo) -> Self:
        return cls(
            found.name,
            found.filter,
            found.priority,
            found.lease_ms / 1000,
            found.max_lease_ms / 1000,
            found.max_attempts,
            found.backoff,
            found.done_retention_s,
            found.paused,
            time_of(found.created_ms),
        )


class Redriven(int):
    """How many failed messages are available again."""

    expired: int  # so many were left out: their retention is over

    @classmethod
    def of(cls, found: lists.Redriven) -> Self:
        self = cls(found.count)
        self.expired = found.expired
        return self
