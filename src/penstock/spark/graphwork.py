"""What a Spark task does of a step: it reads its part of the ranges, calls the function for each
message, and stages what comes out.

Contract     `Work` travels to the workers and is called there with the number of a part. It gives
             one `Done`: outputs and error entries in the order of the input, then of their
             ordinal, each with its message hash as meta. A short step (one part) brings them back
             as nodes; a larger one stages them from here, so that they cross one socket and no
             JVM. A task that runs twice stages beside itself; the driver names which one counts.
Handled      Any Exception of one message, in the function or in what it returned: an error entry,
             or a nil where the graph has no error stream. A message has outputs or an error, never
             both: what it returned is looked at wholly before any of it is taken.
Unhandled    Stop and every other BaseException end the task and are told as `Done.stopped`, with
             the message that they came from. Whatever else goes wrong here (a store that is gone, a
             killed worker) fails the job.
Function     It is unpacked once per worker process: what it keeps in its module or closure (a
             connection, a model) lives from task to task.
"""

from __future__ import annotations

import gc
import os
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock.client.bulk import Bulk
from penstock.codec.node import node_value
from penstock.errors import InvalidError
from penstock.graph.requests import Kind
from penstock.log.batch import build_columns
from penstock.spark.graphcall import Call, Entry, Failure, Rows, Stopped
from penstock.spark.graphread import InputRange, Reading
from penstock.spark.handles import database
from penstock.spark.ship import shipped
from penstock.spark.sinks import Row, Target
from penstock.spark.staging import StreamStage

#: What comes back to the driver as it is, from a step of one part: for each stream, and for all.
INLINE_ROWS = 1000
INLINE_BYTES = 256 << 10
INLINE_BYTES_ALL = 2 << 20
#: Entries that are gathered in lists before they become a batch.
_BATCH_ROWS = 5_000
#: Handled errors that the driver logs word for word.
SAMPLES = 3

#: That a worker process keeps, of all graphs that it works for.
FUNCTIONS_MAX = 256

_functions: dict[bytes, Callable[..., Any]] = {}


@dataclass
class Landed:
    """Entries of one stream: nodes, or a writer of the staging that has them."""

    rows: int = 0
    nodes: list[bytes] = field(default_factory=list)
    writer: int | None = None


@dataclass
class Done:
    """What one task gave."""

    part: int
    outputs: list[Landed]
    errors: Landed
    nil: int = 0
    skipped: int = 0
    staging: int | None = None
    #: Of a ready-made sink.
    rows: list[Row] = field(default_factory=list)
    #: Some of the handled errors, and how many there were.
    samples: list[Failure] = field(default_factory=list)
    handled: int = 0
    #: Why it ended early; then nothing else counts.
    stopped: str | None = None


@dataclass
class Work:
    """One attempt of a step, for all its tasks."""

    location: str
    paths: list[str]  # where the driver finds modules: a function may come from one of them
    function: bytes  # cloudpickle
    graph: str
    processor: str
    processor_id: str
    kind: Kind
    takes_hash: bool
    inputs: list[InputRange]  # of an alts: the chosen one alone
    edges: list[int]  # part i is the messages edges[i] <= n < edges[i + 1] of the ranges
    outputs: list[str]
    has_errors: bool
    skips: bool  # what is evicted
    once: bool  # at_most_once: a task is never repeated
    key: bytes  # of the staging
    target: Target | None = None  # of a ready-made sink

    def __reduce__(self) -> Any:
        return shipped(self)

    def __call__(self, part: int, _: Iterable[int]) -> Iterator[Done]:
        # Here: a graph is looked at, and says what it misses, where Spark is not installed.
        from pyspark import TaskContext

        context = TaskContext.get()
        if self.once and context is not None and context.attemptNumber() > 0:
            raise InvalidError("at_most_once: a task that failed is not repeated")
        task = Task(self, part, database(self.location, waits=True).bulk)
        _freeze()
        yield task.run()


class Task:
    def __init__(self, work: Work, part: int, bulk: Bulk) -> None:
        self._work = work
        self._part = part
        self._bulk = bulk
        self._leases = ExitStack()
        self._renewing = False
        #: That is held by all outlets together.
        self.held = 0
        inline = len(work.edges) == 2
        self._outlets = [Outlet(self, inline=inline) for _ in (*work.outputs, "errors")]

    def run(self) -> Done:
        work = self._work
        call = Call(
            unpacked(work.function, work.paths), work.kind, work.graph, work.processor,
            work.processor_id, [(each.alias, each.stream, each.stream_id) for each in work.inputs],
            work.outputs, takes_hash=work.takes_hash, target=work.target,
        )  # fmt: skip
        reading = Reading(self._bulk, skips=work.skips)
        low, high = work.edges[self._part], work.edges[self._part + 1]
        ranges = [each.part(low, high) for each in work.inputs]
        *outlets, errors = self._outlets
        done = Done(self._part, [], Landed())
        with self._leases:
            if len(work.edges) > 2:
                # Others may have staged by now, and count on it that somebody renews the lease.
                self.stage()
            found = (
                reading.read_joined(ranges) if work.kind == "join"
                else reading.read_single(ranges[0])
            )  # fmt: skip
            try:
                for messages in found:
                    for made in call.each(messages):
                        if made is None:
                            done.nil += 1
                        elif isinstance(made, Rows):
                            done.rows += made.rows
                        elif isinstance(made, Failure):
                            done.handled += 1
                            if len(done.samples) < SAMPLES:
                                done.samples.append(made)
                            if work.has_errors:
                                errors.add(made.entry)
                            else:
                                done.nil += 1
                        else:
                            for at, entry in made:
                                outlets[at].add(entry)
            except Stopped as stopped:
                done.stopped = str(stopped)
                return done
            done.skipped = reading.skipped
            *done.outputs, done.errors = [outlet.finish() for outlet in self._outlets]
            done.staging = next((o.staging for o in self._outlets if o.staging is not None), None)
            return done

    def stage(self) -> StreamStage:
        """One writer of the staging that all tasks of this attempt share."""
        stage = StreamStage(self._bulk, self._work.key)
        if not self._renewing:
            self._leases.enter_context(stage.running())
            self._renewing = True
        return stage


class Outlet:
    """Where entries of one stream go."""

    def __init__(self, task: Task, *, inline: bool) -> None:
        self._task = task
        self._limit = INLINE_ROWS if inline else _BATCH_ROWS
        self._inline = inline
        self._stage: StreamStage | None = None
        self._clear()
        self._rows = 0
        self.staging: int | None = None

    def _clear(self) -> None:
        self._data: list[bytes] = []
        self._tags: list[bytes] = []
        self._metas: list[bytes] = []
        self._bytes = 0

    def add(self, entry: Entry) -> None:
        tag, data, meta = entry
        self._data.append(data)
        self._tags.append(tag)
        self._metas.append(meta)
        size = len(tag) + len(data) + len(meta)
        self._bytes += size
        self._task.held += size
        if (
            len(self._data) > self._limit
            or self._bytes > INLINE_BYTES
            or self._task.held > INLINE_BYTES_ALL
        ):
            self._flush()

    def _flush(self) -> None:
        if not self._data:
            return
        if self._stage is None:
            self._stage = self._task.stage()
        columns = {"data": self._data, "meta": self._metas}
        if any(self._tags):
            columns["tag"] = self._tags
        arrays = {name: pa.array(values, pa.binary()) for name, values in columns.items()}
        self._stage.add(pa.record_batch(arrays))
        self._rows += len(self._data)
        self._task.held -= self._bytes
        self._clear()

    def finish(self) -> Landed:
        if self._inline and self._stage is None:
            nodes = [
                node_value(body, 0, 0)
                for body in build_columns(self._data, tags=self._tags, metas=self._metas)
            ]
            return Landed(len(self._data), nodes)
        self._flush()
        if self._stage is None:
            return Landed()
        self.staging, writer, rows = self._stage.finish()
        assert rows == self._rows, "what was added is staged"
        return Landed(rows, writer=writer)


def _freeze() -> None:
    """Spark's workers collect garbage after every task; without what was imported, which stays
    anyway, that takes a millisecond instead of forty."""
    if not gc.get_freeze_count():
        gc.freeze()


def unpacked(packed: bytes, paths: list[str]) -> Callable[..., Any]:
    function = _functions.get(packed)
    if function is None:
        for path in paths:
            if path not in sys.path and os.path.exists(path):
                sys.path.append(path)
        function = pickle.loads(packed)
        if len(_functions) >= FUNCTIONS_MAX:
            del _functions[next(iter(_functions))]
        _functions[packed] = function
    return function
