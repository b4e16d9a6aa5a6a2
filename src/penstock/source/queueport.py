"""The queue that announces files, as a source needs it: receive, extend, acknowledge.

Contract     Delivery at least once is enough. `receive` leases messages to the caller; until its
             deadline nobody else gets them, and afterwards anybody may. `extend` and `acknowledge`
             of a lease that is over change nothing and say so. Calls block, and may come from
             several threads. A queue that is down raises UnavailableError.
Deadlines    are seconds of the caller's monotonic clock (`Clock.monotonic`), taken before the call
             went out, so that they come early rather than late.
Invariant    An acknowledged message is never delivered again.
Not here     The queue in memory (memoryqueue.py), Penstock's own and SQS (spark/queueports.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec

from penstock.errors import InvalidError


class Received(msgspec.Struct, frozen=True, eq=False):
    id: str  # the same at every delivery
    body: bytes
    attempts: int  # deliveries so far, this one included; at least 1
    handle: Any  # the queue's own: what this lease is known by
    deadline: float
    dedup_id: str | None = None  # the producer's, where it gave one
    uri: str | None = None  # the body is this URI and nothing else (a message that is a URI)


class Limits(msgspec.Struct, frozen=True):
    """What a queue does by itself; None: unknown, or without a limit."""

    lease: float | None = None  # seconds of a lease that `receive` gives
    lease_max: float | None = None  # how far from now on `extend` may push a deadline
    retention: float | None = None  # how long after its sending a message may still be delivered


@runtime_checkable
class Queue(Protocol):
    def receive(self, max_messages: int, wait: float) -> Sequence[Received]:
        """At most so many, waiting about so many seconds for the first. -> may be empty"""
        ...

    def extend(self, received: Received, seconds: float) -> float | None:
        """Keep it for so many seconds from now. -> the new deadline; None: the lease is over"""
        ...

    def acknowledge(self, received: Sequence[Received]) -> Sequence[bool]:
        """Remove them for good. -> which of them were still leased to the caller"""
        ...


class Limited(Protocol):
    """What a queue may have beside: a user's object need not."""

    def limits(self) -> Limits: ...


def limits_of(queue: Queue) -> Limits:
    told = getattr(queue, "limits", None)
    if told is None:
        return Limits()
    limits = told()
    if not isinstance(limits, Limits):
        raise InvalidError(
            f"limits() of {type(queue).__name__} answered with {type(limits).__name__}",
            hint="it answers with penstock.source.queueport.Limits, or there is no such method",
        )
    return limits
