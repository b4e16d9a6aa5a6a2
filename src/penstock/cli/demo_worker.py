"""One of the processes that share out jobs in the demo: it publishes, claims and acknowledges.

Contract     `python -m penstock.cli.demo_worker LOCATION NUMBER`. It says `published` with ids when
             its publish returned (the places in a batch say which of them are European), `claimed`
             with ids, attempts and priorities of what it was given, in that order, and `done` with
             the ids whose acknowledgement was answered. One job in fifty always fails. A publish
             that ended without an answer is sent again with the same dedup ids. A line on its
             standard input ends the publishing; it ends itself when the queues are empty. One
             `os.write` per line, as in demo_writer.py.
Queues       A job is published once. `jobs` takes them all, urgent ones first; `audit` takes those
             of Europe, a second time, for somebody else.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading

import penstock
from penstock.cli.demo_member import wait_for_word
from penstock.errors import PenstockError

JOBS, AUDIT = "jobs", "audit"
URGENT, NORMAL = 1, 5
#: Filter and priority of each.
QUEUES = {
    JOBS: ("kind = 'job'", f"CASE WHEN urgent = 'yes' THEN {URGENT} ELSE {NORMAL} END"),
    AUDIT: ("kind = 'job' AND region = 'eu'", None),
}
BATCH, CLAIM = 20, 100
MAX_ATTEMPTS = 3
#: A job of a killed worker comes again after this long.
LEASE_S = 1.0
POISON = b"poison"


def say(word: str, numbers: list[int]) -> None:
    if numbers:
        os.write(1, f"{word} {' '.join(map(str, numbers))}\n".encode())


def is_european(place: int) -> bool:
    """By the place in a batch."""
    return place % 4 == 0


def headers_of(place: int) -> dict[str, str]:
    return {
        "kind": "job",
        "region": "eu" if is_european(place) else "us",
        "urgent": "yes" if place % 5 == 0 else "no",
    }


def publish_until(db: penstock.Database, number: int, told: threading.Event) -> None:
    for batch in itertools.count():
        jobs = [
            penstock.Publish(
                POISON if (batch * BATCH + i) % 50 == 7 else b"job %d" % i,
                headers=headers_of(i),
                dedup_id=f"{number}.{batch}.{i}",
            )
            for i in range(BATCH)
        ]
        ids = None
        while ids is None:
            try:
                ids = db.publish_many(jobs)
            except penstock.UnavailableError:
                continue
        say("published", ids)
        if told.is_set():
            return


def work_until(
    jobs: penstock.Queue, audit: penstock.Queue, number: int, published: threading.Event
) -> None:
    while True:
        try:
            idle = not (work(jobs, number) + check(audit, number))
            if idle and published.is_set() and is_empty(jobs) and is_empty(audit):
                return
        except penstock.UnavailableError:
            continue  # what was not acknowledged comes again


def work(queue: penstock.Queue, number: int) -> int:
    jobs = queue.claim(CLAIM, wait=0.1, consumer=f"worker {number}")
    say("claimed", [part for job in jobs for part in (job.id, job.attempts, job.priority)])
    queue.fail([job for job in jobs if job.payload == POISON], reason="it is poison")
    good = [job for job in jobs if job.payload != POISON]
    answers = queue.ack(good)
    say("done", [job.id for job, done in zip(good, answers, strict=True) if done])
    return len(jobs)


def check(queue: penstock.Queue, number: int) -> int:
    jobs = queue.claim(CLAIM, consumer=f"auditor {number}")
    queue.ack(jobs)
    return len(jobs)


def make_queue(db: penstock.Database, name: str) -> penstock.Queue:
    wanted, priority = QUEUES[name]
    while True:
        try:
            return db.create_queue(
                name,
                filter=wanted,
                priority=priority,
                lease=LEASE_S,
                max_attempts=MAX_ATTEMPTS,
                backoff=0.05,
            )
        except penstock.UnavailableError:
            continue  # making it twice is making it once


def is_empty(queue: penstock.Queue) -> bool:
    stats = queue.stats()
    return not stats.available and not stats.delayed and not stats.in_flight


def main(location: str, number: int) -> None:
    told, published = threading.Event(), threading.Event()
    with penstock.open(location) as db:
        jobs, audit = make_queue(db, JOBS), make_queue(db, AUDIT)
        worker = threading.Thread(
            target=work_until, args=(jobs, audit, number, published), daemon=True
        )
        worker.start()
        threading.Thread(target=wait_for_word, args=(told,), daemon=True).start()
        publish_until(db, number, told)
        published.set()
        worker.join()


if __name__ == "__main__":
    try:
        main(sys.argv[1], int(sys.argv[2]))
    except PenstockError as error:
        sys.exit(f"{type(error).__name__}: {error}")
