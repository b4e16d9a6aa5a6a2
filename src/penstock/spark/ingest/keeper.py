"""Signs of life while files are read: leases of messages, ownership of shards and stagings.

Contract     Runs in a thread of its own between `start` and `stop`. Messages that are held are
             extended as source/visibility.py says; shards and stagings that are named are beaten
             every half commit timeout. A queue or a broker that is away for a while is tried again;
             whatever else goes wrong ends the run at its next `check`.
Invariant    What is dropped or released here gets no sign of life any more, so that others may have
             it. A lost shard is not fought for: its publish is refused.
Not here     What is read and published (coordinator.py).
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from penstock.clock import Clock
from penstock.errors import UnavailableError
from penstock.source.queueport import Queue, Received
from penstock.source.requests import Beaten
from penstock.source.visibility import Lease

_log = logging.getLogger("penstock")

#: After a failed call, the next one comes so much later.
_RETRY_SECONDS = 1.0
#: Extensions under way at once: of a queue behind a network each is a round trip.
_CALLS = 8
#: Extensions between two looks at what else is due.
_EXTENSIONS = 64


class Keeper:
    def __init__(
        self,
        queue: Queue,
        beat: Callable[[list[str], list[int]], Beaten],
        *,
        clock: Clock,
        lease_seconds: float,
        last_seconds: float,
        beat_seconds: float,
    ) -> None:
        self._queue = queue
        self._beat = beat
        self._clock = clock
        self._lease_seconds = lease_seconds
        self._last_seconds = last_seconds
        self._beat_seconds = beat_seconds
        self._leases: dict[str, Lease] = {}
        #: Messages whose last extension failed: not before these times.
        self._later: dict[str, float] = {}
        self._shards: frozenset[str] = frozenset()
        self._stagings: frozenset[int] = frozenset()
        self._lost: set[str] = set()
        self._changed = threading.Condition()
        self._stopped = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="penstock-ingest", daemon=True)
        self._pool = ThreadPoolExecutor(_CALLS, thread_name_prefix="penstock-extend")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._thread.join()
        self._pool.shutdown()

    def check(self) -> None:
        """Raise what ended the thread."""
        if self._error is not None:
            raise self._error

    # -- what is kept

    def hold(self, received: Iterable[Received]) -> None:
        now = self._clock.monotonic()
        with self._changed:
            for each in received:
                self._leases[each.id] = Lease(each, now, self._lease_seconds)
            self._changed.notify_all()

    def finish(self, received: Iterable[Received]) -> None:
        """The last of what they name was read: once more, and long enough for the commit."""
        now = self._clock.monotonic()
        with self._changed:
            for each in received:
                lease = self._leases.get(each.id)
                if lease is not None and lease.deadline - now < self._last_seconds:
                    lease.finish(self._last_seconds)
            self._changed.notify_all()

    def resume(self, received: Iterable[Received]) -> None:
        """They were not finished after all: extend them as before."""
        now = self._clock.monotonic()
        with self._changed:
            for each in received:
                before = self._leases.get(each.id)
                if before is not None and not before.lost:
                    lease = self._leases[each.id] = Lease(each, now, self._lease_seconds)
                    lease.deadline = before.deadline
            self._changed.notify_all()

    def drop(self, received: Iterable[Received]) -> None:
        """Acknowledged, or left to whoever gets them next."""
        with self._changed:
            for each in received:
                self._leases.pop(each.id, None)
                self._later.pop(each.id, None)

    def own(self, shards: Iterable[str]) -> None:
        """All that is in hand now."""
        with self._changed:
            self._shards = frozenset(shards)
            self._lost &= self._shards

    def stage(self, stagings: Iterable[int]) -> None:
        with self._changed:
            self._stagings = frozenset(stagings)

    def lost(self) -> set[str]:
        """Shards that somebody else has by now, as far as is known."""
        with self._changed:
            return set(self._lost)

    # -- the thread

    def _run(self) -> None:
        try:
            next_beat = self._clock.monotonic() + self._beat_seconds
            while self._wait(next_beat):
                # First: a late beat loses files, a late extension has them announced twice.
                if self._clock.monotonic() >= next_beat:
                    next_beat = self._clock.monotonic() + self._send_beat()
                self._extend()
        except BaseException as error:
            # Told by check(): the run must not go on without signs of life.
            self._error = error

    def _wait(self, next_beat: float) -> bool:
        """Until something is due. -> False: it is over"""
        with self._changed:
            while not self._stopped:
                due = min([next_beat, *map(self._next_at, self._leases.values())])
                left = due - self._clock.monotonic()
                if left <= 0:
                    return True
                self._changed.wait(left)
        return False

    def _next_at(self, lease: Lease) -> float:
        due = lease.next_at()
        if due is None:
            return math.inf
        return max(due, self._later.get(lease.received.id, due))

    def _extend(self) -> None:
        now = self._clock.monotonic()
        with self._changed:
            due = [
                (lease, seconds)
                for lease in self._leases.values()
                if self._next_at(lease) <= now and (seconds := lease.due(now)) is not None
            ]
        due.sort(key=lambda each: each[0].deadline)
        # A part of them: a thousand calls must not keep the next beat waiting.
        for _ in self._pool.map(lambda each: self._extend_one(*each), due[:_EXTENSIONS]):
            pass

    def _extend_one(self, lease: Lease, seconds: float) -> None:
        with self._changed:
            # It may have been acknowledged since.
            if self._leases.get(lease.received.id) is not lease:
                return
        began = self._clock.monotonic()
        try:
            deadline = self._queue.extend(lease.received, seconds)
        except UnavailableError as error:
            _log.warning("a message could not be extended: %s", error)
            with self._changed:
                self._later[lease.received.id] = began + _RETRY_SECONDS
            return
        with self._changed:
            self._later.pop(lease.received.id, None)
            lease.extended(deadline, began)

    def _send_beat(self) -> float:
        """-> how long until the next one"""
        with self._changed:
            shards, stagings = sorted(self._shards), sorted(self._stagings)
        if not shards and not stagings:
            return self._beat_seconds
        try:
            beaten = self._beat(shards, stagings)
        except UnavailableError as error:
            _log.warning("no sign of life could be given: %s", error)
            return min(_RETRY_SECONDS, self._beat_seconds)
        with self._changed:
            self._lost |= set(beaten.lost) & self._shards
        return self._beat_seconds
