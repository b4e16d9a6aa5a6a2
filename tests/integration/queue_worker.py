"""A child that works on the queues of a folder until it is told to end, or killed.

    python -m integration.queue_worker LOCATION ROLE NAME SEED

ROLE is `producer` or `consumer`. It loads its modules, waits for a line, opens and says `open`, and
then lines as in queue_ledger.py: what it is about to ask before it asks, what it was told after
that. A second line on its standard input ends it, with `end` as its last word. Whoever opens first
serves, so any of them may be the broker that is killed.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import penstock
from integration.children import say
from integration.queue_ledger import LEASE_SECONDS, QUEUES, is_odd, is_poison, key_of, payload_of

SIZES = (1, 1, 3, 20)
#: Beyond this a payload is an object of its own.
LARGE_BYTES = (1 << 20) + 1000
Say = Callable[[str], None]


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


# Producers.


def produce(db: penstock.Database, name: str, done: threading.Event) -> None:
    sequence = 0
    for size in _sizes():
        if done.wait(0.004):
            return
        keys = [f"{name}.{sequence + i}" for i in range(size)]
        messages = [
            penstock.Publish(
                payload_of(key, LARGE_BYTES if (sequence + i) % 211 == 100 else None),
                {"odd": "yes" if is_odd(key) else "no"},
                dedup_id=key,
            )
            for i, key in enumerate(keys)
        ]
        sequence += size
        while True:
            try:
                ids = db.publish_many(messages)
                break
            except penstock.UnavailableError:
                continue  # the same ones: their dedup ids say so
        say("published " + " ".join(f"{key}:{id}" for key, id in zip(keys, ids, strict=True)))


def _sizes() -> Iterator[int]:
    while True:
        yield from SIZES


# Consumers.


class Consumer:
    """Takes messages of one queue, and says all that its ledger needs."""

    def __init__(self, queue: penstock.Queue, name: str, say: Say) -> None:
        self._queue = queue
        self._name = name
        self._say = say

    def claim(self, count: int, lease: float, wait: float) -> list[penstock.ClaimedMessage]:
        found = self._queue.claim(count, wait=wait, lease=lease, consumer=self._name)
        words = []
        for message in found:
            assert message.payload is not None
            key = key_of(message.payload)
            words.append(
                f"{message.id}:{message.attempts}:{message._found.claimed_at_ms}"
                f":{message._found.lease_deadline_ms}:{key}"
            )
        if words:
            self._say(f"claimed {self._queue.name} {int(1000 * lease)} {' '.join(words)}")
        return found

    def ack(self, messages: Sequence[penstock.ClaimedMessage]) -> None:
        self._settle("ack", messages, lambda: self._queue.ack(messages))

    def fail(self, messages: Sequence[penstock.ClaimedMessage]) -> None:
        self._settle("fail", messages, lambda: self._queue.fail(messages, reason=self._name))

    def extend(self, messages: Sequence[penstock.ClaimedMessage], seconds: float) -> None:
        until_ms = wall_ms() + int(1000 * seconds)  # at least: the broker counts from later on
        truths = self._queue.extend(messages, seconds)
        pairs = zip(messages, truths, strict=True)
        extended = [f"{message.id}:{message.attempts}" for message, truth in pairs if truth]
        self._say(f"extended {self._queue.name} {until_ms} {' '.join(extended)}")

    def _settle(
        self,
        what: str,
        messages: Sequence[penstock.ClaimedMessage],
        call: Callable[[], list[bool]],
    ) -> None:
        """Again and again after an unknown outcome, which the next answer does not clear up."""
        if not messages:
            return
        name = self._queue.name
        leases = [f"{message.id}:{message.attempts}" for message in messages]
        self._say(f"asking {what} {name} {' '.join(leases)}")
        sure = True
        while True:
            try:
                truths = call()
                break
            except penstock.UnavailableError:
                sure = False
        told = [f"{lease}:{int(truth)}" for lease, truth in zip(leases, truths, strict=True)]
        self._say(f"told {what} {name} {wall_ms()} {int(sure)} {' '.join(told)}")

    def work(self, rng: random.Random) -> None:
        """One batch, in one of the ways in which consumers treat one."""
        found = self.claim(rng.choice((1, 5, 40)), LEASE_SECONDS, 0.2)
        poison = [message for message in found if is_poison(_key(message))]
        others = [message for message in found if not is_poison(_key(message))]
        manner = rng.random()
        if manner < 0.02:
            time.sleep(LEASE_SECONDS * rng.uniform(0.8, 1.2))  # late: some are another one's by now
        elif manner < 0.1:
            self.extend(found, 2 * LEASE_SECONDS)
        elif manner < 0.15 and others:
            self.fail([others.pop()])
        self.fail(poison)
        self.ack(others)


def _key(message: penstock.ClaimedMessage) -> str:
    assert message.payload is not None
    return key_of(message.payload)


def consume(db: penstock.Database, name: str, done: threading.Event, rng: random.Random) -> None:
    consumers = [Consumer(db.queue(queue), name, say) for queue in QUEUES]
    while not done.is_set():
        rng.choice(consumers).work(rng)


def main(location: str, role: str, name: str, seed: int) -> None:
    sys.stdin.readline()
    with penstock.open(location) as db:
        say("open")
        done = threading.Event()

        def end_when_told() -> None:
            sys.stdin.readline()
            done.set()

        threading.Thread(target=end_when_told, daemon=True).start()
        if role == "producer":
            produce(db, name, done)
        else:
            consume(db, name, done, random.Random(seed))
    say("end")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
