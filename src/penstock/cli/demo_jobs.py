"""The demo's third act: workers share out jobs, and the one that serves the queue is killed.

Contract     Real processes, each publishing and working. Whichever of them serves the folder is
             killed (SIGKILL) again and again, with the jobs it had claimed. Afterwards every job
             that was published is done or failed, each once, in every queue whose filter wants it
             and in no other; none was claimed more often than allowed, and no claim gave an urgent
             job after one that is not.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec

import penstock
from penstock.cli.demo_crowd import LOCATION, Crowd
from penstock.cli.demo_worker import AUDIT, JOBS, MAX_ATTEMPTS, is_european
from penstock.clock import perf_counter

#: Between two kills so many jobs are done.
JOBS_DONE = 400


class JobsResult(msgspec.Struct, frozen=True):
    workers: int
    kills: int
    published: int
    wanted: int  # by the filters: a job counts once for each queue that wants it
    done: int
    failed: int  # the poisoned ones, after their last attempt
    lost: int  # wanted, and neither done nor failed
    done_again: int  # acknowledged by more than one worker, or done and failed
    misrouted: int  # in a queue whose filter does not want it
    too_often: int  # given more often than allowed
    unordered: int  # given after a less urgent one of the same claim
    again: int  # jobs that were given more than once, because a worker was killed; allowed
    seconds: float

    @property
    def kept(self) -> bool:
        return not (
            self.lost or self.done_again or self.misrouted or self.too_often or self.unordered
        )


class _Heard:
    def __init__(self) -> None:
        self.published: set[int] = set()
        self.european: set[int] = set()
        self.done: set[int] = set()
        self.claims: Counter[int] = Counter()
        self.attempts: Counter[int] = Counter()  # the highest that was told
        self.unordered = 0

    def __call__(self, word: bytes, rest: bytes) -> None:
        numbers = [int(number) for number in rest.split()]
        match word:
            case b"published":
                self.published.update(numbers)
                self.european.update(job for i, job in enumerate(numbers) if is_european(i))
            case b"done":
                self.done.update(numbers)
            case b"claimed":
                priorities = numbers[2::3]
                self.unordered += sum(a > b for a, b in itertools.pairwise(priorities))
                for job, attempt in zip(numbers[::3], numbers[1::3], strict=True):
                    self.claims[job] += 1
                    self.attempts[job] = max(self.attempts[job], attempt)


def share_jobs(
    work: Path, *, workers: int, kills: int, report: Callable[[str], None]
) -> JobsResult:
    location = str(work / LOCATION)
    begun = perf_counter()
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
        ends = {name: _ends(db.queue(name)) for name in (JOBS, AUDIT)}
    wanted = {JOBS: heard.published, AUDIT: heard.european}
    strangers = ends[AUDIT].done.keys() & (heard.published - heard.european)
    return JobsResult(
        workers=workers,
        kills=kills,
        published=len(heard.published),
        wanted=sum(map(len, wanted.values())),
        done=sum(len(end.done) for end in ends.values()),
        failed=sum(len(end.failed) for end in ends.values()),
        lost=sum(len(wanted[name] - set(end.done) - end.failed) for name, end in ends.items()),
        done_again=sum(end.doubled for end in ends.values()),
        misrouted=len(strangers),
        too_often=sum(1 for attempt in heard.attempts.values() if attempt > MAX_ATTEMPTS),
        unordered=heard.unordered,
        again=sum(1 for count in heard.claims.values() if count > 1),
        seconds=perf_counter() - begun,
    )


class _Ends(msgspec.Struct, frozen=True):
    """What became of the messages of a queue."""

    done: Counter[int]
    failed: set[int]

    @property
    def doubled(self) -> int:
        return self.done.total() - len(self.done) + len(self.done.keys() & self.failed)


def _ends(queue: penstock.Queue) -> _Ends:
    return _Ends(
        Counter(message.id for message in queue.done()), {message.id for message in queue.failed()}
    )


def _follow(crowd: Crowd, heard: _Heard) -> None:
    wanted = len(heard.done) + JOBS_DONE
    crowd.follow(lambda: len(heard.done) >= wanted)
