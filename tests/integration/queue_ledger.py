"""What producers and consumers of two queues were told, and what must be true of that.

Contract     `note` takes the lines of workers, in the order in which each one said them; `verify`
             compares with the queues when nothing is left in them. No rule depends on how the lines
             of several workers are ordered, and none on how fast anything was: attempts count the
             claims of a message, and times are those that the broker itself gave.
Rules        Q1  every message whose id was returned is done or failed, in each queue that takes it
             Q2  a message has one id, however often it was sent, and comes with its own payload
             Q3  each claim is a new attempt: the same one is never given to two consumers
             Q4  nothing is claimed again after an acknowledgement was answered with True, and
                 nothing is acknowledged twice
             Q5  a message is claimed again only when its lease was over, or its holder failed it
             Q6  an acknowledgement within the lease is True, unless its outcome was unknown before
             Q7  no attempt beyond MAX_ATTEMPTS; what failed had all of them, what is poison failed
             Q8  what is done was acknowledged by its last holder, and what was answered is done
Lines        published KEY:ID…                                 | open | end
             claimed QUEUE LEASE_MS ID:ATTEMPT:CLAIMED_MS:DEADLINE_MS:KEY…
             asking ack|fail QUEUE ID:ATTEMPT…                 before it is sent
             told ack|fail QUEUE WALL_MS SURE ID:ATTEMPT:TRUTH…
             extended QUEUE UNTIL_MS ID:ATTEMPT…
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

import penstock

QUEUES = ("all", "odd")
LEASE_SECONDS = 1.5
MAX_ATTEMPTS = 4
#: An answer counts as within the lease if it came so long before the end of it: the broker's clock
#: may be ahead of the one that is read here.
CLOCK_MS = 200

Lease = tuple[int, int]  # message id, attempt


def payload_of(key: str, size: int | None = None) -> bytes:
    head = f"{key} ".encode()
    size = len(head) + zlib.crc32(head) % 150 if size is None else size
    return (head * (size // len(head) + 1))[:size]


def key_of(payload: bytes) -> str:
    """The key of a payload that is whole."""
    key = payload.split(b" ", 1)[0].decode()
    assert payload == payload_of(key, len(payload)), f"the payload of {key} is damaged"
    assert len(payload) in (len(payload_of(key)), (1 << 20) + 1000), f"{key}: {len(payload)} bytes"
    return key


def is_poison(key: str) -> bool:
    return zlib.crc32(key.encode()) // 2 % 16 == 0


def is_odd(key: str) -> bool:
    return zlib.crc32(key.encode()) % 2 == 1


def create_queues(db: penstock.Database) -> None:
    for name, filter in zip(QUEUES, (None, "odd = 'yes'"), strict=True):
        db.create_queue(
            name, filter=filter, lease=LEASE_SECONDS, max_attempts=MAX_ATTEMPTS, backoff=0.02
        )


@dataclass
class Claim:
    claimed_ms: int
    deadline_ms: int


@dataclass
class QueueLedger:
    """Of one queue."""

    name: str
    claims: dict[int, dict[int, Claim]] = field(default_factory=lambda: defaultdict(dict))
    asked: dict[str, set[Lease]] = field(default_factory=lambda: {"ack": set(), "fail": set()})
    acked: dict[int, int] = field(default_factory=dict)  # id -> attempt
    answers: int = 0

    def note_claim(self, lease_ms: int, word: str) -> tuple[str, int]:
        """-> the key and id of its message"""
        number, attempt, claimed, deadline, key = word.split(":")
        claim = Claim(int(claimed), int(deadline))
        before = self.claims[int(number)].setdefault(int(attempt), claim)
        where = f"{self.name}: {key}, message {number}, attempt {attempt}"
        assert before is claim, f"{where} was claimed twice"
        assert 1 <= int(attempt) <= MAX_ATTEMPTS, where
        assert claim.deadline_ms == claim.claimed_ms + lease_ms, where
        return key, int(number)

    def note_answer(self, what: str, wall_ms: int, sure: bool, word: str) -> None:
        number, attempt, truth = map(int, word.split(":"))
        self.answers += 1
        if truth and what == "ack":
            before = self.acked.setdefault(number, attempt)
            assert before == attempt, f"{self.name}: {number} was acknowledged {before}, {attempt}"
        elif not truth and sure:
            deadline_ms = self.claims[number][attempt].deadline_ms
            assert wall_ms > deadline_ms - CLOCK_MS, (
                f"{self.name}: {what} of {number}, attempt {attempt}, was stale within its lease"
            )

    def note_extension(self, until_ms: int, word: str) -> None:
        number, attempt = map(int, word.split(":"))
        self.claims[number][attempt].deadline_ms = until_ms

    # -- verifying

    def verify(self, queue: penstock.Queue, keys: dict[int, str]) -> set[int]:
        """-> the ids of all messages that the queue ever took"""
        done = {message.id: message for message in queue.done()}
        failed = {message.id: message for message in queue.failed()}
        stats = queue.stats()
        assert (stats.done, stats.failed) == (len(done), len(failed))
        assert not done.keys() & failed.keys()
        for number, claims in self.claims.items():
            self._verify_claims(number, claims)
            assert number in done or number in failed, f"{self.name}: {number} was claimed, is gone"
        for number, attempt in self.acked.items():
            assert number in done, f"{self.name}: {number} was acknowledged and is not done"
            assert done[number].attempts == attempt
        for number, message in done.items():
            assert (number, message.attempts) in self.asked["ack"], (
                f"{self.name}: nobody acknowledged {number}"
            )
            assert not is_poison(keys[number])
        for number, failure in failed.items():
            assert failure.attempts == MAX_ATTEMPTS, f"{self.name}: {failure}"
            assert len(failure.history) == MAX_ATTEMPTS
            assert failure.payload is not None
            assert keys.setdefault(number, key_of(failure.payload)) == key_of(failure.payload)
        return done.keys() | failed.keys()

    def _verify_claims(self, number: int, claims: dict[int, Claim]) -> None:
        attempts = sorted(claims)
        last = self.acked.get(number)
        assert last is None or attempts[-1] <= last, (
            f"{self.name}: {number} was acknowledged at attempt {last}, then claimed again"
        )
        for earlier, later in pairwise(attempts):
            assert (number, earlier) in self.asked["fail"] or (
                claims[later].claimed_ms >= claims[earlier].deadline_ms
            ), f"{self.name}: {number} had two holders, attempts {earlier} and {later}"


class Ledger:
    def __init__(self) -> None:
        self.published: dict[str, int] = {}
        self.keys: dict[int, str] = {}
        self.queues = {name: QueueLedger(name) for name in QUEUES}

    def note(self, line: str) -> None:
        match line.split(" "):
            case ["published", *words]:
                for word in words:
                    key, number = word.split(":")
                    self.published[key] = int(number)
                    self._same(key, int(number))
            case ["claimed", queue, lease_ms, *words]:
                for word in words:
                    self._same(*self.queues[queue].note_claim(int(lease_ms), word))
            case ["asking", what, queue, *words]:
                pairs = (word.split(":") for word in words)
                self.queues[queue].asked[what].update((int(n), int(a)) for n, a in pairs)
            case ["told", what, queue, wall_ms, sure, *words]:
                for word in words:
                    self.queues[queue].note_answer(what, int(wall_ms), sure == "1", word)
            case ["extended", queue, until_ms, *words]:
                for word in filter(None, words):
                    self.queues[queue].note_extension(int(until_ms), word)
            case ["open"] | ["end"]:
                pass
            case _:
                raise AssertionError(line)

    def _same(self, key: str, number: int) -> None:
        known = self.keys.setdefault(number, key)
        assert known == key, f"message {number} is {known} and {key}"

    def answers(self) -> int:
        return len(self.published) + sum(queue.answers for queue in self.queues.values())

    def verify(self, db: penstock.Database) -> None:
        settled = {
            name: ledger.verify(db.queue(name), self.keys) for name, ledger in self.queues.items()
        }
        assert len(set(self.keys.values())) == len(self.keys), "a message has two ids"
        lost = [key for key, number in self.published.items() if number not in settled["all"]]
        assert not lost, f"published and lost: {lost}"
        odd = {number for number in settled["all"] if is_odd(self.keys[number])}
        assert settled["odd"] == odd, f"routed wrongly: {settled['odd'] ^ odd}"
