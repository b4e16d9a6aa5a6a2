"""What queue requests answer with."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from penstock.codec.attempts import Attempt
from penstock.queue.backoff import Backoff


class QueueMessage(msgspec.Struct, frozen=True, gc=False):
    id: int
    payload: bytes | None  # None: it is at `uri`
    uri: str | None
    headers: Mapping[str, str]
    priority: int
    attempts: int  # claims, this one included; before it was claimed: those so far
    created_at_ms: int
    received_at_ms: int
    visible_at_ms: int
    claimed_at_ms: int = 0  # 0: not claimed (peek)
    lease_deadline_ms: int = 0
    receipt: str = ""
    dedup_id: str | None = None  # the producer's


class QueueInfo(msgspec.Struct, frozen=True):
    name: str
    filter: str | None
    priority: str | None
    lease_ms: int
    max_lease_ms: int
    max_attempts: int
    backoff: Backoff
    done_retention_s: int
    paused: bool
    created_ms: int


class DoneMessage(msgspec.Struct, frozen=True):
    id: int
    done_at_ms: int
    attempts: int


class FailedMessage(msgspec.Struct, frozen=True):
    id: int
    failed_at_ms: int
    attempts: int
    priority: int
    payload: bytes | None  # None: at `uri`, or gone by its retention
    uri: str | None
    headers: Mapping[str, str]
    history: tuple[Attempt, ...]


class Page(msgspec.Struct, frozen=True):
    """Some of a list, and where it goes on; None: that was all."""

    messages: list[DoneMessage] | list[FailedMessage]
    next: int | None
