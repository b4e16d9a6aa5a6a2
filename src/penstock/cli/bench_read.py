"""Reading, measured: in sequence as messages and as columns, and at random places.

Contract     Works on any stream that holds entries and adds none. A seek is one `read` of
             SEEK_COUNT entries at a random offset; the offsets are the same in every run. Each
             kind of reading begins with a fresh opening: none profits from what another one left
             in memory. The operating system's cache stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np

import penstock
from penstock.cli.figures import percentile
from penstock.clock import perf_counter

SEEK_COUNT = 10
READ_CHUNK = 1000
ARROW_CHUNK = 10_000


class ReadResult(msgspec.Struct, frozen=True):
    entries: int  # in the stream
    open_ms: float  # of the first opening, which replays a journal if there is one to replay
    seeks: int
    seek_p50_ms: float
    seek_p99_ms: float
    read_per_s: float
    arrow_per_s: float


def measure_reads(location: str, name: str, *, seconds: float) -> ReadResult:
    before = perf_counter()
    with penstock.open(location) as db:
        open_ms = (perf_counter() - before) * 1000
        stream = db.stream(name)
        info = stream.info()
        assert info.length > SEEK_COUNT
        seeks = _seek(stream, info.first, info.last, seconds=seconds)
    with penstock.open(location) as db:
        stream = db.stream(name)
        read_per_s = _sequential(
            lambda at: len(stream.read(at, READ_CHUNK)),
            first=info.first,
            last=info.last,
            seconds=seconds,
        )
    with penstock.open(location) as db:
        stream = db.stream(name)
        arrow_per_s = _sequential(
            lambda at: stream.to_arrow(at, ARROW_CHUNK).num_rows,
            first=info.first,
            last=info.last,
            seconds=seconds,
        )
    return ReadResult(
        entries=info.length,
        open_ms=open_ms,
        seeks=len(seeks),
        seek_p50_ms=percentile(seeks, 50) * 1000,
        seek_p99_ms=percentile(seeks, 99) * 1000,
        read_per_s=read_per_s,
        arrow_per_s=arrow_per_s,
    )


def _seek(stream: penstock.Stream, first: int, last: int, *, seconds: float) -> list[float]:
    generator = np.random.default_rng(1)
    latencies: list[float] = []
    deadline = perf_counter() + seconds
    while not latencies or perf_counter() < deadline:
        offset = int(generator.integers(first, last - SEEK_COUNT + 2))
        before = perf_counter()
        messages = stream.read(offset, SEEK_COUNT)
        latencies.append(perf_counter() - before)
        assert len(messages) == SEEK_COUNT, f"{len(messages)} entries at {offset}"
    return latencies


def _sequential(read_at: Callable[[int], int], *, first: int, last: int, seconds: float) -> float:
    """Entries per second from the first offset on, until the end or until time is up."""
    start = now = perf_counter()
    at = first
    while at <= last and now - start < seconds:
        count = read_at(at)
        assert count > 0, f"nothing at {at}, before the end at {last}"
        at += count
        now = perf_counter()
    return (at - first) / (now - start)
