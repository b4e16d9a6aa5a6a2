"""kill -9 of the broker under load: producers and consumers of two queues go on at the next one.

All workers are processes that may serve; the one that does is killed, whatever its role, and
another one of that role takes its place. At the end everything that was said is compared with what
is in the queues (queue_ledger.py), and with every row of the store.
"""

from __future__ import annotations

import asyncio
import random
import select
import time
from pathlib import Path

import pytest

import penstock
from integration.children import PATIENCE_SECONDS, Child
from integration.queue_ledger import QUEUES, Ledger, create_queues, is_poison, key_of
from integration.queue_worker import Consumer
from integration.seeds import fresh_seed
from penstock.broker.lock import highest_term, lock_path
from penstock.cli.check import inspect

PRODUCERS = 2
CONSUMERS = 4


class Crew:
    """Workers, and for each role one that is loaded and waits to take a place."""

    def __init__(self, location: Path, rng: random.Random) -> None:
        self.location = location
        self.ledger = Ledger()
        self._rng = rng
        self._count = 0
        self._workers: dict[int, tuple[str, Child]] = {}
        self._spares = {role: self._load(role) for role in ("producer", "consumer")}
        for role in ["producer"] * PRODUCERS + ["consumer"] * CONSUMERS:
            self._add(role)

    def _load(self, role: str) -> Child:
        self._count += 1
        seed = self._rng.randrange(1 << 30)
        return Child("queue_worker", self.location, role, f"{role[0]}{self._count}", seed)

    def _add(self, role: str) -> None:
        worker, self._spares[role] = self._spares[role], self._load(role)
        worker.tell("go")
        self._workers[worker.pid] = role, worker

    def drain(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while True:
            for _, worker in self._workers.values():
                for line in worker.drain(0.005):
                    self.ledger.note(line)
            if time.monotonic() >= until:
                return

    def await_answers(self) -> None:
        """Until producers and consumers of each queue are served; the wait is only a guard."""
        before = self._progress()
        begun = time.monotonic()
        while any(now == then for now, then in zip(self._progress(), before, strict=True)):
            self.drain(0.01)
            for _, worker in self._workers.values():
                assert not worker.ended(), worker.errors()
            assert time.monotonic() - begun < PATIENCE_SECONDS, (
                f"not everybody is served: {before}, then {self._progress()}"
            )

    def _progress(self) -> list[int]:
        answers = [queue.answers for queue in self.ledger.queues.values()]
        return [len(self.ledger.published), *answers]

    def kill_broker(self) -> None:
        """Half of the time right after an answer: was what it says durable when it left?"""
        if self._rng.random() < 0.5:
            outputs = [worker.output for _, worker in self._workers.values()]
            select.select(outputs, [], [], PATIENCE_SECONDS)
        words = lock_path(self.location, highest_term(self.location)).read_text().split()
        role, worker = self._workers.pop(int(words[1]))
        with worker:
            for line in worker.kill():
                self.ledger.note(line)
        self._add(role)

    def finish(self) -> None:
        for _, worker in self._workers.values():
            worker.tell("end")
        for _, worker in self._workers.values():
            for line in worker.hear_until("end"):
                self.ledger.note(line)
            assert worker.finish() == 0, worker.errors()
            assert worker.errors() == ""

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in [*(each for _, each in self._workers.values()), *self._spares.values()]:
            worker.__exit__(None, None, None)


def settle_the_rest(db: penstock.Database, ledger: Ledger) -> None:
    """What is left, what comes again because nobody settled it, and what has failed for now."""
    for name in QUEUES:
        queue = db.queue(name)
        consumer = Consumer(queue, "last", ledger.note)
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            found = consumer.claim(1000, 30.0, 0.2)
            for what, poison in ((consumer.fail, True), (consumer.ack, False)):
                what([m for m in found if is_poison(key_of(m.payload or b"")) == poison])
            stats = queue.stats()
            if not (found or stats.available or stats.delayed or stats.in_flight):
                break
            assert found or time.monotonic() < until, f"{name} does not become empty: {stats}"


def kill_brokers(location: Path, *, kills: int, seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    with penstock.open(location) as db:
        create_queues(db)
    with Crew(location, rng) as crew:
        crew.await_answers()
        for _ in range(kills):
            crew.drain(rng.uniform(0, 0.3))
            crew.kill_broker()
            crew.await_answers()
        crew.finish()
        ledger = crew.ledger
    with penstock.open(location) as db:
        settle_the_rest(db, ledger)
        ledger.verify(db)
    assert asyncio.run(inspect(str(location))).findings == []
    assert ledger.answers() > 10 * kills, "hardly anything was done: this proves nothing"
    print(f"{len(ledger.published):,} published, {ledger.answers():,} answers")


def test_twenty_killed_brokers_lose_double_and_mix_up_nothing(tmp_path: Path) -> None:
    kill_brokers(tmp_path / "d", kills=20, seed=fresh_seed())


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_hundred_killed_brokers_lose_double_and_mix_up_nothing(tmp_path: Path) -> None:
    kill_brokers(tmp_path / "d", kills=100, seed=fresh_seed())
