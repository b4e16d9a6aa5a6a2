"""What `penstock bench queue` measures: queues beside Redis, RabbitMQ and PostgreSQL.

Contract     All systems are asked in short turns within one run, each turn beginning with another
             one, so that a noisy machine disturbs all alike; figures are medians of the turns.
             100 B messages; every publish is durable before it returns. Ours runs in this process
             and, a second time, behind RESP and redis-py.
Disk         What the disk itself gives, in the same turns: one plain write and sync of the same
             bytes for each call. It is no system to be compared with: it shows how much of a call
             is nobody's choice.
Latency      A producer offers a message each millisecond, whether or not the last one has returned:
             those that fell due meanwhile go together. Counted from the moment at which a message
             was due until its consumer has it, so a system that cannot follow shows it.
Backlog      Two servers of ours, one with a short and one with a long queue, take turns call by
             call; what was claimed and acknowledged is published anew, outside the measurement.
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import msgspec

import penstock
from penstock.cli.bench_peers import penstock_server
from penstock.cli.bench_queue_lines import (
    LEASE_SECONDS,
    DiskLine,
    Line,
    PenstockLine,
    RespLine,
)
from penstock.cli.bench_queue_peers import Peer, start_peers
from penstock.cli.figures import memory_bytes, percentile
from penstock.cli.payloads import Payload, make_batches
from penstock.clock import perf_counter
from penstock.errors import InvalidError

SIZE_BYTES = 100
BATCH = 100
RATE_PER_S = 1000
BACKLOG_SMALL = 10_000
#: Published at once where nothing is measured.
FILL = 2000
#: A consumer that gets nothing for this long would wait for ever.
PATIENCE_SECONDS = 30.0

IN_PROCESS, RESP, DISK = "penstock", "penstock, RESP", "disk"
OURS = (IN_PROCESS, RESP)


class QueueCase(msgspec.Struct, frozen=True):
    """One comparison. What is `wanted` is a ratio to the best of the others, unless `absolute`."""

    name: str
    unit: str
    results: dict[str, float]  # by system
    wanted: float | None = None
    lower: bool = False  # less is better
    absolute: bool = False

    @property
    def best(self) -> float | None:
        """Of the others."""
        found = [value for name, value in self.results.items() if name not in (*OURS, DISK)]
        return None if not found else min(found) if self.lower else max(found)

    def judged(self, name: str) -> float | None:
        """What is compared with `wanted`."""
        best = self.best
        return self.results[name] if self.absolute else self.results[name] / best if best else None

    def met(self, name: str) -> bool | None:
        judged = self.judged(name)
        if judged is None or self.wanted is None:
            return None
        return judged <= self.wanted if self.lower else judged >= self.wanted


class BacklogResult(msgspec.Struct, frozen=True):
    messages: int
    p50_ms: float  # of claiming and acknowledging a batch
    rss_bytes: int


class QueueResult(msgspec.Struct, frozen=True):
    cases: list[QueueCase]
    missing: dict[str, str]  # system -> why
    backlogs: list[BacklogResult]  # short, long
    backlog_wanted: float = 1.3  # the cost at the long one, at most, in costs at the short one

    @property
    def backlog_ratio(self) -> float:
        short, long = self.backlogs
        return long.p50_ms / short.p50_ms


Report = Callable[[str], None]


def measure_queues(
    folder: Path, *, seconds: float, turns: int, backlog: int, report: Report
) -> QueueResult:
    try:
        import redis  # noqa: F401 - what the lines use
    except ImportError:
        raise InvalidError("redis-py is not installed", hint="pip install redis hiredis") from None
    data = payloads()
    with ExitStack() as stack:
        peers = stack.enter_context(start_peers(folder, report))
        sides = [*_ours(folder, stack), *peers.running]
        latencies = _latencies(sides, seconds, turns, report)
        disk = Peer(DISK, lambda: DiskLine(folder))
        rates = _rates([*sides, disk], data, seconds, turns, report)
        missing = peers.missing
    backlogs = _backlogs(folder, data, seconds, backlog, report)
    return QueueResult([*rates, *latencies], missing, backlogs)


def payloads() -> list[bytes]:
    (entries,) = make_batches(Payload.JSON, size_bytes=SIZE_BYTES, batch=FILL, count=1, seed=1)
    return [data for _, data in entries]


def _ours(folder: Path, stack: ExitStack) -> list[Peer]:
    db = stack.enter_context(penstock.open(folder / "embedded"))
    db.create_queue("bench", lease=LEASE_SECONDS)
    port = stack.enter_context(penstock_server(folder / "served"))
    with closing(RespLine(port, "bench")) as line:
        line.create()
    return [
        Peer(IN_PROCESS, lambda: PenstockLine(db, "bench")),
        Peer(RESP, lambda: RespLine(port, "bench")),
    ]


Turns = dict[str, list[tuple[float, float]]]


def _in_turns(
    sides: Sequence[Peer], turns: int, turn: Callable[[Peer], tuple[float, float]]
) -> Turns:
    found: Turns = {side.name: [] for side in sides}
    for n in range(turns):
        at = n % len(sides)
        for side in [*sides[at:], *sides[:at]]:
            found[side.name].append(turn(side))
    return found


def _medians(found: Turns, which: int) -> dict[str, float]:
    return {name: statistics.median(pair[which] for pair in pairs) for name, pairs in found.items()}


# ---- how many ---------------------------------------------------------------------------------


def _rates(
    sides: Sequence[Peer], data: list[bytes], seconds: float, turns: int, report: Report
) -> list[QueueCase]:
    report(f"publish and claim in batches of {BATCH}")
    batch = data[:BATCH]
    found = _in_turns(sides, turns, lambda side: _rate_turn(side, batch, seconds / turns))
    return [
        QueueCase(f"publish, batches of {BATCH}", "messages/s", _medians(found, 0), wanted=2.0),
        QueueCase(f"claim and ack, batches of {BATCH}", "messages/s", _medians(found, 1), wanted=1),
    ]


def _rate_turn(side: Peer, batch: list[bytes], seconds: float) -> tuple[float, float]:
    """-> published and consumed messages per second"""
    with closing(side.connect()) as line:
        sent, begun = 0, perf_counter()
        while perf_counter() < begun + seconds:
            line.publish(batch)
            sent += len(batch)
        published = sent / (perf_counter() - begun)
    with closing(side.connect()) as line:
        got, begun = 0, perf_counter()
        # No further than what is there: waiting for nothing is no work.
        while got < sent and perf_counter() < begun + seconds:
            got += _consume(line)
        return published, got / (perf_counter() - begun)


def _consume(line: Line) -> int:
    found = line.claim(BATCH, least=BATCH, wait=PATIENCE_SECONDS)
    if not found:
        raise InvalidError("messages that were published do not arrive")
    line.ack()
    return len(found)


# ---- how late ---------------------------------------------------------------------------------


def _latencies(
    sides: Sequence[Peer], seconds: float, turns: int, report: Report
) -> list[QueueCase]:
    report(f"latency at {RATE_PER_S:,} messages/s")
    found = _in_turns(sides, turns, lambda side: _latency_turn(side, seconds / turns))
    name = f"latency at {RATE_PER_S:,} messages/s"
    return [
        QueueCase(f"{name}, p50", "ms", _medians(found, 0), wanted=5.0, lower=True, absolute=True),
        QueueCase(f"{name}, p99", "ms", _medians(found, 1), lower=True),
    ]


def _latency_turn(side: Peer, seconds: float) -> tuple[float, float]:
    """-> p50 and p99, in milliseconds"""
    count = max(1, int(RATE_PER_S * seconds))
    stopped = threading.Event()
    with (
        closing(side.connect()) as producer,
        closing(side.connect()) as consumer,
        ThreadPoolExecutor(1) as pool,
    ):
        producing = pool.submit(_offer, producer, count, stopped)
        try:
            late = _receive(consumer, count)
        finally:
            stopped.set()
        producing.result()
    return percentile(late, 50), percentile(late, 99)


def _offer(line: Line, count: int, stopped: threading.Event) -> None:
    begun, sent = perf_counter(), 0
    while sent < count and not stopped.is_set():
        due = min(count, 1 + int((perf_counter() - begun) * RATE_PER_S))
        if due > sent:
            line.publish([_stamped(begun + n / RATE_PER_S) for n in range(sent, due)])
            sent = due
        else:
            stopped.wait(max(0.0, begun + sent / RATE_PER_S - perf_counter()))


def _stamped(due: float) -> bytes:
    return f"{due:.9f} ".encode().ljust(SIZE_BYTES, b".")


def _receive(line: Line, count: int) -> list[float]:
    late: list[float] = []
    while len(late) < count:
        found = line.claim(BATCH, wait=PATIENCE_SECONDS)
        now = perf_counter()
        if not found:
            raise InvalidError("messages that were published do not arrive")
        late += [1000 * (now - float(payload.split(b" ", 1)[0])) for payload in found]
        line.ack()
    return late


# ---- how many wait ----------------------------------------------------------------------------


def _backlogs(
    folder: Path, data: list[bytes], seconds: float, backlog: int, report: Report
) -> list[BacklogResult]:
    sizes = (BACKLOG_SMALL, backlog)
    with ExitStack() as stack:
        lines: list[RespLine] = []
        for i, size in enumerate(sizes):
            port = stack.enter_context(penstock_server(folder / f"backlog-{i}"))
            line = stack.enter_context(closing(RespLine(port, "bench")))
            line.create()
            _fill(line, data, size, report)
            lines.append(line)
        report(f"claim and ack of {BATCH} at backlogs of {sizes[0]:,} and {sizes[1]:,}")
        times: tuple[list[float], ...] = ([], [])
        until = perf_counter() + 2 * seconds
        while perf_counter() < until or len(times[1]) < 10:
            for line, taken in zip(lines, times, strict=True):
                begun = perf_counter()
                _consume(line)
                taken.append(1000 * (perf_counter() - begun))
                line.publish(data[:BATCH])
        return [
            BacklogResult(size, percentile(taken, 50), memory_bytes(line.server_pid())[0])
            for size, taken, line in zip(sizes, times, lines, strict=True)
        ]


def _fill(line: Line, data: list[bytes], count: int, report: Report) -> None:
    for n in range(0, count, FILL):
        if n % (100 * FILL) == 0:
            report(f"backlog: {n:,} of {count:,}")
        line.publish(data[: min(FILL, count - n)])
