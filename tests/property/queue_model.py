"""Queues as plain dicts and lists, one message at a time: what test_queue_model.py compares with.

There are no pages here, no operations and no bytes. The one thing that is known of pages: a request
ends the leases of at most so many of them (`ENDED_PAGES` of `FLIGHT_LEASES` leases each).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec

from penstock.codec.attempts import Attempt, Ending
from penstock.codec.scalars import NEVER_MS
from penstock.queue.backoff import Backoff

FLIGHT_LEASES = 4
ENDED_PAGES = 2
ROUTE_COUNT = 5
DEDUP_MS = 300_000

Headers = dict[str, str]
FILTERS: dict[str | None, Callable[[Headers], bool]] = {
    None: lambda headers: True,
    "color = 'red'": lambda headers: headers.get("color") == "red",
    "color IS NULL": lambda headers: "color" not in headers,
    "false": lambda headers: False,
}
PRIORITIES: dict[str | None, Callable[[Headers], int]] = {
    None: lambda headers: int(headers.get("priority", 128)),
    "CASE WHEN color = 'red' THEN 1 ELSE 2 END": (
        lambda headers: 1 if headers.get("color") == "red" else 2
    ),
}


class Message(msgspec.Struct, eq=False):
    id: int
    offset: int
    payload: bytes
    headers: Headers
    to: str | None
    created_ms: int
    received_ms: int
    visible_ms: int
    deadline_ms: int
    takers: int = 0
    dead: bool = False


class Entry(msgspec.Struct, eq=False):
    """A message in a queue, wherever it stands there."""

    message: Message
    priority: int
    visible_ms: int
    attempts: int = 0
    history: bool = False
    lease: int = 0
    consumer: str = ""
    claimed_ms: int = 0
    lease_ms: int = 0  # its deadline
    ended_ms: int = 0  # done or failed then

    @property
    def id(self) -> int:
        return self.message.id

    def over(self, now_ms: int) -> bool:
        return self.message.deadline_ms < now_ms

    def worn(self, limit: int) -> bool:
        """It had its attempts: with the last one, or because their maximum was lowered since."""
        return 0 < limit <= self.attempts


class Receipt(msgspec.Struct, eq=False):
    queue: Queue | None  # None: forged
    lease: int
    message_id: int
    text: str


class Options(msgspec.Struct, frozen=True):
    filter: str | None = None
    priority: str | None = None
    lease_ms: int = 40
    max_lease_ms: int = 1000
    max_attempts: int = 2
    backoff: Any = 0.0
    done_retention_s: int = 0
    paused: bool = False


class Queue(msgspec.Struct, eq=False):
    name: str
    options: Options
    start: int
    backfill: int = 0
    backfill_end: int = 0
    available: dict[int, Entry] = {}
    flight: dict[int, Entry] = {}  # by lease
    done: list[Entry] = []
    failed: list[Entry] = []
    history: dict[int, list[Attempt]] = {}
    next_lease: int = 1
    routed: int = 0
    acked: int = 0
    failures: int = 0
    expired: int = 0
    purged: int = 0

    def in_order(self) -> list[Entry]:
        return sorted(self.available.values(), key=lambda e: (e.priority, e.visible_ms, e.id))


class Model:
    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.queues: dict[str, Queue] = {}
        self.dedups: dict[tuple[Queue | None, str], tuple[int, int]] = {}
        self.reclaim = "done"

    # -- routing

    def give(self, queue: Queue, message: Message) -> None:
        priority = PRIORITIES[queue.options.priority](message.headers)
        queue.available[message.id] = Entry(message, priority, message.visible_ms)
        queue.routed += 1
        if not message.dead:
            message.takers += 1

    def route(self, message: Message) -> None:
        for queue in self.queues.values():
            if (
                FILTERS[queue.options.filter](message.headers)
                if message.to is None
                else message.to == queue.name
            ):
                self.give(queue, message)

    def backfill(self, queue: Queue, now_ms: int, there: Collection[int]) -> bool:
        """`there` are the messages that can be read. -> whether there is more"""
        end = min(queue.backfill + ROUTE_COUNT, queue.backfill_end)
        for message in self.messages[queue.backfill : end]:
            if (
                message.to is None
                and not (message.dead and (self.reclaim == "done" or message.id not in there))
                and message.deadline_ms >= now_ms
                and FILTERS[queue.options.filter](message.headers)
            ):
                message.dead = False
                self.give(queue, message)
        queue.backfill = max(queue.backfill, end)
        return queue.backfill < queue.backfill_end

    def release(self, message: Message) -> None:
        """Whatever `reclaim` says: that may change until it goes."""
        if message.takers:
            message.takers -= 1
            message.dead = message.dead or not message.takers

    # -- leases

    def claim(
        self, queue: Queue, count: int, consumer: str, lease_ms: int | None, now_ms: int
    ) -> list[Entry]:
        self.end_leases(queue, now_ms)
        taken: list[Entry] = []
        if queue.options.paused:
            return taken
        for entry in queue.in_order():
            if len(taken) == count:
                break
            if entry.visible_ms > now_ms:
                continue
            del queue.available[entry.id]
            if entry.over(now_ms):
                self.drop(queue, entry)
                continue
            if entry.worn(queue.options.max_attempts):
                self.fail_for_good(queue, entry, now_ms)
                continue
            entry.attempts += 1
            entry.lease, queue.next_lease = queue.next_lease, queue.next_lease + 1
            entry.consumer, entry.claimed_ms = consumer, now_ms
            entry.lease_ms = now_ms + (queue.options.lease_ms if lease_ms is None else lease_ms)
            queue.flight[entry.lease] = entry
            taken.append(entry)
        return taken

    def drop(self, queue: Queue, entry: Entry) -> None:
        queue.expired += 1
        queue.history.pop(entry.id, None)

    def end_leases(self, queue: Queue, now_ms: int, pages: int = ENDED_PAGES) -> None:
        over = [entry for entry in queue.flight.values() if entry.lease_ms <= now_ms]
        numbers = sorted({entry.lease // FLIGHT_LEASES for entry in over})[:pages]
        for entry in sorted(over, key=lambda e: e.lease):
            if entry.lease // FLIGHT_LEASES in numbers:
                self.give_back(queue, entry, Ending.EXPIRED, "", None, now_ms)

    def give_back(
        self,
        queue: Queue,
        entry: Entry,
        ending: Ending,
        reason: str,
        delay_ms: int | None,
        now_ms: int,
    ) -> None:
        del queue.flight[entry.lease]
        if entry.over(now_ms):
            self.drop(queue, entry)
            return
        queue.history.setdefault(entry.id, []).append(
            Attempt(entry.consumer, now_ms, ending, reason)
        )
        entry.history = True
        if entry.worn(queue.options.max_attempts):
            self.fail_for_good(queue, entry, now_ms)
            return
        wait_ms = _wait_ms(queue.options.backoff, entry.attempts) if delay_ms is None else delay_ms
        entry.visible_ms = now_ms + wait_ms
        queue.available[entry.id] = entry

    def fail_for_good(self, queue: Queue, entry: Entry, now_ms: int) -> None:
        entry.ended_ms = now_ms
        queue.failed.append(entry)
        queue.failures += 1

    def find(
        self, queue: Queue, receipts: Sequence[Receipt], now_ms: int
    ) -> tuple[list[Entry], list[bool]]:
        """Leases in order, and which receipts are good."""
        self.end_leases(queue, now_ms)
        found: dict[int, Entry] = {}
        truths: list[bool] = []
        for receipt in receipts:
            entry = queue.flight.get(receipt.lease) if receipt.queue is queue else None
            good = entry is not None and entry.lease_ms > now_ms and entry.lease not in found
            truths.append(good)
            if good and entry is not None:
                found[entry.lease] = entry
        return [found[lease] for lease in sorted(found)], truths

    def ack(self, queue: Queue, receipts: Sequence[Receipt], now_ms: int) -> list[bool]:
        found, truths = self.find(queue, receipts, now_ms)
        for entry in found:
            del queue.flight[entry.lease]
            entry.ended_ms = now_ms
            queue.done.append(entry)
            queue.acked += 1
            self.release(entry.message)
        return truths

    def fail(
        self,
        queue: Queue,
        receipts: Sequence[Receipt],
        delay_ms: int | None,
        reason: str,
        now_ms: int,
    ) -> list[bool]:
        found, truths = self.find(queue, receipts, now_ms)
        for entry in found:
            self.give_back(queue, entry, Ending.FAILED, reason, delay_ms, now_ms)
        return truths

    def give_up(self, queue: Queue, receipts: Sequence[Receipt], now_ms: int) -> list[bool]:
        """Release."""
        found, truths = self.find(queue, receipts, now_ms)
        for entry in found:
            del queue.flight[entry.lease]
            if entry.over(now_ms):
                self.drop(queue, entry)
            else:
                entry.attempts -= 1
                queue.available[entry.id] = entry
        return truths

    def extend(
        self, queue: Queue, receipts: Sequence[Receipt], lease_ms: int, now_ms: int
    ) -> list[bool]:
        found, truths = self.find(queue, receipts, now_ms)
        for entry in found:
            entry.lease_ms = now_ms + lease_ms
        return truths

    # -- the rest

    def clear(self, queue: Queue, now_ms: int) -> None:
        """All that time took away."""
        self.end_leases(queue, now_ms, pages=1 << 30)
        for entry in [entry for entry in queue.available.values() if entry.over(now_ms)]:
            del queue.available[entry.id]
            self.drop(queue, entry)
        keep_ms = 1000 * queue.options.done_retention_s
        for entry in list(queue.done) if keep_ms else ():
            if entry.ended_ms < now_ms - keep_ms:
                queue.done.remove(entry)
                queue.history.pop(entry.id, None)

    def take_away(self, queue: Queue, entries: Sequence[Entry]) -> None:
        """Purged, one by one."""
        for entry in entries:
            queue.available.pop(entry.id, None)
            queue.flight.pop(entry.lease, None)
            if entry in queue.failed:
                queue.failed.remove(entry)
            queue.history.pop(entry.id, None)
            queue.purged += 1
            self.release(entry.message)

    def redrive(self, queue: Queue, ids: set[int] | None, now_ms: int) -> tuple[int, int]:
        chosen = [entry for entry in queue.failed if ids is None or entry.id in ids]
        living = [entry for entry in chosen if not entry.over(now_ms)]
        for entry in living:
            queue.failed.remove(entry)
            entry.attempts, entry.visible_ms = 0, now_ms
            queue.available[entry.id] = entry
        return len(living), len(chosen) - len(living)


def _wait_ms(backoff: Any, attempts: int) -> int:
    if not isinstance(backoff, Backoff):
        return math.ceil(1000 * float(backoff))
    assert not backoff.jitter, "the model has no chance"
    wait: float = min(backoff.base * backoff.factor ** (attempts - 1), backoff.cap)
    return math.ceil(1000 * wait)


def deadline_of(received_ms: int, retention_s: int) -> int:
    return received_ms + 1000 * retention_s if retention_s else NEVER_MS
