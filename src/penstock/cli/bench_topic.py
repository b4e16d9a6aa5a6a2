"""What `penstock bench topic` measures: a topic with consumer processes, beside a stream group of
Redis with as many.

Contract     Both servers are processes on loopback, with every write synced before it is answered.
             In short turns, one side after the other, a producer sends batches as fast as it can;
             a turn is over when the last message is acknowledged. Consumers of the side that has no
             turn wait for messages. Figures are medians of the turns.
Sides        push_many of BATCH here; BATCH times XADD in one pipeline there, without MULTI, which
             Redis does faster than with it. Consumers take up to BATCH at once on both sides
             (bench_topic_consumer.py). Messages have 100 B and one of 1000 keys.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

import penstock
from penstock.cli.bench_peers import penstock_server, redis_server
from penstock.cli.payloads import Payload, make_batches
from penstock.clock import SystemClock, perf_counter
from penstock.errors import InvalidError, UnavailableError

SIZE_BYTES = 100
BATCH = 1000
KEYS = 1000
CONSUMERS = 4
TOPIC, GROUP = "bench", "workers"
#: What is not acknowledged after so long never will be.
PATIENCE_SECONDS = 120.0
LOOK_SECONDS = 0.005


class TopicCase(msgspec.Struct, frozen=True):
    name: str
    ours: float  # messages/s
    redis: float
    wanted: float | None = None  # ours at least, in terms of Redis'

    @property
    def ratio(self) -> float:
        return self.ours / self.redis

    @property
    def met(self) -> bool:
        return self.wanted is None or self.ratio >= self.wanted


class TopicResult(msgspec.Struct, frozen=True):
    cases: list[TopicCase]
    consumers: int
    messages: int  # of each side


Batch = list[tuple[str, bytes]]


class Side(ABC):
    """A server with its consumers, and what the producer does with it."""

    def __init__(self, work: list[subprocess.Popen[bytes]]) -> None:
        self._consumers = work
        self._never = threading.Event()
        self.sent = 0

    @abstractmethod
    def send(self, batch: Batch) -> None: ...

    @abstractmethod
    def acked(self) -> int: ...

    @abstractmethod
    def close(self) -> None: ...

    def turn(self, batch: Batch, seconds: float) -> tuple[float, float]:
        """-> messages/s until the last one was sent, and until the last one was acknowledged"""
        begun = perf_counter()
        count = 0
        while perf_counter() - begun < seconds or not count:
            self.send(batch)
            count += len(batch)
        sent = perf_counter()
        self.sent += count
        while self.acked() < self.sent:
            if perf_counter() - sent > PATIENCE_SECONDS:
                raise UnavailableError("the consumers do not follow")
            for consumer in self._consumers:
                if consumer.poll() is not None:
                    raise UnavailableError("a consumer ended")
            self._never.wait(LOOK_SECONDS)
        return count / (sent - begun), count / (perf_counter() - begun)


class Ours(Side):
    def __init__(self, address: str, work: list[subprocess.Popen[bytes]]) -> None:
        super().__init__(work)
        self._db = penstock.open(address)
        self._topic = self._db.topic(TOPIC)

    def send(self, batch: Batch) -> None:
        self._topic.push_many(batch)

    def acked(self) -> int:
        return self._topic.stats().acked

    def close(self) -> None:
        self._db.close()


class Redis(Side):
    def __init__(self, address: str, work: list[subprocess.Popen[bytes]]) -> None:
        import redis

        super().__init__(work)
        self._client: Any = redis.Redis.from_url(address)

    def send(self, batch: Batch) -> None:
        pipeline = self._client.pipeline(transaction=False)
        for key, data in batch:
            pipeline.xadd(TOPIC, {"k": key, "d": data})
        pipeline.execute()

    def acked(self) -> int:
        (group,) = self._client.xinfo_groups(TOPIC)
        return int(group["entries-read"] or 0) - int(group["pending"])

    def close(self) -> None:
        self._client.close()


def measure_topics(
    folder: Path, *, seconds: float, turns: int, report: Callable[[str], None]
) -> TopicResult:
    try:
        import redis  # noqa: F401 - what the other side uses
    except ImportError:
        raise InvalidError("redis-py is not installed", hint="pip install redis hiredis") from None
    (entries,) = make_batches(Payload.JSON, size_bytes=SIZE_BYTES, batch=BATCH, count=1, seed=1)
    batch = [(f"key-{i % KEYS}", data) for i, (_, data) in enumerate(entries)]
    with contextlib.ExitStack() as stack:
        sides: list[Side] = []
        for kind, serve in (("penstock", penstock_server), ("redis", redis_server)):
            report(f"starting {kind}")
            port = stack.enter_context(serve(folder / kind))
            address = f"{kind}://127.0.0.1:{port}"
            work = stack.enter_context(_consumers(address))
            side: Side = Ours(address, work) if kind == "penstock" else Redis(address, work)
            stack.callback(side.close)
            sides.append(side)
        figures: dict[int, list[tuple[float, float]]] = {0: [], 1: []}
        for side in sides:
            side.turn(batch, seconds / 10)  # caches are warm, files are there
        for turn in range(turns):
            report(f"turn {turn + 1} of {turns}")
            for i in (0, 1) if turn % 2 == 0 else (1, 0):
                figures[i].append(sides[i].turn(batch, seconds / turns))
        sent = min(side.sent for side in sides)
    pushed, through = (
        [statistics.median(pair[at] for pair in figures[i]) for i in (0, 1)] for at in (0, 1)
    )
    return TopicResult(
        [
            TopicCase("pushed and acknowledged", through[0], through[1], wanted=1.0),
            TopicCase("pushed meanwhile", pushed[0], pushed[1]),
        ],
        CONSUMERS,
        sent,
    )


@contextlib.contextmanager
def _consumers(address: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    module = "penstock.cli.bench_topic_consumer"
    name = SystemClock().entropy(3).hex()
    work = [
        subprocess.Popen(
            [sys.executable, "-P", "-m", module, address, f"{name}-{i}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for i in range(CONSUMERS)
    ]
    try:
        for process in work:
            assert process.stdout is not None
            if process.stdout.readline().strip() != b"ready":
                raise UnavailableError("a consumer did not start")
        yield work
    finally:
        for process in work:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.close()  # it ends then
        for process in work:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()
