"""Durable appends, measured beside the disk's own limit.

Contract     One case is one size of entry, one size of batch, one number of writing threads. The
             disk's limit is the same bytes appended to a plain file of the same file system with
             one write and one fdatasync per batch. Both run in turn in short slices, so that a
             disk that slows down in the middle slows both. Every timed call is durable when it
             returns.
Not here     Reading (bench_read.py), tables (bench.py).
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

import penstock
from penstock.cli.figures import percentile
from penstock.cli.payloads import Entry, Payload, make_batches
from penstock.clock import perf_counter

#: Turns that the log and the plain file take in one case.
SLICES = 4
#: Distinct entries made per case; the batches repeat after that.
POOL_ENTRIES = 16_000


class AppendCase(msgspec.Struct, frozen=True):
    size_bytes: int
    batch: int
    writers: int = 1
    tags: bool = True


CASES = (
    AppendCase(100, 1),
    AppendCase(100, 100),
    AppendCase(100, 1000),
    # A tag is a column of its own: laid out, hashed, compressed.
    AppendCase(100, 1000, tags=False),
    # More threads than one show what sharing a commit brings.
    AppendCase(100, 1000, writers=4),
    AppendCase(1024, 1),
    AppendCase(1024, 100),
    AppendCase(1024, 1000),
)


class Speed(msgspec.Struct, frozen=True):
    entries_per_s: float
    p50_ms: float  # of one durable call, which is one batch
    p99_ms: float


class AppendResult(msgspec.Struct, frozen=True):
    case: AppendCase
    log: Speed
    disk: Speed
    #: Share of the disk's own entries/s that the log reaches; higher is better.
    rate_ratio: float
    #: How many times the disk's own p50 the log takes; lower is better.
    p50_ratio: float


class Tally:
    """Calls and time of one side of a case, summed over its slices."""

    def __init__(self) -> None:
        self.latencies: list[float] = []
        self.elapsed = 0.0

    def speed(self, batch: int) -> Speed:
        return Speed(
            entries_per_s=len(self.latencies) * batch / self.elapsed,
            p50_ms=percentile(self.latencies, 50) * 1000,
            p99_ms=percentile(self.latencies, 99) * 1000,
        )


class PlainFile:
    """What the disk gives to a program that only appends and syncs."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def append(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]
        os.fdatasync(self._file)

    def close(self) -> None:
        os.close(self._file)


def measure_appends(
    stream: penstock.Stream, plain: PlainFile, case: AppendCase, *, payload: Payload, seconds: float
) -> AppendResult:
    batches = make_batches(
        payload,
        size_bytes=case.size_bytes,
        batch=case.batch,
        count=max(case.writers, POOL_ENTRIES // case.batch),
    )
    log_writes = [
        _log_calls(stream, batches[writer :: case.writers], tags=case.tags)
        for writer in range(case.writers)
    ]
    joined = [b"".join(data for _, data in batch) for batch in batches]
    disk_writes = [_plain_calls(plain, joined)]
    log, disk = Tally(), Tally()
    for calls in (*log_writes, *disk_writes):
        next(calls)()  # the first call opens, allocates and warms up; nobody waits for it twice
    for _ in range(SLICES):
        _run_slice(disk_writes, seconds / SLICES, disk)
        _run_slice(log_writes, seconds / SLICES, log)
    return compare(case, log.speed(case.batch), disk.speed(case.batch))


def compare(case: AppendCase, log: Speed, disk: Speed) -> AppendResult:
    return AppendResult(
        case=case,
        log=log,
        disk=disk,
        rate_ratio=log.entries_per_s / disk.entries_per_s,
        p50_ratio=log.p50_ms / disk.p50_ms,
    )


def _log_calls(
    stream: penstock.Stream, batches: list[list[Entry]], *, tags: bool
) -> Iterator[Callable[[], object]]:
    if not tags:
        for bare in itertools.cycle([[data for _, data in batch] for batch in batches]):
            yield lambda bare=bare: stream.write_many(bare)  # type: ignore[misc]
    for batch in itertools.cycle(batches):
        if len(batch) == 1:
            tag, data = batch[0]
            yield lambda tag=tag, data=data: stream.write(data, tag=tag)  # type: ignore[misc]
        else:
            yield lambda batch=batch: stream.write_many(batch)  # type: ignore[misc]


def _plain_calls(plain: PlainFile, batches: list[bytes]) -> Iterator[Callable[[], object]]:
    for data in itertools.cycle(batches):
        yield lambda data=data: plain.append(data)  # type: ignore[misc]


def _run_slice(writers: list[Iterator[Callable[[], object]]], seconds: float, tally: Tally) -> None:
    """Call each writer's calls one after the other until time is up; several writers at once."""
    start = perf_counter()
    if len(writers) == 1:
        _run_writer(writers[0], start + seconds, tally.latencies)
    else:
        parts: list[list[float]] = [[] for _ in writers]
        failures: list[BaseException] = []

        def run(calls: Iterator[Callable[[], object]], latencies: list[float]) -> None:
            try:
                _run_writer(calls, start + seconds, latencies)
            except BaseException as error:  # a thread's error must end the run, not vanish
                failures.append(error)

        threads = [
            threading.Thread(target=run, args=pair) for pair in zip(writers, parts, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        tally.latencies.extend(itertools.chain.from_iterable(parts))
    tally.elapsed += perf_counter() - start


def _run_writer(
    calls: Iterator[Callable[[], object]], deadline: float, latencies: list[float]
) -> None:
    """At least one call, so that a slow store still yields a number."""
    before = perf_counter()
    while True:
        next(calls)()
        after = perf_counter()
        latencies.append(after - before)
        before = after
        if after >= deadline:
            return
