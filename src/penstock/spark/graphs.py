"""Running a graph: `Graph.run` comes here.

Contract     `run` checks the graph against what the location has of it, starts every processor in a
             thread of its own, and returns a Report when the graph is idle (all sources ended once,
             all inputs at their end), or never. It raises FencedError when another runner took the
             graph over, and UnavailableError when all that is left to do fails again and again.
             Whenever it ends, however it ends, nothing is lost: the next run goes on. `start` is
             the same for who has something else to do meanwhile.
Spark        The session that is given; else the one of this process, which is started if there is
             none, and left running for the next one. Processors share it as FAIR pools.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import msgspec

import penstock
from penstock.client.database import Database
from penstock.clock import perf_counter
from penstock.errors import InvalidError, NotFoundError, PenstockError
from penstock.graph.model import Graph, Processor
from penstock.graph.requests import GraphStatus, OpenGraph
from penstock.graph.rules import checked_location, checked_step_max
from penstock.spark.graphboard import Board
from penstock.spark.graphloop import Attempts, Loop, ask_status
from penstock.spark.graphsource import Feeds
from penstock.spark.handles import shared_place
from penstock.spark.session import session
from penstock.spark.sinks import TableSink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger("penstock")

Until = Literal["idle", "forever"]

#: A step takes what is there, up to so many messages and about so many stored bytes.
STEP_MAX = 500_000
STEP_BYTES = 256 << 20
#: How often an idle graph is looked at, where nobody says that something changed.
LOOK_SECONDS = 0.5
#: How long processors may take to end.
END_SECONDS = 10.0


class ProcessorReport(msgspec.Struct, frozen=True):
    """What this run did, and perhaps another one at the same time."""

    processor: str
    steps: int
    delivered: int  # messages
    written: int  # outputs
    failed: int  # error entries
    nil: int
    skipped: int


class Report(msgspec.Struct, frozen=True):
    graph: str
    seconds: float
    processors: list[ProcessorReport]

    def __getitem__(self, processor: str) -> ProcessorReport:
        found = {each.processor: each for each in self.processors}
        if processor not in found:
            raise NotFoundError(
                f"graph {self.graph!r} has no processor {processor!r}",
                hint=f"it has {', '.join(found)}",
            )
        return found[processor]


def run(
    graph: Graph,
    location: str | Path,
    *,
    spark: SparkSession | None = None,
    until: Until = "idle",
    step_max: int | None = None,
) -> Report:
    """`step_max`: messages of one step at most, of processors that have none of their own."""
    if until not in get_args(Until):
        raise InvalidError(f"until is 'idle' or 'forever', not {until!r}")
    with start(graph, location, spark=spark, step_max=step_max) as running:
        return running.wait(until)


def start(
    graph: Graph,
    location: str | Path,
    *,
    spark: SparkSession | None = None,
    step_max: int | None = None,
) -> Running:
    """Run it beside what the caller does: `with graphs.start(graph, "./data") as running: …`"""
    checked_step_max("step_max", step_max)
    if spark is not None and not hasattr(spark, "sparkContext"):
        raise InvalidError(
            f"spark is a SparkSession with a SparkContext, not {type(spark).__name__}",
            hint='penstock.spark.session(master="local[2]") makes one; one of Connect will not do',
        )
    graph.check()
    _check_sinks(graph)
    place = shared_place(checked_location(location))
    db = penstock.open(place)
    try:
        db.graphs.ask(OpenGraph(graph.name, graph.topologies))
        if spark is None:
            spark = session(f"penstock {graph.name}", config={"spark.scheduler.mode": "FAIR"})
        return Running(graph, db, place, spark, step_max)
    except BaseException:
        db.close()
        raise


def _check_sinks(graph: Graph) -> None:
    for each in graph.processors:
        topology = each.topology
        if isinstance(each.function, TableSink) and topology.kind != "sink":
            raise InvalidError(
                f"{topology.id}: a ready-made sink is no {topology.kind}",
                hint="@graph.sink takes it; a pipe before it may write a stream as well",
            )


class Running:
    """A graph that runs, until it is stopped: `start` makes it."""

    def __init__(
        self, graph: Graph, db: Database, location: str, spark: SparkSession, step_max: int | None
    ) -> None:
        self._graph = graph
        self._db = db
        self._location = location
        self._spark = spark
        self._step_max = step_max
        self._board = Board(graph.topologies)
        self._feeds: list[Feeds] = []  # of each source
        self._begun = perf_counter()
        self._before = self.status()
        self._threads = [self._thread(processor) for processor in graph.processors]
        for thread in self._threads:
            thread.start()

    def wait(
        self, until: Until = "idle", progress: Callable[[Report], None] | None = None
    ) -> Report:
        """Until it is idle or was stopped; raises what ended it otherwise. `progress` hears now and
        then how far it is."""
        told = self._begun
        while not self._board.is_over:
            self._board.await_change(LOOK_SECONDS)
            if until == "idle":
                self._settle()
            if progress is not None and perf_counter() - told >= LOOK_SECONDS:
                told = perf_counter()
                with suppress(PenstockError):  # as _settle
                    progress(self._report())
        self._end()
        self._board.raise_error()
        return self._report()

    def _report(self) -> Report:
        return _report(self._before, self.status(), perf_counter() - self._begun)

    def stop(self) -> None:
        """Steps that are under way are given up, and done again by the next run."""
        self._board.end()

    def status(self) -> GraphStatus:
        try:
            return ask_status(self._db.graphs, self._graph.name)
        except NotFoundError:  # it never ran here
            return GraphStatus(self._graph.name, [])

    def close(self) -> None:
        """Stop it, and close the location."""
        self._end()
        self._db.close()

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _end(self) -> None:
        self.stop()
        if self._threads:
            with suppress(Exception):  # of a session that somebody stopped
                self._spark.sparkContext.cancelJobGroup(self._group)
            for thread in self._threads:
                thread.join(END_SECONDS)
            self._threads = []
            for feeds in self._feeds:
                feeds.close()

    def _settle(self) -> None:
        try:
            self._board.settle(lambda: ask_status(self._db.graphs, self._graph.name))
        except PenstockError as error:
            # The broker is being replaced; processors find out for themselves what that means.
            _log.debug("graph %s: no status: %s", self._graph.name, error)

    @property
    def _group(self) -> str:
        return f"penstock graph {self._graph.name} {id(self)}"

    def _thread(self, processor: Processor) -> threading.Thread:
        from pyspark import InheritableThread

        attempts = self._attempts(processor)
        step_max = processor.step_max or self._step_max
        loop = Loop(
            processor, self._db.graphs, self._board, attempts,
            *((STEP_MAX, STEP_BYTES) if step_max is None else (step_max, None)),
        )  # fmt: skip

        def work() -> None:
            context = self._spark.sparkContext
            context.setJobGroup(self._group, processor.topology.id, interruptOnCancel=True)
            context.setLocalProperty("spark.scheduler.pool", processor.topology.id)
            loop.run()

        # One JVM thread each: pools and job groups belong to those.
        thread = InheritableThread(target=work, name=processor.topology.id)
        thread.daemon = True
        return thread

    def _attempts(self, processor: Processor) -> Callable[[], Attempts]:
        """Made here, so that a function that cannot be sent to workers is told before anything
        runs. A source begins anew after each failure."""
        bulk = self._db.bulk
        if processor.topology.kind == "source":
            from pyspark import InheritableThread

            feeds = Feeds(processor, bulk, self._board, InheritableThread)
            self._feeds.append(feeds)
            return feeds.begin
        job: Attempts
        if processor.frames:
            from penstock.spark.graphframe import FrameJob

            job = FrameJob(self._spark, bulk, self._location, processor)
        else:
            from penstock.spark.graphjob import Job

            job = Job(self._spark.sparkContext, bulk, self._location, processor)
        return lambda: job


def _report(before: GraphStatus, after: GraphStatus, seconds: float) -> Report:
    known = {each.processor: each for each in before.processors}
    reports = []
    for each in after.processors:
        old = known.get(each.processor)
        reports.append(
            ProcessorReport(
                each.processor,
                *(
                    getattr(each, name) - (getattr(old, name) if old else 0)
                    for name in ("step", "delivered", "written", "failed", "nil", "skipped")
                ),
            )
        )
    return Report(after.graph, seconds, reports)
