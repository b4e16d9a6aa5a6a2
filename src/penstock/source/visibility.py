"""When a message's lease is extended, and by how much. Pure.

Contract     While its files are read, a message is extended every time its deadline comes near: in
             the last third of what is left of its lease, so that a call that fails can be tried
             again. After the last batch it is extended once more, by twice the commit timeout, and
             then left alone: it is acknowledged when its end is durable, or comes again.
Refused      A configuration whose last extension the queue could not grant is refused at start.
Not here     Calls to the queue, threads (the runner's).
"""

from __future__ import annotations

import msgspec

from penstock.errors import InvalidError
from penstock.source.queueport import Limits, Received

#: A lease is asked to last so many times the pause between two looks at it.
LEASE_COMMITS = 2.0


class Extension(msgspec.Struct, frozen=True):
    at: float  # monotonic seconds
    seconds: float  # how long from then on


def lease_seconds(commit_timeout: float, limits: Limits) -> float:
    """What a message is extended by while it is read: a crash is noticed so late."""
    wanted = LEASE_COMMITS * commit_timeout
    return wanted if limits.lease_max is None else min(wanted, limits.lease_max)


def last_seconds(commit_timeout: float) -> float:
    """The last extension: the commit may take its whole timeout, and then be tried once more."""
    return 2 * commit_timeout


def next_extension(received_at: float, deadline: float, seconds: float) -> Extension:
    """Of a lease that was taken (or extended) then and ends at `deadline`."""
    return Extension(received_at + (deadline - received_at) * 2 / 3, seconds)


def check_limits(commit_timeout: float, limits: Limits) -> None:
    last = last_seconds(commit_timeout)
    if limits.lease_max is not None and limits.lease_max < last:
        raise InvalidError(
            f"a commit timeout of {commit_timeout:g} s needs leases of {last:g} s; the queue's "
            f"maximum is {limits.lease_max:g} s",
            hint="lower the commit timeout, or raise the queue's maximum lease",
        )


class Lease:
    """One message's lease, as this process knows it. Not for several threads at once."""

    def __init__(self, received: Received, now: float, seconds: float) -> None:
        self.received = received
        self.deadline = received.deadline
        self._since = now
        self._seconds = seconds
        self._last: float | None = None  # how long the last extension is, once it is asked for
        self.lost = False

    @property
    def stopped(self) -> bool:
        """The last extension was made, or somebody else may have the message by now."""
        return self.lost or self._last == 0

    def finish(self, seconds: float) -> None:
        """The last batch is on its way: extend once more by this, at once."""
        if self._last is None:
            self._last = seconds

    def due(self, now: float) -> float | None:
        """How many seconds to extend by now; None: nothing is due."""
        if self.stopped:
            return None
        if self._last is not None:
            return self._last
        due = next_extension(self._since, self.deadline, self._seconds)
        return due.seconds if now >= due.at else None

    def next_at(self) -> float | None:
        """When something is due next; None: never."""
        if self.stopped:
            return None
        if self._last is not None:
            return self._since
        return next_extension(self._since, self.deadline, self._seconds).at

    def extended(self, deadline: float | None, now: float) -> None:
        """The queue granted what was due, or (None) said that the lease is over."""
        if deadline is None:
            self.lost = True
            return
        self.deadline, self._since = deadline, now
        if self._last is not None:
            self._last = 0
