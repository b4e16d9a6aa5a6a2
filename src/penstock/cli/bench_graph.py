"""What `penstock bench graph` measures: a pipe on Spark, step by step, and the way through three.

Contract     A function per message that changes a few bytes. Rates are of whole runs: opening,
             starting, every snapshot and commit, until the graph is idle; medians of some runs. The
             limit beside them is Spark itself with the same function through `mapInArrow`, from
             memory into nothing: no messages read, none written, nothing kept.
             A step of one message is the fixed cost of a step.
Latency      From the write of a message to its commit at the end of three pipes, one behind the
             other, while a writer in a process of its own writes at an even rate.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

import penstock
from penstock.cli.bench_graph_writer import Writer
from penstock.cli.figures import percentile
from penstock.cli.payloads import Payload, make_batches
from penstock.clock import perf_counter
from penstock.graph import Graph, Message
from penstock.spark import graphs, session

SIZE_BYTES = 100
BATCH = 10_000
CORES = 2
KINDS = 20
#: Steps of each run, by the size of a step.
STEPS = {50_000: 6, 500_000: 3}
WANTED = {50_000: 120_000.0, 500_000: 350_000.0}
TINY_STEPS = 40
TINY_WANTED_MS = 200.0
LATENCY_RATE = 1_000

Report = Callable[[str], None]


class StepCase(msgspec.Struct, frozen=True):
    step: int
    ours: float  # messages/s
    bare: float  # messages/s of Spark alone
    wanted: float

    @property
    def met(self) -> bool:
        return self.ours >= self.wanted


class GraphResult(msgspec.Struct, frozen=True):
    cases: list[StepCase]
    fixed_ms: float  # of a step
    fixed_wanted_ms: float
    bare_ms: float  # of a job of Spark's that does nothing
    rate: int  # messages/s, of the latency
    latency_p50_ms: float
    latency_p99_ms: float


def measure_graph(folder: Path, *, turns: int, seconds: float, report: Report) -> GraphResult:
    report("starting Spark")
    spark = session("penstock bench", cores=CORES, config={"spark.scheduler.mode": "FAIR"})
    try:
        bench = _Bench(folder, spark, report)
        bench.run("warm", 20_000, 5_000)
        bench.bare(20_000)
        cases = [bench.case(step, turns) for step in STEPS]
        fixed = statistics.median(
            bench.run(f"tiny{turn}", TINY_STEPS, 1) / TINY_STEPS for turn in range(turns)
        )
        latencies = bench.latencies(seconds)
        return GraphResult(
            cases,
            fixed * 1000,
            TINY_WANTED_MS,
            bench.bare_job() * 1000,
            LATENCY_RATE,
            percentile(latencies, 50),
            percentile(latencies, 99),
        )
    finally:
        spark.stop()


class _Bench:
    def __init__(self, folder: Path, spark: Any, report: Report) -> None:
        self._location = str(folder / "d")
        self._spark = spark
        self._report = report
        self._batches = [
            pa.record_batch([[data for _, data in batch]], names=["data"])
            for batch in make_batches(Payload.JSON, size_bytes=SIZE_BYTES, batch=BATCH, count=KINDS)
        ]

    def _rows(self, count: int) -> Iterator[pa.RecordBatch]:
        for at in range(0, count, BATCH):
            yield self._batches[at // BATCH % KINDS].slice(0, min(BATCH, count - at))

    def case(self, step: int, turns: int) -> StepCase:
        count = step * STEPS[step]
        ours, bare = [], []
        for turn in range(turns):
            ours.append(count / self.run(f"s{step}t{turn}", count, step))
            bare.append(step / self.bare(step))
        return StepCase(step, statistics.median(ours), statistics.median(bare), WANTED[step])

    def run(self, name: str, count: int, step: int) -> float:
        """-> seconds of a run over so many messages"""
        self._report(f"{count:,} messages in steps of {step:,}")
        with penstock.open(self._location) as db:
            for batch in self._rows(count):
                db.stream(name).write_many(batch)
        graph = Graph(name)
        graph.pipe(name, f"{name}-out", name="change")(change)
        begun = perf_counter()
        report = graph.run(self._location, spark=self._spark, step_max=step)
        seconds = perf_counter() - begun
        assert report["change"].written == count, "every message is written"
        return seconds

    def bare(self, step: int) -> float:
        """-> seconds of one job over so many rows that are in memory"""
        self._report(f"Spark alone, {step:,} rows")
        frame = self._spark.createDataFrame(pa.Table.from_batches(list(self._rows(step))))
        frame = frame.repartition(CORES).cache()
        frame.count()

        def changed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                data = [change(Message(each)) for each in batch.column(0).to_pylist()]
                yield pa.record_batch([pa.array(data, pa.binary())], names=["data"])

        begun = perf_counter()
        frame.mapInArrow(changed, "data binary").write.format("noop").mode("overwrite").save()
        seconds = perf_counter() - begun
        frame.unpersist()
        return seconds

    def bare_job(self) -> float:
        times = []
        for _ in range(TINY_STEPS):
            begun = perf_counter()
            self._spark.createDataFrame(pa.table({"data": [b"x"]})).mapInArrow(
                lambda batches: batches, "data binary"
            ).toArrow()
            times.append(perf_counter() - begun)
        return statistics.median(times)

    def latencies(self, seconds: float) -> list[float]:
        """-> milliseconds from the write of a message to its commit behind three pipes"""
        self._report(f"{LATENCY_RATE:,} messages/s through three pipes")
        graph = Graph("way")
        for n in range(3):
            graph.pipe(f"way{n}", f"way{n + 1}", name=f"pipe{n}")(change)
        with penstock.open(self._location) as db:
            with graphs.start(graph, self._location, spark=self._spark) as running:
                with Writer(self._location, "way0", rate=LATENCY_RATE, seconds=seconds):
                    pass
                running.wait("idle")
            begun, ended = (
                db.stream(name).to_arrow().column("time").cast(pa.int64()).to_numpy()
                for name in ("way0", "way3")
            )
        # The first seconds start workers.
        waited = (ended - begun)[len(begun) // 3 :]
        return [float(each) for each in waited]


def change(message: Message) -> bytes:
    return message.data[:-1] + b"!}"
