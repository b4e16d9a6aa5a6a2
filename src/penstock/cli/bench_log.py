"""The log benchmark: one fresh location, all append cases, then reading after a reopen.

Contract     `measure_log` works in a folder of its own and leaves removing it to the caller. What
             it reports was measured in this run; nothing is assumed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

import penstock
from penstock.cli.bench_append import (
    CASES,
    AppendCase,
    AppendResult,
    PlainFile,
    measure_appends,
)
from penstock.cli.bench_read import ReadResult, measure_reads
from penstock.cli.figures import disk_bytes, file_system, memory_bytes
from penstock.cli.payloads import Payload, make_batches

READ_STREAM = "read"
READ_SIZE_BYTES = 100
READ_BATCH = 1000


class LogResult(msgspec.Struct, frozen=True):
    payload: Payload
    file_system: str
    appends: list[AppendResult]
    reads: ReadResult
    rss_bytes: int  # of this process at the end, its pool of entries included
    rss_bytes_max: int
    disk_bytes: int  # of the location, its journal included
    data_bytes: int  # that were appended, before compression


def measure_log(
    folder: Path,
    *,
    payload: Payload,
    seconds: float,
    entries: int,
    report: Callable[[AppendCase | None], None] = lambda case: None,
    cases: tuple[AppendCase, ...] = CASES,
) -> LogResult:
    """`report` is told each case before it begins, then None before reading."""
    location = folder / "store"
    plain = PlainFile(folder / "plain")
    appends: list[AppendResult] = []
    data_bytes = 0
    with penstock.open(str(location)) as db:
        for case in cases:
            report(case)
            stream = db.stream(f"append-{case.size_bytes}-{case.batch}-{case.writers}")
            appends.append(measure_appends(stream, plain, case, payload=payload, seconds=seconds))
            data_bytes += stream.info().length * case.size_bytes
        report(None)
        fill(db.stream(READ_STREAM), payload=payload, entries=entries)
        data_bytes += entries * READ_SIZE_BYTES
    plain.close()
    reads = measure_reads(str(location), READ_STREAM, seconds=seconds)
    rss_bytes, rss_bytes_max = memory_bytes()
    return LogResult(
        payload=payload,
        file_system=file_system(folder),
        appends=appends,
        reads=reads,
        rss_bytes=rss_bytes,
        rss_bytes_max=rss_bytes_max,
        disk_bytes=disk_bytes(location),
        data_bytes=data_bytes,
    )


def fill(
    stream: penstock.Stream,
    *,
    payload: Payload,
    entries: int,
    size_bytes: int = READ_SIZE_BYTES,
    report: Callable[[int], None] = lambda length: None,
) -> None:
    """Append until the stream holds `entries` entries; what is there already counts."""
    pool = make_batches(payload, size_bytes=size_bytes, batch=READ_BATCH, count=32)
    length = stream.info().length
    for turn in range(-(-(entries - length) // READ_BATCH)):
        batch = pool[turn % len(pool)][: entries - length]
        stream.write_many(batch)
        length += len(batch)
        report(length)
