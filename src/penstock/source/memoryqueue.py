"""A queue in memory whose leases really expire: for tests, and for feeding a source by hand.

Contract     The Queue port. A message that is neither acknowledged nor extended is delivered again
             when its lease is over, and a late acknowledgement of the earlier delivery counts for
             nothing. Time comes from the clock that is passed in; with one that a test moves, no
             lease ends by itself. Oldest first; calls may come from several threads.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from penstock.clock import Clock, SystemClock
from penstock.errors import InvalidError
from penstock.source.queueport import Limits, Received


class _Message:
    __slots__ = ("attempts", "body", "deadline", "dedup_id", "id")

    def __init__(self, message_id: str, body: bytes, dedup_id: str | None) -> None:
        self.id = message_id
        self.body = body
        self.dedup_id = dedup_id
        self.attempts = 0
        self.deadline = float("-inf")  # visible from then on


class MemoryQueue:
    def __init__(
        self, *, lease: float = 30.0, lease_max: float | None = None, clock: Clock | None = None
    ) -> None:
        if not lease > 0:
            raise InvalidError(f"a lease is a positive number of seconds, not {lease!r}")
        self._lease = lease
        self._lease_max = lease_max
        self._clock = clock or SystemClock()
        self._messages: dict[str, _Message] = {}
        self._sent = 0
        self._changed = threading.Condition()

    def send(self, body: bytes | str, *, dedup_id: str | None = None) -> str:
        """-> the message's id. The queue keeps no ledger: the same dedup id is another message."""
        raw = body.encode() if isinstance(body, str) else body
        with self._changed:
            self._sent += 1
            message = _Message(str(self._sent), raw, dedup_id)
            self._messages[message.id] = message
            self._changed.notify_all()
        return message.id

    def __len__(self) -> int:
        """Messages that nobody has acknowledged."""
        with self._changed:
            return len(self._messages)

    def limits(self) -> Limits:
        return Limits(lease=self._lease, lease_max=self._lease_max)

    def receive(self, max_messages: int, wait: float) -> list[Received]:
        end = self._clock.monotonic() + wait
        with self._changed:
            while not (found := self._take(max_messages)):
                left = end - self._clock.monotonic()
                if left <= 0:
                    break
                self._changed.wait(min(left, self._until_next(left)))
        return found

    def _take(self, max_messages: int) -> list[Received]:
        now = self._clock.monotonic()
        found: list[Received] = []
        for message in self._messages.values():
            if len(found) >= max_messages:
                break
            if message.deadline <= now:
                message.attempts += 1
                message.deadline = now + self._lease
                found.append(
                    Received(
                        id=message.id,
                        body=message.body,
                        attempts=message.attempts,
                        handle=message.attempts,  # names this delivery
                        deadline=message.deadline,
                        dedup_id=message.dedup_id,
                    )
                )
        return found

    def _until_next(self, left: float) -> float:
        now = self._clock.monotonic()
        return max(
            0.001,
            min((message.deadline - now for message in self._messages.values()), default=left),
        )

    def extend(self, received: Received, seconds: float) -> float | None:
        if not seconds > 0:
            raise InvalidError(f"a lease is extended by a positive time, not {seconds!r} s")
        if self._lease_max is not None and seconds > self._lease_max:
            raise InvalidError(f"a lease lasts at most {self._lease_max:g} s, not {seconds:g} s")
        with self._changed:
            message = self._leased(received)
            if message is None:
                return None
            message.deadline = self._clock.monotonic() + seconds
            return message.deadline

    def acknowledge(self, received: Sequence[Received]) -> list[bool]:
        with self._changed:
            found = []
            for each in received:
                held = self._leased(each) is not None
                if held:
                    del self._messages[each.id]
                found.append(held)
            return found

    def _leased(self, received: Received) -> _Message | None:
        """The message, while this very delivery of it holds it."""
        message = self._messages.get(received.id)
        if message is None or message.attempts != received.handle:
            return None
        return message if self._clock.monotonic() < message.deadline else None
