"""The demo's third act: workers share out jobs, and the one that serves the queue is killed.

Contract     Real processes, each publishing and working. Whichever of them serves the folder is
             killed (SIGKILL) again and again, with the jobs it had claimed. Afterwards every job
             that was published is done or failed, each once, and none was claimed more often than
             allowed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec

import penstock
from penstock.cli.demo_crowd import Crowd
from penstock.cli.demo_worker import MAX_ATTEMPTS, QUEUE

#: Between two kills so many jobs are done.
JOBS = 400


class JobsResult(msgspec.Struct, frozen=True):
    workers: int
    kills: int
    published: int
    done: int
    failed: int  # the poisoned ones, after their last attempt
    lost: int  # published, and neither done nor failed
    done_again: int  # acknowledged by more than one worker, or done and failed
    too_often: int  # given more often than allowed
    again: int  # jobs that were given more than once, because a worker was killed; allowed

    @property
    def kept(self) -> bool:
        return not (self.lost or self.done_again or self.too_often)


class _Heard:
    def __init__(self) -> None:
        self.published: set[int] = set()
        self.done: set[int] = set()
        self.claims: Counter[int] = Counter()
        self.attempts: Counter[int] = Counter()  # the highest that was told

    def __call__(self, word: bytes, rest: bytes) -> None:
        numbers = [int(number) for number in rest.split()]
        match word:
            case b"published":
                self.published.update(numbers)
            case b"done":
                self.done.update(numbers)
            case b"claimed":
                for job, attempt in zip(numbers[::2], numbers[1::2], strict=True):
                    self.claims[job] += 1
                    self.attempts[job] = max(self.attempts[job], attempt)


def share_jobs(
    work: Path, *, workers: int, kills: int, report: Callable[[str], None]
) -> JobsResult:
    location = str(work / "jobs")
    heard = _Heard()
    crowd = Crowd("penstock.cli.demo_worker", work, location, heard)
    try:
        for _ in range(workers):
            crowd.begin()
        report(f"{workers} workers share out jobs")
        _follow(crowd, heard)
        for n in range(kills):
            report(f"kill {n + 1}: the worker that serves the queue")
            crowd.kill_server()
            crowd.begin()
            _follow(crowd, heard)
        report("everybody finishes")
        crowd.end()
    finally:
        crowd.stop()
    report("counting")
    with penstock.open(location) as db:
        queue = db.queue(QUEUE)
        done = Counter(message.id for message in queue.done())
        failed = {message.id for message in queue.failed()}
    return JobsResult(
        workers=workers,
        kills=kills,
        published=len(heard.published),
        done=len(done),
        failed=len(failed),
        lost=len(heard.published - set(done) - failed),
        done_again=sum(count - 1 for count in done.values()) + len(set(done) & failed),
        too_often=sum(1 for attempt in heard.attempts.values() if attempt > MAX_ATTEMPTS),
        again=sum(1 for count in heard.claims.values() if count > 1),
    )


def _follow(crowd: Crowd, heard: _Heard) -> None:
    wanted = len(heard.done) + JOBS
    crowd.follow(lambda: len(heard.done) >= wanted)
