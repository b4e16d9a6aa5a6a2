"""What `penstock bench stream` measures: streams beside a redis-server with appendfsync always.

Contract     Both servers are asked in short turns within one run, so that a noisy machine disturbs
             both alike; figures are medians of the turns. Everything goes through redis-py with
             hiredis, except the 50 connections (bench_load.py) and what runs in this process. 100 B
             entries; every write is durable before it is answered.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

import penstock
from penstock.cli.bench_load import load_per_s, pack
from penstock.cli.bench_peers import penstock_server, redis_server
from penstock.cli.figures import percentile
from penstock.cli.payloads import Payload, make_batches
from penstock.clock import perf_counter
from penstock.errors import InvalidError

SIZE_BYTES = 100
CONNECTIONS = 50
READ_COUNT = 1000
GROUP_COUNT = 100
#: Long enough that nothing falls due during a run.
RETRY_MS = b"3600000"
STREAM_CASES = 8


class Case(msgspec.Struct, frozen=True):
    """One comparison. A ratio of `target` or better is what we want; `lower`: less is better."""

    name: str
    unit: str
    ours: float
    redis: float
    target: float
    lower: bool = False

    @property
    def ratio(self) -> float:
        return self.ours / self.redis if self.redis else 0.0

    @property
    def met(self) -> bool:
        return self.ratio <= self.target if self.lower else self.ratio >= self.target


class StreamResult(msgspec.Struct, frozen=True):
    cases: list[Case]


Turn = Callable[[float], float]


def measure_streams(
    folder: Path, *, seconds: float, turns: int, report: Callable[[str], None]
) -> StreamResult:
    try:
        import redis
    except ImportError:
        raise InvalidError("redis-py is not installed", hint="pip install redis hiredis") from None
    (entries,) = make_batches(Payload.JSON, size_bytes=SIZE_BYTES, batch=1000, count=1, seed=1)
    data = [entry[1] if isinstance(entry, tuple) else entry for entry in entries]
    cases: list[Case] = []
    with (
        penstock_server(folder / "penstock") as port,
        redis_server(folder / "redis") as redis_port,
        redis.Redis(port=port, protocol=2) as ours,
        redis.Redis(port=redis_port, protocol=2) as peer,
    ):

        def add(
            name: str, unit: str, target: float, mine: Turn, theirs: Turn, *, lower: bool = False
        ) -> None:
            report(name)
            results: list[tuple[float, float]] = []
            for n in range(turns):
                first, second = (mine, theirs) if n % 2 == 0 else (theirs, mine)
                pair = first(seconds / turns), second(seconds / turns)
                results.append(pair if n % 2 == 0 else (pair[1], pair[0]))
            medians = [statistics.median(side) for side in zip(*results, strict=True)]
            cases.append(Case(name, unit, medians[0], medians[1], target, lower))

        _writes(add, ours, peer, data)
        write = pack(b"TWRITE", b"many", b"", data[0]), pack(b"XADD", b"many", b"*", b"", data[0])
        add(
            f"single writes, {CONNECTIONS} connections",
            "writes/s",
            0.5,
            lambda s: load_per_s(port, [write[0]] * CONNECTIONS, s),
            lambda s: load_per_s(redis_port, [write[1]] * CONNECTIONS, s),
        )
        _reads(add, ours, peer)
        _groups(add, ours, peer)
        with penstock.open(folder / "embedded") as db:
            _in_process(add, db, peer, data)
    return StreamResult(cases)


Add = Callable[..., None]


def _rate(call: Callable[[], int]) -> Turn:
    """Entries per second of a call that tells how many it handled."""

    def turn(seconds: float) -> float:
        count, begun = 0, perf_counter()
        while perf_counter() < begun + seconds:
            count += call()
        return count / (perf_counter() - begun)

    return turn


def _median_ms(call: Callable[[], object]) -> Turn:
    def turn(seconds: float) -> float:
        latencies: list[float] = []
        until = perf_counter() + seconds
        while perf_counter() < until:
            begun = perf_counter()
            call()
            latencies.append(1000 * (perf_counter() - begun))
        return percentile(latencies, 50)

    return turn


def _writes(add: Add, ours: Any, peer: Any, data: Sequence[bytes]) -> None:
    entry = data[0]
    add(
        "a lone write, p50",
        "ms",
        2.0,
        _median_ms(lambda: ours.execute_command("TWRITE", "lone", "", entry)),
        _median_ms(lambda: peer.execute_command("XADD", "lone", "*", "", entry)),
        lower=True,
    )
    for batch in (100, 1000):
        arguments = [part for item in data[:batch] for part in (b"", item)]

        def write(arguments: list[bytes] = arguments, batch: int = batch) -> int:
            ours.execute_command("TWRITE", "log", "ENTRIES", *arguments)
            return batch

        def add_all(batch: int = batch) -> int:
            with peer.pipeline(transaction=False) as pipe:
                for item in data[:batch]:
                    pipe.execute_command("XADD", "log", "*", "", item)
                pipe.execute()
            return batch

        add(f"appends in batches of {batch}", "entries/s", 2.0, _rate(write), _rate(add_all))


def _reads(add: Add, ours: Any, peer: Any) -> None:
    place: dict[str, Any] = {"offset": 0, "id": "-"}

    def read() -> int:
        found = ours.execute_command("TREAD", "log", place["offset"], READ_COUNT)
        place["offset"] = found[-1][0] + 1 if len(found) == READ_COUNT else 0
        return len(found)

    def read_redis() -> int:
        found = peer.execute_command("XRANGE", "log", place["id"], "+", "COUNT", READ_COUNT)
        place["id"] = b"(" + found[-1][0] if len(found) == READ_COUNT else "-"
        return len(found)

    add(f"reads of {READ_COUNT} in sequence", "entries/s", 0.6, _rate(read), _rate(read_redis))


def _groups(add: Add, ours: Any, peer: Any) -> None:
    ours.execute_command("TGROUP", "CREATE", "log", "g", "FROM", "first")
    peer.execute_command("XGROUP", "CREATE", "log", "g", "0")

    def read() -> int:
        found = ours.execute_command(
            "TREAD", "log", 0, GROUP_COUNT, "GROUP", "g", "RETRY", RETRY_MS, 0
        )
        if not found:
            ours.execute_command("TGROUP", "SET", "log", "g", "first")
            return 0
        return int(ours.execute_command("TACK", "log", "g", *(entry[0] for entry in found)))

    def read_redis() -> int:
        found = peer.execute_command(
            "XREADGROUP", "GROUP", "g", "c", "COUNT", GROUP_COUNT, "STREAMS", "log", ">"
        )
        if not found:
            peer.execute_command("XGROUP", "SETID", "log", "g", "0")
            return 0
        ids = [entry[0] for entry in found[0][1]]
        return int(peer.execute_command("XACK", "log", "g", *ids))

    add(
        f"group read and ack of {GROUP_COUNT}",
        "entries/s",
        1.0,
        _rate(read),
        _rate(read_redis),
    )


def _in_process(add: Add, db: penstock.Database, peer: Any, data: Sequence[bytes]) -> None:
    stream = db.stream("log")
    entries = list(data)

    def write() -> int:
        return len(stream.write_many(entries))

    def add_all() -> int:
        with peer.pipeline(transaction=False) as pipe:
            for item in data:
                pipe.execute_command("XADD", "embedded", "*", "", item)
            pipe.execute()
        return len(data)

    add(
        f"in process: appends in batches of {len(data)}",
        "entries/s",
        5.0,
        _rate(write),
        _rate(add_all),
    )
    place: dict[str, Any] = {"offset": 0, "id": "-"}

    def to_arrow() -> int:
        table = stream.to_arrow(place["offset"], 100 * READ_COUNT)
        place["offset"] = place["offset"] + table.num_rows if table.num_rows else 0
        return int(table.num_rows)

    def read_redis() -> int:
        found = peer.execute_command("XRANGE", "embedded", place["id"], "+", "COUNT", READ_COUNT)
        place["id"] = b"(" + found[-1][0] if len(found) == READ_COUNT else "-"
        return len(found)

    add("in process: reads as Arrow", "entries/s", 10.0, _rate(to_arrow), _rate(read_redis))
