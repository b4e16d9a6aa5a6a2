"""What `penstock bench source` measures: announced files on their way into a Delta table.

Contract     Two figures. Announcements: messages of a queue, received, opened as shards, published
             as read and acknowledged, every commit durable, without a file being read. Files: from
             announcements to a Delta table that has their rows, beside Spark itself reading the
             same folder and writing Parquet, in the same session; both sides take turns, each first
             in every other one, and the figures are medians.
Setup        Files of 100 KB of JSON lines with nested values, of which twenty differ. Announcements
             are published before the clock starts. Every turn has a new location and a new table,
             so that the schema is inferred on both sides. Session and workers are warm.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

import penstock
from penstock.clock import SystemClock, perf_counter
from penstock.source.requests import EOF, Move, OpenSource, Publish, Shard, token_text
from penstock.spark import Ingest, session
from penstock.spark.ingest.coordinator import Coordinator
from penstock.spark.ingest.loader import Loaded, Loader
from penstock.spark.queueports import open_queue

CORES = 2
FILE_BYTES = 100_000
KINDS = 20
QUEUE = "bench"
ANNOUNCEMENTS_WANTED = 2000.0
FILES_WANTED = 0.6


class SourceResult(msgspec.Struct, frozen=True):
    announcements: float  # per second
    files: int  # in each turn of either side
    bytes: int
    ours: float  # seconds
    spark: float
    announcements_wanted: float = ANNOUNCEMENTS_WANTED
    wanted: float = FILES_WANTED  # the rate of files, in terms of Spark's

    @property
    def ratio(self) -> float:
        return self.spark / self.ours

    @property
    def met(self) -> bool:
        return self.ratio >= self.wanted and self.announcements >= self.announcements_wanted


Report = Callable[[str], None]


def measure_source(
    folder: Path, *, announcements: int, files: int, turns: int, report: Report
) -> SourceResult:
    rate = measure_announcements(folder / "announced", announcements, report)
    report(f"writing {files:,} files")
    source = folder / "files"
    size = write_files(source, files)
    report("starting Spark")
    spark = session("penstock bench", cores=CORES)
    try:
        _warm(spark, source, folder)
        sides = {"ours": _ours, "spark": _spark}
        took: dict[str, list[float]] = {name: [] for name in sides}
        for turn in range(turns):
            names = list(sides) if turn % 2 == 0 else list(sides)[::-1]
            for name in names:
                report(f"turn {turn + 1} of {turns}: {name}")
                took[name].append(sides[name](spark, source, folder / f"{name}{turn}"))
    finally:
        spark.stop()
    ours, theirs = (statistics.median(took[name]) for name in ("ours", "spark"))
    return SourceResult(rate, files, size, ours, theirs)


# -- announcements


class _NothingToRead(Loader):
    """Takes every file for loaded, and publishes that."""

    def load(self, shards: Sequence[Shard], inline: Mapping[str, bytes]) -> Loaded:
        moves = [Move(shard.id, shard.position, EOF, 0) for shard in shards]
        self._sent(moves)
        key = self._clock.entropy(16).hex()
        self._ask(Publish(self._source.id, self._token, key, None, self.schema.version, [], moves))
        return Loaded(moves=moves, publishes=1)


def measure_announcements(folder: Path, count: int, report: Report) -> float:
    """-> announcements per second"""
    folder.mkdir()
    clock = SystemClock()
    with penstock.open(folder / "d") as database:
        report(f"publishing {count:,} announcements")
        _announce(database, [f"s3://bucket/incoming/{n:012}.json" for n in range(count)])
        report(f"{count:,} announcements through the shard table")
        began = perf_counter()
        # All that Ingest does, but for the files.
        ingest = Ingest(folder / "d", QUEUE, folder / "t")
        source = database.sources.ask(OpenSource(str(folder / "t"), str(folder / "t")))
        coordinator = Coordinator(
            ingest._settings,
            source,
            open_queue(database, QUEUE, clock=clock),
            ask=database.sources.ask,
            spark=None,
            clock=clock,
            token=token_text(clock.entropy(16)),
        )
        coordinator.loader.__class__ = _NothingToRead
        done = coordinator.run(once=True).files
        seconds = perf_counter() - began
        assert done == count, f"{done:,} of {count:,} announcements"
        assert database.queue(QUEUE).stats().available == 0
    return count / seconds


def _announce(database: penstock.Database, uris: Sequence[str]) -> None:
    database.create_queue(QUEUE, lease=600, max_attempts=0)
    for at in range(0, len(uris), 10_000):
        database.publish_many(
            [penstock.Publish(penstock.URI(uri), to=QUEUE) for uri in uris[at : at + 10_000]]
        )


# -- files


def write_files(folder: Path, count: int) -> int:
    """The same ones in every run. -> their bytes"""
    folder.mkdir()
    texts = [_text(kind) for kind in range(min(KINDS, count))]
    for number in range(count):
        (folder / f"{number:06}.json").write_bytes(texts[number % len(texts)])
    return sum(len(texts[number % len(texts)]) for number in range(count))


def _text(kind: int) -> bytes:
    lines: list[bytes] = []
    size = 0
    while size < FILE_BYTES:
        number = kind * 1_000_000 + len(lines)
        chance = int.from_bytes(hashlib.blake2s(str(number).encode(), digest_size=8).digest())
        row = {
            "id": number,
            "at": f"2026-01-{1 + chance % 28:02}T00:00:00Z",
            "user": f"user-{chance % 10**6}",
            "amount": chance % 10**7 / 1e5,
            "items": [{"sku": f"s{chance % 1009}", "count": chance % 5}],
            "note": "x" * (chance % 60),
        }
        lines.append(json.dumps(row).encode() + b"\n")
        size += len(lines[-1])
    return b"".join(lines)


def _warm(spark: Any, source: Path, folder: Path) -> None:
    first = folder / "warm-files"
    first.mkdir()
    (first / "0.json").write_bytes(next(iter(sorted(source.iterdir()))).read_bytes())
    _ours(spark, first, folder / "warm-ours")
    _spark(spark, first, folder / "warm-spark")


def _ours(spark: Any, source: Path, work: Path) -> float:
    work.mkdir()
    paths = sorted(source.iterdir())
    with penstock.open(work / "d") as database:
        _announce(database, [path.as_uri() for path in paths])
        began = perf_counter()
        report = Ingest(work / "d", QUEUE, work / "t", "json", spark=spark).run(once=True)
        seconds = perf_counter() - began
    assert report.files == len(paths), report
    return seconds


def _spark(spark: Any, source: Path, work: Path) -> float:
    began = perf_counter()
    spark.read.json(str(source)).write.parquet(str(work))
    return perf_counter() - began
